//! Values of single keys: texts, addresses, times, rates and sizes, each within its bounds.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
    path::PathBuf,
    time::Duration,
};

use keiro_config::{Located, ValueError, file_name, quantity, shown, socket_address, string};
use keiro_model::{
    path_terms::{CostPerGb, PathRole},
    probing::LIMIT_MIN,
};
use keiro_units::{Bandwidth, ByteCount, Probability};
use toml::de::DeValue;

use super::{
    MESSAGE_BYTES_MAX, MTU_MAX, MTU_MIN, NAME_BYTES_MAX, Name, PATH_RATE_MAX, PATH_RATE_MIN,
    embedded::reached_by,
    tenant::{integer, number},
};
use crate::{key::PublicKey, units::Text};

/// Times above this are refused: a mistaken unit is likelier. Ours.
pub(super) const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The largest `probe_share`. Ours.
const PROBE_SHARE_MAX: f64 = 0.1;
/// The smallest `reassembly_max`: two of the longest messages, so that a long one finds room beside
/// a stream of short ones. Ours.
pub(crate) const REASSEMBLY_MIN: ByteCount = ByteCount::new(32 << 20);
/// `sockaddr_un.sun_path` without its final NUL (unix(7)).
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;
/// A UDP datagram's payload over IPv4 (RFC 768, RFC 791).
pub(super) const DATAGRAM_BYTES_MAX: u64 = 65_507;

pub(super) fn text(value: &DeValue<'_>) -> Result<String, ValueError> {
    string(value).map(str::to_owned)
}

pub(crate) fn name(value: &DeValue<'_>) -> Result<Name, ValueError> {
    Name::new(string(value)?).map_err(|e| {
        let text = e.to_string();
        let (message, hint) = text
            .split_once("; ")
            .unwrap_or((&text, "choose another name"));
        ValueError::new(message, hint)
    })
}

pub(super) fn group(value: &DeValue<'_>) -> Result<String, ValueError> {
    let text = string(value)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-$".contains(c);
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(allowed) {
        return Err(ValueError::new(
            format!("`{}` is not a group's name", shown(text)),
            "`getent group` lists them",
        ));
    }
    Ok(text.to_owned())
}

pub(super) fn socket_file_name(value: &DeValue<'_>) -> Result<PathBuf, ValueError> {
    let path = file_name(value)?;
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(ValueError::new(
            format!("a socket's file name has at most {SOCKET_PATH_BYTES_MAX} bytes, not {bytes}"),
            "choose a shorter directory such as /run/keiro",
        ));
    }
    Ok(path)
}

pub(crate) fn public_key(value: &DeValue<'_>) -> Result<PublicKey, ValueError> {
    string(value)?.parse().map_err(|e: crate::key::KeyError| {
        ValueError::new(e.to_string(), "copy what `keiro pubkey` prints at the peer")
    })
}

/// An address that a socket of this gateway can be bound to.
pub(super) fn local_address(value: &DeValue<'_>) -> Result<SocketAddr, ValueError> {
    let address = socket_address(value)?;
    if address.ip().is_multicast() || is_broadcast(&address) {
        return Err(ValueError::new(
            format!("`{address}` is a multicast address"),
            "write an address of this machine",
        ));
    }
    Ok(address)
}

/// An address at which one peer can be reached.
pub(super) fn endpoint_address(value: &DeValue<'_>) -> Result<SocketAddr, ValueError> {
    let address = socket_address(value)?;
    refuse_group(&address)?;
    Ok(address)
}

/// Refuses an address that is not one machine's.
pub(super) fn refuse_group(address: &SocketAddr) -> Result<(), ValueError> {
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() || is_broadcast(address) {
        return Err(ValueError::new(
            format!("`{address}` is not one machine's address"),
            "write the peer's address on this path",
        ));
    }
    Ok(())
}

pub(super) fn is_broadcast(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V4(v4) if v4.ip().is_broadcast())
}

pub(super) fn rate(value: &DeValue<'_>) -> Result<Bandwidth, ValueError> {
    let rate: Bandwidth = quantity(value)?;
    let what = match rate {
        Bandwidth::ZERO => "nothing could be sent at a rate of 0".to_owned(),
        rate if rate < PATH_RATE_MIN => format!("{} is less than any uplink carries", Text(rate)),
        rate if rate > PATH_RATE_MAX => format!("{} is more than any uplink carries", Text(rate)),
        rate => return Ok(rate),
    };
    Err(ValueError::new(
        what,
        "write what the uplink carries, as in \"100Mbit\"",
    ))
}

pub(super) fn time(value: &DeValue<'_>) -> Result<Duration, ValueError> {
    let time: Duration = quantity(value)?;
    if time > TIME_MAX {
        return Err(ValueError::new(
            format!("{} is more than {}", Text(time), Text(TIME_MAX)),
            "is the unit the right one?",
        ));
    }
    Ok(time)
}

pub(super) fn positive_time(value: &DeValue<'_>) -> Result<Duration, ValueError> {
    let time = time(value)?;
    if time.is_zero() {
        return Err(ValueError::new(
            "must be more than 0",
            "remove it to leave it open",
        ));
    }
    Ok(time)
}

/// The least that a loss tolerance may be. Ours: a path has to carry a hundred thousand packets until it is shown.
pub(super) const LOSS_TOLERANCE_MIN: f64 = 1e-4;

pub(super) fn loss_tolerance(value: &DeValue<'_>) -> Result<Probability, ValueError> {
    let tolerance = quantity::<Probability>(value)?;
    if tolerance.get() < LOSS_TOLERANCE_MIN {
        return Err(ValueError::new(
            format!(
                "{} is less than the packets of a path can show",
                Text(tolerance)
            ),
            "write 0.01% or more, or 100% for traffic that tolerates any loss",
        ));
    }
    Ok(tolerance)
}

/// Default of `probe_share`.
pub(super) fn default_probe_share() -> Probability {
    Probability::from_ratio(5, 1000).unwrap_or(Probability::ZERO)
}

pub(super) fn probe_share(value: &DeValue<'_>) -> Result<Probability, ValueError> {
    let share: Probability = quantity(value)?;
    if share.get() > PROBE_SHARE_MAX {
        return Err(ValueError::new(
            "more than a tenth of a path for measuring it",
            "write 0% to 10%",
        ));
    }
    Ok(share)
}

/// Money per gigabyte, to a millionth.
pub(super) fn cost_per_gb(value: &DeValue<'_>) -> Result<CostPerGb, ValueError> {
    let (units, _) = number(value)?;
    CostPerGb::new(units)
        .ok_or_else(|| ValueError::new("no cost per gigabyte", "write a number from 0 to 1000000"))
}

/// A day that every month has.
pub(super) fn budget_day(value: &DeValue<'_>) -> Result<u8, ValueError> {
    let day = u8::try_from(integer(value)?).ok();
    day.filter(|day| (1..=28).contains(day)).ok_or_else(|| {
        ValueError::new(
            "not a day that every month has",
            "write a number from 1 to 28",
        )
    })
}

pub(super) const ROLES: &[(&str, PathRole)] =
    &[("primary", PathRole::Primary), ("backup", PathRole::Backup)];

/// At least what keepalives take, at most what no line carries in a month.
pub(super) fn monthly_budget(value: &DeValue<'_>) -> Result<ByteCount, ValueError> {
    in_range(value, LIMIT_MIN, ByteCount::new(1_000_000_000_000_000))
}

pub(super) fn mtu(value: &DeValue<'_>) -> Result<ByteCount, ValueError> {
    in_range(value, ByteCount::new(MTU_MIN), ByteCount::new(MTU_MAX))
}

pub(super) fn reassembly(value: &DeValue<'_>) -> Result<ByteCount, ValueError> {
    in_range(value, REASSEMBLY_MIN, ByteCount::new(1 << 40))
}

pub(super) fn length(value: &DeValue<'_>) -> Result<ByteCount, ValueError> {
    in_range(value, ByteCount::new(1), ByteCount::new(MESSAGE_BYTES_MAX))
}

pub(super) fn in_range(
    value: &DeValue<'_>,
    min: ByteCount,
    max: ByteCount,
) -> Result<ByteCount, ValueError> {
    let bytes: ByteCount = quantity(value)?;
    if bytes < min || bytes > max {
        return Err(ValueError::new(
            format!("{} is out of range", Text(bytes)),
            format!("write {} to {}", Text(min), Text(max)),
        ));
    }
    Ok(bytes)
}

pub(crate) fn value<T>(found: Option<Located<T>>) -> Option<T> {
    found.map(|found| found.value)
}

pub(super) fn value_or(found: Option<Located<PathBuf>>, default: &str) -> PathBuf {
    value(found).unwrap_or_else(|| PathBuf::from(default))
}

pub(super) fn place<T>(found: &Option<Located<T>>) -> Option<Range<usize>> {
    found.as_ref().map(|found| found.at.clone())
}

/// Why a peer may reach an address only with `allow_local`; `None`: it is not local.
pub(super) fn local_kind(ip: IpAddr) -> Option<&'static str> {
    reached_by(ip).into_iter().find_map(kind_of_local)
}

fn kind_of_local(ip: IpAddr) -> Option<&'static str> {
    match ip {
        _ if ip.is_loopback() => Some("a loopback address"),
        _ if ip.is_multicast() => Some("a multicast address"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("a link-local address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("a link-local address"),
        _ => None,
    }
}
