//! Keys that have a new name: read under both, and renamed in a file on request.
//!
//! [`apply_renames`] gives old keys their new names in a parsed document, with a warning for each.
//! [`rewrite`] changes the text itself. It replaces the bytes of the keys and nothing else, so that
//! comments, order, formatting and line ends stay as they are.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};
use toml_parser::{
    Source,
    parser::{Event, EventKind},
};

use crate::{
    document,
    report::{ConfigError, Report},
};

/// A key that has a new name.
#[derive(Clone, Copy, Debug)]
pub struct RenamedKey {
    /// Keys that lead to the table; `*` stands for any. Arrays of tables count as their tables.
    pub table: &'static [&'static str],
    /// The name until now.
    pub old: &'static str,
    /// The name from now on.
    pub new: &'static str,
}

/// What [`rewrite`] changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The whole new text.
    pub text: String,
    /// `line 4: demand → latency_target`, in the order of the file; empty: nothing was to do.
    pub changes: Vec<String>,
}

/// Gives old keys their new names. Each gets one warning, where it stands first; old and new in one
/// table are an error.
pub fn apply_renames(table: &mut DeTable<'_>, renames: &[RenamedKey], report: &mut Report<'_>) {
    let mut renamed = Vec::new();
    for rename in renames {
        let places = rename_below(table, rename.table, rename, report);
        let count = places.len();
        if let Some(first) = places.into_iter().min_by_key(|at| at.start) {
            renamed.push((first, count, rename));
        }
    }
    // With a problem in it [`rewrite`] refuses the file.
    let first = match report.is_empty() {
        true => "",
        false => "once the errors are corrected ",
    };
    for (at, count, RenamedKey { old, new, .. }) in renamed {
        let more = match count - 1 {
            0 => String::new(),
            1 => ", here and in one more place".to_owned(),
            more => format!(", here and in {more} more places"),
        };
        let hint = format!(
            "rename it, or {first}let `keiro config check --fix {}` do it; the next release refuses `{old}`",
            report.file()
        );
        report.warn(&at, format!("`{old}` is now called `{new}`{more}"), &hint);
    }
}

/// `text` with old keys under their new names.
///
/// # Errors
/// It is not valid TOML, or a table has a key under both names.
pub fn rewrite(text: &str, file: &str, renames: &[RenamedKey]) -> Result<Rewrite, ConfigError> {
    let (mut table, mut report) = document::parse(text, file);
    apply_renames(&mut table, renames, &mut report);
    let mut rewritten = String::with_capacity(text.len());
    let mut changes = Vec::new();
    let mut copied = 0;
    if report.is_empty() {
        // A valid document is not nested deeply, so the recursion below is bounded.
        for (at, rename) in occurrences(text, renames) {
            let line = report.line(&at);
            changes.push(format!("line {line}: {} → {}", rename.old, rename.new));
            rewritten.push_str(&text[copied..at.start]);
            rewritten.push_str(rename.new);
            copied = at.end;
        }
    }
    report.finish()?;
    rewritten.push_str(&text[copied..]);
    Ok(Rewrite {
        text: rewritten,
        changes,
    })
}

/// Where the key had its old name.
fn rename_below(
    table: &mut DeTable<'_>,
    below: &[&str],
    rename: &RenamedKey,
    report: &mut Report<'_>,
) -> Vec<Range<usize>> {
    let Some((first, rest)) = below.split_first() else {
        return rename_in(table, rename, report).into_iter().collect();
    };
    let mut renamed = Vec::new();
    for (key, value) in table.iter_mut() {
        if *first != "*" && key.get_ref() != first {
            continue;
        }
        match value.get_mut() {
            DeValue::Table(table) => renamed.extend(rename_below(table, rest, rename, report)),
            DeValue::Array(array) => {
                for entry in array.iter_mut() {
                    if let DeValue::Table(table) = entry.get_mut() {
                        renamed.extend(rename_below(table, rest, rename, report));
                    }
                }
            }
            _ => {}
        }
    }
    renamed
}

/// `None`: the table has no such key, or has it under both names, which is in the report.
fn rename_in(
    table: &mut DeTable<'_>,
    rename: &RenamedKey,
    report: &mut Report<'_>,
) -> Option<Range<usize>> {
    let RenamedKey { old, new, .. } = rename;
    let (key, value) = table.remove_entry(*old)?;
    let at = key.span();
    if table.contains_key(*new) {
        let message = format!("`{old}` is the old name of `{new}`, and both are written here");
        report.add(&at, message, &format!("write only `{new}`"));
        return None;
    }
    table.insert(Spanned::new(at.clone(), (*new).into()), value);
    Some(at)
}

/// Where old keys are written, headers included, in the order of the text.
fn occurrences<'r>(text: &str, renames: &'r [RenamedKey]) -> Vec<(Range<usize>, &'r RenamedKey)> {
    let source = Source::new(text);
    let tokens = source.lex().into_vec();
    let mut events: Vec<Event> = Vec::new();
    toml_parser::parser::parse_document(&tokens, &mut events, &mut ());
    let mut position = Position::default();
    let mut found = Vec::new();
    for event in &events {
        if event.kind() != EventKind::SimpleKey {
            position.on_event(event.kind());
            continue;
        }
        let mut key = String::new();
        if let Some(raw) = source.get(event) {
            raw.decode_key(&mut key, &mut ());
        }
        position.on_key(key);
        let rename = renames.iter().find(|rename| position.is_at(rename));
        found.extend(rename.map(|rename| (event.span().start()..event.span().end(), rename)));
    }
    found
}

/// Which key a parser's event belongs to.
#[derive(Default)]
struct Position {
    path: Vec<String>,
    /// Parts of `path` that lead to each table around: the header's, then those of inline tables.
    tables: Vec<usize>,
    /// The next key begins a new path in its table. Otherwise it continues a dotted key.
    at_new_key: bool,
}

impl Position {
    fn on_event(&mut self, event: EventKind) {
        match event {
            EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                self.path.clear();
                self.tables.clear();
                self.at_new_key = false;
            }
            EventKind::StdTableClose | EventKind::ArrayTableClose | EventKind::InlineTableOpen => {
                self.tables.push(self.path.len());
                self.at_new_key = true;
            }
            EventKind::InlineTableClose => {
                self.path.truncate(self.tables.pop().unwrap_or(0));
                self.at_new_key = true;
            }
            EventKind::KeyValSep => self.at_new_key = true,
            _ => {}
        }
    }

    fn on_key(&mut self, key: String) {
        if self.at_new_key {
            self.path.truncate(self.tables.last().copied().unwrap_or(0));
            self.at_new_key = false;
        }
        self.path.push(key);
    }

    fn is_at(&self, rename: &RenamedKey) -> bool {
        let wanted = rename.table.iter().chain([&rename.old]);
        self.path.len() == rename.table.len() + 1
            && self
                .path
                .iter()
                .zip(wanted)
                .all(|(key, wanted)| *wanted == "*" || key == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENAMES: [RenamedKey; 3] = [
        RenamedKey {
            table: &[],
            old: "intake",
            new: "listener",
        },
        RenamedKey {
            table: &["app"],
            old: "demand",
            new: "latency_target",
        },
        RenamedKey {
            table: &["tenant", "*"],
            old: "law",
            new: "controller",
        },
    ];

    /// What every form of a key becomes, with the lines where something changed.
    fn rewritten(text: &str) -> (String, Vec<String>) {
        let rewrite = rewrite(text, "f", &RENAMES).unwrap();
        (rewrite.text, rewrite.changes)
    }

    #[test]
    fn every_form_of_a_key_is_renamed_and_nothing_else() {
        for (old, new) in [
            ("[[intake]]\nudp = 1\n", "[[listener]]\nudp = 1\n"),
            ("[[ intake ]] # intake\n", "[[ listener ]] # intake\n"),
            ("intake = [{ a = 1 }]\n", "listener = [{ a = 1 }]\n"),
            (
                "[[app]]\n# demand\ndemand   = \"demand\" # demand = 1\n",
                "[[app]]\n# demand\nlatency_target   = \"demand\" # demand = 1\n",
            ),
            (
                "app = [{ name = \"x\", demand = 1 },\n { demand = 2 }]\n",
                "app = [{ name = \"x\", latency_target = 1 },\n { latency_target = 2 }]\n",
            ),
            (
                "[[app]]\n\"demand\" = 1\n[[app]]\n'demand' = 1\n",
                "[[app]]\nlatency_target = 1\n[[app]]\nlatency_target = 1\n",
            ),
            (
                "[[app]]\n\"dem\\u0061nd\" = 1\n",
                "[[app]]\nlatency_target = 1\n",
            ),
            ("tenant.blue.law = 1\n", "tenant.blue.controller = 1\n"),
            (
                "[tenant]\nblue.law = 1\nred = { law = 2 }\n",
                "[tenant]\nblue.controller = 1\nred = { controller = 2 }\n",
            ),
            (
                "[tenant.blue]\r\nlaw = 1\r\n",
                "[tenant.blue]\r\ncontroller = 1\r\n",
            ),
            ("\u{feff}intake = []\n", "\u{feff}listener = []\n"),
            (
                "intake.a = 1\nintake.b = 2",
                "listener.a = 1\nlistener.b = 2",
            ),
        ] {
            let (text, changes) = rewritten(old);
            assert_eq!(text, new, "{old}");
            assert!(!changes.is_empty());
            let again = rewrite(&text, "f", &RENAMES).unwrap();
            assert_eq!((again.text.as_str(), again.changes.len()), (new, 0));
        }
    }

    #[test]
    fn the_same_words_elsewhere_stay() {
        for text in [
            "[gateway]\nname = \"demand\"\nintake = 1\n",
            "[law]\ndemand = 1\n",
            "[[path]]\ndemand = 1\n",
            "[tenant.law]\nid = 1\n[tenant.law.peer.law]\nlaw = 1\n",
            "[app.other]\nx = { demand = 1 }\n",
            "",
        ] {
            assert_eq!(rewritten(text), (text.to_owned(), vec![]));
        }
    }

    #[test]
    fn changes_are_listed_in_the_order_of_the_file() {
        let (_, changes) = rewritten("[[intake]]\n[[app]]\ndemand = 1\n[[intake]]\n");
        let expected = [
            "line 1: intake → listener",
            "line 3: demand → latency_target",
            "line 4: intake → listener",
        ];
        assert_eq!(changes, expected);
    }

    #[test]
    fn both_names_in_one_table_are_refused() {
        for (text, wanted) in [
            (
                "[[app]]\ndemand = 1\nlatency_target = 2\n",
                "f:2:1: `demand` is the old name",
            ),
            (
                "[[listener]]\n[[intake]]\n",
                "f:2:3: `intake` is the old name of `listener`",
            ),
        ] {
            let error = rewrite(text, "f", &RENAMES).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
        // In two tables they are two keys.
        let (_, changes) = rewritten("[[app]]\ndemand = 1\n[[app]]\nlatency_target = 2\n");
        assert_eq!(changes.len(), 1);
    }

    #[test]
    fn warnings_of_a_file_that_cannot_be_rewritten_say_what_comes_first() {
        for text in [
            "[[app]]\ndemand = 1\n[[app]]\ndemand = 1\nlatency_target = 2\n",
            "[[app]]\ndemand = 1\n[[intake]\n",
        ] {
            let error = rewrite(text, "f", &RENAMES).unwrap_err();
            assert!(!error.warnings().is_empty(), "{error}");
            for warning in error.warnings() {
                let hint = warning.hint.as_deref().unwrap();
                let expected = "rename it, or once the errors are corrected let `keiro config check --fix f` do it";
                assert!(hint.starts_with(expected), "{hint}");
            }
        }
    }

    #[test]
    fn nothing_is_renamed_in_a_text_that_is_not_toml() {
        assert!(rewrite("[[intake]\n", "f", &RENAMES).is_err());
        let deep = format!("a = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(rewrite(&deep, "f", &RENAMES).is_err());
    }

    #[test]
    fn readers_see_the_new_name_and_users_a_warning() {
        let (mut table, mut report) = document::parse("[[app]]\ndemand = 1\n", "f");
        apply_renames(&mut table, &RENAMES, &mut report);
        let shown = format!("{table:?}");
        assert!(shown.contains("latency_target"), "{shown}");
        let warnings = report.finish().unwrap();
        assert_eq!(
            warnings[0].to_string(),
            "f:2:1: `demand` is now called `latency_target`; rename it, or let `keiro config check \
             --fix f` do it; the next release refuses `demand`"
        );
    }

    #[test]
    fn an_old_name_is_warned_of_once_however_often_it_stands() {
        let text = "[[app]]\ndemand = 1\n".repeat(65);
        let (mut table, mut report) = document::parse(&text, "f");
        apply_renames(&mut table, &RENAMES, &mut report);
        let warnings = report.finish().unwrap();
        assert_eq!(warnings.len(), 1);
        let shown = warnings[0].to_string();
        let expected =
            "f:2:1: `demand` is now called `latency_target`, here and in 64 more places; rename";
        assert!(shown.starts_with(expected), "{shown}");
    }
}
