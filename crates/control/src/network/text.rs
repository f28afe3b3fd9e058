//! The text of a registry: who may read the file, and what of it may be shown.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use keiro_config::FileLimits;

use super::REGISTRY_BYTES_MAX;
use crate::config::ConfigError;

pub(super) const LIMITS: FileLimits = FileLimits {
    bytes_max: REGISTRY_BYTES_MAX,
    missing_hint: "`keiro init --hub` makes one",
    too_long_hint: "is this the right file? a network has at most a thousand sites",
};

/// The text of the registry at `path`.
///
/// # Errors
/// It cannot be read, is a symbolic link, is open to others than its owner, or is too long.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let name = path.display().to_string();
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        // With the hint for a file that is missing.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return LIMITS.read(path),
        Err(error) => {
            let message = format!("cannot be read: {error}");
            return Err(ConfigError::of_file(
                &name,
                message,
                "name a file that the user keiro runs as can read",
            ));
        }
    };
    if metadata.is_symlink() {
        // Writing replaces the file: the link would be lost, and the file behind it would stay as it was.
        let message = "a symbolic link, and a registry is none".to_owned();
        return Err(ConfigError::of_file(&name, message, "name the file itself"));
    }
    let mode = metadata.mode() & 0o7777;
    if metadata.is_file() && mode & 0o077 != 0 {
        let message = format!("others can read or write the keys in it (mode {mode:04o})");
        let hint = format!("run `chmod 600 {name}`");
        return Err(ConfigError::of_file(&name, message, &hint));
    }
    LIMITS.read(path)
}

/// The text with `x` in the place of each character that may be one of a preshared key, so that reports may show its
/// lines. Bytes keep their places. Of a line that is well-formed the texts alone are hidden, so that it stays
/// well-formed; of one that is not, all that follows the key's name.
pub(super) fn without_secrets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SECRET_KEY) {
        let (before, behind) = rest.split_at(at + SECRET_KEY.len());
        shown.push_str(before);
        let line = text[..shown.len()].rsplit('\n').next().unwrap_or_default();
        let is_comment = has_comment(line);
        let is_header = line.trim_start().starts_with('[') && behind.starts_with(']');
        let structured = (!is_comment).then(|| without_texts(behind)).flatten();
        let length = match structured {
            _ if is_header => 0,
            Some((hidden, length)) => {
                shown.push_str(&hidden);
                length
            }
            None => {
                let length = match is_comment {
                    true => end_of_line(behind, 0),
                    false => doubtful(behind),
                };
                hide(&mut shown, &behind[..length]);
                length
            }
        };
        rest = &behind[length..];
    }
    shown.push_str(rest);
    shown
}

const SECRET_KEY: &str = "preshared_key";
const TRIPLES: [&str; 2] = ["\"\"\"", "'''"];

/// What follows the key's name up to the end of the line or a `}`, with `x` for what is in texts and comments, and
/// its length; `None`: it is not well-formed.
fn without_texts(behind: &str) -> Option<(String, usize)> {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name = behind.trim_start_matches(is_of_key);
    let name = name.strip_prefix(['"', '\'']).unwrap_or(name);
    let value = name.trim_start_matches(is_blank).strip_prefix('=')?;
    let value = value.trim_start_matches(is_blank);
    let (before, mut rest) = behind.split_at(behind.len() - value.len());
    let mut shown = before.to_owned();
    if value.starts_with('{') {
        // A site of this name.
        return Some((shown, before.len()));
    }
    let mut is_value = true;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' | '\'' => {
                let (delimiter, inside) = text_at(rest)?;
                let content = &rest[delimiter..delimiter + inside];
                let behind = &rest[inside + 2 * delimiter..];
                let next = behind.trim_start_matches(is_blank).chars().next();
                let ends = next.is_none_or(|c| matches!(c, ',' | '}' | '#' | '\n' | '\r'));
                // What would be wrong in the others must stay so.
                let is_plain = !content.contains(|c: char| c == '\\' || c.is_control());
                let is_good = match is_value {
                    true => ends,
                    false => is_plain,
                };
                if !is_good {
                    return None;
                }
                shown.push_str(&rest[..delimiter]);
                hide(&mut shown, content);
                shown.push_str(&rest[..delimiter]);
                is_value = false;
                inside + 2 * delimiter
            }
            _ if is_value => return None,
            '\n' | '}' => break,
            '#' => {
                let end = end_of_line(rest, 0);
                shown.push('#');
                hide(&mut shown, &rest[1..end]);
                end
            }
            c => {
                shown.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Some((shown, behind.len() - rest.len()))
}

/// The bytes of the delimiter and of the contents of the TOML string at the beginning; `None`: it does not end.
fn text_at(text: &str) -> Option<(usize, usize)> {
    let triple = TRIPLES.iter().find(|triple| text.starts_with(**triple));
    let delimiter = triple.copied().unwrap_or(&text[..1]);
    let inside = &text[delimiter.len()..];
    let mut is_escaped = false;
    for (at, c) in inside.char_indices() {
        if c == '\n' && delimiter.len() == 1 {
            return None;
        }
        if !is_escaped && inside[at..].starts_with(delimiter) {
            return Some((delimiter.len(), at));
        }
        is_escaped = c == '\\' && !is_escaped && delimiter.starts_with('"');
    }
    None
}

/// How much of what follows the key's name may be a secret, where it is not well-formed.
fn doubtful(behind: &str) -> usize {
    let line = end_of_line(behind, 0);
    for triple in TRIPLES {
        if let Some(begin) = behind[..line].find(triple) {
            let begin = begin + triple.len();
            let end = behind[begin..].find(triple);
            return end.map_or(behind.len(), |end| {
                end_of_line(behind, begin + end + triple.len())
            });
        }
    }
    let brace = behind[..line].find('}');
    let part = &behind[..brace.unwrap_or(line)];
    let is_open = ['"', '\'']
        .iter()
        .any(|quote| part.matches(*quote).count() % 2 == 1);
    let is_missing = brace.is_none() && part.chars().all(|c| is_blank(c) || "=\"'\r".contains(c));
    match is_open || is_missing {
        true if line < behind.len() => end_of_line(behind, line + 1),
        true => line,
        false => part.len(),
    }
}

/// Whether a comment has begun.
fn has_comment(line: &str) -> bool {
    let mut text = None;
    for c in line.chars() {
        match text {
            Some(quote) if c == quote => text = None,
            None if c == '#' => return true,
            None if matches!(c, '"' | '\'') => text = Some(c),
            _ => {}
        }
    }
    false
}

fn hide(shown: &mut String, secret: &str) {
    for c in secret.chars() {
        match c {
            '\n' | '\r' => shown.push(c),
            _ => shown.extend(std::iter::repeat_n('x', c.len_utf8())),
        }
    }
}

fn end_of_line(text: &str, from: usize) -> usize {
    text[from..]
        .find('\n')
        .map_or(text.len(), |length| from + length)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}
