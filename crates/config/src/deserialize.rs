//! Reading a whole file into types that derive `Deserialize`, with all problems in one report.
//!
//! serde stops at the first problem. So the part of the document that has it is taken out, and what
//! is left is read again, until nothing is wrong or nothing can be taken out.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, Deserializer},
};

use crate::{
    document,
    nearest::nearest,
    report::{ConfigError, Report},
    units::{shown, split_hint},
};

/// Reads `text` into a `T`; `file` is what messages call it.
///
/// # Errors
/// Everything that is wrong with the text.
pub fn deserialize<T: DeserializeOwned>(text: &str, file: &str) -> Result<T, ConfigError> {
    let mut report = Report::new(file, text);
    let value = deserialize_into(&mut report);
    report.finish()?;
    Ok(value.expect("a text without problems is a value"))
}

/// As [`deserialize`], for further checks on the same report; `None` if a problem was found.
pub fn deserialize_into<T: DeserializeOwned>(report: &mut Report<'_>) -> Option<T> {
    let mut table = document::parse_into(report);
    if report.has_syntax_errors() {
        return None;
    }
    let end = report.text().len();
    let mut removed = Vec::new();
    loop {
        let document = Spanned::new(0..end, table.clone());
        let error = match T::deserialize(Deserializer::from(document)) {
            Ok(value) => return report.is_empty().then_some(value),
            Err(error) => error,
        };
        let missing = error.message().strip_prefix("missing field ");
        let is_consequence = missing.is_some_and(|key| removed.iter().any(|r| key.contains(r)));
        if !is_consequence {
            add(report, &error);
        }
        let at = error.span()?;
        match remove(&mut table, &at) {
            Some(key) if !report.is_full() => removed.push(format!("`{key}`")),
            _ => return None,
        }
    }
}

fn add(report: &mut Report<'_>, error: &toml::de::Error) {
    let at = error.span().unwrap_or(0..0);
    let text = error.message().trim().replace('\n', "; ");
    if let Some(rest) = text.strip_prefix("unknown field ") {
        // Every second piece between backquotes is a name; the first is the unknown one.
        let mut names = rest.split('`').skip(1).step_by(2);
        let unknown = names.next().unwrap_or_default();
        let known: Vec<&str> = names.collect();
        let hint = match nearest(unknown, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known keys are {}", known.join(", ")),
        };
        return report.add(&at, format!("unknown key `{}`", shown(unknown)), &hint);
    }
    if let Some(key) = text.strip_prefix("missing field ") {
        return report.add(&at, format!("there is no {key}"), "add it");
    }
    let (message, hint) = split_hint(&text);
    report.add(&at, message, hint);
}

/// Takes out the innermost key, or entry of an array, whose key or value contains `at`; its name.
fn remove(table: &mut DeTable<'_>, at: &Range<usize>) -> Option<String> {
    let mut doomed = None;
    for (key, value) in table.iter_mut() {
        if contains(&key.span(), at) {
            doomed = Some(key.get_ref().to_string());
            break;
        }
        if !reaches(value, at) {
            continue;
        }
        let inner = match value.get_mut() {
            DeValue::Table(table) => remove(table, at),
            DeValue::Array(array) => remove_from(array, at),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
        doomed = Some(key.get_ref().to_string());
        break;
    }
    let doomed = doomed?;
    table.remove(doomed.as_str());
    Some(doomed)
}

/// As [`remove`]. Of tables in an array one is taken out, of other values none: a list of addresses
/// has a wrong number of them without one.
fn remove_from(array: &mut DeArray<'_>, at: &Range<usize>) -> Option<String> {
    let place = array.iter().position(|entry| reaches(entry, at))?;
    let DeValue::Table(table) = array.get_mut(place)?.get_mut() else {
        return None;
    };
    if let Some(key) = remove(table, at) {
        return Some(key);
    }
    let others = array.iter().enumerate().filter(|(i, _)| *i != place);
    *array = others.map(|(_, entry)| entry.clone()).collect();
    Some(String::new())
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Whether `at` lies in a value. A table's own span is its header's, so its keys are asked too.
fn reaches(value: &Spanned<DeValue<'_>>, at: &Range<usize>) -> bool {
    contains(&value.span(), at)
        || match value.get_ref() {
            DeValue::Table(table) => table
                .iter()
                .any(|(key, value)| contains(&key.span(), at) || reaches(value, at)),
            DeValue::Array(array) => array.iter().any(|entry| reaches(entry, at)),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct File {
        name: Spanned<String>,
        ports: Option<Vec<u16>>,
        #[serde(default)]
        host: BTreeMap<String, Host>,
        #[serde(default)]
        link: Vec<Spanned<Host>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Host {
        delay: Option<u32>,
        address: String,
    }

    fn problems(text: &str) -> Vec<String> {
        let error = deserialize::<File>(text, "f").unwrap_err();
        error.problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_problems_are_found_with_their_places() {
        let text = "name = 3\nnmae = \"x\"\nports = [1, \"x\"]\n[host.a]\ndealy = 1\n\
                    address = \"a\"\n[[link]]\n[[link]]\naddress = \"b\"\ncolour = 1\n\
                    [host.b]\ndelay = \"x\"\naddress = \"c\"\n";
        let expected = [
            "f:1:8: invalid type: integer `3`, expected a string",
            "f:2:1: unknown key `nmae`; did you mean `name`?",
            "f:3:13: invalid type: string \"x\", expected u16",
            "f:5:1: unknown key `dealy`; did you mean `delay`?",
            "f:7:1: there is no `address`; add it",
            "f:10:1: unknown key `colour`; known keys are delay, address",
            "f:12:9: invalid type: string \"x\", expected u32",
        ];
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn a_missing_key_is_a_problem_unless_its_value_was() {
        assert_eq!(problems(""), ["f:1:1: there is no `name`; add it"]);
        assert_eq!(
            problems("name = \"a\"\n[host.a]\naddress = 1\n"),
            ["f:3:11: invalid type: integer `1`, expected a string"]
        );
    }

    #[test]
    fn syntax_errors_hide_what_may_only_not_have_been_understood() {
        let found = problems("name = a\n[host.a]\n");
        assert!(found[0].starts_with("f:1:8: not valid TOML"), "{found:?}");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_byte_order_mark_changes_neither_values_nor_places() {
        for good in [
            "name = \"a\"\n",
            "# a comment\nname = \"a\"\n",
            "\n\nname = \"a\"\r\n",
        ] {
            let file: File = deserialize(&format!("\u{feff}{good}"), "f").unwrap();
            assert_eq!(file.name.get_ref(), "a");
        }
        for bad in [
            "",
            "name = 3\n",
            "name = a\n",
            "nmae = \"x\"\n",
            "[host]\nname = \"a\"",
            "[\n",
        ] {
            // Problems at one place may change their order.
            let all = |text: &str| problems(text).into_iter().collect::<BTreeSet<_>>();
            assert_eq!(all(&format!("\u{feff}{bad}")), all(bad), "{bad}");
        }
    }

    #[test]
    fn a_report_is_bounded() {
        let keys: String = (0..1_000).map(|i| format!("unknown{i} = 1\n")).collect();
        assert_eq!(problems(&keys).len(), 100);
    }

    #[test]
    fn a_good_file_is_its_value() {
        let file: File = deserialize("name = \"a\"\nlink = [{ address = \"x\" }]\n", "f").unwrap();
        assert_eq!((file.name.span(), file.link.len()), (7..10, 1));
    }
}
