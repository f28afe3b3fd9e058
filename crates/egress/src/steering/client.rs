//! One client prefix: its egress, the egress of its groups, and the evidence.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use super::{
    Egress, Settings,
    figures::{Figures, Gain, Metric, Sizes, Transfer},
    slots::{Group, Slots},
};
use crate::{forwarding::PeerIndex, status::SteeringReason};

#[derive(Debug)]
pub(super) struct Client {
    /// Its last use, in [`Steering`](super::Steering)'s order.
    pub(super) used: u64,
    pub(super) used_at: Instant,
    pub(super) connections: u64,
    /// The egress of new connections without a group.
    pub(super) egress: Egress,
    pub(super) since: Instant,
    /// The peers that announce all of the prefix.
    pub(super) announced: BTreeSet<PeerIndex>,
    /// The egress of each group that has another one than the prefix.
    pub(super) groups: BTreeMap<Group, Egress>,
    /// The number of the assignment, and whether the kernel does not have it yet.
    pub(super) version: u64,
    pub(super) is_pending: bool,
    windows: BTreeMap<Egress, Window>,
    sizes: Sizes,
    in_block: u64,
    /// When the blocks of all windows began.
    begun: [Instant; BLOCKS],
    pub(super) stage: Stage,
    /// No test begins before this number of connections.
    paused_until: u64,
    pause: u64,
    silences: BTreeMap<PeerIndex, Silence>,
    /// Connections by the best path since the last one by the peer in use.
    control_run: u32,
    /// When the peer in use was last seen to be better, and by which metric it was chosen.
    shown: Instant,
    reason: Metric,
    /// The peer that `mode = "observe"` does not use.
    pub(super) better: Option<PeerIndex>,
}

/// What a prefix is doing.
#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Explores,
    /// Tests a peer on more connections.
    Confirms(Test),
    /// The peer is better, and the limit of moves per minute delays the move.
    Waits(Test, Gain, Instant),
}

/// A test of a peer that exploration has found better, with new evidence.
#[derive(Debug)]
pub(super) struct Test {
    pub(super) candidate: PeerIndex,
    pub(super) by_candidate: Figures,
    pub(super) by_current: Figures,
    looks: usize,
    begun: u64,
    begun_at: Instant,
}

/// Recent connections of one egress: those of the last blocks.
#[derive(Debug, Default)]
struct Window([Figures; BLOCKS]);

/// Connections that were assigned to a peer without any that ended.
#[derive(Debug, Default)]
struct Silence {
    expected: f64,
    /// Not explored until then.
    until: Option<Instant>,
}

/// What follows from a connection or from time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Nothing,
    /// The groups have changed.
    Regroup,
    /// The stage is [`Stage::Waits`].
    Decided,
    Revert(SteeringReason, Option<Gain>),
}

impl Window {
    fn sum(&self) -> Figures {
        self.sum_of(BLOCKS)
    }

    /// Of the newest blocks.
    fn sum_of(&self, blocks: usize) -> Figures {
        let mut sum = Figures::default();
        self.0
            .iter()
            .take(blocks)
            .for_each(|block| sum.merge(block));
        sum
    }

    fn roll(&mut self) {
        self.0.rotate_right(1);
        self.0[0] = Figures::default();
    }
}

impl Client {
    pub(super) fn new(now: Instant, announced: BTreeSet<PeerIndex>) -> Self {
        Self {
            used: 0,
            used_at: now,
            connections: 0,
            egress: Egress::BestPath,
            since: now,
            announced,
            groups: BTreeMap::new(),
            version: 0,
            is_pending: false,
            windows: BTreeMap::new(),
            sizes: Sizes::default(),
            in_block: 0,
            begun: [now; BLOCKS],
            stage: Stage::Explores,
            paused_until: 0,
            pause: PAUSE_MIN,
            silences: BTreeMap::new(),
            control_run: 0,
            shown: now,
            reason: Metric::RoundTrip,
            better: None,
        }
    }

    /// Whether its connections are assigned to groups.
    pub(super) fn is_managed(&self) -> bool {
        self.connections >= MANAGED_MIN && !self.announced.is_empty()
    }

    /// Computes the groups again; whether they have changed.
    pub(super) fn regroup(&mut self, now: Instant, slots: &Slots) -> bool {
        let mut groups = BTreeMap::new();
        if self.is_managed() {
            for (place, peer) in (0..).zip(slots.peers()) {
                let silence = self.silences.get(peer).and_then(|silence| silence.until);
                let is_silent = silence.is_some_and(|until| now < until);
                let egress = Egress::Peer(*peer);
                if self.announced.contains(peer) && egress != self.egress && !is_silent {
                    groups.insert(Group::Explore(place), egress);
                }
            }
            if let Stage::Confirms(test) = &self.stage {
                groups.insert(Group::Confirm, Egress::Peer(test.candidate));
            }
            if self.egress != Egress::BestPath {
                groups.insert(Group::Control, Egress::BestPath);
            }
        }
        groups.retain(|group, _| !slots.range(*group).is_empty());
        std::mem::replace(&mut self.groups, groups) != self.groups
    }

    pub(super) fn egress_of(&self, group: Option<Group>) -> Egress {
        let own = group.and_then(|group| self.groups.get(&group));
        own.copied().unwrap_or(self.egress)
    }

    /// Counts a connection by an egress.
    pub(super) fn count(
        &mut self,
        now: Instant,
        egress: Egress,
        transfer: &Transfer,
        settings: &Settings,
        slots: &Slots,
    ) -> Outcome {
        let is_usual = egress == self.egress;
        let goodput = self.sizes.goodput(transfer, settings.bytes_min, is_usual);
        let window = self.windows.entry(egress).or_default();
        window.0[0].add(transfer, goodput);
        self.in_block += 1;
        if self.egress != Egress::BestPath {
            self.control_run = match egress {
                Egress::BestPath => self.control_run + 1,
                _ if egress == self.egress => 0,
                _ => self.control_run,
            };
            if egress == Egress::BestPath && self.control_run >= self.control_run_max(slots) {
                return self.on_silent(now);
            }
        }
        if let Stage::Confirms(test) = &mut self.stage {
            if egress == Egress::Peer(test.candidate) {
                test.by_candidate.add(transfer, goodput);
            } else if is_usual {
                test.by_current.add(transfer, goodput);
            }
            match self.look(now, settings) {
                Outcome::Nothing => {}
                outcome => return outcome,
            }
        }
        match self.in_block >= BLOCK_CONNECTIONS {
            true => self.end_block(now, settings, slots),
            false => Outcome::Nothing,
        }
    }

    /// The shortest run of connections by the best path that chance alone hardly produces.
    fn control_run_max(&self, slots: &Slots) -> u32 {
        let control = slots.share(Group::Control);
        let grouped: f64 = self.groups.keys().map(|group| slots.share(*group)).sum();
        let share = control / (control + (1.0 - grouped).max(0.0));
        // Without connections by the peer in use, a run has no end and shows nothing.
        (CONTROL_RUN_CHANCE.ln() / share.ln()).ceil() as u32
    }

    /// Nothing comes back by the peer in use.
    fn on_silent(&mut self, now: Instant) -> Outcome {
        if let Egress::Peer(peer) = self.egress {
            self.silences.entry(peer).or_default().until = Some(now + SILENT_PAUSE);
        }
        Outcome::Revert(SteeringReason::Silent, None)
    }

    /// Looks at the test's evidence if that is due.
    fn look(&mut self, now: Instant, settings: &Settings) -> Outcome {
        let Stage::Confirms(test) = &mut self.stage else {
            return Outcome::Nothing;
        };
        if now - test.begun_at > EVIDENCE_TIME {
            self.stage = Stage::Explores;
            self.hold_off();
            return Outcome::Regroup;
        }
        let overdue = self.connections - test.begun > TEST_CONNECTIONS_MAX;
        if test.by_candidate.connections < LOOKS[test.looks] && !overdue {
            return Outcome::Nothing;
        }
        let confidence = confidence_of_look(settings.confidence);
        let better = test
            .by_candidate
            .better(&test.by_current, confidence, CONFIRMED_MIN);
        if let Some(gain) = better {
            let Stage::Confirms(test) = std::mem::take(&mut self.stage) else {
                return Outcome::Nothing;
            };
            self.stage = Stage::Waits(test, gain, now);
            return Outcome::Decided;
        }
        test.looks += 1;
        // A test without prospect keeps others from beginning.
        let is_open = test.by_candidate.seems_better(&test.by_current);
        if is_open && test.looks < LOOKS.len() && !overdue {
            return Outcome::Nothing;
        }
        self.stage = Stage::Explores;
        self.hold_off();
        Outcome::Regroup
    }

    /// Delays the next test, longer each time.
    pub(super) fn hold_off(&mut self) {
        self.paused_until = self.connections + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn end_block(&mut self, now: Instant, settings: &Settings, slots: &Slots) -> Outcome {
        let in_block = std::mem::take(&mut self.in_block);
        let mut regroup = self.note_silences(now, in_block, slots);
        self.drop_old(now);
        let revert = self.revert_due(now);
        if revert.is_none() && matches!(self.stage, Stage::Explores) {
            regroup |= self.begin_test(now, settings);
        }
        self.windows.values_mut().for_each(Window::roll);
        self.begun.rotate_right(1);
        self.begun[0] = now;
        match (revert, regroup) {
            (Some((reason, gain)), _) => Outcome::Revert(reason, gain),
            (None, true) => Outcome::Regroup,
            (None, false) => Outcome::Nothing,
        }
    }

    /// Drops blocks that began too long ago.
    fn drop_old(&mut self, now: Instant) {
        for (block, begun) in self.begun.iter().enumerate() {
            if now - *begun > EVIDENCE_TIME {
                let windows = self.windows.values_mut();
                windows.for_each(|window| window.0[block] = Figures::default());
            }
        }
    }

    /// Counts peers that are explored without result; whether the groups may change.
    fn note_silences(&mut self, now: Instant, in_block: u64, slots: &Slots) -> bool {
        let mut changed = false;
        for (place, peer) in (0..).zip(slots.peers()) {
            let group = Group::Explore(place);
            let silence = self.silences.entry(*peer).or_default();
            if silence.until.is_some_and(|until| until <= now) {
                *silence = Silence::default();
                changed = true;
            }
            let window = self.windows.get(&Egress::Peer(*peer));
            if window.is_some_and(|window| window.0[0].connections > 0) {
                silence.expected = 0.0;
            } else if self.groups.contains_key(&group) {
                silence.expected += slots.share(group) * in_block as f64;
                if silence.expected >= SILENT_EXPECTED {
                    silence.until = Some(now + SILENT_PAUSE);
                    changed = true;
                }
            }
        }
        self.silences
            .retain(|_, one| one.expected > 0.0 || one.until.is_some());
        changed
    }

    /// Whether the gain by which the prefix was steered is gone.
    fn revert_due(&mut self, now: Instant) -> Option<(SteeringReason, Option<Gain>)> {
        let (own, control) = match self.egress {
            Egress::BestPath => return None,
            own => (
                self.windows.get(&own)?,
                self.windows.get(&Egress::BestPath)?,
            ),
        };
        let (own, control) = (own.sum(), control.sum());
        let gain = own.gain(&control, self.reason, KEPT_MIN)?;
        if own.has_lost(&control, &gain, KEPT_CONFIDENCE) {
            return Some((SteeringReason::NotBetter, Some(gain)));
        }
        if gain.low(KEPT_CONFIDENCE) > 0.0 {
            self.shown = now;
        }
        None
    }

    /// Begins to test the peer that seems best; whether there is one.
    fn begin_test(&mut self, now: Instant, settings: &Settings) -> bool {
        let Some(current) = self.windows.get(&self.egress) else {
            return false;
        };
        if self.connections < self.paused_until || settings.confirm <= 0.0 {
            return false;
        }
        let explored = self
            .groups
            .iter()
            .filter_map(|(group, egress)| match (group, egress) {
                (Group::Explore(_), Egress::Peer(peer)) => Some(*peer),
                _ => None,
            });
        // A change shows first in the newest blocks, a small difference only in all of them.
        let with = SCREENED_BLOCKS.map(|blocks| (blocks, current.sum_of(blocks)));
        let seems_better = explored.flat_map(|peer| {
            let own = self.windows.get(&Egress::Peer(peer));
            let own = own
                .into_iter()
                .flat_map(|own| with.map(|(n, by)| (own.sum_of(n), by)));
            let gains =
                own.filter_map(|(own, by)| own.better(&by, SCREENED_CONFIDENCE, SCREENED_MIN));
            gains.map(move |gain| (peer, gain.relative()))
        });
        let best = seems_better.max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((candidate, _)) = best else {
            return false;
        };
        self.stage = Stage::Confirms(Test {
            candidate,
            by_candidate: Figures::default(),
            by_current: Figures::default(),
            looks: 0,
            begun: self.connections,
            begun_at: now,
        });
        true
    }

    /// Uses another egress for new connections.
    pub(super) fn move_to(&mut self, now: Instant, egress: Egress, gain: Option<&Gain>) {
        (self.egress, self.since, self.shown) = (egress, now, now);
        self.control_run = 0;
        // What is compared from here on is of the same time.
        self.windows.remove(&egress);
        self.windows.remove(&Egress::BestPath);
        self.stage = Stage::Explores;
        if let Some(gain) = gain.filter(|_| egress != Egress::BestPath) {
            self.reason = gain.metric;
            self.pause = PAUSE_MIN;
        } else {
            self.hold_off();
        }
    }

    /// Whether the peer in use has not been seen to be better for that time.
    pub(super) fn is_unproven(&self, now: Instant, keep_for: Duration) -> bool {
        self.egress != Egress::BestPath && now - self.shown > keep_for
    }

    /// Takes the peers that announce the prefix. `Some`: the egress in use is withdrawn.
    pub(super) fn on_announced(
        &mut self,
        announced: BTreeSet<PeerIndex>,
    ) -> Option<SteeringReason> {
        let gone = |egress: &Egress| match egress {
            Egress::BestPath => false,
            Egress::Peer(peer) => !announced.contains(peer),
        };
        self.windows.retain(|egress, _| !gone(egress));
        self.better = self.better.filter(|peer| announced.contains(peer));
        if let Stage::Confirms(test) | Stage::Waits(test, ..) = &self.stage
            && !announced.contains(&test.candidate)
        {
            self.stage = Stage::Explores;
        }
        let is_withdrawn = gone(&self.egress);
        self.announced = announced;
        is_withdrawn.then_some(SteeringReason::Withdrawn)
    }

    /// The recent connections of each egress.
    pub(super) fn measured(&self) -> impl Iterator<Item = (Egress, Figures)> {
        self.windows
            .iter()
            .map(|(egress, window)| (*egress, window.sum()))
    }

    pub(super) fn is_silent(&self, peer: PeerIndex) -> bool {
        let silence = self.silences.get(&peer);
        silence.is_some_and(|silence| silence.until.is_some())
    }

    pub(super) fn check_invariants(&self) {
        let used = self.groups.values().chain([&self.egress]);
        for egress in used {
            if let Egress::Peer(peer) = egress {
                debug_assert!(
                    self.announced.contains(peer),
                    "{peer:?} does not announce it"
                );
            }
        }
    }
}

/// Bonferroni: divides the error probability among all tests.
fn confidence_of_look(confidence: f64) -> f64 {
    1.0 - (1.0 - confidence) / (LOOKS.len() * Metric::ALL.len()) as f64
}

/// Connections of a prefix before its connections are assigned to groups. Ours: prefixes with few
/// connections are many, and say nothing.
pub(super) const MANAGED_MIN: u64 = 20;
/// Connections of a block, and blocks of a window. Ours: at a share of 1 % a window has ten
/// connections of a peer, and a change is seen in it after some hundred connections.
const BLOCK_CONNECTIONS: u64 = 150;
const BLOCKS: usize = 7;
/// Values, and confidence, with which exploration begins a test. Ours: the test decides, so this
/// only has to find candidates.
const SCREENED_MIN: u64 = 5;
const SCREENED_CONFIDENCE: f64 = 0.85;
const SCREENED_BLOCKS: [usize; 2] = [BLOCKS / 2, BLOCKS];
/// Connections by the candidate at which a test looks at its evidence, and the values of a metric
/// that it needs. Ours.
const LOOKS: [u64; 4] = [20, 40, 80, 120];
const CONFIRMED_MIN: u64 = 15;
/// Connections of the prefix during a test. Ours: a candidate by which nothing ends is given up.
const TEST_CONNECTIONS_MAX: u64 = 2_000;
/// Connections of the prefix between a test that failed and the next one: doubled each time. Ours.
const PAUSE_MIN: u64 = 150;
const PAUSE_MAX: u64 = 2_400;
/// Values of the best path, and confidence, with which a prefix returns to it. Ours.
const KEPT_MIN: u64 = 10;
const KEPT_CONFIDENCE: f64 = 0.9;
/// Older evidence says little about the present. Ours.
const EVIDENCE_TIME: Duration = Duration::from_secs(24 * 3600);
/// Connections that should have ended by a peer that has none, and how long it is then not
/// explored. Ours: chance alone does that once in 3,000 times.
const SILENT_EXPECTED: f64 = 8.0;
const SILENT_PAUSE: Duration = Duration::from_secs(3600);
/// The probability that connections by the best path end one after the other by chance, while none
/// ends by the peer in use. Ours: with the default shares four do.
const CONTROL_RUN_CHANCE: f64 = 1e-6;
