//! Exits to the Internet in the control protocol's types, and whether those that this gateway uses are reached.

use std::collections::BTreeSet;

use ipnet::IpNet;
use keiro_control::{
    config::{Tenant, TenantPeer, WhenDown},
    protocol::{ExitSnapshot, InternetSnapshot, InternetState, PortForwardSnapshot},
};

use crate::gateway::Gateway;

impl Gateway {
    /// Numbers of tenants whose packets to the Internet have no exit that is up.
    pub(crate) fn unreached_exits(&self) -> BTreeSet<u32> {
        let uses = self
            .config
            .tenants
            .iter()
            .filter(|of| of.internet.is_some());
        let unreached = uses.filter(|tenant| self.exit_in_use(tenant).is_none());
        unreached.map(|tenant| tenant.id).collect()
    }

    /// What this gateway offers to other sites of the tenant.
    pub(crate) fn exit(&self, tenant: &Tenant) -> Option<ExitSnapshot> {
        let exit = tenant.exit.as_ref()?;
        let leads = self.tenants.exit_of(tenant).unwrap_or_default();
        let mut problem = self.tenants.exit_problem().map(str::to_owned);
        if !leads.v4 && !leads.v6 {
            problem = problem.or_else(|| Some("this machine has no default route".to_owned()));
        }
        let forwards = exit.port_forwards.iter().map(|of| PortForwardSnapshot {
            name: of.name.to_string(),
            protocol: of.protocol.as_str().to_owned(),
            port: of.port,
            to: of.to.to_string(),
        });
        Some(ExitSnapshot {
            ipv4: leads.v4,
            ipv6: leads.v6,
            problem,
            port_forwards: forwards.collect(),
        })
    }

    /// Which packets of this site leave by an exit, and by which.
    pub(crate) fn internet(&self, tenant: &Tenant) -> Option<InternetSnapshot> {
        let internet = tenant.internet.as_ref()?;
        let texts = |prefixes: &[IpNet]| prefixes.iter().map(ToString::to_string).collect();
        let in_use = self.exit_in_use(tenant);
        let via = self.config[internet.via].name.to_string();
        let is_offered = tenant.peers.iter().any(offers);
        let problem = match (in_use, is_offered) {
            (Some(_), _) => None,
            (None, false) => Some(format!("{via} offers no exit: it needs `exit = true`")),
            (None, true) => Some(format!("{via} is not reached")),
        };
        let state = match (in_use, internet.when_down) {
            (Some(_), _) => InternetState::Exit,
            (None, WhenDown::Block) => InternetState::Blocked,
            (None, WhenDown::Local) => InternetState::Local,
        };
        Some(InternetSnapshot {
            via,
            state,
            exit: in_use.map(|of| self.config[of.peer].name.to_string()),
            problem,
            from: texts(&tenant.internet_sources()),
            to: texts(&internet.to),
        })
    }

    /// Sentences about a tenant's packets to the Internet; empty: they are nothing special.
    pub(crate) fn internet_in_words(&self, tenant: &Tenant) -> String {
        let Some(internet) = self.internet(tenant) else {
            return String::new();
        };
        let (from, to) = (internet.from.join(", "), internet.to.join(", "));
        let problem = internet.problem.unwrap_or_default();
        let what = match (internet.state, internet.exit) {
            (InternetState::Exit, exit) => {
                format!("leave by the exit of {}", exit.unwrap_or(internet.via))
            }
            (InternetState::Blocked, _) => format!("are dropped, because {problem}"),
            (InternetState::Local, _) => {
                format!("leave by this machine's own default route, because {problem}")
            }
        };
        format!(" Packets from {from} to {to} that no other route leads to {what}.")
    }

    /// The peer whose exit is in use now.
    fn exit_in_use<'a>(&self, tenant: &'a Tenant) -> Option<&'a TenantPeer> {
        let is_up = |of: &&TenantPeer| {
            let id = self
                .running_config
                .peer_id(self.config[of.peer].name.as_str());
            id.is_some_and(|id| self.sites.is_up(id))
        };
        let is_first = |of: &&TenantPeer| of.prefixes.iter().any(is_everything);
        let offering = || tenant.peers.iter().filter(|of| offers(of)).filter(is_up);
        offering().find(is_first).or_else(|| offering().next())
    }
}

/// All that is nowhere else is behind a peer.
fn offers(peer: &TenantPeer) -> bool {
    let mut prefixes = peer.prefixes.iter().chain(&peer.backup_prefixes);
    prefixes.any(is_everything)
}

fn is_everything(prefix: &IpNet) -> bool {
    prefix.prefix_len() == 0
}
