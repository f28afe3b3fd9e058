//! Where a peer is reached: `endpoint = "hub.example.net:7600"`, or a list.

use std::{fmt, net::SocketAddr, ops::Range, str::FromStr};

use keiro_config::{Report, TableReader, ValueError, address_in, shown, string, type_name};
use toml::{Spanned, de::DeValue};

use super::values::refuse_group;

/// Endpoints of one peer; more are refused. Ours: as many as one name may have addresses.
pub const PEER_ENDPOINTS_MAX: usize = 8;
/// Bytes of a host name (RFC 1035 §2.3.4), without the dot at its end.
const HOST_BYTES_MAX: usize = 253;
/// Bytes between two dots (RFC 1035 §2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// An address of a peer, or a name that has addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerEndpoint {
    Address(SocketAddr),
    Name(HostPort),
}

/// A host name and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub host: HostName,
    /// The UDP port; never 0.
    pub port: u16,
}

/// The name of a host: 1 to 253 bytes of letters, digits, `-`, `_` and `.`, in small letters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostName(String);

impl HostName {
    /// A name, if `text` is one. A name of digits and dots only would be an address.
    pub fn new(text: &str) -> Option<Self> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && label.chars().all(allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_name = name.len() <= HOST_BYTES_MAX
            && name.split('.').all(is_label)
            && last.chars().any(|c| !c.is_ascii_digit());
        is_name.then(|| Self(name.to_ascii_lowercase()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for PeerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(HostPort { host, port }) => write!(f, "{host}:{port}"),
        }
    }
}

/// As `endpoint` of a peer is written. The error says what to write.
impl FromStr for PeerEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map_err(|error| error.to_string())
    }
}

/// A list of endpoints, as `endpoint` of a peer is.
pub(crate) fn peer_endpoints(
    fields: &mut TableReader<'_, '_>,
    key: &'static str,
    report: &mut Report<'_>,
) -> Vec<(PeerEndpoint, Range<usize>)> {
    let Some(value) = fields.raw(key) else {
        return Vec::new();
    };
    let items: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![value],
    };
    if items.is_empty() {
        let hint = format!("write {key} = \"192.0.2.1:7600\", or remove it");
        report.add(&value.span(), format!("{key}: the list is empty"), &hint);
    }
    let mut found: Vec<(PeerEndpoint, Range<usize>)> = Vec::new();
    for item in items {
        let at = item.span();
        if found.len() >= PEER_ENDPOINTS_MAX {
            let message = format!("{key}: more than {PEER_ENDPOINTS_MAX}");
            report.add(&at, message, "keep those that are reached best");
            break;
        }
        match peer_endpoint(item.get_ref()) {
            Ok(endpoint) if found.iter().any(|(other, _)| *other == endpoint) => {
                let message = format!("{key}: `{endpoint}` is there twice");
                report.add(&at, message, "keep one of them");
            }
            Ok(endpoint) => found.push((endpoint, at)),
            Err(complaint) => complaint.add_to(report, &at, key),
        }
    }
    found
}

fn peer_endpoint(value: &DeValue<'_>) -> Result<PeerEndpoint, ValueError> {
    if !matches!(value, DeValue::String(_)) {
        return Err(ValueError::new(
            format!("this is {}", type_name(value)),
            HINT,
        ));
    }
    parse(string(value)?)
}

fn parse(text: &str) -> Result<PeerEndpoint, ValueError> {
    if let Some((host, port)) = text.rsplit_once(':')
        && let Some(host) = HostName::new(host)
    {
        let port = port.parse::<u16>().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| {
            ValueError::new(
                format!("`{}` has no UDP port at its end", shown(text)),
                "write 1 to 65535 behind the colon",
            )
        })?;
        return Ok(PeerEndpoint::Name(HostPort { host, port }));
    }
    if let Some(host) = HostName::new(text) {
        return Err(ValueError::new(
            format!("`{host}` has no port"),
            format!("add it: \"{host}:7600\""),
        ));
    }
    let address = address_in(text).map_err(|error| match text.parse::<std::net::IpAddr>() {
        Ok(_) => error,
        Err(_) => error.with_hint(HINT),
    })?;
    refuse_group(&address)?;
    Ok(PeerEndpoint::Address(address))
}

const HINT: &str = "write \"hub.example.net:7600\", \"192.0.2.1:7600\" or \"[2001:db8::1]:7600\"";
