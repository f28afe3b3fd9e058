//! The kernel's state for the control socket: what the daemon has put there, from its own records, or
//! what is there, read outside its event loop.
//!
//! Reading lists every route of the namespace, so a request for it is handled in another thread.
//! Threads inherit the daemon's namespace.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use keiro_linux::{
    epe::{EpeError, Reconciler, State, Table},
    nexthop::Nexthop,
};

use super::{MAIN, Peer, Plan, vrf};
use crate::{
    control::Answer,
    status::{KernelRoute, KernelStatus, PeerInKernel, covering},
};

#[derive(Clone, Debug)]
pub struct KernelView {
    pub(super) plan: Box<Plan>,
}

impl KernelView {
    /// Adds the kernel's state to an answer.
    pub(crate) fn complete(&self, answer: &mut Answer) {
        let state = Reconciler::open(self.plan.owner.clone()).and_then(|mut own| own.present());
        match answer {
            Answer::Status(status) => {
                status.kernel = Some(of_all(&state));
                let of_peers = match &state {
                    Ok(state) => of_peers(&self.plan, state),
                    Err(_) => vec![None; self.plan.peers.len()],
                };
                for (shown, state) in status.peers.iter_mut().zip(of_peers) {
                    shown.set_kernel(state);
                }
            }
            Answer::Explanation(explanation) => {
                let Ok(state) = &state else {
                    return;
                };
                let (main, of_peers) = routes(&self.plan, state, explanation.asked);
                explanation.kernel = Some(main);
                for (shown, route) in explanation.peers.iter_mut().zip(of_peers) {
                    shown.kernel = route;
                }
            }
            Answer::Routes(_)
            | Answer::Monitoring
            | Answer::Reloaded(_)
            | Answer::Drain(_)
            | Answer::Refused(_) => {}
        }
    }
}

/// What a daemon has put into the kernel.
pub(super) fn installed(
    plan: &Plan,
    reconciler: &Reconciler,
) -> (KernelStatus, Vec<Option<PeerInKernel>>) {
    let state = reconciler.wanted();
    let status = KernelStatus {
        differs: !reconciler.in_step(),
        ..of_state(state)
    };
    (status, of_peers(plan, state))
}

/// The routes for a prefix, of the main table and of each peer's table.
pub(super) fn routes(
    plan: &Plan,
    state: &State,
    asked: IpNet,
) -> (KernelRoute, Vec<Option<KernelRoute>>) {
    let of_peers = plan.peers.values().map(|peer| {
        // An End.DX6 segment has no table.
        let of_family = matches!(asked, IpNet::V6(_)) || peer.has_ipv4_table();
        let has = peer.direct.is_none() && of_family;
        has.then(|| route(state, peer.table, asked))
    });
    (route(state, MAIN, asked), of_peers.collect())
}

fn of_peers(plan: &Plan, state: &State) -> Vec<Option<PeerInKernel>> {
    let vrfs = vrf::present(&vrf::of(plan.peers.values()));
    let vrfs = vrfs.unwrap_or_default();
    let of = |peer: &Peer| PeerInKernel {
        vrf: peer.vrf.map(|vrf| vrfs.contains(&vrf)),
        ..of_peer(state, peer)
    };
    plan.peers.values().map(|peer| Some(of(peer))).collect()
}

fn of_all(state: &Result<State, EpeError>) -> KernelStatus {
    match state {
        Ok(state) => of_state(state),
        Err(error) => KernelStatus {
            error: Some(error.to_string()),
            ..KernelStatus::default()
        },
    }
}

fn of_state(state: &State) -> KernelStatus {
    let main = state.tables.get(&MAIN);
    let guarded = state.drops.iter();
    KernelStatus {
        main_routes: main.map_or(0, |main| main.routes.len()),
        nexthops: state.nexthops.len(),
        segments: state.sids.len(),
        guarded: guarded.map(|rule| rule.interface.to_string()).collect(),
        differs: false,
        error: None,
    }
}

fn of_peer(state: &State, peer: &Peer) -> PeerInKernel {
    let table = state.tables.get(&peer.table);
    let has = |own: IpAddr| state.addresses.iter().any(|there| there.address == own);
    let leads = |own: IpAddr| {
        let mut rules = state.rules.iter();
        rules.any(|rule| rule.source == own && rule.table == peer.table)
    };
    let segment = |sid| state.sids.contains_key(&sid);
    PeerInKernel {
        table: peer.direct.is_none().then_some(peer.table),
        closed: table.is_some_and(|table| is_closed(peer, table)),
        routes: table.map_or(0, |table| table.routes.len() - for_probes(state, table)),
        entered: match peer.own {
            Some(_) => peer.own_addresses().all(leads),
            None => {
                let mut sids = state.sids.values();
                sids.any(|sid| sid.behaviour() == peer.behaviour())
                    && peer.ipv4_sid.is_none_or(segment)
            }
        },
        address: peer.own.is_some() && peer.own_addresses().all(has),
        vrf: None,
    }
}

/// Whether destinations without a route are unreachable, of IPv4 too where the table has such routes.
fn is_closed(peer: &Peer, table: &Table) -> bool {
    table.closed && (table.closed_ipv4 || !peer.has_ipv4_table())
}

/// The routes to segments by themselves, which are for probes.
fn for_probes(state: &State, table: &Table) -> usize {
    let segments = state.nexthops.values().filter_map(|nexthop| match nexthop {
        Nexthop::Segment { sid, .. } => Some(IpNet::V6((*sid).into())),
        Nexthop::Gateway { .. } | Nexthop::Blackhole { .. } => None,
    });
    let segments: BTreeSet<IpNet> = segments.collect();
    let in_table = segments
        .iter()
        .filter(|sid| table.routes.contains_key(*sid));
    in_table.count()
}

fn route(state: &State, number: u32, asked: IpNet) -> KernelRoute {
    let table = state.tables.get(&number);
    let find = |prefix| Some((prefix, *table?.routes.get(&prefix)?));
    let found = covering(asked).find_map(find);
    let by = found.and_then(|(_, id)| state.nexthops.get(&id));
    KernelRoute {
        table: number,
        prefix: found.map(|(prefix, _)| prefix),
        by: by.map(ToString::to_string),
        closed: table.is_some_and(|table| match asked {
            IpNet::V4(_) => table.closed_ipv4,
            IpNet::V6(_) => table.closed,
        }),
    }
}
