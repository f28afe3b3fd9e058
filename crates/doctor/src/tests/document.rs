//! The table of causes in docs/doctor.md.

use std::fs;

use crate::{CAUSES, egress::EGRESS_CAUSES};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");

#[test]
fn the_page_has_the_causes_as_they_are() {
    check(
        "causes",
        CAUSES.iter().map(|it| [it.id, it.what, it.remedy]),
    );
    let of_egress = EGRESS_CAUSES.iter();
    check(
        "egress causes",
        of_egress.map(|it| [it.id, it.what, it.remedy]),
    );
}

/// Compares the table between two marks, or writes it.
fn check(mark: &str, causes: impl Iterator<Item = [&'static str; 3]>) {
    let page = fs::read_to_string(PAGE).expect("docs/doctor.md");
    let mark = format!("<!-- {mark} -->\n");
    let (before, rest) = page.split_once(&mark).expect("a beginning");
    let (table, after) = rest.split_once("<!-- end -->").expect("an end");
    let rows = causes.map(|[id, what, remedy]| format!("| `{id}` | {what} | {remedy} |\n"));
    let wanted: String = ["| cause | what is wrong | what to do |\n|---|---|---|\n".to_owned()]
        .into_iter()
        .chain(rows)
        .collect();
    if std::env::var_os("KEIRO_UPDATE").is_some() {
        let page = format!("{before}{mark}{wanted}<!-- end -->{after}");
        fs::write(PAGE, page).expect("written");
        return;
    }
    assert!(
        table == wanted,
        "docs/doctor.md differs from the causes; write it with KEIRO_UPDATE=1 cargo test -p keiro-doctor"
    );
}
