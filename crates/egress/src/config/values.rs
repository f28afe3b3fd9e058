//! Checks of single values: numbers, addresses and prefixes.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    time::Duration,
};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::policy::{Policy, PrefixRange, Rule};
use keiro_config::{LocatedError, units::Text};
use toml::Spanned;

pub(super) fn our_asn(asn: &Spanned<u32>) -> Result<u32, LocatedError> {
    match *asn.get_ref() {
        // RFC 7607, RFC 6793 §9.
        0 | 23456 | u32::MAX => {
            let message = format!(
                "asn: {} is not the number of an AS; use the one assigned to it",
                asn.get_ref()
            );
            Err(LocatedError::new(asn.span(), message))
        }
        asn => Ok(asn),
    }
}

pub(super) fn router_id(id: &Spanned<Ipv4Addr>) -> Result<Ipv4Addr, LocatedError> {
    match id.get_ref().is_unspecified() {
        false => Ok(*id.get_ref()),
        true => {
            let message = "router_id: 0.0.0.0 identifies no router (RFC 6286); use one of this host's addresses";
            Err(LocatedError::new(id.span(), message.to_owned()))
        }
    }
}

/// The prefix of all segments, with room for a function.
pub(super) fn locator(said: &Spanned<Ipv6Net>) -> Result<Ipv6Net, LocatedError> {
    let locator = said.get_ref().trunc();
    let message = if locator.prefix_len() > LOCATOR_BITS_MAX {
        format!(
            "`{locator}` leaves no room for a function of 16 bits; use a locator of at most /112"
        )
    } else if locator.prefix_len() < LOCATOR_BITS_MIN || !is_unicast(locator.network()) {
        format!(
            "`{locator}` cannot be a locator: packets from egress peers to it are dropped; use a prefix of global or unique local addresses, at least /{LOCATOR_BITS_MIN}"
        )
    } else {
        return Ok(locator);
    };
    Err(LocatedError::new(said.span(), message))
}

pub(super) fn own_address(said: &Spanned<Ipv6Addr>) -> Result<Ipv6Addr, LocatedError> {
    let address = *said.get_ref();
    if is_unicast(address) {
        return Ok(address);
    }
    let message =
        format!("address: clients cannot reach `{address}`; use a global or unique local one");
    Err(LocatedError::new(said.span(), message))
}

pub(super) fn own_ipv4_address(said: &Spanned<Ipv4Addr>) -> Result<Ipv4Addr, LocatedError> {
    let address = *said.get_ref();
    // 0.0.0.0/8 is this host, 240.0.0.0/4 is reserved (RFC 6890).
    let is_special = address.octets()[0] == 0
        || address.octets()[0] >= 224
        || address.is_loopback()
        || address.is_link_local();
    if !is_special {
        return Ok(address);
    }
    let message =
        format!("ipv4_address: clients cannot reach `{address}`; use one of the provider's");
    Err(LocatedError::new(said.span(), message))
}

/// Not multicast, link-local, loopback, unspecified or IPv4-mapped.
fn is_unicast(address: Ipv6Addr) -> bool {
    !(address.is_multicast() || address.is_unicast_link_local() || u128::from(address) >> 48 == 0)
}

pub(super) fn routes_max(said: Option<&Spanned<usize>>) -> Result<Option<usize>, LocatedError> {
    match said {
        Some(zero) if *zero.get_ref() == 0 => {
            let message = "routes_max: 0 ends the session with the first route; use 1 or more";
            Err(LocatedError::new(zero.span(), message.to_owned()))
        }
        _ => Ok(said.map(|max| *max.get_ref())),
    }
}

/// A policy for what another AS announces. It first denies what no other AS may announce: our
/// segments, and prefixes that are not destinations in the Internet.
pub(super) fn guarded(mut policy: Policy, locator: Ipv6Net) -> Policy {
    // A policy without rules denies everything anyway.
    if policy.rules.is_empty() {
        return policy;
    }
    let within = |within: IpNet| PrefixRange {
        within,
        length_min: within.prefix_len(),
        length_max: within.max_prefix_len(),
    };
    let martians = MARTIANS.iter().map(|net| net.parse().expect("a constant"));
    let martians = martians.chain([IpNet::V6(locator)]).map(within);
    let rule = Rule {
        prefixes: martians.collect(),
        ..Rule::default()
    };
    policy.rules.insert(0, rule);
    policy
}

pub(super) fn interface(name: Option<&Spanned<String>>) -> Result<Option<String>, LocatedError> {
    let Some(name) = name else {
        return Ok(None);
    };
    let text = name.get_ref();
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    let problem = match text.as_str() {
        // Linux 6.18 drops the packets of a segment there.
        "lo" => "segments do not work on the loopback interface; name any other",
        "" => "it is empty; `ip link` lists the names",
        // `IFNAMSIZ`, with the octet that ends it.
        _ if text.len() > 15 || text.contains(odd) => {
            "is not the name of an interface: at most 15 octets, without spaces, `/` and `:`"
        }
        _ => return Ok(Some(text.clone())),
    };
    let message = format!("interface: `{text}`: {problem}");
    Err(LocatedError::new(name.span(), message))
}

pub(super) fn nexthop_ids(
    said: Option<&Spanned<[u32; 2]>>,
    default: RangeInclusive<u32>,
) -> Result<RangeInclusive<u32>, LocatedError> {
    let Some(range) = said else {
        return Ok(default);
    };
    let [first, last] = *range.get_ref();
    if first == 0 || first > last {
        let message = format!(
            "nexthop_ids: [{first}, {last}] has no numbers; write the first, from 1, and the last"
        );
        return Err(LocatedError::new(range.span(), message));
    }
    Ok(first..=last)
}

pub(super) fn rule_priority(
    said: Option<&Spanned<u32>>,
    default: u32,
) -> Result<u32, LocatedError> {
    let Some(priority) = said else {
        return Ok(default);
    };
    // 32,766 is the main table's rule: the kernel does not reach those behind it.
    if !(1..=32_765).contains(priority.get_ref()) {
        let message = format!(
            "rule_priority: {} does not come before the main table; use 1 to 32765",
            priority.get_ref()
        );
        return Err(LocatedError::new(priority.span(), message));
    }
    Ok(*priority.get_ref())
}

pub(super) fn hold_time(time: Option<&Spanned<Text<Duration>>>) -> Result<Duration, LocatedError> {
    let Some(time) = time else {
        return Ok(HOLD_TIME);
    };
    let seconds = time.get_ref().0.as_secs();
    let whole = time.get_ref().0.subsec_nanos() == 0;
    if whole && (seconds == 0 || (3..=65_535).contains(&seconds)) {
        return Ok(time.get_ref().0);
    }
    let message = "hold_time: write \"0s\" (never) or whole seconds from \"3s\"".to_owned();
    Err(LocatedError::new(time.span(), message))
}

pub(super) fn restart_time(
    time: &Spanned<Text<Duration>>,
) -> Result<Option<Duration>, LocatedError> {
    let seconds = time.get_ref().0.as_secs();
    if time.get_ref().0.subsec_nanos() == 0 && seconds <= 4095 {
        return Ok((seconds > 0).then_some(time.get_ref().0));
    }
    let message = "graceful_restart: write \"0s\" (no) or whole seconds up to \"4095s\"".to_owned();
    Err(LocatedError::new(time.span(), message))
}

/// `None`: no probes.
pub(super) fn probe_interval(
    said: Option<&Spanned<Text<Duration>>>,
) -> Result<Option<Duration>, LocatedError> {
    let Some(said) = said else {
        return Ok(Some(PROBE_INTERVAL));
    };
    match said.get_ref().0 {
        Duration::ZERO => Ok(None),
        time if PROBE_INTERVALS.contains(&time) => Ok(Some(time)),
        _ => {
            let message =
                "probe_interval: write \"0s\" (no probes) or \"250ms\" to \"60s\"; routers answer \
                           about once a second"
                    .to_owned();
            Err(LocatedError::new(said.span(), message))
        }
    }
}

/// Routers limit ICMPv6 errors to about one per second and destination by default (Linux
/// `net.ipv6.icmp.ratelimit`). Ours.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(250)..=Duration::from_secs(60);
/// Leaves 16 bits for a function.
const LOCATOR_BITS_MAX: u8 = 112;
/// Packets from peers to the locator are dropped: a shorter one would drop too much. Ours.
const LOCATOR_BITS_MIN: u8 = 16;
/// Host-local (RFC 1122 §3.2.1.3), link-local (RFC 3927, RFC 4291 §2.5.6), groups (RFC 5771, RFC 4291
/// §2.7), and what IPv6 has of unspecified, loopback and IPv4 addresses (RFC 4291 §2.5).
const MARTIANS: [&str; 7] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "::/80",
    "fe80::/10",
    "ff00::/8",
];
/// RFC 4271 §10.
const HOLD_TIME: Duration = Duration::from_secs(90);
