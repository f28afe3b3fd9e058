//! Words that plain technical English rarely needs, in comments and docs.

use std::{fs, path::PathBuf};

use crate::tracked_files::tracked_files;

/// A sentence reads better with "reports", "no one", "the sender that" in their place.
const REFUSED: [&str; 8] = [
    "told", "tell", "tells", "telling", "nobody", "somebody", "whoever", "whom",
];

/// Prints each refused word with its place; `false`: there are some.
pub(crate) fn check(directory: Option<&String>) -> Result<bool, String> {
    let directory = PathBuf::from(directory.map_or(".", String::as_str));
    let (mut words, mut found) = (0, 0);
    let files = tracked_files(&directory, &["*.rs", "*.md"])?;
    // This file lists the words.
    for file in files.iter().filter(|file| *file != "xtask/src/words.rs") {
        let path = directory.join(file);
        // A file that git lists and the working tree lacks has no words.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let Some(prose) = prose(file, line) else {
                continue;
            };
            words += prose.split(is_gap).filter(|word| !word.is_empty()).count();
            for word in refused(prose) {
                found += 1;
                println!("{file}:{}: \"{word}\": {}", number + 1, line.trim());
            }
        }
    }
    println!("{found} refused words among {words} of comments and docs");
    Ok(found == 0)
}

/// The part of a line that is prose: a comment, or all of a page.
fn prose<'a>(file: &str, line: &'a str) -> Option<&'a str> {
    if !file.ends_with(".rs") {
        return Some(line);
    }
    let mut from = 0;
    while let Some(at) = line[from..].find("//") {
        let at = from + at;
        // The slashes of an address are no comment.
        if !line[..at].ends_with(':') {
            return Some(&line[at + 2..]);
        }
        from = at + 2;
    }
    None
}

/// Refused words outside code in backticks, which may name what is called so.
fn refused(prose: &str) -> impl Iterator<Item = &str> {
    prose
        .split('`')
        .step_by(2)
        .flat_map(|text| text.split(is_gap))
        .filter(|word| {
            REFUSED
                .iter()
                .any(|refused| word.eq_ignore_ascii_case(refused))
        })
}

fn is_gap(character: char) -> bool {
    !character.is_alphanumeric() && character != '\''
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(file: &str, line: &'a str) -> Vec<&'a str> {
        prose(file, line).map_or(Vec::new(), |prose| refused(prose).collect())
    }

    #[test]
    fn refused_words_are_found_in_comments_and_pages_only() {
        assert_eq!(found("a.rs", "let told = 1; // who is Told"), ["Told"]);
        assert!(found("a.rs", "fn tell() -> &'static str { \"told\" }").is_empty());
        assert!(found("a.rs", "/// A teller, untold.").is_empty());
        assert_eq!(found("a.md", "Nobody tells."), ["Nobody", "tells"]);
        assert_eq!(found("a.rs", "open(\"http://x\"); // whom"), ["whom"]);
        assert!(found("a.md", "The field `told` is `advertised` now.").is_empty());
    }
}
