//! Peers without a session.

use std::{net::SocketAddr, time::Duration};

use keiro_control::protocol::{EventKind, KeyFault};

use super::{Cause, ago, machine};
use crate::{
    Facts, Found, Subject,
    facts::{Endpoint, Peer, REPORTED_EACH, Report, Session, Uplink},
};

/// A wrong key is reported once a minute, if a handshake fails. Ours: two of these and a half.
const KEY_REPORT_VALID: Duration = Duration::from_secs(150);

pub(super) static ENDPOINT_UNRESOLVED: Cause = Cause {
    id: "endpoint_unresolved",
    what: "the name of a peer's endpoint has no address",
    remedy: "the name in `endpoint`, or the resolver in /etc/resolv.conf",
    check: |facts, _| {
        let mut found = Vec::new();
        for peer in not_up(facts) {
            for endpoint in &peer.endpoints {
                let Err(why) = &endpoint.addresses else {
                    continue;
                };
                found.push(ENDPOINT_UNRESOLVED.found(
                    subject(peer),
                    format!("{} cannot be resolved: {why}", endpoint.text),
                    format!(
                        "correct `endpoint` of the [[peer]] or the resolver; `getent ahosts {}` must print its address",
                        endpoint.host()
                    ),
                ));
            }
        }
        found
    },
};

pub(super) static ENDPOINT_IS_THIS_MACHINE: Cause = Cause {
    id: "endpoint_is_this_machine",
    what: "the endpoint of a peer is an address and port of this gateway",
    remedy: "`endpoint` of the [[peer]], or the name's address in DNS or /etc/hosts",
    check: |facts, _| {
        let mut found = Vec::new();
        for peer in not_up(facts) {
            for endpoint in &peer.endpoints {
                let addresses = endpoint.addresses.iter().flatten();
                let own = addresses
                    .copied()
                    .find(|address| is_of_this_gateway(facts, *address));
                let Some(own) = own else { continue };
                found.push(ENDPOINT_IS_THIS_MACHINE.found(
                    subject(peer),
                    format!("its endpoint {} is {own}, which is this gateway itself", endpoint.text),
                    "write the peer's address as `endpoint` of the [[peer]], or correct the name in DNS or /etc/hosts",
                ));
            }
        }
        found
    },
};

pub(super) static WRONG_KEY: Cause = Cause {
    id: "wrong_key",
    what: "a handshake fails because of a public or preshared key",
    remedy: "the key that the finding names, in the [[peer]] that it names",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(KEY_REPORT_VALID) {
            let EventKind::WrongKey {
                peer,
                remote,
                fault,
                public_key,
                ..
            } = &report.kind
            else {
                continue;
            };
            if let Some(subject) = of_wrong_key(facts, peer.as_deref()) {
                let (finding, remedy) = key_fault(facts, remote, *fault, public_key.as_deref());
                found.push(WRONG_KEY.found(subject, finding, remedy));
            }
        }
        found
    },
};

pub(super) static VERSION_MISMATCH: Cause = Cause {
    id: "version_mismatch",
    what: "a peer speaks other versions of the wire protocol",
    remedy: "an upgrade of the older gateway",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(KEY_REPORT_VALID) {
            let EventKind::VersionMismatch {
                peer: Some(name),
                peer_versions,
                our_versions,
                ..
            } = &report.kind
            else {
                continue;
            };
            if !facts.peers_down().any(|(peer, _)| peer.name == *name) {
                continue;
            }
            let older = match peer_versions.newest < our_versions.oldest {
                true => format!("gateway {name}"),
                false => "this gateway".to_owned(),
            };
            found.push(VERSION_MISMATCH.found(
                Subject::Peer(name.clone()),
                format!("it speaks version {peer_versions} of the wire protocol, and this gateway {our_versions}"),
                format!("upgrade {older}; `keiro --version` shows what is installed"),
            ));
        }
        found
    },
};

pub(super) static KEY_REFUSED: Cause = Cause {
    id: "key_refused",
    what: "a peer serves another gateway that uses this one's private key",
    remedy: "a key of its own for each gateway: `keiro genkey`",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(REPORTED_EACH) {
            if let EventKind::KeyRefused { peer } = &report.kind {
                found.push(KEY_REFUSED.found(
                    Subject::Peer(peer.clone()),
                    format!("it serves another gateway that uses this one's private key{}", last(report)),
                    "stop the other one, or give this one a key of its own: `keiro genkey`, and its public key to the peer",
                ));
            }
        }
        found
    },
};

pub(super) static DUPLICATE_KEY: Cause = Cause {
    id: "duplicate_key",
    what: "two gateways use the private key of a peer: a spare, a standby or a cloned image",
    remedy: "a key of its own for each gateway: `keiro genkey`",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(REPORTED_EACH) {
            if let EventKind::DuplicateKey {
                peer,
                served,
                other,
            } = &report.kind
            {
                found.push(DUPLICATE_KEY.found(
                    Subject::Peer(peer.clone()),
                    format!(
                        "two gateways use its private key: {served} is served and {other} is not{}",
                        last(report)
                    ),
                    format!("give the gateway at {other} a key of its own: `keiro genkey` there, and a [[peer]] here"),
                ));
            }
        }
        found
    },
};

pub(super) static PEER_CLOCK_BEHIND: Cause = Cause {
    id: "peer_clock_behind",
    what: "the handshakes of a peer are older than earlier ones: its clock has gone back",
    remedy: "`timedatectl set-ntp true` at the peer, then a restart of its gateway",
    check: |facts, _| {
        let stale = facts
            .peers_down()
            .filter(|(_, session)| session.stale_handshakes > 0);
        let of = |(peer, _): (&Peer, &Session)| {
            PEER_CLOCK_BEHIND.found(
                subject(peer),
                "its handshakes arrive and are older than its last one, so they are ignored: its clock has gone back",
                "`timedatectl set-ntp true` at the peer, then `systemctl restart keiro-gateway` there",
            )
        };
        stale.map(of).collect()
    },
};

pub(super) static PEER_SILENT: Cause = Cause {
    id: "peer_silent",
    what: "nothing comes from a peer, and nothing at this machine explains it",
    remedy: "`keiro doctor` at the peer; its firewall, router or cloud's security group must pass the UDP port",
    check: |facts, found| {
        let silent = facts.peers_down().filter(|(peer, session)| {
            !peer.endpoints.is_empty() && !is_explained(facts, found, peer, session)
        });
        let of = |(peer, session): (&Peer, &Session)| {
            let at: Vec<&str> = peer
                .endpoints
                .iter()
                .map(|endpoint| endpoint.text.as_str())
                .collect();
            let at = at.join(", ");
            PEER_SILENT.found(
                subject(peer),
                format!(
                    "no answer from {at} for {}: no gateway runs there, its firewall or router drops UDP, or it has \
                     another key for this gateway",
                    ago(session.since)
                ),
                format!(
                    "run `keiro doctor` there; UDP to {at} must pass its firewall, be forwarded by its router and allowed \
                     by its cloud's security group"
                ),
            )
        };
        silent.map(of).collect()
    },
};

pub(super) static PEER_ABSENT: Cause = Cause {
    id: "peer_absent",
    what: "a peer without an endpoint here has not come",
    remedy: "`keiro doctor` at the peer; its `endpoint` must be an address of this gateway",
    check: |facts, found| {
        let absent = facts.peers_down().filter(|(peer, session)| {
            peer.endpoints.is_empty() && !is_explained(facts, found, peer, session)
        });
        let of = |(peer, session): (&Peer, &Session)| {
            let ports: std::collections::BTreeSet<u16> =
                facts.uplinks.iter().map(|uplink| uplink.port).collect();
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            PEER_ABSENT.found(
                subject(peer),
                format!("it has no endpoint here, and nothing of it has come for {}", ago(session.since)),
                format!(
                    "run `keiro doctor` there; its `endpoint` must be this gateway, and routers before it must forward \
                     UDP port {}",
                    ports.join(", ")
                ),
            )
        };
        absent.map(of).collect()
    },
};

/// Whether something that was found is why a peer is not up.
fn is_explained(facts: &Facts, found: &Found, peer: &Peer, session: &Session) -> bool {
    let is_found = |path: &str| found.has(&Subject::Path(path.to_owned()));
    let leads = |path: &&str| {
        let of = session.paths.iter().find(|of| of.path == **path);
        of.is_none_or(|of| !of.is_abandoned)
    };
    let uplinks = facts.uplinks.iter().map(|uplink| uplink.path.as_str());
    let mut uplinks = uplinks.filter(leads).peekable();
    let all_uplinks = uplinks.peek().is_some() && uplinks.all(is_found);
    found.has(&subject(peer)) || found.has_cause(machine::CLOCK_BEHIND.id) || all_uplinks
}

/// Peers that are not up, or of which nothing is known.
fn not_up(facts: &Facts) -> impl Iterator<Item = &Peer> {
    let peers = facts.peers.iter();
    peers.filter(|peer| peer.session.as_ref().is_none_or(|session| !session.is_up))
}

fn subject(peer: &Peer) -> Subject {
    Subject::Peer(peer.name.clone())
}

/// The address is where a path of this gateway has its socket.
fn is_of_this_gateway(facts: &Facts, address: SocketAddr) -> bool {
    let has_port = |uplink: &Uplink| uplink.port == address.port();
    let ip = address.ip();
    let is_own = |uplink: &Uplink| {
        uplink.local.is_some_and(|local| local.ip() == ip)
            || ip.is_loopback() && uplink.local.is_some_and(|local| !local.ip().is_loopback())
    };
    let mut uplinks = facts.uplinks.iter();
    uplinks.any(|uplink| has_port(uplink) && is_own(uplink))
}

/// What a wrong key is about; `None`: it has no consequence.
fn of_wrong_key(facts: &Facts, peer: Option<&str>) -> Option<Subject> {
    let mut down = facts.peers_down().map(|(peer, _)| peer);
    if let Some(name) = peer {
        let is_down = down.any(|peer| peer.name == name);
        return is_down.then(|| Subject::Peer(name.to_owned()));
    }
    // A stranger is likely the only one that is missing.
    let (first, second) = (down.next()?, down.next());
    Some(match second {
        None => subject(first),
        Some(_) => Subject::Gateway,
    })
}

fn key_fault(
    facts: &Facts,
    remote: &str,
    fault: KeyFault,
    public_key: Option<&str>,
) -> (String, String) {
    let own = facts.gateway.as_ref();
    let own = own.map_or("", |gateway| gateway.public_key.as_str());
    match fault {
        KeyFault::NotOurs => (
            format!("the gateway at {remote} has a wrong public key for this one"),
            format!("write `public_key = \"{own}\"` in its [[peer]] for this gateway, then `keiro reload` there"),
        ),
        KeyFault::NotOfPeer => {
            let key = public_key.unwrap_or("the one that `keiro status` shows there");
            (
                format!("the gateway at {remote} has the public key {key}, which no peer here has"),
                format!(
                    "if `keiro status` there shows the same, write `public_key = \"{key}\"` in its [[peer]] here, then \
                     `keiro reload`"
                ),
            )
        }
        KeyFault::Preshared => (
            format!("the gateway at {remote} has another preshared key"),
            "copy the file of `preshared_key_file` from one gateway to the other, then `keiro reload`".to_owned(),
        ),
        KeyFault::Unknown => (
            format!("a handshake from {remote} fails because of a key"),
            "compare the keys with `keiro status` at both gateways".to_owned(),
        ),
    }
}

fn last(report: &Report) -> String {
    format!(" (last {} ago)", ago(report.age))
}

impl Endpoint {
    fn host(&self) -> &str {
        let host = self
            .text
            .rsplit_once(':')
            .map_or(&*self.text, |(host, _)| host);
        host.trim_matches(['[', ']'])
    }
}
