//! Values of a TOML document: texts, switches, quantities, addresses, file names, choices.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::Range,
    path::PathBuf,
};

use toml::de::DeValue;

use crate::{
    report::Report,
    units::{Quantity, shown},
};

/// What is wrong with a value, and what to try.
pub struct ValueError {
    message: String,
    hint: String,
}

impl ValueError {
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// The same with another hint.
    pub fn with_hint(self, hint: &str) -> Self {
        Self::new(self.message, hint)
    }

    pub fn add_to(&self, report: &mut Report<'_>, at: &Range<usize>, key: &str) {
        report.add(at, format!("{key}: {}", self.message), &self.hint);
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}

pub fn string<'d>(value: &'d DeValue<'_>) -> Result<&'d str, ValueError> {
    match value {
        DeValue::String(text) => Ok(text),
        other => Err(wrong_type(other, "a text in quotes")),
    }
}

/// `true` or `false`.
pub fn boolean(value: &DeValue<'_>) -> Result<bool, ValueError> {
    match value {
        DeValue::Boolean(value) => Ok(*value),
        other => Err(wrong_type(other, "true or false")),
    }
}

/// A number with its unit, in quotes.
pub fn quantity<T: Quantity>(value: &DeValue<'_>) -> Result<T, ValueError> {
    let parsed = match value {
        DeValue::String(text) => T::parse(text),
        // Says which units there are.
        DeValue::Integer(number) => T::parse(&number.to_string()),
        DeValue::Float(number) => T::parse(number.as_str()),
        other => return Err(wrong_type(other, "a number and a unit in quotes")),
    };
    parsed.map_err(|e| {
        let (message, hint) = e.message_and_hint();
        ValueError::new(message, hint)
    })
}

/// An IP address and a port that is not 0.
pub fn socket_address(value: &DeValue<'_>) -> Result<SocketAddr, ValueError> {
    address_in(string(value)?)
}

/// As [`socket_address`], of a text.
pub fn address_in(text: &str) -> Result<SocketAddr, ValueError> {
    let Ok(address) = text.parse::<SocketAddr>() else {
        if is_name_and_port(text) {
            return Err(ValueError::new(
                format!("`{}` is a name, and names are not looked up", shown(text)),
                "write the address that it has: \"192.0.2.1:7600\" or \"[2001:db8::1]:7600\"",
            ));
        }
        let hint = match text.parse::<IpAddr>() {
            Ok(ip) => format!("add a port: \"{}\"", SocketAddr::new(ip, 7600)),
            Err(_) => "write \"192.0.2.1:7600\" or \"[2001:db8::1]:7600\"; names are not looked up"
                .to_owned(),
        };
        return Err(ValueError::new(
            format!("`{}` is not an IP address and a port", shown(text)),
            hint,
        ));
    };
    if let IpAddr::V6(ip) = address.ip()
        && let Some(v4) = ip.to_ipv4_mapped()
    {
        let plain = SocketAddr::new(v4.into(), address.port());
        return Err(ValueError::new(
            format!("`{text}` is an IPv4 address in IPv6 form"),
            format!("write \"{plain}\""),
        ));
    }
    if let SocketAddr::V6(v6) = address
        && v6.ip().is_unicast_link_local()
        && v6.scope_id() == 0
    {
        return Err(ValueError::new(
            format!("`{text}` does not say on which interface"),
            format!(
                "write \"[{}%3]:{}\" with the number that `ip link` shows",
                v6.ip(),
                v6.port()
            ),
        ));
    }
    if address.port() == 0 {
        return Err(ValueError::new(
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
pub fn file_name(value: &DeValue<'_>) -> Result<PathBuf, ValueError> {
    let text = string(value)?;
    if text.contains('\0') {
        return Err(ValueError::new(
            "the file name contains a NUL character",
            "remove it",
        ));
    }
    if !text.starts_with('/') {
        return Err(ValueError::new(
            format!("`{}` is not an absolute file name", shown(text)),
            "begin it with /",
        ));
    }
    Ok(PathBuf::from(text))
}

/// One of `choices`.
pub fn choice<T: Copy>(
    value: &DeValue<'_>,
    choices: &[(&'static str, T)],
) -> Result<T, ValueError> {
    let text = string(value)?;
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*choice);
    }
    let names: Vec<_> = choices
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    Err(ValueError::new(
        format!("`{}` is none of the choices", shown(text)),
        format!("write {}", names.join(" or ")),
    ))
}

/// What the user wrote, as a word with its article.
pub fn type_name(value: &DeValue<'_>) -> &'static str {
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

fn wrong_type(value: &DeValue<'_>, wanted: &str) -> ValueError {
    ValueError::new(
        format!("this is {}", type_name(value)),
        format!("write {wanted}"),
    )
}
