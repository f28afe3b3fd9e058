//! Classes by server port and DSCP.

use super::{BuiltInClass, Evidence};
use crate::{Header, ecn, protocol};

/// From here on systems take ports for clients: Linux by default; RFC 6335 §6 begins at 49152.
const DYNAMIC_PORTS: u16 = 32_768;

/// The class of a flow by one of its ports. `None`: neither says anything.
pub(super) fn class_of(header: &Header) -> Option<(BuiltInClass, Evidence)> {
    if matches!(header.protocol, protocol::ICMP | protocol::ICMPV6) {
        return Some((
            BuiltInClass::Interactive,
            Evidence::Protocol(header.protocol),
        ));
    }
    let ports = header.ports?;
    // The server's is usually the lower one of the two.
    let low = ports.source.min(ports.destination);
    let high = ports.source.max(ports.destination);
    let by_port = |port: u16| {
        if port >= DYNAMIC_PORTS {
            return None;
        }
        let class = match header.protocol {
            protocol::TCP => tcp(port)?,
            protocol::UDP => udp(port)?,
            _ => return None,
        };
        Some((class, Evidence::Port(port)))
    };
    by_port(low).or_else(|| by_port(high)).or_else(|| {
        let is_web = |port: &u16| matches!(port, 80 | 443 | 8080 | 8443);
        let port = [low, high].into_iter().find(is_web)?;
        let is_tcp = header.protocol == protocol::TCP;
        is_tcp.then_some((BuiltInClass::Web, Evidence::CommonPort(port)))
    })
}

/// Whether a flow is another tunnel, by its port: what is inside is of any class, and its volume says nothing.
pub(super) fn is_tunnel(header: &Header) -> bool {
    // IKE and IPsec, L2TP, OpenVPN, VXLAN, Keiro, WireGuard.
    let of_tunnel = |port| matches!(port, 500 | 4500 | 1701 | 1194 | 4789 | 7600 | 51_820);
    let has_ports = matches!(header.protocol, protocol::TCP | protocol::UDP);
    let ports = header.ports.filter(|_| has_ports);
    !ports.is_some_and(|ports| !of_tunnel(ports.source) && !of_tunnel(ports.destination))
}

/// The class that a DSCP stands for (RFC 4594, RFC 5865, RFC 8622), of UDP only: TCP with a mark is any traffic of a
/// host that marks.
pub(super) fn class_of_dscp(header: &Header) -> Option<(BuiltInClass, Evidence)> {
    const AF41: u8 = 34;
    const CS4: u8 = 32;
    const VOICE_ADMIT: u8 = 44;
    const EF: u8 = 46;
    const LE: u8 = 1;
    const CS1: u8 = 8;
    if header.protocol != protocol::UDP {
        return None;
    }
    let dscp = ecn::dscp(header.traffic_class);
    let class = match dscp {
        EF | VOICE_ADMIT | AF41 => BuiltInClass::Voice,
        CS4 => BuiltInClass::Games,
        LE | CS1 => BuiltInClass::Bulk,
        _ => return None,
    };
    Some((class, Evidence::Dscp(dscp)))
}

/// Registered ports (IANA), and those that vendors document.
fn tcp(port: u16) -> Option<BuiltInClass> {
    Some(match port {
        // SSH, Telnet, DNS, RDP, VNC, Citrix ICA and its session reliability, X11.
        22 | 23 | 53 | 853 | 3389 | 5900..=5903 | 1494 | 2598 | 6000..=6003 => {
            BuiltInClass::Interactive
        }
        // SIP, STUN and TURN.
        5060 | 5061 | 3478 | 5349 => BuiltInClass::Voice,
        // FTP data, SMTP and submission, NNTP, BitTorrent.
        20 | 25 | 465 | 587 | 119 | 563 | 6881..=6889 => BuiltInClass::Bulk,
        // rsync, Bacula, Veeam's agents, CrashPlan.
        873 | 9101..=9103 | 10_006 | 4287 => BuiltInClass::Backup,
        _ => return None,
    })
}

fn udp(port: u16) -> Option<BuiltInClass> {
    Some(match port {
        // DNS, NTP, RDP.
        53 | 123 | 3389 => BuiltInClass::Interactive,
        // SIP; media of Teams (3478 to 3481), Meet, Zoom, Webex.
        5060 | 5061 | 3478..=3481 | 19_302..=19_309 | 8801..=8810 | 5004 => BuiltInClass::Voice,
        // Xbox network, PlayStation network, Steam and the Source engine, Quake's line, Minecraft.
        3074 | 9308 | 27_000..=27_050 | 27_960 | 19_132 => BuiltInClass::Games,
        6881..=6889 => BuiltInClass::Bulk,
        _ => return None,
    })
}
