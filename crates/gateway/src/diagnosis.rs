//! Why a peer or a path is not up, as far as this gateway can know: handshakes for another key, packets that
//! pass in one direction only, packets that nothing answers.

use std::collections::BTreeMap;

use keiro_control::{
    config::MTU_MIN,
    event_text::UnansweredPackets as Packets,
    protocol::{
        BudgetSnapshot, EventKind, PathFault, PathRef, PathSnapshot, PeerSnapshot, PeerState,
    },
    rounded::{bytes, percent},
};
use keiro_core::{self as core, Instant};

use crate::{
    data::command::Snapshot, gateway::Gateway, path_down_cause::PathDownCause, path_ids::PeerPath,
    status::StatusTable,
};

/// Lines about peers and paths that are not up. Ours: a screen.
const PROBLEMS_MAX: usize = 20;

/// What the sizes of packets that pass say, for people; `None`: nothing is wrong with them.
fn mtu_diagnosis(path: &core::PathSnapshot) -> Option<String> {
    if path.is_too_small {
        return Some(
            "mtu: short packets are answered and none of 576 bytes; it is not used; check the MTU of the line \
             and of tunnels below it, and firewalls that drop long packets"
                .to_owned(),
        );
    }
    let mtu = path.stats.mtu_bytes;
    let is_below = path.state == core::PathState::Up && mtu < MTU_MIN;
    is_below.then(|| {
        format!(
            "mtu: no packets of {MTU_MIN} bytes pass, {mtu} at most; it is used with that; check the MTU of the \
             line and of tunnels below it"
        )
    })
}

/// What the packets on a path say, for people; `None`: nothing is wrong, or it is too soon to say. `has_keys`: keys
/// were agreed with the peer, so they are not the cause.
pub(crate) fn path_diagnosis(
    now: Instant,
    path: &core::PathSnapshot,
    has_keys: bool,
) -> Option<String> {
    if let Some(of_mtu) = mtu_diagnosis(path) {
        return Some(of_mtu);
    }
    let unanswered = path.unanswered.as_ref()?;
    let fault = PathDownCause::of(now, unanswered)?;
    let remote = path.remote.map(|remote| remote.to_string());
    let since = now.saturating_duration_since(unanswered.since);
    let packets = Packets {
        remote: remote.as_deref(),
        sent: unanswered.sent_packets,
        received: unanswered.received_packets,
        since,
    };
    Some(match fault {
        PathDownCause::OneWay => packets.one_way(has_keys),
        PathDownCause::Silent => packets.silent(has_keys),
    })
}

/// What [`path_diagnosis`] is about; `None` like it.
pub(crate) fn path_fault(now: Instant, path: &core::PathSnapshot) -> Option<PathFault> {
    if mtu_diagnosis(path).is_some() {
        return Some(match path.is_too_small {
            true => PathFault::TooSmall,
            false => PathFault::SmallMtu,
        });
    }
    Some(match PathDownCause::of(now, path.unanswered.as_ref()?)? {
        PathDownCause::OneWay => PathFault::OneWay,
        PathDownCause::Silent => PathFault::Silent,
    })
}

/// Peers and paths that are not up, and why, and budgets that are nearly used up, a line each.
pub(crate) fn problems(peers: &[PeerSnapshot], paths: &[PathSnapshot]) -> Vec<String> {
    let is_down = |peer: &&PeerSnapshot| peer.state != PeerState::Up;
    let of_peers = peers.iter().filter(is_down);
    let of_peers = of_peers.map(|peer| format!("peer {}: {}", peer.name, peer.why));
    let of_paths = paths.iter().filter_map(|path| {
        let why = path.diagnosis.as_ref()?;
        Some(format!("path {} to {}: {why}", path.name, path.peer))
    });
    let budgets: BTreeMap<&str, &BudgetSnapshot> = paths
        .iter()
        .filter_map(|path| path.budget.as_ref())
        .map(|budget| (budget.uplink.as_str(), budget))
        .collect();
    let of_budgets = budgets
        .into_iter()
        .filter_map(|(path, budget)| budget_problem(path, budget));
    let mut lines: Vec<String> = of_peers.chain(of_paths).chain(of_budgets).collect();
    let more = lines.len().saturating_sub(PROBLEMS_MAX);
    if more > 0 {
        lines.truncate(PROBLEMS_MAX);
        lines.push(format!(
            "{more} more, see `keiro show peer` and `keiro show path`"
        ));
    }
    lines
}

/// What is left of a budget, where that is little.
fn budget_problem(path: &str, budget: &BudgetSnapshot) -> Option<String> {
    let BudgetSnapshot {
        budget_bytes,
        used_bytes,
        left_bytes,
        ends,
        ..
    } = budget;
    let part = *used_bytes as f64 / (*budget_bytes).max(1) as f64;
    let all = bytes(*budget_bytes);
    match part {
        _ if *left_bytes == 0 => Some(format!(
            "path {path}: its budget of {all} is used up until {ends}: only keepalives, and essential applications \
             without another path"
        )),
        0.8.. => Some(format!(
            "path {path}: {} of its budget of {all} are used up, which ends on {ends}",
            percent(part)
        )),
        _ => None,
    }
}

/// The event of a path that nothing answers, if it is news: once for each fault. Where the whole peer is
/// silent, its handshakes say so.
pub(crate) fn path_event(
    table: &mut StatusTable,
    now: Instant,
    id: PeerPath,
    on: &PathRef,
    path: &core::PathSnapshot,
    is_peer_up: bool,
) -> Option<EventKind> {
    let unanswered = path.unanswered.as_ref();
    let fault = unanswered.and_then(|unanswered| PathDownCause::of(now, unanswered));
    let fault = fault.filter(|fault| is_peer_up || *fault == PathDownCause::OneWay);
    if !table.on_answer_fault(id, fault) {
        return None;
    }
    let unanswered = unanswered?;
    Some(EventKind::PathUnanswered {
        on: on.clone(),
        remote: path.remote.map(|remote| remote.to_string()),
        sent_packets: unanswered.sent_packets,
        received_packets: unanswered.received_packets,
        unanswered_seconds: now
            .saturating_duration_since(unanswered.since)
            .as_secs_f64(),
        one_way: fault == Some(PathDownCause::OneWay),
    })
}

impl Gateway {
    /// Publishes which paths have turned out not to be answered.
    pub(crate) fn diagnose_paths(&mut self, snapshot: &Snapshot) {
        let mut events = Vec::new();
        for session in snapshot.sessions.values() {
            let Some(peer) = self.running_config.peer_name(session.peer) else {
                continue;
            };
            for path in &session.paths {
                let Some(name) = self.running_config.path_ids().name(path.id) else {
                    continue;
                };
                let on = PathRef {
                    path: name.to_owned(),
                    peer: peer.to_owned(),
                };
                let id = PeerPath::new(session.peer, path.id);
                let table = &mut self.status;
                events.extend(path_event(table, snapshot.at, id, &on, path, session.up));
            }
        }
        events.into_iter().for_each(|event| self.publish(event));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keiro_core::{PathId, PeerId};

    use super::*;

    fn at(second: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(second)
    }

    #[test]
    fn a_fault_is_reported_once_and_again_after_it_changed_or_returned() {
        let mut table = StatusTable::default();
        let id = PeerPath::new(PeerId(1), PathId(0));
        table.apply_config(at(0), &["osaka".into()], &[id], &[]);
        let mut news = |fault| table.on_answer_fault(id, fault);
        let (silent, one_way) = (Some(PathDownCause::Silent), Some(PathDownCause::OneWay));
        let reported = [silent, silent, one_way, one_way, None, one_way].map(&mut news);
        assert_eq!(reported, [true, false, true, false, false, true]);
    }
}
