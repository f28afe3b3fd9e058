//! Lets the paths to peers follow the addresses of their host names.
//!
//! What is asked, and what an answer means, is decided by [`Endpoints`](crate::endpoints::Endpoints).

use std::{collections::BTreeSet, net::IpAddr};

use keiro_control::config::PeerEndpoint;
use keiro_core::PathState;
use keiro_linux::interface;

use crate::{data::command::Snapshot, gateway::Gateway};

impl Gateway {
    /// Answers may have come.
    pub(crate) fn on_host_names(&mut self) {
        let is_changed = self.host_names.take_answers(&own_addresses());
        if is_changed {
            self.apply_host_names();
        }
    }

    /// Takes the addresses that are known now; the paths follow with the next look at the machine.
    pub(crate) fn apply_host_names(&mut self) {
        self.found.hosts = self.host_names.addresses();
        if let Some(network) = &mut self.network {
            network.request();
        }
    }

    /// Notes at which addresses peers are reached, and keeps these.
    pub(crate) fn note_host_names(&mut self, snapshot: &Snapshot) {
        for name in &self.written.host_names() {
            let (mut is_up, mut reached) = (true, BTreeSet::new());
            for peer in self.written.peers.iter() {
                let is_of = |endpoint: &PeerEndpoint| matches!(endpoint, PeerEndpoint::Name(of) if of.host == *name);
                if !peer.endpoint.iter().any(is_of) {
                    continue;
                }
                let id = self.running_config.peer_id(peer.name.as_str());
                let session = id.and_then(|id| snapshot.sessions.get(&id));
                is_up &= session.is_some_and(|session| session.up);
                let paths = session.into_iter().flat_map(|session| &session.paths);
                let up = paths.filter(|path| path.state == PathState::Up);
                reached.extend(up.filter_map(|path| Some(path.remote?.ip())));
            }
            self.host_names.on_reached(name, is_up, &reached);
        }
        self.host_names.keep_good();
    }
}

/// This machine's addresses; none, if they cannot be listed.
pub(crate) fn own_addresses() -> Vec<IpAddr> {
    let all = interface::addresses().unwrap_or_default();
    all.into_iter().map(|entry| entry.address).collect()
}
