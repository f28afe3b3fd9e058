//! What the control thread remembers from plan to plan: the levels of every path, where everybody
//! goes if a path dies, what applications sent over some minutes, and how far forecasts were off.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::config::{AppIndex, Class, Config, PathIndex, PeerIndex};
use keiro_core::{AppSnapshot, Instant, PathSnapshot, PathState};
use keiro_model::{
    queueing::{DelayDistribution, Evidence, Half, Measured, Spread},
    steer::{FollowedPath, Homes, Manner, PathSample, Refuges, Standing},
};

use crate::{
    data::measure::DelayQuantiles,
    history::Memory,
    planning::{Facts, Planned, Question, Workload, outlook::Experience},
    replan::{Given, body_bytes},
};

/// See the module.
#[derive(Default)]
pub(crate) struct Steering {
    /// By path and peer.
    paths: BTreeMap<(String, String), FollowedPath>,
    /// Where applications belong, here or before the restart: who is nowhere counts as there.
    pub(crate) homes: Homes<String, String>,
    /// Measured workloads that were planned with, by application.
    pub(crate) workloads: BTreeMap<String, Workload>,
    /// What applications sent before the restart.
    pub(crate) memory: Memory,
    /// By application.
    sent: BTreeMap<String, Sent>,
    /// Who goes where if a path dies, as of the last plan.
    pub(crate) refuges: Refuges<AppIndex, PathIndex>,
    pub(crate) experience: Experience,
    /// What the last plan gave everybody.
    pub(crate) given: Given,
    /// Messages that were learnt from already, by application.
    learnt: BTreeMap<AppIndex, u64>,
    learnt_at: Option<Stopwatch>,
}

/// What an application has sent at certain times.
#[derive(Default)]
struct Sent {
    /// (Messages, bytes), the newest last; [`MARK_INTERVAL`] apart.
    marks: VecDeque<(u64, u64)>,
    marked_at: Option<Stopwatch>,
}

/// How often it is noted what applications have sent.
const MARK_INTERVAL: Duration = Duration::from_secs(15);
/// Marks kept: half an hour.
const MARKS_MAX: usize = 120;
/// A window with so many messages is long enough to tell two halves apart.
const WINDOW_MESSAGES: u64 = 400;
/// How often forecasts are compared with what was measured.
const LEARN_INTERVAL: Duration = Duration::from_secs(30);

impl Steering {
    /// Takes a look at a path to a peer; whether another plan may be called for.
    pub(crate) fn on_path(
        &mut self,
        config: &Config,
        path: PathIndex,
        peer: PeerIndex,
        live: &PathSnapshot,
    ) -> bool {
        let names = (config[path].name.to_string(), config[peer].name.to_string());
        let followed = self.paths.entry(names).or_default();
        followed.on_look(live.look(), config[path].delay)
    }

    /// How it is with a path to a peer; `None`: it is not up, nor waited for. `settling`: the peer's
    /// first paths are coming up.
    pub(crate) fn standing(
        &self,
        (path, peer): (&str, &str),
        live: &PathSnapshot,
        settling: bool,
    ) -> Option<Standing> {
        let followed = self.paths.get(&(path.to_owned(), peer.to_owned()));
        match live.state {
            PathState::Up => Some(followed.map_or(Standing::Unproven, |followed| {
                followed.standing(live.deaths)
            })),
            PathState::Validating if settling => Some(Standing::Awaited),
            PathState::Validating | PathState::Down => None,
        }
    }

    /// What a path to a peer is planned with; `None`: nothing was measured yet.
    pub(crate) fn level(&self, path: &str, peer: &str) -> Option<PathSample> {
        let followed = self.paths.get(&(path.to_owned(), peer.to_owned()))?;
        followed.level()
    }

    /// Another configuration: what it does not have is forgotten, and what goes by its numbers.
    pub(crate) fn follow(&mut self, paths: &[String], peers: &[String], apps: &[String]) {
        self.paths
            .retain(|(path, peer), _| paths.contains(path) && peers.contains(peer));
        self.workloads.retain(|app, _| apps.contains(app));
        self.memory.follow(apps);
        self.homes
            .retain(|app, path| apps.contains(app) && paths.contains(path));
        self.sent.retain(|app, _| apps.contains(app));
        self.given.retain(|app, _| apps.contains(app));
        self.refuges = Refuges::default();
        self.experience = Experience::default();
        self.learnt.clear();
    }

    /// Notes where everybody is, of whom `facts` tells.
    pub(crate) fn note_places(&mut self, config: &Config, facts: &Facts, now: Instant) {
        for (app, place) in &facts.now {
            let app = &config[*app];
            let is_up = |home: &String| {
                let home = config.path_named(home);
                home.is_some_and(|home| facts.up.contains_key(&(home, app.peer)))
            };
            let (name, place) = (app.name.to_string(), config[*place].name.to_string());
            self.homes.on_seen(now, name, place, is_up);
        }
    }

    /// Notes what an application has sent so far.
    pub(crate) fn on_sent(&mut self, now: Stopwatch, name: &str, app: &AppSnapshot) {
        let sent = self.sent.entry(name.to_owned()).or_default();
        let due = |at: Stopwatch| now.saturating_duration_since(at) >= MARK_INTERVAL;
        if sent.marked_at.is_none_or(due) {
            sent.marked_at = Some(now);
            if sent.marks.len() == MARKS_MAX {
                sent.marks.pop_front();
            }
            sent.marks.push_back((app.sent, app.sent_bytes));
        }
    }

    /// What was seen of an application over the last while: as long as it takes for enough
    /// messages. `None` before that can be halved.
    pub(crate) fn evidence(&self, name: &str, class: Class, app: &AppSnapshot) -> Option<Evidence> {
        let marks = &self.sent.get(name)?.marks;
        let seen = app.workload?;
        let newest = marks.len().checked_sub(1)?;
        let messages = |from: usize, to: usize| marks[to].0.saturating_sub(marks[from].0);
        let enough = |half: &usize| messages(newest - 2 * half, newest) >= WINDOW_MESSAGES;
        let half = (1..=newest / 2).find(enough).unwrap_or(newest / 2);
        if half == 0 {
            return None;
        }
        let length_spread = Spread::new(seen.length_variation.powi(2)).unwrap_or_default();
        let tag = seen.length_bytes - body_bytes(class, &seen);
        let of = |from: usize, to: usize| {
            let (messages, bytes) = (
                messages(from, to),
                marks[to].1.saturating_sub(marks[from].1),
            );
            Half {
                messages,
                length_mean: bytes as f64 / messages.max(1) as f64 - tag,
                length_spread,
            }
        };
        Some(Evidence {
            halves: [
                of(newest - 2 * half, newest - half),
                of(newest - half, newest),
            ],
            interval_spread: Spread::new(seen.interval_variation.powi(2)).unwrap_or_default(),
        })
    }

    /// Where everybody is to be taken to be if just one path died since the last plan, to one peer
    /// or to all: see [`Refuges::expect`].
    pub(crate) fn expect_refuge(&self, config: &Config, before: &Facts, now: &mut Facts) {
        let up = |facts: &Facts| facts.up.keys().copied().collect::<BTreeSet<_>>();
        let end = |app: AppIndex| config[app].peer;
        self.refuges
            .expect(&up(before), &up(now), end, &mut now.now);
    }

    /// Prepares for the death of each path, everybody being where `planned` puts them.
    pub(crate) fn prepare_for_death(&mut self, config: &Config, facts: &Facts, planned: &Planned) {
        let places = planned.places();
        let paths = facts.up.keys().map(|(path, _)| *path).collect();
        let experience = &self.experience;
        let without = |path: PathIndex| {
            let mut without = facts.without(path);
            without.now = places.clone();
            without.now.retain(|_, at| *at != path);
            Question::new(config, &without).places(Manner::Revise, experience)
        };
        self.refuges = Refuges::find(places.clone(), &paths, without);
    }

    /// Compares what was forecast with what was measured since the plan, and learns from it.
    /// `measured` gives an application's delays since then.
    pub(crate) fn learn<'a>(
        &mut self,
        now: Stopwatch,
        facts: &Facts,
        planned: &Planned,
        measured: impl Fn(AppIndex) -> Option<&'a DelayQuantiles>,
    ) {
        let due = |at: Stopwatch| now.saturating_duration_since(at) >= LEARN_INTERVAL;
        if !self.learnt_at.is_none_or(due) {
            return;
        }
        self.learnt_at = Some(now);
        for (number, app) in planned.apps.iter().enumerate() {
            let index = AppIndex(number);
            let (Some(path), Some(outlook)) = (app.path, &app.outlook) else {
                continue;
            };
            let Some(delay) = measured(index).filter(|_| facts.now.get(&index) == Some(&path))
            else {
                continue;
            };
            let known = self.learnt.entry(index).or_default();
            let messages = match delay.count >= *known {
                true => delay.count - *known,
                // It was counted anew since.
                false => delay.count,
            };
            *known = delay.count;
            let seconds = Duration::from_secs_f64;
            let residual = self.experience.residuals.entry(path).or_default();
            residual.observe(
                &outlook.forecast,
                &Measured {
                    delay: DelayDistribution {
                        mean: seconds(delay.mean_seconds),
                        p50: seconds(delay.p50_seconds),
                        p95: seconds(delay.p95_seconds),
                        p99: seconds(delay.p99_seconds),
                    },
                    messages,
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two paths, both to the peers `b` and `c`, with an application for each.
    fn two_peers() -> Config {
        let mut text = r#"
[gateway]
name = "a"
[[path]]
name = "slow"
local = "192.0.2.1:4500"
rate = "100Mbit"
delay = "20ms"
[[path]]
name = "quick"
local = "198.51.100.1:4500"
rate = "100Mbit"
delay = "2ms"
"#
        .to_owned();
        for (number, peer) in [(1, "b"), (2, "c")] {
            let key = keiro_control::PublicKey::from_bytes([number; 32]);
            text.push_str(&format!(
                "[[peer]]\nname = \"{peer}\"\npublic_key = \"{key}\"\n\
                 endpoints = {{ slow = \"192.0.2.1{number}:4500\", \
                 quick = \"198.51.100.1{number}:4500\" }}\n\
                 [[app]]\nname = \"to-{peer}\"\nclass = \"message\"\npeer = \"{peer}\"\n\
                 length = \"10kB\"\ninterval = \"100ms\"\ndemand = \"10ms\"\n"
            ));
        }
        Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_path_that_dies_to_one_peer_moves_the_applications_of_that_peer_only() {
        let config = two_peers();
        let (slow, quick) = (PathIndex(0), PathIndex(1));
        let (to_b, to_c) = (AppIndex(0), AppIndex(1));
        let plan = |facts: &Facts| {
            let question = Question::new(&config, facts);
            question.answer(&config, Manner::Revise, &Experience::default())
        };
        let pairs = [slow, quick].map(|path| [0, 1].map(|peer| (path, PeerIndex(peer))));
        let all = Facts {
            up: pairs
                .into_iter()
                .flatten()
                .map(|pair| (pair, None))
                .collect(),
            ..Facts::default()
        };
        let before = plan(&all);
        assert_eq!(before.places(), [(to_b, quick), (to_c, quick)].into());
        let mut steering = Steering::default();
        steering.prepare_for_death(&config, &all, &before);

        let mut one = all.clone();
        one.now = before.places();
        one.up.remove(&(quick, PeerIndex(0)));
        steering.expect_refuge(&config, &all, &mut one);
        assert_eq!(one.now, [(to_b, slow), (to_c, quick)].into());
        let after = plan(&one);
        assert_eq!(after.places(), one.now);

        // And a little later to the other.
        steering.prepare_for_death(&config, &one, &after);
        let mut none = one.clone();
        none.up.remove(&(quick, PeerIndex(1)));
        steering.expect_refuge(&config, &one, &mut none);
        assert_eq!(none.now, [(to_b, slow), (to_c, slow)].into());
    }
}
