//! `map` of `[tenant.NAME]`: networks behind this gateway that others know by other addresses.

use std::fmt;

use ipnet::IpNet;
use keiro_config::{Report, ValueError, type_name};
use toml::{Spanned, de::DeValue};

use super::{
    Tenant, TenantSpans,
    values::{list, prefix},
};

/// One network under two prefixes of the same length: each address has its counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    /// As its hosts have it.
    pub local: IpNet,
    /// As the other sites reach it; one of the tenant's `prefixes`.
    pub network: IpNet,
}

/// Why two prefixes are no mapping. `Display` says what to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    #[error(
        "{local} and {network} differ in length or IP version; write two prefixes of one length"
    )]
    Unequal { local: IpNet, network: IpNet },
    #[error("{0} is mapped to itself; remove it")]
    Same(IpNet),
}

const EXAMPLE: &str = "[{ local = \"192.168.1.0/24\", network = \"10.99.2.0/24\" }]";

impl Mapping {
    /// Both prefixes without bits behind them.
    ///
    /// # Errors
    /// They differ in length or version, or are the same.
    pub fn new(local: IpNet, network: IpNet) -> Result<Self, MappingError> {
        let (local, network) = (local.trunc(), network.trunc());
        let is_equal = local.prefix_len() == network.prefix_len()
            && local.addr().is_ipv4() == network.addr().is_ipv4();
        match (is_equal, local == network) {
            (true, false) => Ok(Self { local, network }),
            (true, true) => Err(MappingError::Same(local)),
            (false, _) => Err(MappingError::Unequal { local, network }),
        }
    }

    /// A part of the local network, or all of it, as others reach it; `None`: it lies elsewhere.
    pub fn mapped(&self, local: IpNet) -> Option<IpNet> {
        if !self.local.contains(&local) {
            return None;
        }
        let address = match (self.network, local) {
            (IpNet::V4(network), IpNet::V4(local)) => {
                let behind = !u32::from(network.netmask());
                let bits = u32::from(network.network()) | u32::from(local.addr()) & behind;
                std::net::Ipv4Addr::from(bits).into()
            }
            (IpNet::V6(network), IpNet::V6(local)) => {
                let behind = !u128::from(network.netmask());
                let bits = u128::from(network.network()) | u128::from(local.addr()) & behind;
                std::net::Ipv6Addr::from(bits).into()
            }
            _ => return None,
        };
        IpNet::new(address, local.prefix_len()).ok()
    }
}

impl std::str::FromStr for Mapping {
    type Err = String;

    /// `LOCAL=NETWORK`.
    fn from_str(text: &str) -> Result<Self, String> {
        let prefixes = text.split_once('=');
        let prefixes = prefixes.and_then(|(l, n)| l.trim().parse().ok().zip(n.trim().parse().ok()));
        let Some((local, network)) = prefixes else {
            return Err("write LOCAL=NETWORK, as in 192.168.1.0/24=10.99.2.0/24".to_owned());
        };
        Self::new(local, network).map_err(|error| error.to_string())
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.local, self.network)
    }
}

/// The value of the key.
pub(super) fn mappings(value: &DeValue<'_>) -> Result<Vec<Mapping>, ValueError> {
    list(value, EXAMPLE)?.iter().map(one).collect()
}

fn one(entry: &Spanned<DeValue<'_>>) -> Result<Mapping, ValueError> {
    let wrong = |message: String| ValueError::new(message, format!("write {EXAMPLE}"));
    let DeValue::Table(table) = entry.get_ref() else {
        return Err(wrong(format!("this is {}", type_name(entry.get_ref()))));
    };
    let part = |wanted: &str| {
        let mut entries = table.iter();
        let found = entries.find(|(key, _)| key.get_ref() == wanted);
        let (_, value) = found.ok_or_else(|| wrong(format!("`{wanted}` is missing")))?;
        prefix(value.get_ref())
    };
    let (local, network) = (part("local")?, part("network")?);
    if let Some((key, _)) = table
        .iter()
        .find(|(key, _)| !["local", "network"].contains(&key.get_ref().as_ref()))
    {
        return Err(wrong(format!("unknown key `{}`", key.get_ref())));
    }
    Mapping::new(local, network).map_err(|error| {
        let text = error.to_string();
        let (message, hint) = text.split_once("; ").unwrap_or((&text, ""));
        ValueError::new(message.to_owned(), hint.to_owned())
    })
}

/// Each address has one counterpart, within the tenant's prefixes.
pub(super) fn check(tenant: &Tenant, spans: &TenantSpans, report: &mut Report<'_>) {
    let mut refuse = |message: String, hint: &str| report.add(&spans.map, message, hint);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let mut names = tenant.interfaces.iter().chain([&tenant.device]);
    if !tenant.map.is_empty()
        && let Some(name) = names.find(|name| !name.chars().all(is_plain))
    {
        let message =
            format!("map: the name `{name}` has other characters than letters and digits");
        refuse(message, "rename that interface or device");
    }
    for (number, Mapping { local, network }) in tenant.map.iter().enumerate() {
        let mut prefixes = tenant.prefixes.iter();
        if !prefixes.clone().any(|prefix| prefix.contains(network)) {
            refuse(
                format!("map: {network} is not in prefixes, which are what other sites reach"),
                "add it there",
            );
        }
        if let Some(prefix) = prefixes.find(|prefix| overlap(prefix, local)) {
            refuse(
                format!(
                    "map: {local} overlaps {prefix} of prefixes, which is reached without a mapping"
                ),
                "write the network's mapped addresses in prefixes, in the place of its own",
            );
        }
        let mut before = tenant.map[..number].iter();
        if let Some(other) =
            before.find(|of| overlap(&of.local, local) || overlap(&of.network, network))
        {
            refuse(
                format!(
                    "map: {local} = {network} overlaps {} = {}",
                    other.local, other.network
                ),
                "an address has one counterpart; write networks apart",
            );
        }
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}
