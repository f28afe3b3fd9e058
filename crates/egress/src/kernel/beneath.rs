//! Where next hops lead beneath routes of Keiro's own.
//!
//! A route of ours may cover a next hop: the one that it has itself, or another route's. The kernel then
//! answers with our own doing, which is no reason for it: routes that cover each other's next hops would come
//! and go with one another for ever. So our routes do not count: a next hop leads where the longest of the
//! other routes leads, and nowhere if there is none (RFC 4271 §9.1.2.1 on mutually recursive routes). The
//! kernel does not answer that question, so its main tables are read, in a thread, as long as there are such
//! next hops.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::Duration,
};

use keiro_linux::epe::{EpeError, PROTOCOL_ASBR, PROTOCOL_EGRESS, Way, ways_beneath};
use keiro_units::Instant;

use super::{ASK_AGAIN, PAUSE_MIN, now};

/// What is known of such next hops.
#[derive(Debug)]
pub(super) struct Beneath {
    /// All of them.
    asked: BTreeSet<IpAddr>,
    /// As last read; `None`: nowhere.
    found: BTreeMap<IpAddr, Option<Way>>,
    /// Some of them are not among these, and nothing was read for them.
    new: bool,
    /// Routes are being read.
    reading: Option<Receiver<Read>>,
    /// When it is looked for what was read, when it is read again, and when for those that are new.
    look: Instant,
    due: Instant,
    soonest: Instant,
}

/// What became of it: for whom it was read, and how long that took.
#[derive(Debug)]
struct Read {
    asked: BTreeSet<IpAddr>,
    took: Duration,
    ways: Result<BTreeMap<IpAddr, Way>, EpeError>,
}

impl Default for Beneath {
    fn default() -> Self {
        Self {
            asked: BTreeSet::new(),
            found: BTreeMap::new(),
            new: false,
            reading: None,
            look: Instant::ZERO,
            due: Instant::ZERO,
            soonest: Instant::ZERO,
        }
    }
}

impl Beneath {
    /// Where a next hop that a route of ours covers leads; `None`: that is being found out.
    pub(super) fn way_to(&mut self, address: IpAddr) -> Option<Option<Way>> {
        if self.asked.len() >= ASKED_MAX && !self.asked.contains(&address) {
            return Some(None);
        }
        let is_new = self.asked.insert(address);
        let found = self.found.get(&address).copied();
        self.new |= is_new && found.is_none();
        found
    }

    /// All next hops are asked for once more: those that are not covered any more are not asked for
    /// [`from here on`](Self::end_round).
    pub(super) fn begin_round(&mut self) {
        self.asked.clear();
    }

    /// They have been.
    pub(super) fn end_round(&mut self) {
        let asked = &self.asked;
        self.found.retain(|address, _| asked.contains(address));
    }

    /// When [`tend`](Self::tend) is due; `None`: there are no such next hops.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.reading.is_some() {
            return Some(self.look);
        }
        let due = if self.new { self.soonest } else { self.due };
        (!self.asked.is_empty()).then_some(due)
    }

    /// Reads what is due, and takes what was read. Whether there was something.
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
                self.look = now + LOOK;
                return false;
            }
            // There was no thread.
            Err(TryRecvError::Disconnected) => Read {
                asked: BTreeSet::new(),
                took: Duration::ZERO,
                ways: Ok(BTreeMap::new()),
            },
        };
        self.reading = None;
        self.due = now + ASK_AGAIN.max(read.took * SHARE);
        self.soonest = now + PAUSE_MIN.max(read.took * SHARE);
        match read.ways {
            Ok(ways) => {
                let found = read.asked.into_iter();
                let found = found.map(|address| (address, ways.get(&address).copied()));
                self.found.extend(found);
                let asked = &mut self.asked.iter();
                self.new = asked.any(|address| !self.found.contains_key(address));
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
        let (tell, reading) = mpsc::channel();
        let asked = self.asked.clone();
        let thread = thread::Builder::new().name("next hops".to_owned());
        let thread = thread.spawn(move || {
            let ways = ways_beneath(&OURS, &asked);
            let took = now() - begun;
            // A daemon that has ended does not want it.
            let _ = tell.send(Read { asked, took, ways });
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread to find out where next hops lead");
        }
        self.reading = Some(reading);
        self.look = begun + LOOK;
    }
}

/// Whose routes do not count.
pub(super) const OURS: [u8; 2] = [PROTOCOL_ASBR, PROTOCOL_EGRESS];

/// Next hops that are asked for; others count as leading nowhere. Ours.
const ASKED_MAX: usize = 10_000;
/// How often it is looked for what was read. Ours.
const LOOK: Duration = Duration::from_millis(50);
/// Of the time at most one part in so many is spent on reading, which takes a second or so where the kernel
/// has a million routes. Ours.
const SHARE: u32 = 20;
