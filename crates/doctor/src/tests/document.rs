//! The table of causes in docs/doctor.md.

use std::fs;

use crate::CAUSES;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");

#[test]
fn the_page_has_the_causes_as_they_are() {
    let page = fs::read_to_string(PAGE).expect("docs/doctor.md");
    let (before, rest) = page.split_once("<!-- causes -->\n").expect("a beginning");
    let (table, after) = rest.split_once("<!-- end -->").expect("an end");
    let rows = CAUSES
        .iter()
        .map(|cause| format!("| `{}` | {} | {} |\n", cause.id, cause.what, cause.remedy));
    let wanted: String = ["| cause | what is wrong | what to do |\n|---|---|---|\n".to_owned()]
        .into_iter()
        .chain(rows)
        .collect();
    if std::env::var_os("KEIRO_UPDATE").is_some() {
        let page = format!("{before}<!-- causes -->\n{wanted}<!-- end -->{after}");
        fs::write(PAGE, page).expect("written");
        return;
    }
    assert!(
        table == wanted,
        "docs/doctor.md differs from the causes; write it with KEIRO_UPDATE=1 cargo test -p keiro-doctor"
    );
}
