//! The host names of a configuration: their addresses, the threads that resolve them, and the file that keeps them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::Arc,
    time::Instant as Stopwatch,
};

use keiro_control::config::{Config, HostName};
use keiro_linux::epoll::{Epoll, Interest, Waker};

use super::{Endpoints, KeptEndpoints, Resolver, SystemResolver};
use crate::{epoll_token as token, privileges::Privileges};

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
        names.apply_config(config);
        Ok(names)
    }

    /// What becomes of the privileges of threads that are started from now on.
    pub(crate) fn set_privileges(&mut self, privileges: Privileges) {
        self.privileges = privileges;
    }

    /// Follows a configuration.
    pub(crate) fn apply_config(&mut self, config: &Config) {
        self.endpoints.set_names(&config.host_names(), &self.kept);
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

    /// Takes the answers that have come; `own` are this machine's addresses. Returns whether an address has changed.
    pub(crate) fn take_answers(&mut self, own: &[IpAddr]) -> bool {
        self.wake.reset();
        let mut is_changed = false;
        while let Some((name, answer)) = self.resolver.as_ref().and_then(Resolver::poll_answer) {
            let effect = self.endpoints.on_answer(&name, answer, own);
            is_changed |= effect.is_changed;
            if let Some(report) = effect.report {
                tracing::warn!("{report}");
            }
        }
        is_changed
    }

    /// Notes at which addresses the peers of a name are reached, and whether all of them are up.
    pub(crate) fn on_reached(&mut self, name: &HostName, is_up: bool, reached: &BTreeSet<IpAddr>) {
        self.endpoints.on_reached(name, is_up, reached);
    }

    /// Keeps the addresses at which peers are reached, for the next start.
    pub(crate) fn keep_good(&mut self) {
        self.kept.replace(self.endpoints.good());
    }
}
