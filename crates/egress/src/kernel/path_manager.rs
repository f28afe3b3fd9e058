//! The kernel's MPTCP path manager, controlled by [`crate::multipath`].

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use keiro_linux::{
    mptcp_pm::{
        self, Endpoint, Ends, Events, Limits, Manager, PathManager, PathManagerError,
        PreviousManager, Token,
    },
    sock_diag::{DiagError, SocketDiag},
};
use keiro_units::Instant;

use super::failed;
use crate::{
    accounts::Reading,
    comparison::Comparison,
    config::{Class, EpeAddresses},
    forwarding::{ForwardingError, PeerIndex},
    multipath::{ConnectionSettings, Multipath, PathAction},
};

/// The connections of a server that uses this process as path manager.
#[derive(Debug)]
pub(super) struct Paths {
    manager: PathManager,
    pub(super) events: Events,
    pub(super) all: Multipath,
    /// The path manager to restore when this process ends.
    pub(super) before: PreviousManager,
    /// Reads what connections have carried; `None`: that failed.
    diag: Option<SocketDiag>,
}

/// Whether an egress peer's table has a route to an address.
type Reaches<'a> = &'a dyn Fn(PeerIndex, IpAddr) -> bool;

impl Paths {
    /// Manages the connections that begin from now on, in the calling thread's namespace.
    pub(super) fn open(
        addresses: Vec<EpeAddresses>,
        classes: Vec<Class>,
        comparison: Comparison,
    ) -> Result<Self, PathManagerError> {
        let diag = SocketDiag::open().map_err(|error| match error {
            DiagError::Socket(error) => PathManagerError::Socket(error),
            DiagError::Missing => PathManagerError::Missing,
        })?;
        let (manager, events) = (PathManager::open()?, Events::open()?);
        let before = mptcp_pm::set_manager(Manager::UserSpace);
        Ok(Self {
            manager,
            events,
            all: Multipath::new(addresses, classes, comparison),
            before: before.map_err(PathManagerError::Socket)?,
            diag: Some(diag),
        })
    }

    /// Replaces the egress peers and settings.
    pub(super) fn set(
        &mut self,
        now: Instant,
        addresses: &BTreeMap<PeerIndex, EpeAddresses>,
        others: &ConnectionSettings<'_>,
        reaches: Reaches<'_>,
    ) -> Vec<ForwardingError> {
        let actions = self.all.set(now, addresses, others, reaches);
        self.carry_out(&actions)
    }

    /// Handles events of connections.
    pub(super) fn tend(&mut self, now: Instant, reaches: Reaches<'_>) -> Vec<ForwardingError> {
        let mut actions = Vec::new();
        let all = &mut self.all;
        let taken = self
            .events
            .take(|event| actions.extend(all.handle(now, event, reaches)));
        actions.extend(self.all.handle_timeout(now));
        let mut errors = self.carry_out(&actions);
        match taken {
            Ok(true) => {}
            Ok(false) => tracing::warn!("some MPTCP connections began unheard: they have one path"),
            Err(error) => errors.push(failed("cannot hear of connections".to_owned(), &error)),
        }
        errors.extend(self.read(now));
        errors
    }

    /// Reads the counters of connections that are due.
    fn read(&mut self, now: Instant) -> Option<ForwardingError> {
        for _ in 0..READ_AT_ONCE {
            let (token, subflows) = self.all.poll_read(now)?;
            let reading = self.diag.as_mut();
            let reading = reading.map(|diag| reading_of(diag, token, subflows));
            match reading.transpose() {
                Ok(reading) => self.all.on_read(now, reading.flatten().as_ref()),
                Err(error) => {
                    self.diag = None;
                    self.all.on_read(now, None);
                    let what = "multipath and single path are not compared".to_owned();
                    return Some(failed(what, &error));
                }
            }
        }
        None
    }

    /// Handles changes of routes to the clients for which `concerns` is true.
    pub(super) fn on_routes(
        &mut self,
        now: Instant,
        concerns: &dyn Fn(IpAddr) -> bool,
        reaches: Reaches<'_>,
    ) -> Vec<ForwardingError> {
        let actions = self.all.on_routes(now, concerns, reaches);
        self.carry_out(&actions)
    }

    fn carry_out(&mut self, actions: &[PathAction]) -> Vec<ForwardingError> {
        let mut errors = Vec::new();
        for action in actions {
            let manager = &mut self.manager;
            let done = match *action {
                PathAction::Announce(token, own, number) => manager.announce(token, own, number),
                PathAction::Withdraw(token, number) => manager.remove(token, number),
                PathAction::Backup(token, ends, backup) => manager.set_backup(token, ends, backup),
                PathAction::End(token, ends) => manager.destroy(token, ends),
            };
            match done {
                // The connection may have ended in the meantime.
                Ok(()) | Err(PathManagerError::Gone { .. }) => {}
                Err(error) => errors.push(failed("a connection stays as it is".into(), &error)),
            }
        }
        errors
    }
}

/// The counters of a connection; `None`: it has ended.
fn reading_of(
    diag: &mut SocketDiag,
    token: Token,
    subflows: &[Ends],
) -> Result<Option<Reading>, DiagError> {
    // Read times before bytes: few bytes are acknowledged in between, and a connection that ended
    // is detected.
    let mut reading = Reading::default();
    for ends in subflows {
        let carried = diag.carried(*ends)?;
        reading.busy.extend(carried.map(|carried| carried.busy));
    }
    let Some(bytes) = diag.acknowledged(token)? else {
        return Ok(None);
    };
    reading.bytes = bytes;
    Ok(Some(reading))
}

/// Makes the kernel announce addresses to every connection.
pub(super) fn set_endpoints(addresses: &[IpAddr]) -> Result<(), PathManagerError> {
    let mut manager = PathManager::open()?;
    mptcp_pm::set_manager(Manager::Kernel).map_err(PathManagerError::Socket)?;
    let there = manager.endpoints()?;
    for &address in addresses {
        if there.iter().all(|endpoint| endpoint.address != address) {
            manager.add_endpoint(&Endpoint {
                address,
                id: None,
                signal: true,
                backup: false,
                more: false,
            })?;
        }
    }
    let limits = manager.limits()?;
    let wanted = (addresses.len() as u32).min(SUBFLOWS_MAX);
    if limits.subflows < wanted {
        manager.set_limits(Limits {
            subflows: wanted,
            ..limits
        })?;
    }
    Ok(())
}

/// Removes endpoints made by [`set_endpoints`] and returns their number. Endpoints with other flags
/// are not Keiro's.
pub(super) fn remove_endpoints(addresses: &BTreeSet<IpAddr>) -> Result<usize, PathManagerError> {
    let mut manager = PathManager::open()?;
    let there = manager.endpoints()?;
    let mut removed = 0;
    let ours = |endpoint: &&Endpoint| {
        let plain = endpoint.signal && !endpoint.backup && !endpoint.more;
        plain && addresses.contains(&endpoint.address)
    };
    for endpoint in there.iter().filter(ours) {
        removed += usize::from(manager.remove_endpoint(endpoint.address)?);
    }
    Ok(removed)
}

/// The kernel's limit of additional subflows.
const SUBFLOWS_MAX: u32 = 8;
/// Connections read per turn. Ours.
const READ_AT_ONCE: usize = 256;
