//! Reads the kernel's state of a daemon outside its event loop.
//!
//! Reading lists every route of the namespace, so each request does it in its own thread. Threads
//! inherit the daemon's namespace.

use std::net::IpAddr;

use ipnet::IpNet;
use keiro_linux::{
    epe::{EpeError, Reconciler, State},
    interface,
    nexthop::Nexthop,
};

use super::{MAIN, Peer, Plan, vrf};
use crate::{
    control::Answer,
    status::{KernelRoute, KernelStatus, PeerInKernel, covering},
};

#[derive(Clone, Debug)]
pub struct KernelView {
    pub(super) plan: Plan,
}

impl KernelView {
    /// Adds the kernel's state to an answer.
    pub(crate) fn complete(&self, answer: &mut Answer) {
        let state = Reconciler::open(self.plan.owner.clone()).and_then(|mut own| own.present());
        match answer {
            Answer::Status(status) => {
                status.kernel = Some(of_all(&state));
                let vrfs = vrf::present(&vrf::of(self.plan.peers.values()));
                let vrfs = vrfs.unwrap_or_default();
                for (peer, shown) in self.plan.peers.values().zip(&mut status.peers) {
                    shown.kernel = state.as_ref().ok().map(|state| PeerInKernel {
                        vrf: peer.vrf.map(|vrf| vrfs.contains(&vrf)),
                        ..of_peer(state, peer)
                    });
                }
            }
            Answer::Explanation(explanation) => {
                let Ok(state) = &state else {
                    return;
                };
                let asked = explanation.asked;
                explanation.kernel = Some(route(state, MAIN, asked));
                for (peer, shown) in self.plan.peers.values().zip(&mut explanation.peers) {
                    let table = peer.direct.is_none().then_some(peer.table);
                    shown.kernel = table.map(|table| route(state, table, asked));
                }
            }
            Answer::Monitoring | Answer::Reloaded(_) | Answer::Drain(_) | Answer::Refused(_) => {}
        }
    }
}

fn of_all(state: &Result<State, EpeError>) -> KernelStatus {
    match state {
        Ok(state) => KernelStatus {
            main_routes: state.tables.get(&MAIN).map_or(0, |main| main.routes.len()),
            nexthops: state.nexthops.len(),
            segments: state.sids.len(),
            guarded: state
                .drops
                .iter()
                .map(|rule| rule.interface.to_string())
                .collect(),
            error: None,
        },
        Err(error) => KernelStatus {
            error: Some(error.to_string()),
            ..KernelStatus::default()
        },
    }
}

fn of_peer(state: &State, peer: &Peer) -> PeerInKernel {
    let table = state.tables.get(&peer.table);
    let own = peer.own.map(IpAddr::from);
    let has = |own: IpAddr| state.addresses.iter().any(|there| there.address == own);
    PeerInKernel {
        table: peer.direct.is_none().then_some(peer.table),
        closed: table.is_some_and(|table| table.closed),
        routes: table.map_or(0, |table| table.routes.len()),
        entered: match own {
            Some(own) => {
                let mut rules = state.rules.iter();
                rules.any(|rule| rule.source == own && rule.table == peer.table)
            }
            None => {
                let mut sids = state.sids.values();
                sids.any(|sid| sid.behaviour() == peer.behaviour())
            }
        },
        address: own.is_some_and(has),
        vrf: None,
    }
}

fn route(state: &State, number: u32, asked: IpNet) -> KernelRoute {
    let table = state.tables.get(&number);
    let find = |prefix| Some((prefix, *table?.routes.get(&prefix)?));
    let found = covering(asked).find_map(find);
    let by = found.and_then(|(_, id)| state.nexthops.get(&id));
    KernelRoute {
        table: number,
        prefix: found.map(|(prefix, _)| prefix),
        by: by.map(named),
        closed: table.is_some_and(|table| table.closed),
    }
}

/// Formats a next hop with the name of its interface, if that still exists.
fn named(nexthop: &Nexthop) -> String {
    let text = nexthop.to_string();
    let named = |number| Some((number, interface::name(number)?));
    let Some((number, name)) = nexthop.interface().and_then(named) else {
        return text;
    };
    match text.strip_suffix(&number.to_string()) {
        Some(before) => format!("{before}{name}"),
        None => text,
    }
}
