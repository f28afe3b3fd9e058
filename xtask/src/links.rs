//! Links between pages, and source files that pages name: each leads somewhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::tracked_files::tracked_files;

/// Prints each link to a file that does not exist; `false`: there are some.
pub(crate) fn check(directory: Option<&String>) -> Result<bool, String> {
    let directory = PathBuf::from(directory.map_or(".", String::as_str));
    let pages = tracked_files(&directory, &["*.md"])?;
    let (mut links, mut dead) = (0, 0);
    for page in &pages {
        let Ok(text) = fs::read_to_string(directory.join(page)) else {
            continue;
        };
        let from = Path::new(page).parent().unwrap_or(Path::new(""));
        for (number, line) in text.lines().enumerate() {
            let targets = targets(line).map(|target| (target, from.join(target)));
            let sources = sources(line).map(|source| (source, PathBuf::from(source)));
            for (shown, path) in targets.chain(sources) {
                links += 1;
                if !directory.join(&path).exists() {
                    dead += 1;
                    println!("{page}:{}: there is no {shown}", number + 1);
                }
            }
        }
    }
    println!("{dead} dead links among {links}");
    Ok(dead == 0)
}

/// Files that a line of Markdown links to, without their fragments.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split([')', '#', ' ']).next()?;
        let elsewhere = target.contains("://") || target.starts_with("mailto:");
        (!target.is_empty() && !elsewhere).then_some(target)
    })
}

/// Source files that a line names in backticks, from the repository's root.
fn sources(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|code| {
        let is_path = code
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
        code.starts_with("crates/") && is_path
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_source_files_of_a_line_are_found() {
        let line = "See [a](b.md#c), [d](https://e) and `crates/x/src/y.rs`, `cargo test -p z`.";
        assert_eq!(targets(line).collect::<Vec<_>>(), ["b.md"]);
        assert_eq!(sources(line).collect::<Vec<_>>(), ["crates/x/src/y.rs"]);
    }
}
