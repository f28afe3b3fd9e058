//! Tables and values of a TOML document with their places.
//!
//! [`Fields`] reads one table: every key that is asked for is known, every other one is reported
//! with the nearest known. A value that is wrong is reported and then treated as absent, so that
//! one pass finds all problems. What a value means to Keiro is `read`'s.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
    path::PathBuf,
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::report::Report;
use crate::units::{Quantity, shown};

/// A value and where it stands in the text.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) at: Range<usize>,
}

/// What is wrong with a value, and what to try.
pub(super) struct Complaint {
    message: String,
    hint: String,
}

impl Complaint {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// The same with another hint.
    pub(super) fn with_hint(self, hint: &str) -> Self {
        Self::new(self.message, hint)
    }

    pub(super) fn add_to(&self, report: &mut Report<'_>, at: &Range<usize>, key: &str) {
        report.add(at, format!("{key}: {}", self.message), &self.hint);
    }
}

/// One table that is being read.
pub(super) struct Fields<'d, 'i> {
    /// As the user wrote its header, for messages.
    header: &'static str,
    at: Range<usize>,
    table: &'d DeTable<'i>,
    known: Vec<&'static str>,
    /// Keys whose values were wrong.
    refused: Vec<&'static str>,
    /// The document has syntax errors: what is missing may only not have been understood.
    lenient: bool,
}

impl<'d, 'i> Fields<'d, 'i> {
    pub(super) fn new(
        header: &'static str,
        at: Range<usize>,
        table: &'d DeTable<'i>,
        lenient: bool,
    ) -> Self {
        Self {
            header,
            at,
            table,
            known: Vec::new(),
            refused: Vec::new(),
            lenient,
        }
    }

    /// The value of `key`; `None` if it is absent or wrong.
    pub(super) fn optional<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, Complaint>,
    ) -> Option<At<T>> {
        let value = self.raw(key)?;
        match read(value.get_ref()) {
            Ok(read) => Some(At {
                value: read,
                at: value.span(),
            }),
            Err(complaint) => {
                complaint.add_to(report, &value.span(), key);
                self.refused.push(key);
                None
            }
        }
    }

    /// The value of `key`, which must be there; `None` if it is absent or wrong.
    pub(super) fn required<T>(
        &mut self,
        report: &mut Report<'_>,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, Complaint>,
    ) -> Option<At<T>> {
        if !self.lenient && !self.table.contains_key(key) {
            let message = format!("{} has no `{key}`", self.header);
            report.add(&self.at, message, &format!("add {key} = {example}"));
        }
        self.optional(report, key, read)
    }

    /// The value of `key` as it stands; `None` if it is absent.
    pub(super) fn raw(&mut self, key: &'static str) -> Option<&'d Spanned<DeValue<'i>>> {
        self.known.push(key);
        self.table.get(key)
    }

    /// Says that one of `keys` has to be there.
    pub(super) fn miss(&self, report: &mut Report<'_>, keys: &[&str], example: &str) {
        if let [first, rest @ ..] = keys
            && !self.lenient
        {
            let others: Vec<String> = rest.iter().map(|key| format!("`{key}`")).collect();
            let message = format!("{} has no `{first}`, {}", self.header, others.join(", "));
            let message = message.replacen(", ", ", nor ", 1);
            report.add(&self.at, message, &format!("add {first} = {example}"));
        }
    }

    /// Keys that may be there although nobody asked for them.
    pub(super) fn know(&mut self, keys: &[&'static str]) {
        for key in keys {
            if !self.known.contains(key) {
                self.known.push(key);
            }
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether the value of `key` is there, or may be, but was not understood.
    pub(super) fn is_refused(&self, key: &str) -> bool {
        self.lenient || self.refused.contains(&key)
    }

    /// Where the value of `key` is, or where the table begins.
    pub(super) fn place_of(&self, key: &str) -> Range<usize> {
        self.table
            .get(key)
            .map_or_else(|| self.at.clone(), Spanned::span)
    }

    /// Reports the keys that nobody asked for; whether there are any.
    pub(super) fn refuse_the_rest(&self, report: &mut Report<'_>) -> bool {
        let known = |key: &str| self.known.contains(&key);
        let mut found = false;
        for key in self.table.keys().filter(|key| !known(key.get_ref())) {
            found = true;
            let written = key.get_ref();
            let hint = match nearest(written, self.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                // A header with a syntax error lets its keys fall to the table before it.
                None if self.lenient => continue,
                None => format!("known keys are {}", self.known.join(", ")),
            };
            let message = format!("unknown key `{}` in {}", shown(written), self.header);
            report.add(&key.span(), message, &hint);
        }
        found
    }
}

/// A text.
pub(super) fn string<'d>(value: &'d DeValue<'_>) -> Result<&'d str, Complaint> {
    match value {
        DeValue::String(text) => Ok(text),
        other => Err(wrong_type(other, "a text in quotes")),
    }
}

/// `true` or `false`.
pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, Complaint> {
    match value {
        DeValue::Boolean(value) => Ok(*value),
        other => Err(wrong_type(other, "true or false")),
    }
}

/// A number with its unit, in quotes.
pub(super) fn quantity<T: Quantity>(value: &DeValue<'_>) -> Result<T, Complaint> {
    let parsed = match value {
        DeValue::String(text) => T::parse(text),
        // Says which units there are.
        DeValue::Integer(number) => T::parse(&number.to_string()),
        DeValue::Float(number) => T::parse(number.as_str()),
        other => return Err(wrong_type(other, "a number and a unit in quotes")),
    };
    parsed.map_err(|e| {
        let (message, hint) = e.message_and_hint();
        Complaint::new(message, hint)
    })
}

/// An IP address and a port that is not 0.
pub(super) fn socket_address(value: &DeValue<'_>) -> Result<SocketAddr, Complaint> {
    address_in(string(value)?)
}

/// As [`socket_address`], of a text.
pub(super) fn address_in(text: &str) -> Result<SocketAddr, Complaint> {
    let Ok(address) = text.parse::<SocketAddr>() else {
        if is_name_and_port(text) {
            return Err(Complaint::new(
                format!("`{}` is a name, and names are not looked up", shown(text)),
                "write the address that it has: \"192.0.2.1:7600\" or \"[2001:db8::1]:7600\"",
            ));
        }
        let hint = match text.parse::<IpAddr>() {
            Ok(ip) => format!("add a port: \"{}\"", SocketAddr::new(ip, 7600)),
            Err(_) => "write \"192.0.2.1:7600\" or \"[2001:db8::1]:7600\"; names are not looked up"
                .to_owned(),
        };
        return Err(Complaint::new(
            format!("`{}` is not an IP address and a port", shown(text)),
            hint,
        ));
    };
    if let IpAddr::V6(ip) = address.ip()
        && let Some(v4) = ip.to_ipv4_mapped()
    {
        let plain = SocketAddr::new(v4.into(), address.port());
        return Err(Complaint::new(
            format!("`{text}` is an IPv4 address in IPv6 form"),
            format!("write \"{plain}\""),
        ));
    }
    if let SocketAddr::V6(v6) = address
        && v6.ip().is_unicast_link_local()
        && v6.scope_id() == 0
    {
        return Err(Complaint::new(
            format!("`{text}` does not say on which interface"),
            format!(
                "write \"[{}%3]:{}\" with the number that `ip link` shows",
                v6.ip(),
                v6.port()
            ),
        ));
    }
    if address.port() == 0 {
        return Err(Complaint::new(
            "port 0 would be another port at every start".to_owned(),
            "write a port from 1 to 65535",
        ));
    }
    Ok(address)
}

/// Whether `text` is the name of a host and a port; an address written wrongly is none.
fn is_name_and_port(text: &str) -> bool {
    let Some((name, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    port.parse::<u16>().is_ok()
        && name.chars().all(is_of_name)
        && name.chars().any(|c| c.is_ascii_alphabetic())
}

/// An absolute file name.
pub(super) fn file_name(value: &DeValue<'_>) -> Result<PathBuf, Complaint> {
    let text = string(value)?;
    if text.contains('\0') {
        return Err(Complaint::new(
            "the file name contains a NUL character",
            "remove it",
        ));
    }
    if !text.starts_with('/') {
        return Err(Complaint::new(
            format!("`{}` is not an absolute file name", shown(text)),
            "begin it with /",
        ));
    }
    Ok(PathBuf::from(text))
}

/// One of `choices`.
pub(super) fn choice<T: Copy>(
    value: &DeValue<'_>,
    choices: &[(&'static str, T)],
) -> Result<T, Complaint> {
    let text = string(value)?;
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*choice);
    }
    let names: Vec<_> = choices
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    Err(Complaint::new(
        format!("`{}` is none of the choices", shown(text)),
        format!("write {}", names.join(" or ")),
    ))
}

/// The candidate that `written` was probably meant to be.
pub(super) fn nearest<'a>(
    written: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // The distance takes time and memory by both lengths; no name is longer than this.
    if written.len() > super::NAME_BYTES_MAX {
        return None;
    }
    let lower = written.to_lowercase();
    let distance = |c: &str| strsim::damerau_levenshtein(&lower, &c.to_lowercase());
    candidates
        .take(CANDIDATES_MAX)
        .map(|c| (distance(c), c))
        .filter(|(distance, c)| *distance <= (c.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// Names that are compared. Ours: a report of a hundred dangling names stays under a second.
const CANDIDATES_MAX: usize = 1000;

/// What the user wrote, as a word with its article.
pub(super) fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

fn wrong_type(value: &DeValue<'_>, wanted: &str) -> Complaint {
    Complaint::new(
        format!("this is {}", type_name(value)),
        format!("write {wanted}"),
    )
}
