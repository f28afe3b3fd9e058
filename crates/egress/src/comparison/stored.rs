//! The evidence on client prefixes in the form in which it is stored, so that it outlasts the
//! daemon.
//!
//! There may be a million prefixes, and the event loop has other work, so it hands them over in
//! parts ([`Part`]); the writer thread collects the parts ([`Gathered`]).
//!
//! Times are stored as ages and remaining times, since the clocks of two runs differ.

use std::{cmp::Reverse, collections::BTreeSet, ops::Bound, time::Duration};

use ipnet::IpNet;
use keiro_model::welch::Moments;
use keiro_units::Instant;
use serde::{Deserialize, Serialize};

use super::{Client, Comparison, EVIDENCE_TIME, LOOKS, PAUSES_MAX};
use crate::status::{GoodputComparison, PrefixMode};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredEvidence {
    version: u32,
    unix_seconds: u64,
    prefix_bits: u8,
    /// The most important first.
    prefixes: Vec<StoredPrefix>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredPrefix {
    prefix: IpNet,
    #[serde(rename = "standing")]
    mode: PrefixMode,
    again_seconds: u64,
    pause_seconds: u64,
    age_seconds: u64,
    looks: usize,
    single: StoredMoments,
    multipath: StoredMoments,
    decided: Option<GoodputComparison>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct StoredMoments {
    count: u64,
    mean: f64,
    squares: f64,
}

/// Some of the prefixes.
#[derive(Clone, Debug)]
pub struct Part {
    prefixes: Vec<(Rank, StoredPrefix)>,
    behind: Option<IpNet>,
}

/// Collected parts. With more prefixes than are stored, the least important ones are dropped.
#[derive(Clone, Debug, Default)]
pub struct Gathered(Vec<(Rank, StoredPrefix)>);

/// Prefixes that are not multipath come first, then the most recently used ones.
type Rank = (bool, Reverse<u64>);

/// Why stored evidence cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredEvidenceError {
    /// It has another version.
    #[error("it is of version {0}, which this program does not read")]
    Version(u32),
    /// It has another prefix length.
    #[error("its prefixes have {0} bits, and `prefix_bits` is another")]
    Bits(u8),
    /// It has contents that this program never writes.
    #[error("what it says of {0} is impossible")]
    Impossible(IpNet),
}

impl Comparison {
    /// The next prefixes, at most `most`, after `behind`; `None`: from the first. A prefix that
    /// exists throughout is in one of the parts, whatever changes in between.
    pub fn part(&self, now: Instant, behind: Option<IpNet>, most: usize) -> Part {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let mut next = self.prefixes.range((from, Bound::Unbounded));
        let prefixes: Vec<_> = next
            .by_ref()
            .take(most)
            .map(|(prefix, client)| (client.rank(), client.kept(now, *prefix)))
            .collect();
        let last = prefixes.last().map(|(_, kept)| kept.prefix);
        Part {
            prefixes,
            behind: next.next().and(last),
        }
    }

    /// All evidence, in stored form, for this time of day.
    pub fn kept(&self, now: Instant, unix_time: Duration) -> StoredEvidence {
        let mut all = Gathered::default();
        let mut behind = None;
        loop {
            let part = self.part(now, behind, STORED_MAX);
            behind = part.behind();
            all.add(part);
            if behind.is_none() {
                return all.kept(self.prefix_bits(), unix_time);
            }
        }
    }

    pub fn prefix_bits(&self) -> u8 {
        self.settings.prefix_bits
    }

    /// Loads stored evidence if there is none yet; returns the number of prefixes.
    ///
    /// # Errors
    /// It cannot be used, and nothing is loaded.
    pub fn take_up(
        &mut self,
        now: Instant,
        unix_time: Duration,
        kept: &StoredEvidence,
    ) -> Result<usize, StoredEvidenceError> {
        if kept.version != VERSION {
            return Err(StoredEvidenceError::Version(kept.version));
        }
        if kept.prefix_bits != self.settings.prefix_bits {
            return Err(StoredEvidenceError::Bits(kept.prefix_bits));
        }
        if !self.is_on() || !self.prefixes.is_empty() {
            return Ok(0);
        }
        // If the clock was set back, ages stay as they are.
        let away = unix_time.as_secs().saturating_sub(kept.unix_seconds);
        let (mut clients, mut seen) = (Vec::new(), BTreeSet::new());
        for one in kept.prefixes.iter().take(self.settings.prefixes_max) {
            let client = self.client_of(now, away, one);
            let fits = one.prefix == one.prefix.trunc();
            let fits = fits && one.prefix.prefix_len() == self.bits(&one.prefix);
            // Each prefix occurs once.
            let fits = fits && seen.insert(one.prefix);
            let client = client.filter(|_| fits);
            clients.push((
                one.prefix,
                client.ok_or(StoredEvidenceError::Impossible(one.prefix))?,
            ));
        }
        // The most recently used one comes first in the file.
        for (prefix, mut client) in clients.into_iter().rev() {
            self.uses += 1;
            self.cycles += 1;
            (client.used, client.cycle) = (self.uses, self.cycles);
            self.prefixes.insert(prefix, client);
            self.by_use.insert(self.uses, prefix);
        }
        Ok(self.prefixes.len())
    }

    /// `None`: the contents are impossible.
    fn client_of(&self, now: Instant, away: u64, kept: &StoredPrefix) -> Option<Client> {
        let (first, most) = (self.settings.again_after, PAUSES_MAX);
        let left = Duration::from_secs(kept.again_seconds.saturating_sub(away));
        let mut client = Client {
            used: 0,
            mode: kept.mode,
            // The settings may have changed since.
            until: now + left.min(first * most),
            pause: Duration::from_secs(kept.pause_seconds).clamp(first, first * most),
            cycle: 0,
            begun: now,
            aged: Duration::from_secs(kept.age_seconds.saturating_add(away)),
            looks: kept.looks,
            single: kept.single.moments()?,
            multipath: kept.multipath.moments()?,
            decided: kept.decided.clone(),
        };
        if client.looks >= LOOKS.len() {
            return None;
        }
        if client.aged > EVIDENCE_TIME {
            client.begin_anew(now);
        }
        Some(client)
    }
}

impl Part {
    /// The prefix after which the next part begins; `None`: this is the last part.
    pub fn behind(&self) -> Option<IpNet> {
        self.behind
    }
}

impl Gathered {
    pub fn add(&mut self, part: Part) {
        self.0.extend(part.prefixes);
        if self.0.len() > 2 * STORED_MAX {
            self.0
                .select_nth_unstable_by_key(STORED_MAX, |(rank, _)| *rank);
            self.0.truncate(STORED_MAX);
        }
    }

    /// All of them, in stored form, for this time of day.
    pub fn kept(mut self, prefix_bits: u8, unix_time: Duration) -> StoredEvidence {
        self.0.sort_unstable_by_key(|(rank, _)| *rank);
        self.0.truncate(STORED_MAX);
        StoredEvidence {
            version: VERSION,
            unix_seconds: unix_time.as_secs(),
            prefix_bits,
            prefixes: self.0.into_iter().map(|(_, kept)| kept).collect(),
        }
    }
}

impl Client {
    fn rank(&self) -> Rank {
        let is_usual = self.mode == PrefixMode::Multipath;
        (is_usual, Reverse(self.used))
    }

    fn kept(&self, now: Instant, prefix: IpNet) -> StoredPrefix {
        StoredPrefix {
            prefix,
            mode: self.mode,
            again_seconds: (self.until - now).as_secs(),
            pause_seconds: self.pause.as_secs(),
            age_seconds: (now - self.begun + self.aged).as_secs(),
            looks: self.looks,
            single: StoredMoments::of(&self.single),
            multipath: StoredMoments::of(&self.multipath),
            decided: self.decided.clone(),
        }
    }
}

impl StoredMoments {
    fn of(moments: &Moments) -> Self {
        Self {
            count: moments.count(),
            mean: moments.mean().unwrap_or_default(),
            squares: moments.squares(),
        }
    }

    fn moments(&self) -> Option<Moments> {
        Moments::from_parts(self.count, self.mean, self.squares)
    }
}

const VERSION: u32 = 1;
/// Stored prefixes; beyond it the least recently used multipath ones are left out. Ours.
const STORED_MAX: usize = 10_000;
