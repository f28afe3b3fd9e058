//! Resolves next hops that are covered by one of Keiro's own routes.
//!
//! One of Keiro's routes may cover a next hop: its own, or that of another route. A kernel lookup
//! then finds Keiro's route, and two routes that cover each other's next hops would be installed
//! and removed for ever. So Keiro's routes do not count: such a next hop resolves by the longest of
//! the other routes, and is unreachable without one (RFC 4271 §9.1.2.1 on mutually recursive
//! routes). The kernel has no such lookup, so a helper thread reads its main tables as long as such
//! next hops exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::Duration,
};

use keiro_linux::epe::{
    EpeError, PROTOCOL_ASBR, PROTOCOL_EGRESS, ResolvedRoute, resolve_excluding,
};
use keiro_linux::privilege;
use keiro_units::Instant;

use super::{ASK_AGAIN, PAUSE_MIN, now};

/// The state of the covered next hops.
#[derive(Debug)]
pub(super) struct UnderlayRoutes {
    /// All covered next hops.
    tracked: BTreeSet<IpAddr>,
    /// The last resolutions; `None`: unreachable.
    known: BTreeMap<IpAddr, Option<ResolvedRoute>>,
    /// Some covered next hops are not resolved yet.
    new: bool,
    /// A read in progress.
    reading: Option<Receiver<ReadResult>>,
    /// When to poll for the result, when to read again, and the earliest time to read for new next
    /// hops.
    poll_at: Instant,
    due: Instant,
    not_before: Instant,
}

/// The result of a read, the next hops it was for, and its duration.
#[derive(Debug)]
struct ReadResult {
    tracked: BTreeSet<IpAddr>,
    took: Duration,
    ways: Result<BTreeMap<IpAddr, ResolvedRoute>, EpeError>,
}

impl Default for UnderlayRoutes {
    fn default() -> Self {
        Self {
            tracked: BTreeSet::new(),
            known: BTreeMap::new(),
            new: false,
            reading: None,
            poll_at: Instant::ZERO,
            due: Instant::ZERO,
            not_before: Instant::ZERO,
        }
    }
}

impl UnderlayRoutes {
    /// The resolution of a covered next hop; `None`: not known yet.
    pub(super) fn lookup(&mut self, address: IpAddr) -> Option<Option<ResolvedRoute>> {
        if self.tracked.len() >= TRACKED_MAX && !self.tracked.contains(&address) {
            return Some(None);
        }
        let is_new = self.tracked.insert(address);
        let known = self.known.get(&address).copied();
        self.new |= is_new && known.is_none();
        known
    }

    /// Begins a round in which all next hops are resolved again. Those not looked up by
    /// [`end_round`](Self::end_round) are dropped.
    pub(super) fn begin_round(&mut self) {
        self.tracked.clear();
    }

    pub(super) fn end_round(&mut self) {
        let tracked = &self.tracked;
        self.known.retain(|address, _| tracked.contains(address));
    }

    /// When [`tend`](Self::tend) is due; `None`: there are no covered next hops.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.reading.is_some() {
            return Some(self.poll_at);
        }
        let due = if self.new { self.not_before } else { self.due };
        (!self.tracked.is_empty()).then_some(due)
    }

    /// Starts a read if one is due, or takes a result. Returns whether there was a result.
    pub(super) fn tend(&mut self, now: Instant) -> bool {
        let Some(reading) = &self.reading else {
            if self.poll_timeout().is_some_and(|due| due <= now) {
                self.read(now);
            }
            return false;
        };
        let read = match reading.try_recv() {
            Ok(read) => read,
            Err(TryRecvError::Empty) => {
                self.poll_at = now + POLL_INTERVAL;
                return false;
            }
            // The thread could not be started.
            Err(TryRecvError::Disconnected) => ReadResult {
                tracked: BTreeSet::new(),
                took: Duration::ZERO,
                ways: Ok(BTreeMap::new()),
            },
        };
        self.reading = None;
        self.due = now + ASK_AGAIN.max(read.took * READ_TIME_SHARE);
        self.not_before = now + PAUSE_MIN.max(read.took * READ_TIME_SHARE);
        match read.ways {
            Ok(ways) => {
                let known = read.tracked.into_iter();
                let known = known.map(|address| (address, ways.get(&address).copied()));
                self.known.extend(known);
                let tracked = &mut self.tracked.iter();
                self.new = tracked.any(|address| !self.known.contains_key(address));
                true
            }
            Err(error) => {
                tracing::warn!(%error, "not known where next hops that routes of Keiro's cover lead now");
                false
            }
        }
    }

    fn read(&mut self, begun: Instant) {
        self.new = false;
        let (sender, reading) = mpsc::channel();
        let tracked = self.tracked.clone();
        let thread = thread::Builder::new().name("next hops".to_owned());
        let thread = thread.spawn(move || {
            privilege::give_up_in_thread();
            let ways = resolve_excluding(&OWN_PROTOCOLS, &tracked);
            let took = now() - begun;
            // The daemon may have ended.
            let _ = sender.send(ReadResult {
                tracked,
                took,
                ways,
            });
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread to find out where next hops lead");
        }
        self.reading = Some(reading);
        self.poll_at = begun + POLL_INTERVAL;
    }
}

/// The routing protocols of Keiro's own routes.
pub(super) const OWN_PROTOCOLS: [u8; 2] = [PROTOCOL_ASBR, PROTOCOL_EGRESS];

/// The maximum number of covered next hops; others count as unreachable. Ours.
const TRACKED_MAX: usize = 10_000;
/// The interval between polls for the result. Ours.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Reading takes at most one part in this many of the time; with a million routes in the kernel it
/// takes about a second. Ours.
const READ_TIME_SHARE: u32 = 20;
