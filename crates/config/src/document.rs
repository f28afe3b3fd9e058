//! From text to a TOML document.

use toml::de::DeTable;

use crate::report::Report;

/// Reads `text`; `file` is what messages call it.
///
/// Syntax errors are in the report, and the table holds what could be read in spite of them.
pub fn parse<'t>(text: &'t str, file: &'t str) -> (DeTable<'t>, Report<'t>) {
    let mut report = Report::new(file, text);
    let table = parse_into(&mut report);
    (table, report)
}

/// Reads the text that `report` is on.
pub(crate) fn parse_into<'t>(report: &mut Report<'t>) -> DeTable<'t> {
    let (document, errors) = DeTable::parse_recoverable(report.text());
    for error in &errors {
        syntax_error(report, error);
    }
    document.into_inner()
}

fn syntax_error(report: &mut Report<'_>, error: &toml::de::Error) {
    report.set_has_syntax_errors();
    let at = error.span().unwrap_or(0..0);
    if report.is_full() {
        // Only counted: a file of nonsense can have a million of them on one long line.
        return report.add(&at, "", "");
    }
    let line = report.source_line(&at);
    let value = line.split_once('=').map(|(_, value)| value.trim_start());
    let begins_unquoted = |v: &str| v.starts_with(|c: char| c.is_alphanumeric() || c == '/');
    let hint = match error.message() {
        "duplicate key" => "keep one of them",
        deep if deep.contains("recurs") => "nest fewer arrays and tables in each other",
        _ if value.is_some_and(begins_unquoted) => "put the value in quotes, as in \"20ms\"",
        _ => "",
    };
    report.add(&at, format!("not valid TOML: {}", error.message()), hint);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_nesting_is_called_so() {
        let text = format!("a = {}1{}", "{ b = [".repeat(200), "] }".repeat(200));
        let (_, report) = parse(&text, "f");
        let error = report.finish().unwrap_err();
        let first = error.problems()[0].to_string();
        assert!(first.contains("nest fewer arrays"), "{first}");
    }
}
