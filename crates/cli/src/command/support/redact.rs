//! Takes secrets out of texts.
//!
//! Configurations are read as TOML, so that the value of every key that may be a secret goes, and with it whatever is
//! in comments. All texts are then searched for what those values were, for what is in the files that hold keys, and
//! for what looks like a secret wherever it is: private keys in PEM, 32 bytes in base64 that are no known public key,
//! invitations, passwords in URLs and after names such as `password`.

use std::collections::BTreeSet;

use serde_json::Value;
use toml::Value as Toml;
use zeroize::Zeroizing;

/// Stands in the place of a secret.
pub(super) const REMOVED: &str = "(removed)";
/// A shorter text may be part of any word. Ours.
const SECRET_BYTES_MIN: usize = 6;
/// Of a file that holds keys. Ours: certificates are a few kB.
pub(super) const KEY_FILE_BYTES_MAX: u64 = 64 << 10;
/// 32 bytes in base64.
const KEY_CHARACTERS: usize = 44;
/// An invitation is longer than that (`keiro_control::invitation`).
const INVITATION_CHARACTERS_MIN: usize = 40;
/// What invitations begin with.
const INVITATION: &str = "keiro1";

/// See the module.
#[derive(Default)]
pub(super) struct Redactor {
    /// The longest first: one may be part of another.
    secrets: Vec<Zeroizing<String>>,
    public_keys: BTreeSet<String>,
    /// Files that hold secrets, by the configuration.
    pub(super) key_files: BTreeSet<String>,
    /// What was removed, counted.
    pub(super) removed: u64,
}

impl Redactor {
    /// This text is a secret wherever it is.
    pub(super) fn add_secret(&mut self, text: &str) {
        let text = text.trim();
        if text.len() >= SECRET_BYTES_MIN && !self.public_keys.contains(text) {
            let place = self.secrets.partition_point(|of| of.len() > text.len());
            self.secrets.insert(place, Zeroizing::new(text.to_owned()));
        }
    }

    /// The lines of a file that holds keys are secrets.
    pub(super) fn add_key_file(&mut self, contents: &str) {
        for line in contents.lines().filter(|line| !line.starts_with("-----")) {
            self.add_secret(line);
        }
    }

    /// What an answer has as a public key is none.
    pub(super) fn add_public_keys(&mut self, answer: &Value) {
        match answer {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(key) if is_public(name) => {
                            self.public_keys.insert(key.clone());
                        }
                        value => self.add_public_keys(value),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.add_public_keys(value)),
            _ => {}
        }
    }

    /// A configuration without secrets and comments; of one that is no TOML the names alone.
    pub(super) fn configuration(&mut self, text: &str) -> String {
        let Ok(mut table) = text.parse::<toml::Table>() else {
            self.removed += 1;
            return names(text);
        };
        self.find_public_keys(&table);
        for (name, value) in &mut table {
            self.redact(name, value);
        }
        let text = table.to_string();
        self.clean(&text)
    }

    fn find_public_keys(&mut self, table: &toml::Table) {
        for (name, value) in table {
            match value {
                Toml::String(key) if is_public(name) => {
                    self.public_keys.insert(key.clone());
                }
                Toml::Table(table) => self.find_public_keys(table),
                Toml::Array(values) => {
                    let tables = values.iter().filter_map(Toml::as_table);
                    tables.for_each(|table| self.find_public_keys(table));
                }
                _ => {}
            }
        }
    }

    fn redact(&mut self, name: &str, value: &mut Toml) {
        match value {
            Toml::String(text) => {
                if is_file_of_secrets(name) || may_be_secret(name) && text.starts_with('/') {
                    self.key_files.insert(text.clone());
                } else if may_be_secret(name) {
                    self.add_secret(text);
                    self.removed += 1;
                    REMOVED.clone_into(text);
                }
            }
            Toml::Array(values) => values.iter_mut().for_each(|value| self.redact(name, value)),
            Toml::Table(table) => table.iter_mut().for_each(|(inner, value)| {
                // What is below the name of a secret is one, unless it has a name of its own.
                let name = if is_secret(name) { name } else { inner };
                self.redact(name, value);
            }),
            _ => {}
        }
    }

    /// A text without secrets.
    pub(super) fn clean(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            let found = text.matches(secret.as_str()).count();
            if found > 0 {
                self.removed += found as u64;
                text = text.replace(secret.as_str(), REMOVED);
            }
        }
        let text = self.without_pem(&text);
        let text = self.without_passwords_in_urls(&text);
        let text = self.without_assigned(&text);
        self.without_keys(&text)
    }

    fn without_pem(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut is_inside = false;
        for line in text.split_inclusive('\n') {
            let is_mark = |begins: &str| line.contains(begins) && line.contains("PRIVATE KEY-----");
            if is_mark("-----BEGIN") {
                is_inside = true;
                self.removed += 1;
                shown.push_str(REMOVED);
                shown.push('\n');
            }
            if !is_inside {
                shown.push_str(line);
            }
            if is_mark("-----END") {
                is_inside = false;
            }
        }
        shown
    }

    /// `https://(removed)@host`.
    fn without_passwords_in_urls(&mut self, text: &str) -> String {
        let mut parts = text.split("://");
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            shown.push_str("://");
            let ends =
                |c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '`' | '<' | '>');
            let authority = part.find(ends).unwrap_or(part.len());
            match part[..authority].rfind('@') {
                Some(at) if &part[..at] != REMOVED => {
                    self.removed += 1;
                    shown.push_str(REMOVED);
                    shown.push_str(&part[at..]);
                }
                _ => shown.push_str(part),
            }
        }
        shown
    }

    /// The value after `password = `, `"token": ` and the like.
    fn without_assigned(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, word, after)) = next_run(rest, is_of_name) {
            shown.push_str(before);
            shown.push_str(word);
            rest = after;
            if !is_secret(word) {
                continue;
            }
            let Some((assignment, value)) = assigned(after) else {
                continue;
            };
            shown.push_str(assignment);
            rest = &after[assignment.len() + value.len()..];
            let is_plain = value == REMOVED || matches!(value, "true" | "false" | "null");
            match is_plain || value.parse::<f64>().is_ok() {
                true => shown.push_str(value),
                false => {
                    self.removed += 1;
                    shown.push_str(REMOVED);
                }
            }
        }
        shown.push_str(rest);
        shown
    }

    /// Keys in base64, and invitations.
    fn without_keys(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, run, after)) = next_run(rest, is_of_base64) {
            shown.push_str(before);
            rest = after;
            let is_key = run.len() == KEY_CHARACTERS && run.ends_with('=');
            let is_invitation =
                run.starts_with(INVITATION) && run.len() >= INVITATION_CHARACTERS_MIN;
            if is_invitation || is_key && !self.public_keys.contains(run) {
                self.removed += 1;
                shown.push_str(REMOVED);
            } else {
                shown.push_str(run);
            }
        }
        shown.push_str(rest);
        shown
    }
}

/// What is before the next run of such characters, the run, and what is after it.
fn next_run(text: &str, is_part: fn(char) -> bool) -> Option<(&str, &str, &str)> {
    let begin = text.find(is_part)?;
    let (before, run) = text.split_at(begin);
    let end = run.find(|c| !is_part(c)).unwrap_or(run.len());
    let (run, after) = run.split_at(end);
    Some((before, run, after))
}

/// The assignment that a text begins with, its quotes included, and the value up to the closing quote or the next gap.
fn assigned(text: &str) -> Option<(&str, &str)> {
    let after_name = text.trim_start_matches(['"', '\'', '\\']);
    let operator = after_name.trim_start_matches([' ', '\t']);
    let value = operator.strip_prefix(['=', ':'])?;
    let value = value.trim_start_matches([' ', '\t']);
    let inside = value.trim_start_matches(['\\', '"', '\'']);
    let quote = value[..value.len() - inside.len()].chars().last();
    let ends = |c: char| match quote {
        Some(quote) => c == quote || c == '\n',
        None => c.is_whitespace() || matches!(c, ',' | ';' | '}' | ']'),
    };
    let end = inside.find(ends).unwrap_or(inside.len());
    let assignment = &text[..text.len() - inside.len()];
    (end > 0).then(|| (assignment, &inside[..end]))
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Of base64 in both alphabets.
fn is_of_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '-' | '_')
}

fn plain(name: &str) -> String {
    let plain = name.chars().filter(|c| c.is_alphanumeric());
    plain.collect::<String>().to_lowercase()
}

fn is_public(name: &str) -> bool {
    plain(name).contains("publickey")
}

/// The name is one of a secret and of nothing else.
fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 8] = [
        "secret",
        "passw",
        "passphrase",
        "token",
        "psk",
        "presharedkey",
        "privatekey",
        "credential",
    ];
    let name = plain(name);
    !name.ends_with("file") && WORDS.iter().any(|word| name.contains(word))
}

/// As [`is_secret`], and any key that is not public.
fn may_be_secret(name: &str) -> bool {
    let plain = plain(name);
    let is_key = plain.ends_with("key") || plain.ends_with("keys");
    is_secret(name) || is_key && !is_public(name)
}

fn is_file_of_secrets(name: &str) -> bool {
    let plain = plain(name);
    plain
        .strip_suffix("file")
        .is_some_and(|of| may_be_secret(of) || of == "md5")
}

/// The tables and keys of a text that is no TOML, without values.
fn names(text: &str) -> String {
    let mut shown = String::from("# not valid TOML: values and comments are left out\n");
    for line in text.lines() {
        let line = line.trim();
        let name = line.split(['=', '#']).next().unwrap_or_default().trim();
        let is_name = |c: char| is_of_name(c) || matches!(c, '.' | '[' | ']' | ' ');
        match line.is_empty() || !name.chars().all(is_name) || name.len() > 64 {
            true => shown.push('\n'),
            false => shown.push_str(&format!("{name}\n")),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: &str = "kK1kbBqTc0JfVwUP1Vn1Gs4Tq4m4o9c3l9Zl7r3y2FU=";
    const PUBLIC: &str = "ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=";

    #[test]
    fn a_configuration_keeps_what_is_no_secret() {
        let text = format!(
            "[gateway]\nname = \"tokyo\" # the password is hunter22\nprivate_key_file = \"/etc/keiro/private.key\"\n\
             [[peer]]\npublic_key = \"{PUBLIC}\"\npreshared_key = \"{PRIVATE}\"\n\
             [store]\nkey = \"/etc/keiro/etcd.pem\"\nendpoints = [\"https://root:hunter2@10.0.0.1:2379\"]\n\
             Preshared-Key = [\"short1\"]\npasswords = {{ a = \"inner11\" }}\nrate = 5\n"
        );
        let mut redactor = Redactor::default();
        let shown = redactor.configuration(&text);
        for secret in ["hunter2", PRIVATE, "short1", "inner11", "root"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
        for kept in ["tokyo", PUBLIC, "private.key", "@10.0.0.1:2379", "rate = 5"] {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        let files: Vec<_> = redactor.key_files.iter().map(String::as_str).collect();
        assert_eq!(files, ["/etc/keiro/etcd.pem", "/etc/keiro/private.key"]);
        // What was a secret in the configuration is one everywhere.
        assert_eq!(
            redactor.clean("it says short1."),
            format!("it says {REMOVED}.")
        );
    }

    #[test]
    fn a_key_in_the_wrong_place_goes_and_what_is_no_toml_loses_its_values() {
        let mut redactor = Redactor::default();
        let shown = redactor.configuration(&format!("private_key_file = \"{PRIVATE}\"\n"));
        assert!(!shown.contains(PRIVATE), "{shown}");
        let broken = format!("[gateway]\nname = \"a\nsecret = {PRIVATE} \"\"\"\nhunter2hunter2!\n");
        let shown = redactor.configuration(&broken);
        assert!(shown.contains("[gateway]\nname\nsecret\n"), "{shown}");
        assert!(
            !shown.contains("hunter2") && !shown.contains(PRIVATE),
            "{shown}"
        );
    }

    #[test]
    fn what_looks_like_a_secret_goes_from_any_text() {
        let mut redactor = Redactor::default();
        redactor.add_public_keys(&serde_json::json!({"peers": [{"public_key": PUBLIC}]}));
        let pem = "-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----\nafter\n";
        let invitation = format!("keiro1{}", "Aa_-".repeat(20));
        let cases = [
            (
                format!("key {PRIVATE}, peer {PUBLIC}"),
                format!("key {REMOVED}, peer {PUBLIC}"),
            ),
            (format!("join {invitation}\n"), format!("join {REMOVED}\n")),
            (pem.to_owned(), format!("{REMOVED}\nafter\n")),
            (
                "{\"Token\": \"abc def\", \"n\": 1}".to_owned(),
                format!("{{\"Token\": \"{REMOVED}\", \"n\": 1}}"),
            ),
            (
                "password=abc next".to_owned(),
                format!("password={REMOVED} next"),
            ),
            (
                "tokens: 5, token_file = \"/a\"".to_owned(),
                "tokens: 5, token_file = \"/a\"".to_owned(),
            ),
            (
                "ftp://me@host/x http://10.0.0.1/a@b".to_owned(),
                format!("ftp://{REMOVED}@host/x http://10.0.0.1/a@b"),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(redactor.clean(&text), expected);
        }
        assert_eq!(redactor.removed, 6);
    }
}
