//! Compares multipath with single path for the clients of a prefix, with a share of connections
//! kept single-path for this purpose.
//!
//! For these, and for a sample of the others, the logarithm of the goodput is recorded: goodputs of
//! a prefix spread over orders of magnitude with a long tail, and a worse path is worse by a
//! factor. The means of the logarithms are compared by Welch's t test, as the groups differ in size
//! and may differ in variance. A connection counts in the group that it was assigned to, whether or
//! not its client joined a subflow (intention to treat), so that only chance distinguishes the
//! groups.
//!
//! The test is made only when both groups have 20, 40, 80, … 640 connections. The configured error
//! probability is divided equally among these tests (Bonferroni), so that repeated testing does not
//! cause false alarms. After the last test, and after a day, evidence starts anew.
//!
//! If multipath is worse than the configured loss with the configured confidence, the prefix
//! becomes single-path. After a pause, which doubles each time, half of its connections try
//! multipath again. The prefix becomes multipath again only if the loss is smaller than configured
//! with the same confidence; in between nothing changes.
//!
//! This module is pure: events come in with their time, decisions go out. [`crate::accounts`]
//! measures the connections.

mod stored;

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use ipnet::IpNet;
use keiro_model::welch::{Difference, Moments};
use keiro_stats_export::Stats;
use keiro_units::Instant;

pub use self::stored::{Gathered, Part, StoredEvidence, StoredEvidenceError};
use crate::{
    stats::ComparisonStats,
    status::{Compared, ComparisonStatus, GoodputComparison, PrefixMode, PrefixStatus},
    steering::BITS_V4,
};

/// The settings of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The share of connections kept single-path, from 0 (off) to 0.5.
    pub held_out: f64,
    /// The prefix length that groups clients of IPv6; those of IPv4 have [`BITS_V4`].
    pub prefix_bits: u8,
    /// The maximum number of prefixes; the least recently used one is dropped.
    pub prefixes_max: usize,
    /// Connections with fewer bytes do not count.
    pub bytes_min: u64,
    /// The tolerated loss of multipath, as a share of goodput.
    pub loss_max: f64,
    /// The confidence of a decision, from 0.5 to less than one.
    pub confidence: f64,
    /// The first pause before a single-path prefix tries multipath again.
    pub again_after: Duration,
}

impl Settings {
    /// The defaults. Ours.
    pub const DEFAULT: Self = Self {
        held_out: 0.05,
        prefix_bits: 48,
        prefixes_max: 10_000,
        bytes_min: 1 << 20,
        loss_max: 0.05,
        confidence: 0.99,
        again_after: Duration::from_secs(3600),
    };
}

/// The group that a connection was assigned to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// It stays single-path.
    pub single: bool,
    /// The evidence to which its goodput is added; `None`: it is not measured.
    pub counts: Option<EvidenceKey>,
}

/// A prefix and the number of its evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvidenceKey {
    prefix: IpNet,
    cycle: u64,
}

/// The comparisons of all prefixes.
#[derive(Debug)]
pub struct Comparison {
    settings: Settings,
    random: u64,
    prefixes: BTreeMap<IpNet, Client>,
    /// Prefixes by last use.
    by_use: BTreeMap<u64, IpNet>,
    uses: u64,
    cycles: u64,
    decisions: VecDeque<Compared>,
    /// Totals since the start.
    /// Its counters; the gauges stay 0.
    stats: ComparisonStats,
}

#[derive(Debug)]
struct Client {
    used: u64,
    mode: PrefixMode,
    /// When multipath is tried again, and the next pause.
    until: Instant,
    pause: Duration,
    cycle: u64,
    begun: Instant,
    /// The age of the evidence at `begun`, if it is from an earlier run.
    aged: Duration,
    looks: usize,
    single: Moments,
    multipath: Moments,
    /// The evidence of the last decision.
    decided: Option<GoodputComparison>,
}

impl Comparison {
    /// `seed` is for the random assignment.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            random: seed,
            prefixes: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            cycles: 0,
            decisions: VecDeque::new(),
            stats: ComparisonStats::default(),
        }
    }

    /// Changes the settings. Another prefix length, or switching the comparison off, drops all
    /// evidence.
    pub fn set(&mut self, settings: Settings) {
        if settings.prefix_bits != self.settings.prefix_bits || settings.held_out <= 0.0 {
            self.prefixes.clear();
            self.by_use.clear();
        }
        self.settings = settings;
        while self.prefixes.len() > settings.prefixes_max {
            self.forget_oldest();
        }
    }

    pub fn is_on(&self) -> bool {
        self.settings.held_out > 0.0
    }

    /// Assigns a new connection to which addresses could be announced.
    pub fn draw(&mut self, now: Instant, client: IpAddr) -> Assignment {
        let Some(prefix) = self.prefix(client) else {
            return Assignment::default();
        };
        if !self.is_on() {
            return Assignment::default();
        }
        let share = self.settings.held_out;
        let chance = self.chance();
        let client = self.use_of(now, prefix);
        if client.mode == PrefixMode::SinglePath && client.until <= now {
            client.mode = PrefixMode::Trial;
            let evidence = client.decided.clone().unwrap_or_default();
            self.record_decision(prefix, PrefixMode::Trial, false, evidence);
            self.begin_anew(now, prefix);
        }
        let client = &self.prefixes[&prefix];
        let (held, measured) = match client.mode {
            PrefixMode::SinglePath => (1.0, 0.0),
            PrefixMode::Multipath => (share, MEASURED_PER_HELD * share),
            PrefixMode::Trial => (TRIED_SINGLE, 1.0),
        };
        let place = EvidenceKey {
            prefix,
            cycle: client.cycle,
        };
        let counts = client.mode != PrefixMode::SinglePath && chance < held + measured;
        Assignment {
            single: chance < held,
            counts: counts.then_some(place),
        }
    }

    /// Whether no further addresses are announced to a client.
    pub fn withholds(&self, client: IpAddr) -> bool {
        let known = self.prefix(client).and_then(|of| self.prefixes.get(&of));
        known.is_some_and(|client| client.mode == PrefixMode::SinglePath)
    }

    /// Records a connection that has ended.
    pub fn record(&mut self, now: Instant, drawn: Assignment, bytes: u64, took: Duration) {
        let Some(place) = drawn.counts.filter(|_| bytes >= self.settings.bytes_min) else {
            return;
        };
        // The evidence may have started anew, or the prefix may have been dropped.
        let known = self.prefixes.get_mut(&place.prefix);
        let Some(client) = known.filter(|client| client.cycle == place.cycle) else {
            return;
        };
        let seconds = took.max(TOOK_MIN).as_secs_f64();
        let goodput = (bytes as f64 * 8.0 / seconds).ln();
        match drawn.single {
            true => client.single.add(goodput),
            false => client.multipath.add(goodput),
        }
        self.stats.counted_connections += 1;
        self.look(now, place.prefix);
    }

    /// Numbers that change whenever the evidence does: connections counted, and decisions.
    pub fn changes(&self) -> (u64, u64) {
        (self.stats.counted_connections, self.stats.decisions)
    }

    /// The next decision.
    pub fn poll_decision(&mut self) -> Option<Compared> {
        self.decisions.pop_front()
    }

    /// The status of the prefix that covers `asked`, or of prefixes that are part of it.
    pub fn explain(&self, now: Instant, asked: IpNet) -> Vec<PrefixStatus> {
        let bits = self.bits(&asked).min(asked.prefix_len());
        let outer = IpNet::new(asked.network(), bits).expect("bits of an address");
        let outer = outer.trunc();
        let from = IpNet::new(outer.network(), 0).expect("it has none");
        let known = self.prefixes.range(from..);
        let known = known.take_while(|(prefix, _)| outer.contains(*prefix));
        let statuses = known.map(|(prefix, client)| self.status(now, *prefix, client));
        statuses.take(EXPLAINED_MAX).collect()
    }

    /// Totals, and the most important prefixes.
    pub fn summary(&self, now: Instant) -> ComparisonStatus {
        let (mut single_path_prefixes, mut trial_prefixes) = (0, 0);
        let mut order = Vec::with_capacity(self.prefixes.len());
        for (prefix, client) in &self.prefixes {
            match client.mode {
                PrefixMode::Multipath => {}
                PrefixMode::SinglePath => single_path_prefixes += 1,
                PrefixMode::Trial => trial_prefixes += 1,
            }
            let connections = client.single.count() + client.multipath.count();
            let is_usual = client.mode == PrefixMode::Multipath;
            order.push((is_usual, std::cmp::Reverse(connections), *prefix));
        }
        // Sorting a million prefixes would block the event loop.
        if order.len() > SHOWN_MAX {
            order.select_nth_unstable(SHOWN_MAX);
            order.truncate(SHOWN_MAX);
        }
        order.sort_unstable();
        let shown = order.into_iter();
        ComparisonStatus {
            stats: Stats(ComparisonStats {
                prefixes: self.prefixes.len() as u64,
                single_path_prefixes,
                trial_prefixes,
                ..self.stats
            }),
            shown: shown
                .map(|(_, _, prefix)| self.status(now, prefix, &self.prefixes[&prefix]))
                .collect(),
        }
    }

    fn prefix(&self, client: IpAddr) -> Option<IpNet> {
        let host = IpNet::from(client);
        let prefix = IpNet::new(client, self.bits(&host)).ok()?;
        Some(prefix.trunc())
    }

    /// The length of client prefixes of a family.
    fn bits(&self, of: &IpNet) -> u8 {
        match of {
            IpNet::V4(_) => BITS_V4,
            IpNet::V6(_) => self.settings.prefix_bits,
        }
    }

    /// From 0 to less than 1 (SplitMix64).
    fn chance(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn use_of(&mut self, now: Instant, prefix: IpNet) -> &mut Client {
        self.uses += 1;
        let used = self.uses;
        if !self.prefixes.contains_key(&prefix) {
            if self.prefixes.len() >= self.settings.prefixes_max {
                self.forget_oldest();
            }
            self.cycles += 1;
        }
        let (cycle, pause) = (self.cycles, self.settings.again_after);
        let client = self.prefixes.entry(prefix).or_insert_with(|| Client {
            used,
            mode: PrefixMode::Multipath,
            until: now,
            pause,
            cycle,
            begun: now,
            aged: Duration::ZERO,
            looks: 0,
            single: Moments::default(),
            multipath: Moments::default(),
            decided: None,
        });
        self.by_use.remove(&client.used);
        self.by_use.insert(used, prefix);
        client.used = used;
        client
    }

    fn forget_oldest(&mut self) {
        if let Some((_, prefix)) = self.by_use.pop_first() {
            self.prefixes.remove(&prefix);
            self.stats.forgotten_prefixes += 1;
        }
    }

    fn begin_anew(&mut self, now: Instant, prefix: IpNet) {
        self.cycles += 1;
        if let Some(client) = self.prefixes.get_mut(&prefix) {
            client.cycle = self.cycles;
            client.begin_anew(now);
        }
    }

    /// Tests the evidence of a prefix if that is due.
    fn look(&mut self, now: Instant, prefix: IpNet) {
        let settings = self.settings;
        let Some(client) = self.prefixes.get_mut(&prefix) else {
            return;
        };
        if now - client.begun + client.aged > EVIDENCE_TIME {
            return self.begin_anew(now, prefix);
        }
        let both = client.single.count().min(client.multipath.count());
        if both < LOOKS[client.looks] {
            return;
        }
        client.looks += 1;
        let is_last = client.looks == LOOKS.len();
        let Some((mode, confident)) = client.conclusion(&settings, is_last) else {
            if is_last {
                // No loss was found: the next pause is the first one again.
                client.pause = settings.again_after;
                self.begin_anew(now, prefix);
            }
            return;
        };
        let evidence = evidence(client, settings.confidence);
        client.mode = mode;
        client.decided = Some(evidence.clone());
        if mode == PrefixMode::SinglePath {
            client.until = now + client.pause;
            client.pause = (client.pause * 2).min(settings.again_after * PAUSES_MAX);
        }
        self.record_decision(prefix, mode, confident, evidence);
        self.begin_anew(now, prefix);
    }

    fn record_decision(
        &mut self,
        prefix: IpNet,
        mode: PrefixMode,
        confident: bool,
        evidence: GoodputComparison,
    ) {
        self.stats.decisions += 1;
        if self.decisions.len() >= DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Compared {
            prefix,
            mode,
            confident,
            evidence,
        });
    }

    fn status(&self, now: Instant, prefix: IpNet, client: &Client) -> PrefixStatus {
        let waits = client.mode == PrefixMode::SinglePath;
        PrefixStatus {
            prefix,
            mode: client.mode,
            again_seconds: waits.then(|| (client.until - now).as_secs()),
            evidence: evidence(client, self.settings.confidence),
            next_look: match client.mode {
                PrefixMode::SinglePath => None,
                _ => Some(LOOKS[client.looks]),
            },
            decided: client.decided.clone(),
        }
    }
}

impl Client {
    fn begin_anew(&mut self, now: Instant) {
        (self.begun, self.aged, self.looks) = (now, Duration::ZERO, 0);
        (self.single, self.multipath) = (Moments::default(), Moments::default());
    }

    /// The conclusion, and whether it has the configured confidence; `None`: no conclusion.
    fn conclusion(&self, settings: &Settings, is_last: bool) -> Option<(PrefixMode, bool)> {
        let found = Difference::of(&self.multipath, &self.single)?;
        let limit = (1.0 - settings.loss_max).ln();
        let reach = found.reach(confidence_of_look(settings.confidence));
        let is_trial = self.mode == PrefixMode::Trial;
        if found.estimate + reach < limit {
            Some((PrefixMode::SinglePath, true))
        } else if is_trial && found.estimate - reach > limit {
            Some((PrefixMode::Multipath, true))
        } else if is_trial && is_last {
            // The loss is too close to the limit for a confident decision.
            let mode = match found.estimate < limit {
                true => PrefixMode::SinglePath,
                false => PrefixMode::Multipath,
            };
            Some((mode, false))
        } else {
            None
        }
    }
}

fn evidence(client: &Client, confidence: f64) -> GoodputComparison {
    let goodput = |of: &Moments| of.mean().map(|mean| mean.exp().round() as u64);
    let found = Difference::of(&client.multipath, &client.single);
    // For few connections the series expansion of the t quantile is inaccurate.
    let found =
        found.filter(|_| client.single.count().min(client.multipath.count()) >= INTERVAL_MIN);
    let permille = |log: f64| ((1.0 - log.exp()) * 1000.0).round() as i64;
    let reach = found.map_or(0.0, |found| found.reach(confidence_of_look(confidence)));
    GoodputComparison {
        single_connections: client.single.count(),
        single_bits_per_second: goodput(&client.single),
        multipath_connections: client.multipath.count(),
        multipath_bits_per_second: goodput(&client.multipath),
        loss_permille: found.map(|found| permille(found.estimate)),
        loss_low_permille: found.map(|found| permille(found.estimate + reach)),
        loss_high_permille: found.map(|found| permille(found.estimate - reach)),
    }
}

/// Bonferroni: divides the error probability among all tests.
fn confidence_of_look(confidence: f64) -> f64 {
    1.0 - (1.0 - confidence) / LOOKS.len() as f64
}

/// The sizes of the smaller group at which evidence is tested. Ours: below twenty Welch's test
/// depends on a normal distribution; beyond 640 an undetected difference is small against the
/// spread.
const LOOKS: [u64; 6] = [20, 40, 80, 160, 320, 640];
/// Prefixes shown in the summary, and within a requested prefix. Ours.
const SHOWN_MAX: usize = 50;
const EXPLAINED_MAX: usize = 20;
/// No interval is shown with fewer connections. Ours.
const INTERVAL_MIN: u64 = 10;
/// Multipath connections measured per single-path one: more would improve precision by at most a
/// tenth. Ours.
const MEASURED_PER_HELD: f64 = 4.0;
/// The share of single-path connections during a trial; at one half precision is best. Ours.
const TRIED_SINGLE: f64 = 0.5;
/// Older evidence says little about the present. Ours.
const EVIDENCE_TIME: Duration = Duration::from_secs(24 * 3600);
/// The longest pause, as a multiple of the first. Ours.
const PAUSES_MAX: u32 = 16;
/// The kernel counts busy time in ticks of up to 10 ms (`CONFIG_HZ`).
const TOOK_MIN: Duration = Duration::from_millis(10);
/// Unreported decisions; beyond it the oldest take effect without a report. Ours.
const DECISIONS_MAX: usize = 1024;

#[cfg(test)]
mod tests;
