//! Reading one table of a TOML document.
//!
//! A key that [`TableReader`] is asked for is known; [`TableReader::refuse_unknown_keys`] reports the
//! others with the nearest known key. A value that is wrong is reported and then treated as absent,
//! so that one pass finds all problems.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    nearest::nearest,
    report::Report,
    units::shown,
    value::{ValueError, type_name},
};

/// A value and where it is in the text.
#[derive(Clone, Debug)]
pub struct Located<T> {
    pub value: T,
    /// Where it is, in bytes of the text.
    pub at: Range<usize>,
}

/// One table that is being read.
pub struct TableReader<'d, 'i> {
    /// As the user wrote its header, for messages.
    header: &'static str,
    at: Range<usize>,
    table: &'d DeTable<'i>,
    known: Vec<&'static str>,
    /// Keys whose values were wrong.
    refused: Vec<&'static str>,
    /// The document has syntax errors: what is missing may only not have been understood.
    has_syntax_errors: bool,
}

impl<'d, 'i> TableReader<'d, 'i> {
    /// Reads `table`, which is at `at` in the text of `report`.
    pub fn new(
        header: &'static str,
        at: Range<usize>,
        table: &'d DeTable<'i>,
        report: &Report<'_>,
    ) -> Self {
        Self {
            header,
            at,
            table,
            known: Vec::new(),
            refused: Vec::new(),
            has_syntax_errors: report.has_syntax_errors(),
        }
    }

    /// The value of `key`; `None` if it is absent or wrong.
    pub fn optional<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, ValueError>,
    ) -> Option<Located<T>> {
        let value = self.raw(key)?;
        match read(value.get_ref()) {
            Ok(read) => Some(Located {
                value: read,
                at: value.span(),
            }),
            Err(complaint) => {
                complaint.add_to(report, &value.span(), key);
                self.refused.push(key);
                None
            }
        }
    }

    /// The value of `key`, which must be there; `None` if it is absent or wrong.
    pub fn required<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, ValueError>,
    ) -> Option<Located<T>> {
        if !self.has_syntax_errors && !self.table.contains_key(key) {
            let message = format!("{} has no `{key}`", self.header);
            report.add(&self.at, message, &format!("add {key} = {example}"));
        }
        self.optional(report, key, read)
    }

    /// The value of `key` as it stands; `None` if it is absent.
    pub fn raw(&mut self, key: &'static str) -> Option<&'d Spanned<DeValue<'i>>> {
        self.known.push(key);
        self.table.get(key)
    }

    /// The table under `key`, as in `[key]`; `None` if it is absent or no table.
    pub fn table(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        header: &'static str,
    ) -> Option<TableReader<'d, 'i>> {
        let value = self.raw(key)?;
        let (message, hint) = match value.get_ref() {
            DeValue::Table(table) => {
                return Some(TableReader::new(header, value.span(), table, report));
            }
            DeValue::Array(_) => (
                format!("[[{key}]] begins one of several tables, and there is only one"),
                format!("write {header}, once"),
            ),
            other => (
                format!("{key}: this is {}", type_name(other)),
                format!("begin a table with {header}"),
            ),
        };
        report.add(&value.span(), message, &hint);
        None
    }

    /// The tables under `key`, as in `[[key]]`; what is none is reported and left out.
    pub fn tables(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        header: &'static str,
    ) -> Vec<TableReader<'d, 'i>> {
        let Some(value) = self.raw(key) else {
            return Vec::new();
        };
        let DeValue::Array(array) = value.get_ref() else {
            let message = match value.get_ref() {
                DeValue::Table(_) => {
                    format!("[{key}] begins a single table, and there can be several")
                }
                other => format!("{key}: this is {}", type_name(other)),
            };
            let hint = format!("write {header}, once for every {key}");
            report.add(&value.span(), message, &hint);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for entry in array.iter() {
            if let DeValue::Table(table) = entry.get_ref() {
                tables.push(TableReader::new(header, entry.span(), table, report));
            } else {
                let message = format!("{key}: this is {}", type_name(entry.get_ref()));
                report.add(&entry.span(), message, &format!("write {header} tables"));
            }
        }
        tables
    }

    /// Where the table is: its header, or the whole of an inline table.
    pub fn span(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Reports that none of `keys` is there, of which one has to be.
    pub fn report_missing(&self, report: &mut Report<'_>, keys: &[&str], example: &str) {
        if let [first, rest @ ..] = keys
            && !self.has_syntax_errors
        {
            let others: Vec<String> = rest.iter().map(|key| format!("`{key}`")).collect();
            let message = format!("{} has no `{first}`, {}", self.header, others.join(", "));
            let message = message.replacen(", ", ", nor ", 1);
            report.add(&self.at, message, &format!("add {first} = {example}"));
        }
    }

    /// Makes `keys` known without reading them.
    pub fn allow(&mut self, keys: &[&'static str]) {
        for key in keys {
            if !self.known.contains(key) {
                self.known.push(key);
            }
        }
    }

    /// Whether `key` is there, with whatever value.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether `key` may be there with a value that was not understood.
    pub fn is_refused(&self, key: &str) -> bool {
        self.has_syntax_errors || self.refused.contains(&key)
    }

    /// Where the value of `key` is, or where the table begins.
    pub fn span_of(&self, key: &str) -> Range<usize> {
        self.table
            .get(key)
            .map_or_else(|| self.at.clone(), Spanned::span)
    }

    /// Reports the keys that were not asked for; whether there are any.
    pub fn refuse_unknown_keys(&self, report: &mut Report<'_>) -> bool {
        let known = |key: &str| self.known.contains(&key);
        let mut found = false;
        for key in self.table.keys().filter(|key| !known(key.get_ref())) {
            found = true;
            let written = key.get_ref();
            let hint = match nearest(written, self.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                // A header with a syntax error lets its keys fall to the table before it.
                None if self.has_syntax_errors => continue,
                None => format!("known keys are {}", self.known.join(", ")),
            };
            let message = format!("unknown key `{}` in {}", shown(written), self.header);
            report.add(&key.span(), message, &hint);
        }
        found
    }
}
