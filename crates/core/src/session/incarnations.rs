//! Runs of the peer that have used its key, and which of ours each of them knows.
//!
//! Packet numbers, and with them replay windows, belong to a pair of incarnations: one of ours and
//! one of the peer. Both sides begin again from zero when either half of the pair is another. A gateway
//! may serve another incarnation and then return to an earlier one, which knows our incarnation and
//! would take our new packets for replays. We continue under our next incarnation then.
//!
//! A process that has ended never comes back with its incarnation. One that comes back after another
//! was served proves that two gateways have the same key; so does a new one while the present one
//! still answers. Of two that run the older is served.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;
use rand_core::RngCore;

use crate::{id::PathId, snapshot::DuplicateKey};

/// Incarnations that are remembered at once. Ours: some restarts and some spares; further ones cost
/// their peer one handshake more.
const KNOWN_MAX: usize = 8;
/// Incarnations whose newest initiation is remembered; of the others none older than theirs is taken.
const TIMESTAMPS_MAX: usize = 16;
/// For how long an answer of the present incarnation proves that it runs. Ours: a new one repeats its
/// challenges more often.
const PROOF_VALID: Duration = Duration::from_secs(1);
/// Two gateways with one key are reported at most this often. Ours: as version mismatches.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// An incarnation of the peer that has used keys with us.
#[derive(Debug)]
struct Known {
    incarnation: u64,
    /// The newest incarnation of ours that it knows.
    ours: u64,
    /// It was served under `ours`: packet numbers are used up.
    is_served: bool,
    /// Refusals under `ours`. Each has used up a packet number.
    refused: u64,
}

/// A new incarnation, and the probe whether the one that is served still runs.
#[derive(Debug)]
struct ConflictProbe {
    incarnation: u64,
    /// Packets with these numbers or higher left after it began.
    first: BTreeMap<PathId, u64>,
    /// When the present incarnation was last seen to have received one of them.
    proved_at: Option<Instant>,
}

/// What is to become of an authentic packet of an incarnation that is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncarnationDecision {
    /// It is served from now on.
    Accept,
    /// A probe is to show whether the present one still runs.
    ProbeServed,
    /// The probe is under way.
    ProbePending,
    /// The present one runs, and is older.
    Refuse,
    /// It would begin with packet numbers that it takes for replays: another handshake is needed.
    NeedsRehandshake,
}

/// Where a packet of another incarnation than the one that is served came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewIncarnation {
    pub(crate) incarnation: u64,
    /// Under which of ours it agreed on its keys.
    pub(crate) ours: u64,
    /// From where the one that is served is known to send.
    pub(crate) at_served_address: bool,
}

/// The incarnations of both sides of one session.
#[derive(Debug)]
pub(crate) struct Incarnations {
    /// Shows the peer that we have restarted or forgotten it.
    ours: u64,
    /// The one that follows; drawn when it is first needed.
    next: Option<u64>,
    /// Our next handshake begins with `next`: the peer that answered the last one knows `ours` too well.
    begins_with_next: bool,
    served: Option<u64>,
    /// Those that were served or refused, the one that used its keys first in front.
    known: Vec<Known>,
    /// One that knew `ours` is not remembered any more.
    has_forgotten: bool,
    conflict_probe: Option<ConflictProbe>,
    /// The newest initiation of each incarnation.
    timestamps: BTreeMap<u64, u64>,
    /// The newest initiation of those that are not in `timestamps`.
    oldest_timestamp: u64,
    clock_reported_at: Option<Instant>,
    duplicate: Option<DuplicateKey>,
    reported_at: Option<Instant>,
}

impl Incarnations {
    pub(crate) fn new(ours: u64) -> Self {
        Self {
            ours,
            next: None,
            begins_with_next: false,
            served: None,
            known: Vec::new(),
            has_forgotten: false,
            conflict_probe: None,
            timestamps: BTreeMap::new(),
            oldest_timestamp: 0,
            clock_reported_at: None,
            duplicate: None,
            reported_at: None,
        }
    }

    /// Takes the time of an initiation; `false`: it is a replay. Each incarnation has a clock of its
    /// own: one that is ahead must not shut out another machine.
    pub(crate) fn admit_initiation(&mut self, incarnation: u64, timestamp: u64) -> bool {
        let newest = self.timestamps.get(&incarnation);
        if timestamp <= *newest.unwrap_or(&self.oldest_timestamp) {
            return false;
        }
        self.timestamps.insert(incarnation, timestamp);
        if self.timestamps.len() > TIMESTAMPS_MAX {
            let oldest = self.timestamps.iter().min_by_key(|(_, at)| **at);
            let (incarnation, at) = oldest.map(|(a, b)| (*a, *b)).expect("there are some");
            self.timestamps.remove(&incarnation);
            self.oldest_timestamp = self.oldest_timestamp.max(at);
        }
        true
    }

    /// A refused initiation is of an incarnation of which no other is remembered: the clock of its gateway has gone back,
    /// or it is a replay. At most once in some time, because a replay may come at any.
    pub(crate) fn report_clock(&mut self, now: Instant, incarnation: u64) -> bool {
        let is_due = self
            .clock_reported_at
            .is_none_or(|at| now.saturating_duration_since(at) >= REPORT_INTERVAL);
        let is_news = is_due && !self.timestamps.contains_key(&incarnation);
        if is_news {
            self.clock_reported_at = Some(now);
        }
        is_news
    }

    /// Our incarnation for an initiation: who will answer it is not known.
    pub(crate) fn for_initiation(&mut self, random: &mut impl RngCore) -> u64 {
        match self.begins_with_next {
            true => self.next(random),
            false => self.ours,
        }
    }

    /// Our incarnation for the response to one of the peer.
    pub(crate) fn for_response(&mut self, incarnation: u64, random: &mut impl RngCore) -> u64 {
        let is_served = self.served == Some(incarnation);
        match !is_served && self.was_served_under(incarnation, self.ours) {
            true => self.next(random),
            false => self.ours,
        }
    }

    fn next(&mut self, random: &mut impl RngCore) -> u64 {
        *self.next.get_or_insert_with(|| random.next_u64())
    }

    /// Packet numbers go on: this pair of incarnations is in use.
    pub(crate) fn is_served(&self, incarnation: u64, ours: u64) -> bool {
        self.served == Some(incarnation) && self.ours == ours
    }

    /// Decides about a new incarnation. `is_up`: the one that is served has a path that is up.
    pub(crate) fn decide(
        &self,
        now: Instant,
        new: NewIncarnation,
        is_up: bool,
    ) -> IncarnationDecision {
        let NewIncarnation {
            incarnation, ours, ..
        } = new;
        let is_ours = ours == self.ours || Some(ours) == self.next;
        if !is_ours || self.was_served_under(incarnation, ours) {
            return IncarnationDecision::NeedsRehandshake;
        }
        let age_of = |incarnation| self.age(incarnation).unwrap_or(usize::MAX);
        let Some(served) = self.served.filter(|served| *served != incarnation) else {
            return IncarnationDecision::Accept;
        };
        let is_older = age_of(incarnation) < age_of(served);
        // It runs where the other one ran: that has ended. Unless it was there before.
        let has_replaced = new.at_served_address && self.age(incarnation).is_none();
        if !is_up || is_older || has_replaced {
            return IncarnationDecision::Accept;
        }
        match &self.conflict_probe {
            Some(probe) if probe.incarnation == incarnation => {
                match probe.proved_at {
                    // It answers, or its last path goes down.
                    None => IncarnationDecision::ProbePending,
                    Some(at) if now.saturating_duration_since(at) < PROOF_VALID => {
                        IncarnationDecision::Refuse
                    }
                    Some(_) => IncarnationDecision::ProbeServed,
                }
            }
            _ => IncarnationDecision::ProbeServed,
        }
    }

    /// The one that is served is probed: packets of each path from the numbers `first` on leave from now
    /// on.
    pub(crate) fn on_probe_sent(&mut self, new: u64, first: BTreeMap<PathId, u64>) {
        self.conflict_probe = Some(ConflictProbe {
            incarnation: new,
            first,
            proved_at: None,
        });
    }

    /// The one that is served has received a packet.
    pub(crate) fn on_acked(&mut self, now: Instant, path: PathId, largest: u64) {
        if let Some(probe) = &mut self.conflict_probe {
            // A path that has been added since has no packet of before.
            let first = probe.first.get(&path).copied().unwrap_or(0);
            if largest >= first {
                probe.proved_at = Some(now);
            }
        }
    }

    /// A new incarnation is refused; the number of the packet that says so.
    pub(crate) fn on_refused(&mut self, incarnation: u64, ours: u64) -> u64 {
        self.conflict_probe = None;
        let known = self.know(incarnation, ours);
        let number = known.refused;
        known.refused += 1;
        number
    }

    /// Our handshake was answered by one that would take our packets for replays.
    pub(crate) fn on_rehandshake_needed(&mut self) {
        self.begins_with_next = true;
    }

    /// This pair is served from now on; the first packet number that the peer does not know.
    pub(crate) fn on_served(&mut self, incarnation: u64, ours: u64) -> u64 {
        if ours != self.ours {
            self.ours = ours;
            self.next = None;
            self.has_forgotten = false;
        }
        self.begins_with_next = false;
        self.conflict_probe = None;
        self.served = Some(incarnation);
        let known = self.know(incarnation, ours);
        known.is_served = true;
        known.refused
    }

    /// Whether one that was not served any more is back: it proves that another has its key.
    pub(crate) fn is_return(&self, incarnation: u64) -> bool {
        let known = self.known.iter();
        self.served.is_some_and(|served| served != incarnation)
            && known
                .filter(|known| known.incarnation == incarnation)
                .any(|known| known.is_served)
    }

    /// Two gateways use the peer's key; whether to report it now.
    pub(crate) fn on_duplicate(&mut self, duplicate: DuplicateKey) -> bool {
        let now = duplicate.seen_at;
        self.duplicate = Some(duplicate);
        let is_due = self
            .reported_at
            .is_none_or(|at| now.saturating_duration_since(at) >= REPORT_INTERVAL);
        if is_due {
            self.reported_at = Some(now);
        }
        is_due
    }

    /// The gateways that were last seen to use one key; `None`: there was only one.
    pub(crate) fn duplicate(&self) -> Option<DuplicateKey> {
        self.duplicate
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.known.len() <= KNOWN_MAX, "known incarnations");
        assert!(self.timestamps.len() <= TIMESTAMPS_MAX, "timestamps");
        assert!(
            self.served
                .is_none_or(|served| self.was_served_under(served, self.ours)),
            "the one that is served is known"
        );
        assert_ne!(self.next, Some(self.ours), "each of ours is used once");
    }

    fn was_served_under(&self, incarnation: u64, ours: u64) -> bool {
        let known = self.known.iter().find(|k| k.incarnation == incarnation);
        match known {
            Some(known) => known.ours == ours && known.is_served,
            None => self.has_forgotten && ours == self.ours,
        }
    }

    /// How many of those that are known used the key before it; `None`: it is not known.
    fn age(&self, incarnation: u64) -> Option<usize> {
        let mut known = self.known.iter();
        known.position(|known| known.incarnation == incarnation)
    }

    fn know(&mut self, incarnation: u64, ours: u64) -> &mut Known {
        let at = self.age(incarnation).unwrap_or_else(|| {
            if self.known.len() >= KNOWN_MAX {
                let mut known = self.known.iter();
                let at = known.position(|known| Some(known.incarnation) != self.served);
                let forgotten = self.known.remove(at.expect("more than one is known"));
                self.has_forgotten |= forgotten.ours == self.ours;
            }
            self.known.push(Known {
                incarnation,
                ours,
                is_served: false,
                refused: 0,
            });
            self.known.len() - 1
        });
        let known = &mut self.known[at];
        if known.ours != ours {
            known.ours = ours;
            known.is_served = false;
            known.refused = 0;
        }
        known
    }
}
