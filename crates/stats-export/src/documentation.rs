//! Schema and tables of the documentation, for the tests that hold the published ones to the
//! declarations.

use std::borrow::Cow;

use keiro_stats::{Reason, StatSet, Unit};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, json};

use crate::Stats;

impl<S: StatSet> JsonSchema for Stats<S> {
    fn schema_name() -> Cow<'static, str> {
        format!("Stats of {}", S::OBJECT).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for stat in S::STATS {
            let kind = match stat.unit {
                Unit::Seconds | Unit::Ratio | Unit::Number => "number",
                Unit::Flag => "boolean",
                Unit::Bytes | Unit::BitsPerSecond | Unit::Count(_) => "integer",
            };
            let mut property = json!({
                "description": format!("{}.", stat.help),
                "type": kind,
            });
            if kind != "boolean" {
                property["minimum"] = json!(0);
            }
            properties.insert(stat.name.to_owned(), property);
            if !stat.optional {
                required.push(stat.name);
            }
        }
        schemars::json_schema!({
            "type": "object",
            "properties": properties,
            "required": required,
        })
    }
}

/// The table of a set: its JSON fields and metrics, and the metrics' labels.
pub fn stats_table<S: StatSet>() -> String {
    let mut table = String::from("| field | metric | unit | |\n|---|---|---|---|\n");
    for stat in S::STATS {
        table.push_str(&format!(
            "| `{}` | `{}` | {}, {} | {} |\n",
            stat.name,
            stat.metric,
            stat.kind.name(),
            stat.unit.name(),
            stat.help
        ));
    }
    let labels = match S::LABELS {
        [] => "none".to_owned(),
        labels => code_list(labels),
    };
    table.push_str(&format!("\nLabels of the metrics: {labels}.\n"));
    table
}

/// The table of the reasons by which something is counted.
pub fn reasons_table(reasons: &[Reason]) -> String {
    let mut table = String::from("| reason | |\n|---|---|\n");
    for reason in reasons {
        let help = reason.help();
        table.push_str(&format!("| `{}` | {help} |\n", reason.name));
    }
    table
}

/// Words as code, with commas between them.
pub fn code_list(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

/// A page with each table put between `<!-- NAME -->` and `<!-- end -->`.
///
/// # Panics
/// If the page has no such place.
pub fn with_tables(page: &str, tables: &[(&str, String)]) -> String {
    let mut page = page.to_owned();
    for (name, table) in tables {
        let start = format!("<!-- {name} -->\n");
        let (before, rest) = page
            .split_once(&start)
            .unwrap_or_else(|| panic!("the page has no {start}"));
        let (_, after) = rest.split_once("<!-- end -->").expect("the table ends");
        page = format!("{before}{start}{table}<!-- end -->{after}");
    }
    page
}

/// Holds a page to its declarations; writes it instead if the environment has `KEIRO_UPDATE`.
///
/// # Panics
/// If the page cannot be read, or its tables are not these.
pub fn check_tables(file: &str, tables: &[(&str, String)]) {
    let published = std::fs::read_to_string(file).expect("the page can be read");
    let expected = with_tables(&published, tables);
    if std::env::var_os("KEIRO_UPDATE").is_some() {
        std::fs::write(file, &expected).expect("the page can be written");
        return;
    }
    assert!(
        expected == published,
        "{file} does not list the declared figures; if the change is meant, run this test with \
         KEIRO_UPDATE=1"
    );
}
