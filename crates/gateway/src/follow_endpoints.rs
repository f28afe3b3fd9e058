//! Lets the paths to peers follow the addresses of their host names.
//!
//! What is asked, and what an answer means, is decided by [`Endpoints`].

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::Arc,
    time::Instant as Stopwatch,
};

use keiro_control::config::{Config, HostName, PeerEndpoint};
use keiro_core::PathState;
use keiro_linux::{
    epoll::{Epoll, Interest, Waker},
    interface,
};

use crate::{
    data::command::Snapshot,
    endpoints::{Endpoints, KeptEndpoints, Resolver, SystemResolver},
    epoll_token as token,
    gateway::Gateway,
    privileges::Privileges,
};

/// The host names of the configuration, who asks for their addresses, and where these are kept.
pub(crate) struct HostNames {
    endpoints: Endpoints,
    kept: KeptEndpoints,
    /// `None` until there is a name.
    resolver: Option<Resolver>,
    wake: Arc<Waker>,
    privileges: Privileges,
}

impl HostNames {
    /// With what an earlier run has kept for the names of a configuration.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new(config: &Config, epoll: &Epoll) -> io::Result<Self> {
        let wake = Arc::new(Waker::new()?);
        epoll.add(&*wake, token::RESOLVER, Interest::Read)?;
        let mut names = Self {
            endpoints: Endpoints::default(),
            kept: KeptEndpoints::load(&config.gateway.state_directory),
            resolver: None,
            wake,
            privileges: Privileges::Kept,
        };
        names.follow(config);
        Ok(names)
    }

    /// What becomes of the privileges of threads that are started from now on.
    pub(crate) fn set_privileges(&mut self, privileges: Privileges) {
        self.privileges = privileges;
    }

    /// Follows a configuration.
    pub(crate) fn follow(&mut self, config: &Config) {
        self.endpoints.follow(&config.host_names(), &self.kept);
    }

    /// The addresses of each name, as far as they are known.
    pub(crate) fn addresses(&self) -> BTreeMap<HostName, Vec<IpAddr>> {
        self.endpoints.addresses()
    }

    /// What keeps names from addresses, one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.endpoints.problems()
    }

    /// Asks for what is due.
    pub(crate) fn ask(&mut self) {
        for name in self.endpoints.poll_questions(Stopwatch::now()) {
            if self.resolver.is_none() {
                let privileges = self.privileges;
                let prepare = move || {
                    if let Err(error) = privileges.drop_in_thread() {
                        tracing::warn!(%error, "a thread of the resolver keeps its privileges");
                    }
                };
                let started = Resolver::start(SystemResolver, &self.wake, prepare);
                self.resolver = started
                    .inspect_err(|error| tracing::error!(%error, "host names cannot be looked up"))
                    .ok();
            }
            match &self.resolver {
                Some(resolver) => resolver.ask(name),
                None => {
                    let failure = Err("no thread can be started to look it up".to_owned());
                    self.endpoints.on_answer(&name, failure, &[]);
                }
            }
        }
    }
}

impl Gateway {
    /// Answers may have come.
    pub(crate) fn on_host_names(&mut self) {
        self.host_names.wake.reset();
        let own = own_addresses();
        let mut is_changed = false;
        while let Some((name, answer)) = self
            .host_names
            .resolver
            .as_ref()
            .and_then(Resolver::poll_answer)
        {
            let effect = self.host_names.endpoints.on_answer(&name, answer, &own);
            is_changed |= effect.is_changed;
            if let Some(report) = effect.report {
                tracing::warn!("{report}");
            }
        }
        if is_changed {
            self.follow_host_names();
        }
    }

    /// Takes the addresses that are known now; the paths follow with the next look at the machine.
    pub(crate) fn follow_host_names(&mut self) {
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
                let id = self.active.peer_id(peer.name.as_str());
                let session = id.and_then(|id| snapshot.sessions.get(&id));
                is_up &= session.is_some_and(|session| session.up);
                let paths = session.into_iter().flat_map(|session| &session.paths);
                let up = paths.filter(|path| path.state == PathState::Up);
                reached.extend(up.filter_map(|path| Some(path.remote?.ip())));
            }
            self.host_names.endpoints.on_reached(name, is_up, &reached);
        }
        let good = self.host_names.endpoints.good();
        self.host_names.kept.follow(good);
    }
}

/// This machine's addresses; none, if they cannot be listed.
fn own_addresses() -> Vec<IpAddr> {
    let all = interface::addresses().unwrap_or_default();
    all.into_iter().map(|entry| entry.address).collect()
}
