//! Whether multipath is good for the clients of a prefix, judged by connections that were left on one path on
//! purpose.
//!
//! A share of the connections is drawn to stay single-path. Of these, and of some of the others, the goodput
//! is kept as its logarithm: goodputs of a prefix spread over orders of magnitude, skewed to the right, and a
//! path that is worse is so by a factor. Means of logarithms are compared by Welch's t test, because the two
//! kinds differ in number and need not have the same variance. A connection counts as what it was drawn as,
//! whether or not its client joined anything (intention to treat), so that nothing but chance tells the two
//! apart.
//!
//! It is looked at only when both kinds have 20, 40, 80, … 640 connections, and the probability of an error that
//! the configuration admits is shared out equally over those looks (Bonferroni), so that looking often does
//! not make a false alarm likely. Behind the last look, and after a day, evidence begins anew.
//!
//! Where multipath is worse than the configured loss, with that confidence, the prefix is single-path. After a
//! pause, twice as long each time, half of its connections try multipath again. It is back only when it is less
//! worse than that loss with the same confidence: in between things stay as they are.
//!
//! Pure: what happens comes in with its time, what was decided goes out. What a connection has carried is
//! [`crate::accounts`]'s.

mod kept;

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use ipnet::Ipv6Net;
use keiro_model::welch::{Difference, Moments};
use keiro_units::Instant;

pub use self::kept::{Gathered, Kept, KeptError, Part};
use crate::status::{Compared, ComparisonStatus, Evidence, PrefixStatus, Standing};

/// What the configuration says about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Share of connections that stay single-path, from 0 (nothing is compared) to 0.5.
    pub held_out: f64,
    /// Clients are of one prefix if so many bits of their addresses are the same.
    pub prefix_bits: u8,
    /// Prefixes that are remembered; the one that was not seen for longest is forgotten.
    pub prefixes_max: usize,
    /// Connections that carry less do not count.
    pub bytes_min: u64,
    /// Multipath may be worse by this share of goodput.
    pub loss_max: f64,
    /// Probability that a decision is right, at least, from 0.5 to less than one.
    pub confidence: f64,
    /// After how long a prefix tries multipath again, at first.
    pub again_after: Duration,
}

impl Settings {
    /// Where the configuration says nothing. Ours.
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

/// What a connection was drawn as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// It stays on one path.
    pub single: bool,
    /// Where its goodput counts; `None`: nowhere.
    pub counts: Option<Place>,
}

/// A prefix and which evidence of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    prefix: Ipv6Net,
    cycle: u64,
}

/// The comparisons of all prefixes.
#[derive(Debug)]
pub struct Comparison {
    settings: Settings,
    random: u64,
    prefixes: BTreeMap<Ipv6Net, Client>,
    /// By when they were used last.
    by_use: BTreeMap<u64, Ipv6Net>,
    uses: u64,
    cycles: u64,
    decisions: VecDeque<Compared>,
    /// Since it began.
    forgotten: u64,
    counted: u64,
    decided: u64,
}

#[derive(Debug)]
struct Client {
    used: u64,
    standing: Standing,
    /// When it is tried again, and the next pause.
    until: Instant,
    pause: Duration,
    cycle: u64,
    begun: Instant,
    /// How old evidence was then, of an earlier run.
    aged: Duration,
    looks: usize,
    single: Moments,
    multipath: Moments,
    /// By what was decided last.
    decided: Option<Evidence>,
}

impl Comparison {
    /// Nothing is known; `seed` is for drawing.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            random: seed,
            prefixes: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            cycles: 0,
            decisions: VecDeque::new(),
            forgotten: 0,
            counted: 0,
            decided: 0,
        }
    }

    /// Other settings from now on; where prefixes are others, or nothing is compared, nothing is known of any.
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

    /// Whether anything is.
    pub fn is_on(&self) -> bool {
        self.settings.held_out > 0.0
    }

    /// A connection begins, to which addresses could be announced.
    pub fn draw(&mut self, now: Instant, client: IpAddr) -> Drawn {
        let Some(prefix) = self.prefix(client) else {
            return Drawn::default();
        };
        if !self.is_on() {
            return Drawn::default();
        }
        let share = self.settings.held_out;
        let chance = self.chance();
        let client = self.use_of(now, prefix);
        if client.standing == Standing::SinglePath && client.until <= now {
            client.standing = Standing::Trial;
            let evidence = client.decided.clone().unwrap_or_default();
            self.tell(prefix, Standing::Trial, false, evidence);
            self.begin_anew(now, prefix);
        }
        let client = &self.prefixes[&prefix];
        let (held, measured) = match client.standing {
            Standing::SinglePath => (1.0, 0.0),
            Standing::Multipath => (share, MEASURED_PER_HELD * share),
            Standing::Trial => (TRIED_SINGLE, 1.0),
        };
        let place = Place {
            prefix,
            cycle: client.cycle,
        };
        let counts = client.standing != Standing::SinglePath && chance < held + measured;
        Drawn {
            single: chance < held,
            counts: counts.then_some(place),
        }
    }

    /// Whether addresses are no longer announced to a client.
    pub fn withholds(&self, client: IpAddr) -> bool {
        let known = self.prefix(client).and_then(|of| self.prefixes.get(&of));
        known.is_some_and(|client| client.standing == Standing::SinglePath)
    }

    /// A connection has ended, after so many bytes that took so long.
    pub fn record(&mut self, now: Instant, drawn: Drawn, bytes: u64, took: Duration) {
        let Some(place) = drawn.counts.filter(|_| bytes >= self.settings.bytes_min) else {
            return;
        };
        // Evidence may have begun anew, or the prefix been forgotten.
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
        self.counted += 1;
        self.look(now, place.prefix);
    }

    /// Connections that counted, and decisions: what is known is as it was while both are.
    pub fn changes(&self) -> (u64, u64) {
        (self.counted, self.decided)
    }

    /// What was decided since it was asked last.
    pub fn poll_decision(&mut self) -> Option<Compared> {
        self.decisions.pop_front()
    }

    /// How the prefix stands that an address or a prefix is of, or some of those that are part of it.
    pub fn explain(&self, now: Instant, asked: Ipv6Net) -> Vec<PrefixStatus> {
        let bits = self.settings.prefix_bits.min(asked.prefix_len());
        let outer = Ipv6Net::new(asked.network(), bits).expect("bits of an address");
        let from = Ipv6Net::new(outer.network(), 0).expect("it has none");
        let known = self.prefixes.range(from..);
        let known = known.take_while(|(prefix, _)| outer.contains(*prefix));
        let told = known.map(|(prefix, client)| self.status(now, *prefix, client));
        told.take(EXPLAINED_MAX).collect()
    }

    /// Totals, and the prefixes that matter most.
    pub fn summary(&self, now: Instant) -> ComparisonStatus {
        let (mut single_path, mut trial) = (0, 0);
        let mut order = Vec::with_capacity(self.prefixes.len());
        for (prefix, client) in &self.prefixes {
            match client.standing {
                Standing::Multipath => {}
                Standing::SinglePath => single_path += 1,
                Standing::Trial => trial += 1,
            }
            let connections = client.single.count() + client.multipath.count();
            let is_usual = client.standing == Standing::Multipath;
            order.push((is_usual, std::cmp::Reverse(connections), *prefix));
        }
        // Neighbours wait meanwhile, and there may be a million.
        if order.len() > SHOWN_MAX {
            order.select_nth_unstable(SHOWN_MAX);
            order.truncate(SHOWN_MAX);
        }
        order.sort_unstable();
        let shown = order.into_iter();
        ComparisonStatus {
            prefixes: self.prefixes.len(),
            single_path,
            trial,
            forgotten: self.forgotten,
            counted: self.counted,
            decisions: self.decided,
            shown: shown
                .map(|(_, _, prefix)| self.status(now, prefix, &self.prefixes[&prefix]))
                .collect(),
        }
    }

    fn prefix(&self, client: IpAddr) -> Option<Ipv6Net> {
        match client {
            IpAddr::V6(client) => Ipv6Net::new(client, self.settings.prefix_bits)
                .ok()
                .map(|net| net.trunc()),
            // Egress peers' routes are of IPv6.
            IpAddr::V4(_) => None,
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

    fn use_of(&mut self, now: Instant, prefix: Ipv6Net) -> &mut Client {
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
            standing: Standing::Multipath,
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
            self.forgotten += 1;
        }
    }

    /// Evidence of a prefix begins anew.
    fn begin_anew(&mut self, now: Instant, prefix: Ipv6Net) {
        self.cycles += 1;
        if let Some(client) = self.prefixes.get_mut(&prefix) {
            client.cycle = self.cycles;
            client.begin_anew(now);
        }
    }

    /// Looks at a prefix's evidence where that is due.
    fn look(&mut self, now: Instant, prefix: Ipv6Net) {
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
        let Some((standing, confident)) = client.judge(&settings, is_last) else {
            if is_last {
                // It was fine for as long as it takes to find out.
                client.pause = settings.again_after;
                self.begin_anew(now, prefix);
            }
            return;
        };
        let evidence = evidence(client, settings.confidence);
        client.standing = standing;
        client.decided = Some(evidence.clone());
        if standing == Standing::SinglePath {
            client.until = now + client.pause;
            client.pause = (client.pause * 2).min(settings.again_after * PAUSES_MAX);
        }
        self.tell(prefix, standing, confident, evidence);
        self.begin_anew(now, prefix);
    }

    fn tell(&mut self, prefix: Ipv6Net, standing: Standing, confident: bool, evidence: Evidence) {
        self.decided += 1;
        if self.decisions.len() >= DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Compared {
            prefix,
            standing,
            confident,
            evidence,
        });
    }

    fn status(&self, now: Instant, prefix: Ipv6Net, client: &Client) -> PrefixStatus {
        let waits = client.standing == Standing::SinglePath;
        PrefixStatus {
            prefix,
            standing: client.standing,
            again_seconds: waits.then(|| (client.until - now).as_secs()),
            evidence: evidence(client, self.settings.confidence),
            next_look: match client.standing {
                Standing::SinglePath => None,
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

    /// What follows from the evidence, and whether with confidence; `None`: nothing.
    fn judge(&self, settings: &Settings, is_last: bool) -> Option<(Standing, bool)> {
        let found = Difference::of(&self.multipath, &self.single)?;
        let limit = (1.0 - settings.loss_max).ln();
        let reach = found.reach(confidence_of_look(settings.confidence));
        let is_trial = self.standing == Standing::Trial;
        if found.estimate + reach < limit {
            Some((Standing::SinglePath, true))
        } else if is_trial && found.estimate - reach > limit {
            Some((Standing::Multipath, true))
        } else if is_trial && is_last {
            // Too near to the limit for it to matter which.
            let standing = match found.estimate < limit {
                true => Standing::SinglePath,
                false => Standing::Multipath,
            };
            Some((standing, false))
        } else {
            None
        }
    }
}

/// What is known, in numbers.
fn evidence(client: &Client, confidence: f64) -> Evidence {
    let goodput = |of: &Moments| of.mean().map(|mean| mean.exp().round() as u64);
    let found = Difference::of(&client.multipath, &client.single);
    // With few connections Student's t is not what the quantile's expansion gives.
    let found =
        found.filter(|_| client.single.count().min(client.multipath.count()) >= INTERVAL_MIN);
    let permille = |log: f64| ((1.0 - log.exp()) * 1000.0).round() as i64;
    let reach = found.map_or(0.0, |found| found.reach(confidence_of_look(confidence)));
    Evidence {
        single_connections: client.single.count(),
        single_bits_per_second: goodput(&client.single),
        multipath_connections: client.multipath.count(),
        multipath_bits_per_second: goodput(&client.multipath),
        loss_permille: found.map(|found| permille(found.estimate)),
        loss_low_permille: found.map(|found| permille(found.estimate + reach)),
        loss_high_permille: found.map(|found| permille(found.estimate - reach)),
    }
}

/// So that all looks together err as seldom as is wanted.
fn confidence_of_look(confidence: f64) -> f64 {
    1.0 - (1.0 - confidence) / LOOKS.len() as f64
}

/// When evidence is looked at: connections of the kind that has fewer. Ours: below twenty Welch's test leans on a
/// normal distribution; beyond 640 a difference that is not seen is small against the spread.
const LOOKS: [u64; 6] = [20, 40, 80, 160, 320, 640];
/// Prefixes that are shown of all, and of those within one that was asked for. Ours.
const SHOWN_MAX: usize = 50;
const EXPLAINED_MAX: usize = 20;
/// Below it no interval is shown. Ours.
const INTERVAL_MIN: u64 = 10;
/// So many connections that are multipath are measured for one that is held out: more would sharpen the
/// comparison by a tenth at most. Ours.
const MEASURED_PER_HELD: f64 = 4.0;
/// Share of single-path connections while multipath is tried again, where the two together are sharpest. Ours.
const TRIED_SINGLE: f64 = 0.5;
/// What is older says little of today. Ours.
const EVIDENCE_TIME: Duration = Duration::from_secs(24 * 3600);
/// The longest pause, in first ones. Ours.
const PAUSES_MAX: u32 = 16;
/// The kernel counts busy time in ticks, of up to 10 ms (`CONFIG_HZ`).
const TOOK_MIN: Duration = Duration::from_millis(10);
/// Decisions that wait to be told; beyond it the oldest are only in effect. Ours.
const DECISIONS_MAX: usize = 1024;

#[cfg(test)]
mod tests;
