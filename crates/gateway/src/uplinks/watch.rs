//! Looks at the machine's interfaces, and again when the kernel reports a change.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::config::{Family, Local};
use keiro_linux::{route::RouteWatch, uplink::UplinkSocket};

use super::{Network, interface_of};

/// The machine's interfaces, and notice of changes.
#[derive(Debug)]
pub(crate) struct NetworkWatch {
    watch: RouteWatch,
    socket: UplinkSocket,
    /// When to look again; `None`: nothing has changed.
    due: Option<Stopwatch>,
    /// The next look is not before.
    next: Stopwatch,
}

/// Least time between two looks: one change of an address is several reports. Ours: far less than a path may
/// be without its address.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// A look may take this part of the time, where a routing daemon changes routes without end.
const PAUSES_PER_LOOK: u32 = 10;

impl NetworkWatch {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            // Before the first look, so that nothing is missed.
            watch: RouteWatch::open()?,
            socket: UplinkSocket::open()?,
            due: None,
            next: Stopwatch::now(),
        })
    }

    /// The descriptor was readable.
    pub(crate) fn on_readable(&mut self) {
        // Where reports end, every second's check looks.
        if self.watch.changed().unwrap_or(false) && self.due.is_none() {
            self.due = Some(self.next.max(Stopwatch::now()));
        }
    }

    /// Looks again soon.
    pub(crate) fn request(&mut self) {
        self.due.get_or_insert(self.next);
    }

    /// When to call [`look`](Self::look); `None`: nothing has changed.
    pub(crate) fn due(&self) -> Option<Stopwatch> {
        self.due
    }

    /// What `locals` depend on.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(crate) fn look<'a>(
        &mut self,
        locals: impl Iterator<Item = &'a Local>,
    ) -> io::Result<Network> {
        let begun = Stopwatch::now();
        self.due = None;
        let network = self.network(locals);
        let took = begun.elapsed();
        self.next = Stopwatch::now() + PAUSE_MIN.max(took * PAUSES_PER_LOOK);
        if network.is_err() {
            self.due = Some(self.next);
        }
        network
    }

    fn network<'a>(&mut self, locals: impl Iterator<Item = &'a Local>) -> io::Result<Network> {
        let mut network = Network {
            interfaces: self.socket.interfaces()?,
            ..Network::default()
        };
        for local in locals {
            let Some(interface) = interface_of(local, &network.interfaces) else {
                continue;
            };
            for family in [Family::V4, Family::V6] {
                let route = (interface.index, family);
                if local.family().is_none_or(|of| of == family)
                    && !network.default_routes.contains(&route)
                    && self
                        .socket
                        .has_default_route(interface.index, family == Family::V6)?
                {
                    network.default_routes.insert(route);
                }
            }
        }
        Ok(network)
    }
}

impl AsFd for NetworkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}
