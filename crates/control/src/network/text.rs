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

/// The text with `x` in the place of each character of a preshared key, so that reports may show its lines. Bytes
/// keep their places.
pub(super) fn without_secrets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SECRET_KEY) {
        let (before, behind) = rest.split_at(at + SECRET_KEY.len());
        shown.push_str(before);
        let value = behind.len() - behind.trim_start_matches(is_before_value).len();
        shown.push_str(&behind[..value]);
        let behind = &behind[value..];
        let secret = behind.find(is_behind_value).unwrap_or(behind.len());
        shown.extend(std::iter::repeat_n('x', secret));
        rest = &behind[secret..];
    }
    shown.push_str(rest);
    shown
}

const SECRET_KEY: &str = "preshared_key";

fn is_before_value(c: char) -> bool {
    matches!(c, ' ' | '\t' | '=' | '"' | '\'')
}

fn is_behind_value(c: char) -> bool {
    matches!(c, '"' | '\'' | '\n' | '\r' | ',' | '}')
}
