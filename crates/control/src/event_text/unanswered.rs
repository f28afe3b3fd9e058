//! Why a peer or a path is not up: handshakes with another key, packets that pass in one direction only, packets that
//! nothing answers.

use std::time::Duration;

use crate::{
    protocol::{EventKind, KeyFault},
    rounded::duration,
};

/// Packets on a path without an answer.
#[derive(Clone, Copy, Debug)]
pub struct UnansweredPackets<'a> {
    /// The peer's address; `None`: not known.
    pub remote: Option<&'a str>,
    /// Packets sent since the path was last up.
    pub sent: u64,
    /// Authentic packets of the peer since.
    pub received: u64,
    /// How long nothing has been answered.
    pub since: Duration,
}

impl UnansweredPackets<'_> {
    fn to(&self) -> String {
        let to = self.remote.map(|remote| format!(" to {remote}"));
        to.unwrap_or_default()
    }

    /// The peer's packets arrive, and ours do not reach it. `has_keys`: keys were agreed with the peer.
    pub fn one_way(&self, has_keys: bool) -> String {
        let Self {
            sent,
            received,
            since,
            ..
        } = self;
        let keys = match has_keys {
            true => "",
            false => ", or the preshared keys differ",
        };
        format!(
            "theirs arrive here, ours do not reach them: {sent} packets{} in {} without an answer, \
             {received} received; a firewall or NAT drops what leaves here or what enters there{keys}",
            self.to(),
            duration(*since)
        )
    }

    /// Nothing arrives. `has_keys` as in [`one_way`](Self::one_way).
    pub fn silent(&self, has_keys: bool) -> String {
        let Self { sent, since, .. } = self;
        let cause = match has_keys {
            true => "the address, the line or a firewall",
            false => "the key, the address or a firewall",
        };
        format!(
            "sent {sent} packets{} in {}, nothing received: {cause}",
            self.to(),
            duration(*since)
        )
    }
}

/// Why a handshake from `remote` fails, for people.
pub fn key_fault(remote: &str, fault: KeyFault, public_key: Option<&str>) -> String {
    match fault {
        KeyFault::NotOurs => format!(
            "a handshake from {remote} was made for another gateway's public key; give that gateway this \
             one's (`keiro status` shows it)"
        ),
        KeyFault::NotOfPeer => {
            let key = public_key.map(|key| format!(" {key}")).unwrap_or_default();
            format!(
                "a handshake from {remote} was made with the public key{key}, which no peer here has; compare \
                 it with what `keiro status` shows at that gateway"
            )
        }
        KeyFault::Preshared => format!(
            "the answer from {remote} was made with another preshared key; give both gateways the same"
        ),
        KeyFault::Unknown => format!("a handshake from {remote} fails because of a key"),
    }
}

/// The sentence of an event of this module.
pub(super) fn sentence(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::WrongKey {
            peer,
            remote,
            at_peer_address,
            fault,
            public_key,
        } => {
            let why = key_fault(remote, *fault, public_key.as_deref());
            match peer {
                Some(peer) => format!("wrong_key: peer {peer}, whose address it is: {why}"),
                None if *at_peer_address => {
                    format!("wrong_key: {why}; it is the address of several peers")
                }
                None => format!("wrong_key: {why}; it is the address of no peer"),
            }
        }
        EventKind::ClockBehind {
            peer,
            remote,
            behind_seconds,
        } => format!(
            "clock_behind: peer {peer}: {}",
            clock_behind(remote, *behind_seconds)
        ),
        EventKind::HandshakeUnanswered {
            peer,
            remotes,
            sent_initiations,
            unanswered_seconds,
        } => format!(
            "peer {peer} does not answer handshakes: {sent_initiations} were sent to {} in {} without an answer: \
             the key, the address or a firewall; check its address and port, both public keys, both \
             clocks, and firewalls that drop UDP",
            remotes.join(", "),
            of_seconds(*unanswered_seconds)
        ),
        EventKind::PathUnanswered {
            on,
            remote,
            sent_packets,
            received_packets,
            unanswered_seconds,
            one_way,
        } => {
            let packets = UnansweredPackets {
                remote: remote.as_deref(),
                sent: *sent_packets,
                received: *received_packets,
                since: Duration::try_from_secs_f64(*unanswered_seconds).unwrap_or_default(),
            };
            let why = match one_way {
                true => packets.one_way(false),
                false => packets.silent(true),
            };
            format!("path {} to {}: {why}", on.path, on.peer)
        }
        _ => return None,
    })
}

/// Clocks of gateways may well differ by less, seconds.
const CLOCK_BEHIND_MIN: f64 = 5.0;

/// Why handshakes of a peer are refused whose clock has gone back, for people.
pub fn clock_behind(remote: &str, behind_seconds: f64) -> String {
    // A clock that was ahead before and is right now is behind what it was, too.
    let behind = match behind_seconds < CLOCK_BEHIND_MIN {
        true => String::new(),
        false => format!(
            "{} behind this gateway's clock and ",
            of_seconds(behind_seconds)
        ),
    };
    format!(
        "its handshakes from {remote} are refused as replays: their time is {behind}before that of earlier ones; set the \
         clock of that gateway, and keep its state_directory over restarts"
    )
}

fn of_seconds(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::PathRef;

    #[test]
    fn sentences_say_which_direction_is_lost_and_what_may_be_the_cause() {
        let event = |one_way| EventKind::PathUnanswered {
            on: PathRef {
                path: "wan0".into(),
                peer: "osaka".into(),
            },
            remote: Some("198.51.100.1:7600".into()),
            sent_packets: 12,
            received_packets: if one_way { 9 } else { 0 },
            unanswered_seconds: 30.0,
            one_way,
        };
        assert_eq!(
            sentence(&event(true)).unwrap(),
            "path wan0 to osaka: theirs arrive here, ours do not reach them: 12 packets to \
             198.51.100.1:7600 in 30 s without an answer, 9 received; a firewall or NAT drops what \
             leaves here or what enters there, or the preshared keys differ"
        );
        assert_eq!(
            sentence(&event(false)).unwrap(),
            "path wan0 to osaka: sent 12 packets to 198.51.100.1:7600 in 30 s, nothing received: the \
             address, the line or a firewall"
        );
        let silent = EventKind::HandshakeUnanswered {
            peer: "osaka".into(),
            remotes: vec!["198.51.100.1:7600".into(), "203.0.113.1:7600".into()],
            sent_initiations: 10,
            unanswered_seconds: 30.0,
        };
        let text = sentence(&silent).unwrap();
        let start = "peer osaka does not answer handshakes: 10 were sent to 198.51.100.1:7600, \
                     203.0.113.1:7600 in 30 s without an answer: the key, the address or a firewall";
        assert!(text.starts_with(start), "{text}");
    }

    #[test]
    fn a_wrong_key_is_named_with_the_address_and_the_next_step() {
        let wrong_at = |peer: Option<&str>, at_peer_address, fault, key: Option<&str>| {
            let event = EventKind::WrongKey {
                peer: peer.map(str::to_owned),
                remote: "198.51.100.1:7600".into(),
                at_peer_address,
                fault,
                public_key: key.map(str::to_owned),
            };
            sentence(&event).unwrap()
        };
        let wrong = |peer: Option<&str>, fault, key| wrong_at(peer, peer.is_some(), fault, key);
        assert_eq!(
            wrong(Some("osaka"), KeyFault::NotOurs, None),
            "wrong_key: peer osaka, whose address it is: a handshake from 198.51.100.1:7600 was made \
             for another gateway's public key; give that gateway this one's (`keiro status` shows it)"
        );
        let text = wrong(None, KeyFault::NotOfPeer, Some("abc="));
        assert!(text.contains("the public key abc=, which no peer here has"));
        assert!(text.ends_with("; it is the address of no peer"));
        let text = wrong_at(None, true, KeyFault::NotOfPeer, Some("abc="));
        assert!(text.ends_with("; it is the address of several peers"));
        let text = wrong(Some("osaka"), KeyFault::Preshared, None);
        assert!(text.contains("another preshared key; give both gateways the same"));
    }
}
