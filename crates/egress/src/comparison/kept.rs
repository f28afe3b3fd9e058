//! What is known of client prefixes as it is written down, so that it outlasts the daemon.
//!
//! It is taken prefix by prefix, some at a time ([`Part`]), because there may be a million of them and
//! whoever knows them has other things to do; somebody else puts the parts together ([`Gathered`]).
//!
//! Times are kept as ages and what is left of pauses, together with the time of day: while the daemon was
//! away evidence aged and pauses went on. What does not fit together is refused as a whole.

use std::{cmp::Reverse, collections::BTreeSet, ops::Bound, time::Duration};

use ipnet::Ipv6Net;
use keiro_model::welch::Moments;
use keiro_units::Instant;
use serde::{Deserialize, Serialize};

use super::{Client, Comparison, EVIDENCE_TIME, LOOKS, PAUSES_MAX};
use crate::status::{Evidence, Standing};

/// All that is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    version: u32,
    /// When it was written.
    unix_seconds: u64,
    prefix_bits: u8,
    /// Those that matter most come first.
    prefixes: Vec<KeptPrefix>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct KeptPrefix {
    prefix: Ipv6Net,
    standing: Standing,
    again_seconds: u64,
    pause_seconds: u64,
    age_seconds: u64,
    looks: usize,
    single: KeptMoments,
    multipath: KeptMoments,
    decided: Option<Evidence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct KeptMoments {
    count: u64,
    mean: f64,
    squares: f64,
}

/// Some of what is known.
#[derive(Clone, Debug)]
pub struct Part {
    prefixes: Vec<(Rank, KeptPrefix)>,
    behind: Option<Ipv6Net>,
}

/// Parts that are put together. Of more prefixes than are written down those that matter least are
/// dropped, now and then.
#[derive(Clone, Debug, Default)]
pub struct Gathered(Vec<(Rank, KeptPrefix)>);

/// What matters most comes first: what is not multipath, and then what was used last.
type Rank = (bool, Reverse<u64>);

/// Why nothing of it is known now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeptError {
    /// Another version wrote it.
    #[error("it is of version {0}, which this program does not read")]
    Version(u32),
    /// Clients are of one prefix by other lengths now.
    #[error("its prefixes have {0} bits, and `prefix_bits` is another")]
    Bits(u8),
    /// It was not written by this program.
    #[error("what it says of {0} is impossible")]
    Impossible(Ipv6Net),
}

impl Comparison {
    /// What is known of so many prefixes at most, those that come next behind `behind`; `None`: from the
    /// first on. A prefix that is known all the while is in one of the parts, whatever changes in between.
    pub fn part(&self, now: Instant, behind: Option<Ipv6Net>, most: usize) -> Part {
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

    /// All that is known, to be written down at this time of day.
    pub fn kept(&self, now: Instant, unix_time: Duration) -> Kept {
        let mut all = Gathered::default();
        let mut behind = None;
        loop {
            let part = self.part(now, behind, KEPT_MAX);
            behind = part.behind();
            all.add(part);
            if behind.is_none() {
                return all.kept(self.prefix_bits(), unix_time);
            }
        }
    }

    /// By how many bits clients are of one prefix.
    pub fn prefix_bits(&self) -> u8 {
        self.settings.prefix_bits
    }

    /// Knows what was written down from now on, if nothing was known; of how many prefixes.
    ///
    /// # Errors
    /// It cannot be used, and nothing is known.
    pub fn take_up(
        &mut self,
        now: Instant,
        unix_time: Duration,
        kept: &Kept,
    ) -> Result<usize, KeptError> {
        if kept.version != VERSION {
            return Err(KeptError::Version(kept.version));
        }
        if kept.prefix_bits != self.settings.prefix_bits {
            return Err(KeptError::Bits(kept.prefix_bits));
        }
        if !self.is_on() || !self.prefixes.is_empty() {
            return Ok(0);
        }
        // A clock that was put back makes nothing younger.
        let away = unix_time.as_secs().saturating_sub(kept.unix_seconds);
        let (mut clients, mut seen) = (Vec::new(), BTreeSet::new());
        for one in kept.prefixes.iter().take(self.settings.prefixes_max) {
            let client = self.client_of(now, away, one);
            let fits = one.prefix == one.prefix.trunc();
            let fits = fits && one.prefix.prefix_len() == kept.prefix_bits;
            // None is there twice.
            let fits = fits && seen.insert(one.prefix);
            let client = client.filter(|_| fits);
            clients.push((one.prefix, client.ok_or(KeptError::Impossible(one.prefix))?));
        }
        // The last is the one that was used last.
        for (prefix, mut client) in clients.into_iter().rev() {
            self.uses += 1;
            self.cycles += 1;
            (client.used, client.cycle) = (self.uses, self.cycles);
            self.prefixes.insert(prefix, client);
            self.by_use.insert(self.uses, prefix);
        }
        Ok(self.prefixes.len())
    }

    /// `None`: that cannot be.
    fn client_of(&self, now: Instant, away: u64, kept: &KeptPrefix) -> Option<Client> {
        let (first, most) = (self.settings.again_after, PAUSES_MAX);
        let left = Duration::from_secs(kept.again_seconds.saturating_sub(away));
        let mut client = Client {
            used: 0,
            standing: kept.standing,
            // The configuration may have others now.
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
    /// Behind which prefix the next part begins; `None`: this is the last one.
    pub fn behind(&self) -> Option<Ipv6Net> {
        self.behind
    }
}

impl Gathered {
    /// One part more.
    pub fn add(&mut self, part: Part) {
        self.0.extend(part.prefixes);
        if self.0.len() > 2 * KEPT_MAX {
            self.0
                .select_nth_unstable_by_key(KEPT_MAX, |(rank, _)| *rank);
            self.0.truncate(KEPT_MAX);
        }
    }

    /// All of them, to be written down at this time of day. Their prefixes have so many bits.
    pub fn kept(mut self, prefix_bits: u8, unix_time: Duration) -> Kept {
        self.0.sort_unstable_by_key(|(rank, _)| *rank);
        self.0.truncate(KEPT_MAX);
        Kept {
            version: VERSION,
            unix_seconds: unix_time.as_secs(),
            prefix_bits,
            prefixes: self.0.into_iter().map(|(_, kept)| kept).collect(),
        }
    }
}

impl Client {
    fn rank(&self) -> Rank {
        let is_usual = self.standing == Standing::Multipath;
        (is_usual, Reverse(self.used))
    }

    fn kept(&self, now: Instant, prefix: Ipv6Net) -> KeptPrefix {
        KeptPrefix {
            prefix,
            standing: self.standing,
            again_seconds: (self.until - now).as_secs(),
            pause_seconds: self.pause.as_secs(),
            age_seconds: (now - self.begun + self.aged).as_secs(),
            looks: self.looks,
            single: KeptMoments::of(&self.single),
            multipath: KeptMoments::of(&self.multipath),
            decided: self.decided.clone(),
        }
    }
}

impl KeptMoments {
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

/// What the layout of the file is called.
const VERSION: u32 = 1;
/// Prefixes that are written down; beyond it those that are multipath and were not seen for longest are not. Ours.
const KEPT_MAX: usize = 10_000;
