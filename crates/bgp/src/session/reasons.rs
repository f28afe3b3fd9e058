//! Why a session ends or does not begin, in words.

use rustbgpd_wire::{
    Capability, NotificationMessage, OpenMessage,
    notification::{NotificationCode, cease_subcode},
};

use super::SessionConfig;
use crate::address::Family;

/// The longest shutdown communication of a neighbour that is repeated (RFC 9003 §2).
const COMMUNICATION_BYTES_MAX: usize = 255;
/// Families of a neighbour that are listed; it may offer hundreds. Ours.
const FAMILIES_LISTED_MAX: usize = 8;

/// A received NOTIFICATION.
pub(super) fn notification(message: &NotificationMessage) -> String {
    let (code, subcode) = (message.code, message.subcode);
    let mut text = format!("NOTIFICATION received: {code}, subcode {subcode}");
    if code != NotificationCode::Cease {
        return text;
    }
    if let Some(meaning) = cease_meaning(subcode) {
        text.push_str(&format!(" ({meaning})"));
    }
    if let Some(said) = shutdown_communication(message) {
        text.push_str(&format!(", it says \"{said}\""));
    }
    text
}

/// The meaning of a Cease's subcode (RFC 4486, RFC 8538, RFC 9384).
const fn cease_meaning(subcode: u8) -> Option<&'static str> {
    Some(match subcode {
        cease_subcode::MAX_PREFIXES => "maximum number of prefixes reached",
        cease_subcode::ADMINISTRATIVE_SHUTDOWN => "administrative shutdown",
        cease_subcode::PEER_DECONFIGURED => "peer de-configured",
        cease_subcode::ADMINISTRATIVE_RESET => "administrative reset",
        cease_subcode::CONNECTION_REJECTED => "connection rejected",
        cease_subcode::OTHER_CONFIGURATION_CHANGE => "other configuration change",
        cease_subcode::CONNECTION_COLLISION_RESOLUTION => "connection collision resolution",
        cease_subcode::OUT_OF_RESOURCES => "out of resources",
        cease_subcode::HARD_RESET => "hard reset",
        cease_subcode::BFD_DOWN => "BFD down",
        _ => return None,
    })
}

/// What the neighbour's operator wrote (RFC 9003), without control characters; `None`: nothing.
fn shutdown_communication(message: &NotificationMessage) -> Option<String> {
    let with_text = [
        cease_subcode::ADMINISTRATIVE_SHUTDOWN,
        cease_subcode::ADMINISTRATIVE_RESET,
    ];
    if !with_text.contains(&message.subcode) {
        return None;
    }
    let (length, rest) = message.data.split_first()?;
    let length = usize::from(*length).min(COMMUNICATION_BYTES_MAX);
    let text = std::str::from_utf8(rest.get(..length)?).ok()?;
    let shown = |c: char| match c.is_control() || c == '"' {
        true => ' ',
        false => c,
    };
    let text: String = text.chars().map(shown).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Why an OPEN was refused. The identifier and AS of the OPEN are named in each case.
pub(super) fn refused_open(open: &OpenMessage, config: &SessionConfig) -> String {
    let (asn, id) = (open.four_byte_as(), open.bgp_identifier);
    let refused = format!("OPEN refused (AS {asn}, identifier {id})");
    let ours = config.remote_asn;
    if asn != ours {
        return format!("{refused}: it is in AS {asn}, not in AS {ours} as configured");
    }
    if id == config.router_id && config.local_asn == config.remote_asn {
        return format!("{refused}: it has this speaker's identifier");
    }
    if offers(open).all(|offered| offered.is_none_or(|family| !config.families.contains(&family))) {
        let own: Vec<String> = config.families.iter().map(Family::to_string).collect();
        let theirs = offered_text(open);
        return format!(
            "{refused}: no address family in common, it offers {theirs}, this side {}",
            own.join(", ")
        );
    }
    refused
}

/// The offered families; `None` in it: one that this speaker does not know. A neighbour that names none
/// offers IPv4 unicast (RFC 4760 §8).
fn offers(open: &OpenMessage) -> impl Iterator<Item = Option<Family>> + '_ {
    let named = open.capabilities.iter().filter_map(|one| match one {
        Capability::MultiProtocol { afi, safi } => Some(Family::of(*afi as u16, *safi as u8)),
        _ => None,
    });
    let names_any = open
        .capabilities
        .iter()
        .any(|one| matches!(one, Capability::MultiProtocol { .. }));
    named.chain((!names_any).then_some(Some(Family::Ipv4)))
}

fn offered_text(open: &OpenMessage) -> String {
    let mut shown: Vec<String> = Vec::new();
    for offered in offers(open) {
        let text = offered.map_or("another".to_owned(), |family| family.to_string());
        if !shown.contains(&text) {
            shown.push(text);
        }
        if shown.len() == FAMILIES_LISTED_MAX {
            break;
        }
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bytes::Bytes;
    use rustbgpd_wire::{Afi, Safi};

    use super::*;

    fn cease(subcode: u8, data: &[u8]) -> String {
        let data = Bytes::copy_from_slice(data);
        notification(&NotificationMessage::new(
            NotificationCode::Cease,
            subcode,
            data,
        ))
    }

    #[test]
    fn cease_is_shown_with_its_shutdown_communication() {
        let head = "NOTIFICATION received: Cease, subcode";
        for (subcode, data, rest) in [
            (2, &b""[..], "2 (administrative shutdown)"),
            (
                2,
                b"\x04work",
                "2 (administrative shutdown), it says \"work\"",
            ),
            (
                4,
                b"\x05a\x1b[2J",
                "4 (administrative reset), it says \"a [2J\"",
            ),
            (2, b"\xffshort", "2 (administrative shutdown)"),
            (2, b"\x02\xff\xfe", "2 (administrative shutdown)"),
            (6, b"\x04work", "6 (other configuration change)"),
            (77, b"", "77"),
        ] {
            assert_eq!(cease(subcode, data), format!("{head} {rest}"));
        }
    }

    #[test]
    fn refused_open_message_is_explained() {
        let config = SessionConfig {
            local_asn: 65000,
            remote_asn: 65001,
            router_id: Ipv4Addr::new(10, 0, 0, 1),
            hold_time: 90,
            families: vec![Family::Ipv6, Family::Vpn6],
            add_path: false,
            graceful_restart: None,
            restarted: false,
            extended_messages: false,
        };
        let multi = |afi, safi| Capability::MultiProtocol { afi, safi };
        let open = |asn: u16, capabilities| OpenMessage {
            version: 4,
            my_as: asn,
            hold_time: 90,
            bgp_identifier: Ipv4Addr::new(10, 0, 0, 1),
            capabilities,
        };
        let v4 = vec![multi(Afi::Ipv4, Safi::Unicast)];
        let v6 = vec![multi(Afi::Ipv6, Safi::Unicast)];
        for (open, reason) in [
            (
                open(65001, v4),
                ": no address family in common, it offers ipv4, this side ipv6, vpnv6",
            ),
            (
                open(65001, Vec::new()),
                ": no address family in common, it offers ipv4, this side ipv6, vpnv6",
            ),
            (
                open(65009, v6.clone()),
                ": it is in AS 65009, not in AS 65001 as configured",
            ),
            (open(65001, v6), ""),
        ] {
            let text = refused_open(&open, &config);
            assert!(
                text.ends_with(&format!("identifier 10.0.0.1){reason}")),
                "{text}"
            );
        }
    }
}
