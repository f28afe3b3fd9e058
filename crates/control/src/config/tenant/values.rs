//! Values of `[tenant.NAME]` and `[fairness]`.

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;
use keiro_config::{Located, ValueError, choice, quantity, shown, string, type_name};
use keiro_ip::builtin_classes::{DomainPattern, PatternError};
use keiro_model::fairness::controller::Weight;
use keiro_units::Bandwidth;
use toml::{Spanned, de::DeValue};

const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("icmpv6", 58),
    ("sctp", 132),
];
/// `IFNAMSIZ` without its NUL (`linux/if.h`).
const DEVICE_BYTES_MAX: usize = 15;
/// Addresses of one device, and interfaces of one tenant. Ours.
const ADDRESSES_MAX: usize = 16;
/// As `keiro-model` takes them.
const WEIGHT_HINT: &str = "write a number from 0.001 to 1000000, as in weight = 2";
/// Routing tables of uplinks, which gateways make themselves where the kernel filters by the reverse path. No
/// tenant has one of them. Ours: none that a person would number so.
pub const UPLINK_TABLES: RangeInclusive<u32> = 7_600_000..=15_599_999;
/// Routing tables of `[tenant.NAME.internet]`. Ours: far from those that people number.
pub(super) const EXIT_TABLES: RangeInclusive<u32> = 0x4b00_0000..=0x4bff_ffff;
/// Routing table by which packets of split TCP connections reach this machine, behind the former.
pub const SPLIT_TABLE: u32 = 0x4c00_0000;
/// `RT_TABLE_DEFAULT`, `_MAIN`, `_LOCAL` (`linux/rtnetlink.h`).
const TABLES_OF_THE_KERNEL: RangeInclusive<u32> = 253..=255;

pub(super) fn text(value: &DeValue<'_>) -> Result<String, ValueError> {
    string(value).map(str::to_owned)
}

pub(in crate::config) fn integer(value: &DeValue<'_>) -> Result<i64, ValueError> {
    let DeValue::Integer(number) = value else {
        let message = format!("this is {}", type_name(value));
        return Err(ValueError::new(message, "write a whole number"));
    };
    i64::from_str_radix(number.as_str(), number.radix()).map_err(|_| {
        let message = format!("`{}` is out of range", shown(&number.to_string()));
        ValueError::new(message, "write a smaller number")
    })
}

/// A number, and how it is written. It is finite.
pub(in crate::config) fn number(value: &DeValue<'_>) -> Result<(f64, String), ValueError> {
    let (number, written) = match value {
        DeValue::Integer(written) => (integer(value)? as f64, written.to_string()),
        DeValue::Float(written) => {
            let number = written.as_str().parse().unwrap_or(f64::NAN);
            (number, written.as_str().to_owned())
        }
        _ => {
            let message = format!("this is {}", type_name(value));
            return Err(ValueError::new(message, "write a number"));
        }
    };
    let written = shown(&written);
    match number.is_finite() {
        true => Ok((number, written)),
        false => Err(ValueError::new(
            format!("`{written}` is not a finite number"),
            "write a number, as in 0.5",
        )),
    }
}

pub(super) fn tenant_id(value: &DeValue<'_>) -> Result<u32, ValueError> {
    let id = integer(value)?;
    u32::try_from(id).ok().filter(|id| *id > 0).ok_or_else(|| {
        let hint = "write 1 to 4294967295, the same at both gateways";
        ValueError::new(format!("{id} cannot be the id of a tenant"), hint)
    })
}

pub(super) fn weight(value: &DeValue<'_>) -> Result<Weight, ValueError> {
    let (weight, written) = number(value)?;
    Weight::new(weight).ok_or_else(|| {
        let message = match weight > 0.0 {
            true => format!("{written} is out of range"),
            false => format!("a tenant of weight {written} would get nothing"),
        };
        ValueError::new(message, WEIGHT_HINT)
    })
}

/// Ours: a window that grows by more in a round trip has no use for its controller.
const INCREASE_MAX: f64 = 1e6;

/// Packets per round trip that a window grows by.
pub(super) fn increase(value: &DeValue<'_>) -> Result<f64, ValueError> {
    let (increase, written) = number(value)?;
    let message = match increase {
        i if i <= 0.0 => format!("a window that grows by {written} per round trip never grows"),
        i if i > INCREASE_MAX => format!("{written} is out of range"),
        _ => return Ok(increase),
    };
    let hint = "write packets per round trip above 0 and up to 1000000, as in 0.1";
    Err(ValueError::new(message, hint))
}

/// The share of a window that a loss takes.
pub(super) fn decrease(value: &DeValue<'_>) -> Result<f64, ValueError> {
    let (decrease, written) = number(value)?;
    let message = match decrease {
        d if d <= 0.0 => format!("a window that a loss makes smaller by {written} never shrinks"),
        d if d >= 1.0 => format!("a loss that takes {written} of a window leaves nothing"),
        _ => return Ok(decrease),
    };
    let hint = "write a share between 0 and 1, as in 0.1";
    Err(ValueError::new(message, hint))
}

pub(super) fn tenants_max(value: &DeValue<'_>) -> Result<usize, ValueError> {
    count(value, crate::config::CONFIG_ENTRIES_MAX)
}

/// Ours: each is a descriptor, and more than processors have no use.
const DEVICE_QUEUES_MAX: usize = 64;

pub(super) fn device_queues(value: &DeValue<'_>) -> Result<usize, ValueError> {
    count(value, DEVICE_QUEUES_MAX)
}

/// A number from 1 to `max`.
pub(in crate::config) fn count(value: &DeValue<'_>, max: usize) -> Result<usize, ValueError> {
    let count = integer(value)?;
    let found = usize::try_from(count).ok();
    found.filter(|n| (1..=max).contains(n)).ok_or_else(|| {
        let hint = format!("write 1 to {max}");
        ValueError::new(format!("{count} is out of range"), hint)
    })
}

pub(super) fn unit(value: &DeValue<'_>) -> Result<Bandwidth, ValueError> {
    let unit: Bandwidth = quantity(value)?;
    match unit.as_bits_per_second() {
        1000.. => Ok(unit),
        _ => Err(ValueError::new(
            "less than 1kbit",
            "write what a weight of 1 may expect, as in \"4Mbit\"",
        )),
    }
}

/// A name that an interface can have; `linux` judges again.
pub(in crate::config) fn device(value: &DeValue<'_>) -> Result<String, ValueError> {
    let text = string(value)?;
    match why_no_name(text) {
        None => Ok(text.to_owned()),
        Some(why) => {
            let message = format!("`{}` is not a name of an interface: {why}", shown(text));
            let hint = format!("write 1 to {DEVICE_BYTES_MAX} letters, digits, `-`, `_` or `.`");
            Err(ValueError::new(message, hint))
        }
    }
}

/// Why the kernel, or a reader of its lists, would refuse a name (`dev_valid_name`,
/// `sysctl_dev_name_is_allowed`).
fn why_no_name(text: &str) -> Option<String> {
    let is_odd = |c: &char| !c.is_ascii_graphic() || matches!(c, '/' | ':' | '%');
    if let Some(odd) = text.chars().find(is_odd) {
        let odd = match odd {
            ' ' => "a space".to_owned(),
            odd => format!("`{}`", odd.escape_debug()),
        };
        return Some(format!("it has {odd}"));
    }
    match text {
        "" => Some("it is empty".to_owned()),
        "all" | "default" => Some(format!("net.ipv4.conf.{text} is of other interfaces too")),
        _ if text.len() > DEVICE_BYTES_MAX => Some(format!(
            "it has {} bytes, and {DEVICE_BYTES_MAX} is the most",
            text.len()
        )),
        _ if text.starts_with('.') => Some("it begins with a dot".to_owned()),
        _ => None,
    }
}

/// A name for a device that the gateway makes.
pub(super) fn own_device(value: &DeValue<'_>) -> Result<String, ValueError> {
    let name = device(value)?;
    match name.as_str() {
        "lo" => Err(ValueError::new(
            "`lo` is the loopback interface",
            "choose another name; the gateway makes the device",
        )),
        _ => Ok(name),
    }
}

pub(super) fn interfaces(value: &DeValue<'_>) -> Result<Vec<String>, ValueError> {
    let mut names: Vec<String> = Vec::new();
    for entry in list(value, "[\"eth1\"]")? {
        let name = device(entry.get_ref())?;
        if name == "lo" {
            let message = "`lo` stands for all programs of this machine, of any user";
            let hint = "name interfaces that lead to the tenant; a program binds to the device";
            return Err(ValueError::new(message, hint));
        }
        if names.contains(&name) {
            return Err(ValueError::new(format!("`{name}` twice"), "write it once"));
        }
        names.push(name);
    }
    Ok(names)
}

/// An address and its prefix length.
pub(super) fn addresses(value: &DeValue<'_>) -> Result<Vec<IpNet>, ValueError> {
    let example = "[\"10.1.0.1/32\"]";
    let mut addresses: Vec<IpNet> = Vec::new();
    for entry in list(value, example)? {
        let text = string(entry.get_ref())?;
        let Ok(address) = text.parse::<IpNet>() else {
            let message = format!("`{}` is not an address and its prefix length", shown(text));
            return Err(ValueError::new(message, format!("write {example}")));
        };
        if let Some(why) = why_no_host(address) {
            let message = format!("`{}` cannot be the address of a device: {why}", shown(text));
            let hint = "write an address of the tenant's own networks that no other host has";
            return Err(ValueError::new(message, hint));
        }
        if addresses.iter().any(|other| other.addr() == address.addr()) {
            let message = format!("`{}` twice", address.addr());
            return Err(ValueError::new(message, "write it once"));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Why an address is none that a host has and others reach.
fn why_no_host(address: IpNet) -> Option<String> {
    let alone = IpNet::from(address.addr());
    if let Some(kind) = confined(&alone) {
        return Some(format!("it is {kind}, and never forwarded"));
    }
    // Networks of two addresses and one have none to spare (RFC 3021, RFC 6164).
    if address.max_prefix_len() - address.prefix_len() < 2 {
        return None;
    }
    match address {
        _ if address.addr() == address.network() => {
            Some("it is that of the network itself".to_owned())
        }
        IpNet::V4(v4) if v4.addr() == v4.broadcast() => {
            Some("it is its network's broadcast address".to_owned())
        }
        _ => None,
    }
}

/// What all addresses of a prefix are that no router forwards, in a word; `None`: some are forwarded
/// (RFC 1812 §5.3.7, RFC 4291 §2.5). The tunnel judges every packet likewise.
pub(in crate::config) fn confined(prefix: &IpNet) -> Option<&'static str> {
    let bits = prefix.prefix_len();
    match prefix.addr() {
        IpAddr::V4(address) => match address.octets() {
            [0, ..] if bits >= 8 => Some("unspecified"),
            [127, ..] if bits >= 8 => Some("loopback"),
            [169, 254, ..] if bits >= 16 => Some("link-local"),
            [224..=239, ..] if bits >= 4 => Some("multicast"),
            [255, 255, 255, 255] => Some("broadcast"),
            _ => None,
        },
        IpAddr::V6(address) => match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0] if bits == 128 => Some("unspecified"),
            [0, 0, 0, 0, 0, 0, 0, 1] if bits == 128 => Some("loopback"),
            [0, 0, 0, 0, 0, 0xffff, ..] if bits >= 96 => Some("IPv4 in IPv6 form"),
            [0xfe80..=0xfebf, ..] if bits >= 10 => Some("link-local"),
            [0xff00..=0xffff, ..] if bits >= 8 => Some("multicast"),
            _ => None,
        },
    }
}

/// Whether some of a prefix's addresses are forwarded by routers.
pub(crate) fn is_forwarded(prefix: &IpNet) -> bool {
    confined(prefix).is_none()
}

pub(super) fn list<'d, 'i>(
    value: &'d DeValue<'i>,
    example: &str,
) -> Result<&'d [Spanned<DeValue<'i>>], ValueError> {
    let DeValue::Array(entries) = value else {
        let message = format!("this is {}", type_name(value));
        return Err(ValueError::new(message, format!("write {example}")));
    };
    match entries.len() <= ADDRESSES_MAX {
        true => Ok(entries.as_ref()),
        false => Err(ValueError::new(
            format!("{} entries", entries.len()),
            format!("write at most {ADDRESSES_MAX}"),
        )),
    }
}

pub(super) fn routing_table(value: &DeValue<'_>) -> Result<u32, ValueError> {
    let table = integer(value)?;
    let own = u32::try_from(table)
        .ok()
        .filter(|t| *t > 0 && !TABLES_OF_THE_KERNEL.contains(t));
    if own.is_some_and(|table| UPLINK_TABLES.contains(&table)) {
        let (first, last) = (UPLINK_TABLES.start(), UPLINK_TABLES.end());
        return Err(ValueError::new(
            format!("{table} is a routing table that gateways use for the uplinks of paths"),
            format!("write 1 to 252, or 256 and above but for {first} to {last}"),
        ));
    }
    let of_gateways = *EXIT_TABLES.start()..=SPLIT_TABLE;
    if let Some(table) = own.filter(|table| of_gateways.contains(table)) {
        let (first, last) = (of_gateways.start(), of_gateways.end());
        return Err(ValueError::new(
            format!(
                "{table} is a routing table that gateways use for [tenant.NAME.internet] and tcp = \"split\""
            ),
            format!("write 1 to 252, or 256 and above but for {first} to {last}"),
        ));
    }
    own.ok_or_else(|| {
        let hint = "write 1 to 252 or 256 and above; without a table the main one is used";
        ValueError::new(
            format!("{table} cannot be the routing table of a tenant"),
            hint,
        )
    })
}

pub(super) fn prefix(value: &DeValue<'_>) -> Result<IpNet, ValueError> {
    let text = string(value)?;
    let Ok(prefix) = text.parse::<IpNet>() else {
        let message = format!("`{}` is not a prefix", shown(text));
        return Err(ValueError::new(
            message,
            "write \"10.1.0.0/16\" or \"2001:db8::/48\"",
        ));
    };
    if prefix.trunc() != prefix {
        let (lowest, bits) = (prefix.trunc(), prefix.max_prefix_len());
        return Err(ValueError::new(
            format!("`{}` has bits set behind its prefix", shown(text)),
            format!("write \"{lowest}\", or /{bits} for this address alone"),
        ));
    }
    match confined(&prefix) {
        None => Ok(prefix),
        Some(kind) => Err(ValueError::new(
            format!("`{}` is {kind}, and never forwarded", shown(text)),
            "write a network that hosts have addresses of",
        )),
    }
}

pub(crate) fn prefixes(value: &DeValue<'_>) -> Result<Vec<Located<IpNet>>, ValueError> {
    let DeValue::Array(entries) = value else {
        let message = format!("this is {}", type_name(value));
        return Err(ValueError::new(message, "write [\"10.1.0.0/16\"]"));
    };
    let at = |entry: &Spanned<DeValue<'_>>| {
        let value = prefix(entry.get_ref())?;
        Ok(Located {
            value,
            at: entry.span(),
        })
    };
    entries.iter().map(at).collect()
}

pub(super) fn protocol(value: &DeValue<'_>) -> Result<u8, ValueError> {
    if let DeValue::String(_) = value {
        return choice(value, PROTOCOLS);
    }
    let number = integer(value)?;
    u8::try_from(number).map_err(|_| {
        ValueError::new(
            format!("{number} is not a protocol number"),
            "write \"tcp\", \"udp\", or 0 to 255",
        )
    })
}

/// The addresses of a tenant's resolvers.
pub(super) fn resolvers(value: &DeValue<'_>) -> Result<Vec<IpAddr>, ValueError> {
    let example = "[\"10.1.0.53\"]";
    let address = |entry: &Spanned<DeValue<'_>>| {
        let text = string(entry.get_ref())?;
        text.parse().map_err(|_| {
            let message = format!("`{}` is not an address", shown(text));
            ValueError::new(message, format!("write {example}"))
        })
    };
    list(value, example)?.iter().map(address).collect()
}

/// Names of one rule. Ours.
const DOMAINS_MAX: usize = 64;

pub(super) fn domains(value: &DeValue<'_>) -> Result<Vec<DomainPattern>, ValueError> {
    const EXAMPLE: &str = "write [\"*.zoom.us\"]";
    let DeValue::Array(entries) = value else {
        return Err(ValueError::new(
            format!("this is {}", type_name(value)),
            EXAMPLE,
        ));
    };
    if entries.is_empty() || entries.len() > DOMAINS_MAX {
        let message = format!("{} names; 1 to {DOMAINS_MAX} are possible", entries.len());
        return Err(ValueError::new(message, EXAMPLE));
    }
    let pattern = |entry: &Spanned<DeValue<'_>>| {
        let DeValue::String(text) = entry.get_ref() else {
            let message = format!("this is {}", type_name(entry.get_ref()));
            return Err(ValueError::new(message, EXAMPLE));
        };
        text.parse().map_err(|error: PatternError| {
            ValueError::new(format!("{}: {error}", shown(text)), EXAMPLE)
        })
    };
    entries.iter().map(pattern).collect()
}

pub(super) fn dscp(value: &DeValue<'_>) -> Result<u8, ValueError> {
    let number = integer(value)?;
    u8::try_from(number)
        .ok()
        .filter(|dscp| *dscp < 64)
        .ok_or_else(|| {
            ValueError::new(
                format!("{number} is not a DSCP"),
                "write 0 to 63; 46 is expedited forwarding",
            )
        })
}

pub(super) fn ports(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, ValueError> {
    let text = match value {
        DeValue::Integer(number) => number.to_string(),
        _ => string(value)?.to_owned(),
    };
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(ValueError::new(
            format!("`{}` is neither a port nor a range of ports", shown(&text)),
            "write 443 or \"5004-5010\"",
        )),
    }
}
