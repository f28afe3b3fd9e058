//! Paths between here and a peer.

use std::{net::SocketAddr, time::Duration};

use keiro_control::protocol::{EventKind, PathFault};

use super::Cause;
use crate::{
    Facts, Found, Subject,
    facts::{Peer, PeerPath, Spent},
};

/// Changes of a peer's address that are no accident, within the time that reports are kept.
const MOVES_MIN: u64 = 3;
/// The last of them is not longer ago.
const MOVED_WITHIN: Duration = Duration::from_secs(60);

pub(super) static ONE_WAY: Cause = Cause {
    id: "one_way",
    what: "the packets of a peer arrive here, and ours do not reach it",
    remedy: "the firewall here for what leaves, that of the peer for what enters",
    check: |facts, _| {
        let one_way = with_fault(facts, PathFault::OneWay);
        let mut found = Vec::new();
        for (peer, path) in one_way {
            let to = path.remote.as_deref().unwrap_or("the peer");
            let subject = match is_up(peer) {
                true => Subject::Path(path.path.clone()),
                false => Subject::Peer(peer.name.clone()),
            };
            if found
                .iter()
                .any(|one: &crate::Finding| one.subject == subject)
            {
                continue;
            }
            found.push(ONE_WAY.found(
                subject,
                format!(
                    "packets of {} arrive here by {}, and ours to {to} are not answered: a firewall drops them here as \
                     they leave or there as they enter",
                    peer.name, path.path
                ),
                format!(
                    "accept UDP to {to} in the output chain here (`nft list ruleset`) and in the firewall of {}; \
                     `keiro doctor` there names it",
                    peer.name
                ),
            ));
        }
        found
    },
};

pub(super) static PATH_SILENT: Cause = Cause {
    id: "path_silent",
    what: "nothing on a path is answered, while the peer is up over another one",
    remedy: "the line, and `keiro doctor` at the peer",
    check: |facts, found| {
        let silent = with_fault(facts, PathFault::Silent);
        let silent = silent.filter(|(peer, path)| is_up(peer) && !has(found, path));
        let of = |(peer, path): (&Peer, &PeerPath)| {
            let to = path.remote.as_deref().unwrap_or("the peer");
            PATH_SILENT.found(
                Subject::Path(path.path.clone()),
                format!("nothing that leaves by it to {} is answered: {}", peer.name, path.diagnosis),
                format!(
                    "check its line, and that UDP to {to} passes the firewall of {}; `keiro doctor` there",
                    peer.name
                ),
            )
        };
        silent.map(of).collect()
    },
};

pub(super) static PATH_MTU: Cause = Cause {
    id: "path_mtu",
    what: "a line passes no packets of 1280 bytes, so that large packets are cut or lost",
    remedy: "the MTU of the line and of tunnels below it",
    check: |facts, _| {
        let small = [PathFault::SmallMtu, PathFault::TooSmall];
        let mut found = Vec::new();
        for (peer, path) in small.into_iter().flat_map(|of| with_fault(facts, of)) {
            let uplink = facts.uplinks.iter().find(|uplink| uplink.path == path.path);
            let near = uplink.filter(|uplink| uplink.mtu > 0 && u64::from(uplink.mtu) < 1280);
            let interface = near.and_then(|uplink| uplink.interface.as_deref());
            let remedy = match interface {
                Some(interface) => {
                    format!("`ip link set {interface} mtu 1500`, or what its line carries")
                }
                None => format!(
                    "raise the MTU of the line or tunnel between here and {} to 1280 bytes at least",
                    path.remote.as_deref().unwrap_or("the peer")
                ),
            };
            let finding = match path.fault {
                Some(PathFault::TooSmall) => format!(
                    "packets of 576 bytes to {} are lost and short ones are not, so it is not used",
                    peer.name
                ),
                _ => format!(
                    "packets to {} that are longer than {} bytes are lost, and no router says so",
                    peer.name, path.mtu_bytes
                ),
            };
            found.push(PATH_MTU.found(Subject::Path(path.path.clone()), finding, remedy));
        }
        found
    },
};

pub(super) static PEER_MOVES: Cause = Cause {
    id: "peer_moves",
    what: "the address of a peer changes again and again: a NAT forgets its mapping",
    remedy: "a longer UDP timeout of the NAT at the peer, two minutes at least (RFC 4787)",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(MOVED_WITHIN) {
            let EventKind::RemoteChanged { on, from, to } = &report.kind else {
                continue;
            };
            // A NAT keeps its address and gives another port. Between two addresses the uplinks of a peer take turns until
            // each has its path, and at first none is known.
            let ip = |text: &str| text.parse::<SocketAddr>().map(|address| address.ip());
            let is_of_nat = ip(from).is_ok_and(|before| ip(to) == Ok(before));
            if report.count < MOVES_MIN || !is_of_nat {
                continue;
            }
            found.push(PEER_MOVES.found(
                Subject::Path(on.path.clone()),
                format!(
                    "the address of {} has changed {} times, last from {from} to {to}: a NAT there forgets its mapping",
                    on.peer, report.count
                ),
                format!("raise the UDP timeout of the NAT at {} to two minutes (RFC 4787)", on.peer),
            ));
        }
        found
    },
};

pub(super) static BUDGET_SPENT: Cause = Cause {
    id: "budget_spent",
    what: "the budget of the month is used up of all paths to a peer that are up, so that only essential applications \
           use them",
    remedy: "a larger `monthly_budget`, another path, or `essential = true` for what has to pass",
    check: |facts, _| {
        let mut found = Vec::new();
        for peer in &facts.peers {
            let paths = peer.session.iter().flat_map(|session| &session.paths);
            let up: Vec<&PeerPath> = paths.filter(|path| path.is_up).collect();
            if up.iter().any(|path| path.spent.is_none()) {
                continue;
            }
            let of = |(path, spent): (&&PeerPath, &Spent)| {
                let (whose, remedy) = match spent {
                    Spent::Here { ends } => (
                        format!("its budget of the month is used up until {ends}"),
                        "raise its `monthly_budget`, then `keiro reload`",
                    ),
                    Spent::AtPeer => (
                        format!("the budget of {} for it is used up", peer.name),
                        "raise `monthly_budget` at the peer, then `keiro reload` there",
                    ),
                };
                let finding = format!(
                    "{whose}, and no other path to {} is up: only essential applications use it",
                    peer.name
                );
                let remedy = format!(
                    "{remedy}; or write `essential = true` in the [[app]] of what has to pass, at both gateways"
                );
                BUDGET_SPENT.found(Subject::Path(path.path.clone()), finding, remedy)
            };
            let spent = up
                .iter()
                .filter_map(|path| Some((path, path.spent.as_ref()?)));
            found.extend(spent.map(of));
        }
        found
    },
};

fn with_fault(facts: &Facts, fault: PathFault) -> impl Iterator<Item = (&Peer, &PeerPath)> {
    let peers = facts.peers.iter();
    let paths = peers.flat_map(|peer| {
        let paths = peer.session.iter().flat_map(|session| &session.paths);
        paths.map(move |path| (peer, path))
    });
    paths.filter(move |(_, path)| path.fault == Some(fault) && !path.is_abandoned)
}

fn is_up(peer: &Peer) -> bool {
    peer.session.as_ref().is_some_and(|session| session.is_up)
}

fn has(found: &Found, path: &PeerPath) -> bool {
    found.has(&Subject::Path(path.path.clone()))
}
