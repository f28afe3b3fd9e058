//! Chooses the egress of new connections by client prefix, from what the server's own connections
//! achieve.
//!
//! A share of the connections of every prefix explores each peer that announces it. Where recent
//! connections by a peer seem better than those by the egress in use, a larger share tests the peer
//! with new evidence. If the test finds it better with the configured confidence, new connections
//! of the prefix use it. Meanwhile a share stays on BGP's best path, and the prefix returns to it
//! when the peer withdraws the prefix, is not better any more, or has not been shown to be better
//! for a time. [`figures`] has the metrics, [`slots`] the assignment of connections to groups.
//!
//! This module does no I/O: ended connections and routes go in, assignments come out. The kernel
//! applies an assignment to new connections only; connections that began under an earlier one are
//! given to [`Steering::on_applied`], and do not count.

mod client;
pub mod figures;
pub mod slots;
mod stale;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use keiro_stats_export::Stats;
use keiro_units::Instant;

use self::{
    client::{Client, Outcome, Stage},
    figures::{Figures, Gain, Transfer},
    slots::{Group, Slots},
    stale::Stale,
};
pub use crate::status::SteeringMode as Mode;
use crate::{
    forwarding::PeerIndex,
    stats::SteeringStats,
    status::{
        EgressMeasurement, Steered, SteeredPrefix, SteeringGain, SteeringReason, SteeringStage,
        SteeringStatus,
    },
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub mode: Mode,
    /// The share of a prefix's connections that explores each peer.
    pub explore: f64,
    /// The share that tests a peer which exploration has found better.
    pub confirm: f64,
    /// The confidence of a move.
    pub confidence: f64,
    /// The maximum number of prefixes moved away from the best path within a minute.
    pub moves_per_minute: usize,
    /// The maximum number of prefixes; the least recently used one is dropped.
    pub prefixes_max: usize,
    /// The goodput of connections with fewer bytes does not count.
    pub bytes_min: u64,
    /// How long a prefix stays with a peer that is not shown to be better.
    pub keep_for: Duration,
}

impl Settings {
    /// The defaults. Ours.
    pub const DEFAULT: Self = Self {
        mode: Mode::Observe,
        explore: 0.01,
        confirm: 0.1,
        confidence: 0.99,
        moves_per_minute: 10,
        prefixes_max: 10_000,
        bytes_min: 64 << 10,
        keep_for: Duration::from_secs(3600),
    };
}

/// By which way a connection leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Egress {
    BestPath,
    Peer(PeerIndex),
}

/// A connection that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub client: IpAddr,
    /// The kernel's identifier of its socket.
    pub cookie: u64,
    /// The hash of the client's address and port, below [`slots::SLOTS`].
    pub slot: u16,
    pub transfer: Transfer,
}

/// The egress of a prefix's new connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub prefix: IpNet,
    /// Its number, for [`Steering::on_applied`].
    pub version: u64,
    pub egress: Egress,
    /// Groups with another egress.
    pub groups: BTreeMap<Group, Egress>,
    /// The peers that announce the prefix: connections may use any of them.
    pub announced: BTreeSet<PeerIndex>,
}

/// Whether a peer announces all of a prefix.
pub type Announces<'a> = &'a dyn Fn(PeerIndex, IpNet) -> bool;

/// The steering of all prefixes.
#[derive(Debug)]
pub struct Steering {
    settings: Settings,
    names: BTreeMap<PeerIndex, String>,
    slots: Slots,
    clients: BTreeMap<IpNet, Client>,
    /// Prefixes by last use: those with few connections, and those whose connections are assigned
    /// to groups.
    by_use: [BTreeMap<u64, IpNet>; 2],
    uses: u64,
    versions: u64,
    /// Prefixes whose assignment has changed.
    changed: BTreeSet<IpNet>,
    /// Prefixes that wait for a move.
    waiting: VecDeque<IpNet>,
    steered: BTreeSet<IpNet>,
    /// When prefixes were moved, within the last minute.
    moves: VecDeque<Instant>,
    stale: Stale,
    due: Option<Instant>,
    decisions: VecDeque<Steered>,
    /// Its counters; the gauges stay 0.
    stats: SteeringStats,
}

impl Steering {
    /// `names`: of the peers.
    pub fn new(settings: Settings, names: BTreeMap<PeerIndex, String>) -> Self {
        let peers = names.keys().copied().collect();
        Self {
            slots: Slots::new(peers, settings.explore, settings.confirm),
            settings,
            names,
            clients: BTreeMap::new(),
            by_use: [const { BTreeMap::new() }; 2],
            uses: 0,
            versions: 0,
            changed: BTreeSet::new(),
            waiting: VecDeque::new(),
            steered: BTreeSet::new(),
            moves: VecDeque::new(),
            stale: Stale::default(),
            due: None,
            decisions: VecDeque::new(),
            stats: SteeringStats::default(),
        }
    }

    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Counts a connection that has ended.
    pub fn on_ended(&mut self, now: Instant, ended: &Ended, announces: Announces<'_>) {
        let Some(prefix) = prefix_of(ended.client) else {
            return;
        };
        let is_stale = self.stale.remove(ended.cookie);
        self.note_use(now, prefix, announces);
        let Some(client) = self.clients.get_mut(&prefix) else {
            return;
        };
        client.connections += 1;
        if client.connections == client::MANAGED_MIN {
            self.regroup(now, prefix);
            return;
        }
        if is_stale || client.is_pending {
            self.stats.uncounted_connections += 1;
            return;
        }
        let egress = client.egress_of(self.slots.group(ended.slot));
        self.stats.counted_connections += 1;
        self.stats.explored_connections += u64::from(egress != client.egress);
        let outcome = client.count(now, egress, &ended.transfer, &self.settings, &self.slots);
        self.follow(now, prefix, outcome);
    }

    /// Handles changes of routes to clients for which `concerns` is true.
    pub fn on_routes(
        &mut self,
        now: Instant,
        concerns: &dyn Fn(IpNet) -> bool,
        announces: Announces<'_>,
    ) {
        let concerned = self
            .clients
            .keys()
            .copied()
            .filter(|prefix| concerns(*prefix));
        let concerned: Vec<IpNet> = concerned.collect();
        for prefix in concerned {
            let announced = self.announced(prefix, announces);
            let Some(client) = self.clients.get_mut(&prefix) else {
                continue;
            };
            if client.announced == announced {
                continue;
            }
            match client.on_announced(announced) {
                Some(reason) => self.revert(now, prefix, reason, None),
                None => {
                    self.regroup(now, prefix);
                    // The kernel has routes by every peer that announces it.
                    self.reassign(prefix);
                }
            }
        }
    }

    /// The next prefix whose assignment the kernel does not have; `None` for the assignment: its
    /// connections are not assigned any more.
    pub fn poll_assignment(&mut self) -> Option<(IpNet, Option<Assignment>)> {
        let prefix = self.changed.pop_first()?;
        let client = self
            .clients
            .get(&prefix)
            .filter(|client| client.is_managed());
        let assignment = client.map(|client| Assignment {
            prefix,
            version: client.version,
            egress: client.egress,
            groups: client.groups.clone(),
            announced: client.announced.clone(),
        });
        Some((prefix, assignment))
    }

    /// The kernel has an assignment. Connections of the prefix that may have begun under an earlier
    /// one, by their cookies, do not count.
    pub fn on_applied(&mut self, prefix: IpNet, version: u64, began_earlier: &[u64]) {
        began_earlier
            .iter()
            .for_each(|cookie| self.stale.insert(*cookie));
        if let Some(client) = self.clients.get_mut(&prefix)
            && client.version == version
        {
            client.is_pending = false;
        }
    }

    /// The next decision.
    pub fn poll_decision(&mut self) -> Option<Steered> {
        self.decisions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None`: never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Carries out moves that waited, and returns prefixes whose evidence has become too old.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let keep_for = self.settings.keep_for;
        let unproven = self.steered.iter().copied();
        let unproven: Vec<IpNet> = unproven
            .filter(|prefix| self.clients[prefix].is_unproven(now, keep_for))
            .collect();
        for prefix in unproven {
            self.revert(now, prefix, SteeringReason::NoEvidence, None);
        }
        self.move_waiting(now);
        self.schedule(now);
    }

    /// Returns all prefixes to the best path, and begins anew with these peers. The kernel's
    /// assignments are to be dropped.
    pub fn restart(&mut self, now: Instant, names: BTreeMap<PeerIndex, String>) {
        for prefix in self.steered.clone() {
            self.revert(now, prefix, SteeringReason::Ended, None);
        }
        let fresh = Self::new(self.settings, names);
        let old = std::mem::replace(self, fresh);
        // Answers for assignments of before must not fit new ones.
        self.versions = old.versions;
        (self.decisions, self.stats, self.moves) = (old.decisions, old.stats, old.moves);
    }

    /// Reports of ended connections were lost.
    pub fn on_lost_reports(&mut self) {
        self.stats.lost_reports += 1;
    }

    fn schedule(&mut self, now: Instant) {
        let is_idle = self.steered.is_empty() && self.waiting.is_empty();
        self.due = (!is_idle).then(|| now + CHECK_EVERY);
    }

    fn announced(&self, prefix: IpNet, announces: Announces<'_>) -> BTreeSet<PeerIndex> {
        let peers = self.slots.peers().iter().copied();
        peers.filter(|peer| announces(*peer, prefix)).collect()
    }

    fn note_use(&mut self, now: Instant, prefix: IpNet, announces: Announces<'_>) {
        self.uses += 1;
        if !self.clients.contains_key(&prefix) {
            if self.clients.len() >= self.settings.prefixes_max {
                self.forget_oldest(now);
            }
            let announced = self.announced(prefix, announces);
            self.clients.insert(prefix, Client::new(now, announced));
        }
        if let Some(client) = self.clients.get_mut(&prefix) {
            self.by_use
                .iter_mut()
                .for_each(|all| _ = all.remove(&client.used));
            client.used = self.uses;
            client.used_at = now;
            let kind = usize::from(client.connections >= client::MANAGED_MIN);
            self.by_use[kind].insert(self.uses, prefix);
        }
    }

    /// Forgets a prefix with few connections, so that many clients with one connection each cannot
    /// displace the others; one with more if it has not been used for long, or if the others have no
    /// room to become such.
    fn forget_oldest(&mut self, now: Instant) {
        let [few, many] = &self.by_use;
        let oldest = many.first_key_value().map(|(_, prefix)| prefix);
        let client = oldest.and_then(|prefix| self.clients.get(prefix));
        let is_idle = client.is_some_and(|client| now - client.used_at > IDLE_MAX);
        let is_crowded = few.len() <= self.settings.prefixes_max / FEW_MIN;
        let kind = usize::from(is_idle || is_crowded);
        let victim = self.by_use[kind].pop_first();
        let Some((_, prefix)) = victim.or_else(|| self.by_use[1 - kind].pop_first()) else {
            return;
        };
        if self.steered.contains(&prefix) {
            self.revert(now, prefix, SteeringReason::Forgotten, None);
        }
        if self
            .clients
            .remove(&prefix)
            .is_some_and(|client| client.is_managed())
        {
            self.changed.insert(prefix);
        }
        self.stats.forgotten_prefixes += 1;
    }

    fn follow(&mut self, now: Instant, prefix: IpNet, outcome: Outcome) {
        match outcome {
            Outcome::Nothing => {}
            Outcome::Regroup => self.regroup(now, prefix),
            Outcome::Revert(reason, gain) => self.revert(now, prefix, reason, gain),
            Outcome::Decided => {
                self.waiting.push_back(prefix);
                self.regroup(now, prefix);
                self.move_waiting(now);
                self.schedule(now);
            }
        }
    }

    fn regroup(&mut self, now: Instant, prefix: IpNet) {
        let client = self.clients.get_mut(&prefix);
        if client.is_some_and(|client| client.regroup(now, &self.slots)) {
            self.reassign(prefix);
        }
    }

    /// The kernel must get the assignment of a prefix anew.
    fn reassign(&mut self, prefix: IpNet) {
        let Some(client) = self.clients.get_mut(&prefix) else {
            return;
        };
        client.check_invariants();
        self.versions += 1;
        client.version = self.versions;
        client.is_pending = client.is_managed();
        self.changed.insert(prefix);
    }

    /// Moves prefixes that wait, as many as the limit permits.
    fn move_waiting(&mut self, now: Instant) {
        while self.moves.front().is_some_and(|at| now - *at >= MINUTE) {
            self.moves.pop_front();
        }
        while self.settings.mode == Mode::Observe
            || self.moves.len() < self.settings.moves_per_minute
        {
            let Some(prefix) = self.waiting.pop_front() else {
                break;
            };
            self.carry_out(now, prefix);
        }
    }

    fn carry_out(&mut self, now: Instant, prefix: IpNet) {
        let Some(client) = self.clients.get_mut(&prefix) else {
            return;
        };
        // The candidate may have withdrawn the prefix meanwhile.
        let Stage::Waits(test, gain, since) = std::mem::take(&mut client.stage) else {
            return;
        };
        if now - since > self.settings.keep_for {
            return;
        }
        let (from, to) = (client.egress, Egress::Peer(test.candidate));
        let found = reported_gain(&gain, &test.by_candidate, &test.by_current, self.settings);
        if self.settings.mode == Mode::Observe {
            let is_new = client.better.replace(test.candidate) != Some(test.candidate);
            client.hold_off();
            if is_new {
                self.record(prefix, from, to, SteeringReason::Better, Some(found));
            }
            return;
        }
        client.move_to(now, to, Some(&gain));
        self.moves.push_back(now);
        self.steered.insert(prefix);
        self.stats.moves += 1;
        self.record(prefix, from, to, SteeringReason::Better, Some(found));
        if let Some(client) = self.clients.get_mut(&prefix) {
            client.regroup(now, &self.slots);
        }
        self.reassign(prefix);
    }

    /// Returns a prefix to the best path.
    fn revert(&mut self, now: Instant, prefix: IpNet, reason: SteeringReason, gain: Option<Gain>) {
        let Some(client) = self.clients.get_mut(&prefix) else {
            return;
        };
        let from = client.egress;
        let figures = |of: Egress| client.measured().find(|(egress, _)| *egress == of);
        let (own, best) = (figures(from), figures(Egress::BestPath));
        let found = gain.map(|gain| {
            let of = |one: Option<(Egress, Figures)>| one.map_or(Figures::default(), |one| one.1);
            reported_gain(&gain, &of(own), &of(best), self.settings)
        });
        client.move_to(now, Egress::BestPath, None);
        client.regroup(now, &self.slots);
        self.steered.remove(&prefix);
        self.stats.reverts += 1;
        self.record(prefix, from, Egress::BestPath, reason, found);
        self.reassign(prefix);
    }

    fn name(&self, egress: Egress) -> Option<String> {
        match egress {
            Egress::BestPath => None,
            Egress::Peer(peer) => self.names.get(&peer).cloned(),
        }
    }

    fn record(
        &mut self,
        prefix: IpNet,
        from: Egress,
        to: Egress,
        reason: SteeringReason,
        gain: Option<SteeringGain>,
    ) {
        if self.decisions.len() >= DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Steered {
            prefix,
            from: self.name(from),
            to: self.name(to),
            in_force: self.settings.mode == Mode::Steer,
            reason,
            gain,
        });
    }

    /// The prefix that covers `asked`, or prefixes that are part of it.
    pub fn explain(&self, now: Instant, asked: IpNet) -> Vec<SteeredPrefix> {
        let outer = match prefix_of(asked.addr()) {
            Some(prefix) if prefix.contains(&asked) => prefix,
            _ => asked,
        };
        let from = IpNet::new(outer.network(), 0).unwrap_or(outer);
        let known = self.clients.range(from..);
        let known = known.take_while(|(prefix, _)| outer.contains(*prefix));
        let known = known.take(EXPLAINED_MAX);
        known
            .map(|(prefix, client)| self.status_of(now, *prefix, client))
            .collect()
    }

    /// Totals, and some prefixes: those steered, those that would be, and those with most
    /// connections.
    pub fn summary(&self, now: Instant) -> SteeringStatus {
        let (mut testing, mut order) = (0, Vec::with_capacity(self.clients.len()));
        for (prefix, client) in &self.clients {
            testing += u64::from(matches!(client.stage, Stage::Confirms(_)));
            let is_usual = client.egress == Egress::BestPath && client.better.is_none();
            order.push((is_usual, std::cmp::Reverse(client.connections), *prefix));
        }
        // Sorting a million prefixes would block the event loop.
        if order.len() > SHOWN_MAX {
            order.select_nth_unstable(SHOWN_MAX);
            order.truncate(SHOWN_MAX);
        }
        order.sort_unstable();
        let shown = order.iter().filter_map(|(_, _, prefix)| {
            let client = self.clients.get(prefix)?;
            Some(self.status_of(now, *prefix, client))
        });
        SteeringStatus {
            mode: self.settings.mode,
            stats: Stats(SteeringStats {
                prefixes: self.clients.len() as u64,
                steered_prefixes: self.steered.len() as u64,
                tested_prefixes: testing,
                waiting_prefixes: self.waiting.len() as u64,
                ..self.stats
            }),
            shown: shown.collect(),
        }
    }

    fn status_of(&self, now: Instant, prefix: IpNet, client: &Client) -> SteeredPrefix {
        let (stage, candidate) = match &client.stage {
            Stage::Explores if client.groups.is_empty() => (SteeringStage::Unassigned, None),
            Stage::Explores => (SteeringStage::Exploring, None),
            Stage::Confirms(test) => (SteeringStage::Testing, Some(test.candidate)),
            Stage::Waits(test, ..) => (SteeringStage::Waiting, Some(test.candidate)),
        };
        let measured = client
            .measured()
            .map(|(egress, figures)| EgressMeasurement {
                peer: self.name(egress),
                connections: figures.connections,
                rtt_micros: figures.rtt_micros(),
                retransmitted_permyriad: figures.retransmitted_permyriad(),
                bits_per_second: figures.bits_per_second(),
            });
        let peers = self.names.iter();
        let silent = peers.filter(|(peer, _)| client.is_silent(**peer));
        SteeredPrefix {
            prefix,
            connections: client.connections,
            peer: self.name(client.egress),
            since_seconds: (now - client.since).as_secs(),
            stage,
            candidate: candidate.and_then(|peer| self.name(Egress::Peer(peer))),
            better: client.better.and_then(|peer| self.name(Egress::Peer(peer))),
            silent: silent.map(|(_, name)| name.clone()).collect(),
            measured: measured.collect(),
        }
    }
}

fn reported_gain(gain: &Gain, own: &Figures, other: &Figures, settings: Settings) -> SteeringGain {
    SteeringGain {
        metric: gain.metric,
        permille: gain.permille(gain.estimate),
        low_permille: gain.permille(gain.low(settings.confidence)),
        high_permille: gain.permille(gain.high(settings.confidence)),
        connections: own.connections,
        compared_with: other.connections,
    }
}

/// The prefix of a client: what is announced between ASes is hardly longer.
pub fn prefix_of(client: IpAddr) -> Option<IpNet> {
    match client {
        IpAddr::V4(client) => Ipv4Net::new(client, BITS_V4)
            .ok()
            .map(|net| net.trunc().into()),
        IpAddr::V6(client) => Ipv6Net::new(client, BITS_V6)
            .ok()
            .map(|net| net.trunc().into()),
    }
}

/// The longest prefixes that are commonly accepted between ASes.
pub const BITS_V4: u8 = 24;
pub const BITS_V6: u8 = 48;
/// How often old evidence and waiting moves are looked at. Ours.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A prefix without a connection for this time makes room for others. Ours.
const IDLE_MAX: Duration = Duration::from_secs(3600);
/// The part of all prefixes that those with few connections have at least: one of this number. Ours.
const FEW_MIN: usize = 8;
const MINUTE: Duration = Duration::from_secs(60);
/// Prefixes shown in the summary, and within a requested prefix. Ours.
const SHOWN_MAX: usize = 50;
const EXPLAINED_MAX: usize = 20;
/// Unreported decisions; beyond it the oldest take effect without a report. Ours.
const DECISIONS_MAX: usize = 1024;
