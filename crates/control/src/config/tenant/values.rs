//! Values of `[tenant.NAME]`.

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;
use keiro_model::{Bandwidth, fairness::law::Weight};
use toml::{Spanned, de::DeValue};

use crate::{
    config::document::{At, Complaint, choice, quantity, string, type_name},
    units::shown,
};

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
/// `RT_TABLE_DEFAULT`, `_MAIN`, `_LOCAL` (`linux/rtnetlink.h`).
const TABLES_OF_THE_KERNEL: RangeInclusive<u32> = 253..=255;

pub(super) fn text(value: &DeValue<'_>) -> Result<String, Complaint> {
    string(value).map(str::to_owned)
}

pub(super) fn integer(value: &DeValue<'_>) -> Result<i64, Complaint> {
    let wrong = || {
        Complaint::new(
            format!("this is {}", type_name(value)),
            "write a whole number",
        )
    };
    match value {
        DeValue::Integer(number) => number.to_string().parse().map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

pub(super) fn number(value: &DeValue<'_>) -> Result<f64, Complaint> {
    let wrong = || Complaint::new(format!("this is {}", type_name(value)), "write a number");
    match value {
        DeValue::Integer(number) => number.to_string().parse().map_err(|_| wrong()),
        DeValue::Float(number) => number.as_str().parse().map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

pub(super) fn tenant_id(value: &DeValue<'_>) -> Result<u32, Complaint> {
    let id = integer(value)?;
    u32::try_from(id).ok().filter(|id| *id > 0).ok_or_else(|| {
        let hint = "write 1 to 4294967295, the same at both gateways";
        Complaint::new(format!("{id} is no tenant's number"), hint)
    })
}

pub(super) fn weight(value: &DeValue<'_>) -> Result<Weight, Complaint> {
    let weight = number(value)?;
    Weight::new(weight).ok_or_else(|| {
        let message = match weight > 0.0 {
            true => format!("{weight} is out of range"),
            false => format!("a tenant of weight {weight} would get nothing"),
        };
        Complaint::new(message, WEIGHT_HINT)
    })
}

pub(super) fn tenants_max(value: &DeValue<'_>) -> Result<usize, Complaint> {
    count(value, crate::config::CONFIG_ENTRIES_MAX)
}

/// Ours: each is a descriptor, and more than processors have no use.
const DEVICE_QUEUES_MAX: usize = 64;

pub(super) fn device_queues(value: &DeValue<'_>) -> Result<usize, Complaint> {
    count(value, DEVICE_QUEUES_MAX)
}

/// A number from 1 to `max`.
fn count(value: &DeValue<'_>, max: usize) -> Result<usize, Complaint> {
    let count = integer(value)?;
    let found = usize::try_from(count).ok();
    found.filter(|n| (1..=max).contains(n)).ok_or_else(|| {
        let hint = format!("write 1 to {max}");
        Complaint::new(format!("{count} is out of range"), hint)
    })
}

pub(super) fn unit(value: &DeValue<'_>) -> Result<Bandwidth, Complaint> {
    let unit: Bandwidth = quantity(value)?;
    match unit.as_bits_per_second() {
        1000.. => Ok(unit),
        _ => Err(Complaint::new(
            "less than 1kbit",
            "write what a weight of 1 may expect, as in \"4Mbit\"",
        )),
    }
}

/// A name that an interface can have; `linux` judges again.
pub(super) fn device(value: &DeValue<'_>) -> Result<String, Complaint> {
    let text = string(value)?;
    let is_odd = |c: char| !c.is_ascii_graphic() || matches!(c, '/' | ':' | '%');
    if text.is_empty()
        || text.len() > DEVICE_BYTES_MAX
        || text.starts_with('.')
        || text.contains(is_odd)
    {
        let hint = format!("write 1 to {DEVICE_BYTES_MAX} letters, digits, `-`, `_` or `.`");
        return Err(Complaint::new(
            format!("`{}` is no name of an interface", shown(text)),
            hint,
        ));
    }
    Ok(text.to_owned())
}

pub(super) fn interfaces(value: &DeValue<'_>) -> Result<Vec<String>, Complaint> {
    list(value, "[\"eth1\"]")?
        .iter()
        .map(|entry| device(entry.get_ref()))
        .collect()
}

/// An address and its prefix length.
pub(super) fn addresses(value: &DeValue<'_>) -> Result<Vec<IpNet>, Complaint> {
    let example = "[\"10.1.0.1/32\"]";
    let address = |entry: &Spanned<DeValue<'_>>| {
        let text = string(entry.get_ref())?;
        let parsed = text
            .parse::<IpNet>()
            .ok()
            .filter(|net| is_usable(&net.addr()));
        parsed.ok_or_else(|| {
            let message = format!("`{}` is not an address and its prefix length", shown(text));
            Complaint::new(message, format!("write {example}"))
        })
    };
    list(value, example)?.iter().map(address).collect()
}

pub(super) fn is_usable(address: &IpAddr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

pub(super) fn list<'d, 'i>(
    value: &'d DeValue<'i>,
    example: &str,
) -> Result<&'d [Spanned<DeValue<'i>>], Complaint> {
    let DeValue::Array(entries) = value else {
        let message = format!("this is {}", type_name(value));
        return Err(Complaint::new(message, format!("write {example}")));
    };
    match entries.len() <= ADDRESSES_MAX {
        true => Ok(entries.as_ref()),
        false => Err(Complaint::new(
            format!("{} entries", entries.len()),
            format!("write at most {ADDRESSES_MAX}"),
        )),
    }
}

pub(super) fn routing_table(value: &DeValue<'_>) -> Result<u32, Complaint> {
    let table = integer(value)?;
    let own = u32::try_from(table)
        .ok()
        .filter(|t| *t > 0 && !TABLES_OF_THE_KERNEL.contains(t));
    own.ok_or_else(|| {
        let hint = "write 1 to 252 or 256 and above; without a table the main one is used";
        Complaint::new(format!("{table} is no table for a tenant"), hint)
    })
}

pub(super) fn prefix(value: &DeValue<'_>) -> Result<IpNet, Complaint> {
    let text = string(value)?;
    let Ok(prefix) = text.parse::<IpNet>() else {
        let message = format!("`{}` is not a prefix", shown(text));
        return Err(Complaint::new(
            message,
            "write \"10.1.0.0/16\" or \"2001:db8::/48\"",
        ));
    };
    if prefix.trunc() != prefix {
        let (lowest, bits) = (prefix.trunc(), prefix.max_prefix_len());
        return Err(Complaint::new(
            format!("`{}` has bits set behind its prefix", shown(text)),
            format!("write \"{lowest}\", or /{bits} for this address alone"),
        ));
    }
    Ok(prefix)
}

pub(super) fn prefixes(value: &DeValue<'_>) -> Result<Vec<At<IpNet>>, Complaint> {
    let DeValue::Array(entries) = value else {
        let message = format!("this is {}", type_name(value));
        return Err(Complaint::new(message, "write [\"10.1.0.0/16\"]"));
    };
    let at = |entry: &Spanned<DeValue<'_>>| {
        let value = prefix(entry.get_ref())?;
        Ok(At {
            value,
            at: entry.span(),
        })
    };
    entries.iter().map(at).collect()
}

pub(super) fn protocol(value: &DeValue<'_>) -> Result<u8, Complaint> {
    if let DeValue::String(_) = value {
        return choice(value, PROTOCOLS);
    }
    let number = integer(value)?;
    u8::try_from(number).map_err(|_| {
        Complaint::new(
            format!("{number} is no protocol"),
            "write \"tcp\", \"udp\", or 0 to 255",
        )
    })
}

pub(super) fn dscp(value: &DeValue<'_>) -> Result<u8, Complaint> {
    let number = integer(value)?;
    u8::try_from(number)
        .ok()
        .filter(|dscp| *dscp < 64)
        .ok_or_else(|| {
            Complaint::new(
                format!("{number} is no DSCP"),
                "write 0 to 63; 46 is expedited forwarding",
            )
        })
}

pub(super) fn ports(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, Complaint> {
    let text = match value {
        DeValue::Integer(number) => number.to_string(),
        _ => string(value)?.to_owned(),
    };
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(Complaint::new(
            format!("`{}` is no port and no range of ports", shown(&text)),
            "write 443 or \"5004-5010\"",
        )),
    }
}
