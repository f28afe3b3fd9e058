//! Reads the entries of a file: how many there are, their names, and references by name.

use std::{collections::BTreeMap, ops::Range};

use keiro_config::{Located, Report, TableReader, nearest, shown};

use super::{CONFIG_ENTRIES_MAX, Name, values::name};

pub(super) struct Reader<'t> {
    pub(super) report: Report<'t>,
    /// Whether the report has the problem of too many entries, or must not have it.
    pub(super) too_many: bool,
    /// The file has `[network]`: tenants may have all their peers from there.
    pub(super) has_network: bool,
}

/// The names of one kind of entry, in file order, also of entries that are otherwise wrong: what
/// refers to them is not wrong too.
pub(super) struct Names {
    header: &'static str,
    pub(super) names: Vec<Option<Name>>,
    index: BTreeMap<Name, usize>,
    /// Some have no name that is one.
    nameless: bool,
}

/// The names that entries refer to.
pub(super) struct EntryNames {
    pub(super) paths: Names,
    pub(super) peers: Names,
    pub(super) apps: Names,
}

pub(super) type Entries<'d, 'i> = Vec<TableReader<'d, 'i>>;

impl Reader<'_> {
    /// The tables under `key`, as many as there may still be entries.
    pub(super) fn entries<'d, 'i>(
        &mut self,
        root: &mut TableReader<'d, 'i>,
        key: &'static str,
        header: &'static str,
        left: &mut usize,
    ) -> Entries<'d, 'i> {
        let tables = root.tables(&mut self.report, key, header).into_iter();
        tables
            .take_while(|table| self.take_entry(&table.span(), left))
            .collect()
    }

    pub(super) fn take_entry(&mut self, at: &Range<usize>, left: &mut usize) -> bool {
        if *left > 0 {
            *left -= 1;
            return true;
        }
        if !self.too_many {
            self.too_many = true;
            let message = format!(
                "more than {CONFIG_ENTRIES_MAX} entries; endpoints, tenants, their rules, their peers and \
                 the prefixes behind these count too"
            );
            let hint = "share the load between several gateways";
            self.report.add(at, message, hint);
        }
        false
    }

    /// Leaves out the problem of too many entries, since a narrower limit has been reported.
    pub(super) fn suppress_entry_limit(&mut self) {
        self.too_many = true;
    }

    pub(super) fn names(&mut self, entries: &mut Entries<'_, '_>, header: &'static str) -> Names {
        let mut names = Names {
            header,
            names: Vec::new(),
            index: BTreeMap::new(),
            nameless: false,
        };
        let mut spans: BTreeMap<Name, Range<usize>> = BTreeMap::new();
        for fields in entries {
            let name = fields.required(&mut self.report, "name", "\"...\"", name);
            let Some(Located { value: name, at }) = name else {
                names.nameless = true;
                names.names.push(None);
                continue;
            };
            if let Some(earlier) = spans.get(&name) {
                let line = self.report.line(earlier);
                let message = format!("another {header} is named `{name}` (line {line})");
                self.report.add(&at, message, "give each its own name");
            } else {
                spans.insert(name.clone(), at);
                names.index.insert(name.clone(), names.names.len());
            }
            names.names.push(Some(name));
        }
        names
    }

    /// The index of the entry that a key names.
    pub(super) fn reference(
        &mut self,
        key: &str,
        written: &Located<String>,
        names: &Names,
    ) -> Option<usize> {
        let found = Name::new(&written.value)
            .ok()
            .and_then(|n| names.index.get(&n).copied());
        // An entry whose own name is wrong may be the one that is meant.
        if found.is_none() && !self.report.has_syntax_errors() && !names.nameless {
            let message = format!(
                "{key}: there is no {} named `{}`",
                names.header,
                shown(&written.value)
            );
            let hint = match self.report.is_full() {
                true => String::new(),
                false => names.hint(&written.value),
            };
            self.report.add(&written.at, message, &hint);
        }
        found
    }
}

impl Names {
    fn hint(&self, written: &str) -> String {
        if self.index.is_empty() {
            return format!("add {} with this name", self.header);
        }
        if let Some(near) = nearest(written, self.index.keys().map(Name::as_str)) {
            return format!("did you mean `{near}`?");
        }
        let mut known: Vec<_> = self
            .index
            .keys()
            .take(NAMES_SHOWN_MAX)
            .map(Name::as_str)
            .collect();
        if self.index.len() > NAMES_SHOWN_MAX {
            known.push("...");
        }
        format!("there are {}", known.join(", "))
    }
}

/// Names in a hint. Ours: one line.
const NAMES_SHOWN_MAX: usize = 8;
