//! Looks at the machine's interfaces, and again when the kernel reports a change.

use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::config::{Config, Family, Local};
use keiro_linux::{
    realtime::thread_cpu_time,
    route::RouteWatch,
    uplink::{UplinkSocket, is_reverse_path_strict},
};

use super::{Network, auto, connected_networks::ResolverFile, interface_of};

/// The machine's interfaces, and notice of changes.
#[derive(Debug)]
pub(crate) struct NetworkWatch {
    /// `None`: no reports come any more, and every second's check looks.
    watch: Option<RouteWatch>,
    socket: UplinkSocket,
    resolvers: ResolverFile,
    /// When to look again; `None`: nothing has changed.
    due: Option<Stopwatch>,
    /// The next look is not before.
    next: Stopwatch,
}

/// Least time between two looks: one change of an address is several reports. Ours: far less than a path may
/// be without its address.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The list may have changed faster than it could be read. Ours.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
/// A look, and what follows from it, may take this part of a processor, where a routing daemon changes routes without
/// end, or many peers come with several uplinks at once.
const PAUSES_PER_LOOK: u32 = 10;

impl NetworkWatch {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            // Before the first look, so that nothing is missed.
            watch: Some(RouteWatch::open()?),
            socket: UplinkSocket::open()?,
            resolvers: ResolverFile::default(),
            due: None,
            next: Stopwatch::now(),
        })
    }

    /// The descriptor was readable.
    pub(crate) fn on_readable(&mut self) {
        let changed = self.watch.as_mut().map(RouteWatch::changed);
        match changed {
            Some(Ok(true)) => self.request(),
            Some(Err(error)) => {
                tracing::warn!(%error, "the kernel reports no changes of interfaces any more; they are looked at every second");
                self.watch = None;
            }
            Some(Ok(false)) | None => {}
        }
    }

    /// What to wait for.
    pub(crate) fn descriptor(&self) -> Option<&impl AsFd> {
        self.watch.as_ref()
    }

    /// Whether changes are noticed only by a look.
    pub(crate) fn is_deaf(&self) -> bool {
        self.watch.is_none()
    }

    /// Looks again soon.
    pub(crate) fn request(&mut self) {
        self.due.get_or_insert(self.next);
    }

    /// Whether something has changed of which the kernel does not report changes.
    pub(crate) fn has_unreported_change(&self) -> bool {
        self.resolvers.is_changed()
    }

    /// To follow the last look took so much processor time; the next one is put off by a multiple of it.
    pub(crate) fn on_followed(&mut self, took: Duration) {
        self.next = self.next.max(Stopwatch::now() + took * PAUSES_PER_LOOK);
    }

    /// When to call [`look`](Self::look); `None`: nothing has changed.
    pub(crate) fn due(&self) -> Option<Stopwatch> {
        self.due
    }

    /// What the paths of a configuration depend on, which is as in its file.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(crate) fn look(&mut self, config: &Config) -> io::Result<Network> {
        let before = thread_cpu_time();
        self.due = None;
        let network = self.network(config);
        let took = thread_cpu_time().saturating_sub(before);
        self.next = Stopwatch::now() + PAUSE_MIN.max(took * PAUSES_PER_LOOK);
        if network.is_err() {
            self.due = Some(self.next.max(Stopwatch::now() + PAUSE_AFTER_ERROR));
        }
        network
    }

    fn network(&mut self, config: &Config) -> io::Result<Network> {
        let mut network = Network {
            interfaces: self.socket.interfaces()?,
            resolvers: self.resolvers.read(),
            ..Network::default()
        };
        let auto = config.gateway.auto_uplinks.as_ref();
        let auto = auto.map(|auto| auto::candidates(auto, &network.interfaces));
        let written = config.paths.iter().map(|path| path.local.clone());
        let locals: Vec<Local> = written.chain(auto.into_iter().flatten()).collect();
        let mut best = None;
        for local in &locals {
            let Some(interface) = interface_of(local, &network.interfaces) else {
                continue;
            };
            for family in [Family::V4, Family::V6] {
                let key = (interface.index, family);
                let is_of = local.family().is_none_or(|of| of == family);
                if !is_of || network.default_routes.contains_key(&key) {
                    continue;
                }
                let ipv6 = family == Family::V6;
                let Some(route) = self.socket.default_route(Some(interface.index), ipv6)? else {
                    continue;
                };
                network.default_routes.insert(key, route.gateway);
                if ipv6 || !is_reverse_path_strict(&interface.name) {
                    continue;
                }
                if best.is_none() {
                    best = Some(self.socket.default_route(None, false)?);
                }
                let best = best.flatten().and_then(|route| route.interface);
                if best != Some(interface.index) {
                    network.filtered.insert(interface.index);
                }
            }
        }
        Ok(network)
    }
}
