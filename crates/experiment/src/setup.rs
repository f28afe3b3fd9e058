//! Setups of experiments: paths, applications, variants, rounds.
//!
//! Reads `experiments/**/*.toml` files that several plans share, so that tables and figures of one
//! measurement come from one run. `measure` and the runners carry it out.

use std::time::Duration;

use keiro_control::{config::MESSAGE_BYTES_MAX, units::Text};
use keiro_units::{Bandwidth, ByteCount, Probability};
use serde::Deserialize;

pub(crate) use keiro_config::did_you_mean as nearest;

use crate::{error::PlanError, laboratory::TOPOLOGIES, record::Window, vary};

/// A measurement that is evaluated by one or more plans.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Its name, a path below `experiments/` without `.toml`.
    pub id: String,
    /// Title in one line.
    pub title: String,
    /// The laboratory's topology, a path below `experiments/` without `.toml`, or `generated` from
    /// the paths.
    pub topology: String,
    /// The paths, in the paper's order; at least one.
    pub paths: Vec<Path>,
    /// The applications, in the paper's order; at least one.
    pub applications: Vec<Application>,
    /// The compared variants; at least one.
    pub variants: Vec<Variant>,
    /// Extent of the measurement.
    pub run: Extent,
    /// Extent with `--quick`; its results are not for publication.
    pub quick: Extent,
}

/// A path between the two sites [path-selection table 3].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// Its name in the topology and the gateways.
    pub name: String,
    /// W, IP bytes per second, one way.
    pub bandwidth: Text<Bandwidth>,
    /// T, the one-way propagation delay.
    pub delay: Text<Duration>,
}

/// An application [path-selection table 2].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    pub name: String,
    /// L, the payload bytes of every message.
    pub length: Text<ByteCount>,
    /// E, the mean of the exponential intervals between two messages.
    pub interval: Text<Duration>,
    /// F, the latency target.
    pub latency_target: Text<Duration>,
}

/// One variant of sending.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its letter, for tables and files.
    pub id: String,
    /// Its name, the last part of the names of rows.
    pub name: String,
    /// Transport of the messages.
    pub transport: Transport,
    /// Paths of the applications; `None` if the transport decides.
    pub assignment: Option<Assignment>,
    /// Order in which waiting messages are served; `None` if the transport decides.
    pub scheduler: Option<Scheduler>,
    /// Whether it also runs in the simulator.
    #[serde(default)]
    pub simulated: bool,
    /// Header cost of this transport.
    pub headers: Headers,
}

/// Transport of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Two `keiro gateway` processes.
    Gateway,
    /// Kernel TCP, one connection per application.
    Tcp,
    /// Kernel MPTCP over all paths, one connection per application.
    Mptcp,
}

/// Assignment of the applications to paths.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Assignment {
    /// All applications on the path of this name: the conventional way.
    OnePath(String),
    /// The algorithm of [path-selection fig. 4]; predictions may exceed a latency target by `tolerance`.
    Paper {
        /// Fraction by which a prediction may exceed the latency target.
        tolerance: Text<Probability>,
    },
    /// Keiro's planner, latency targets held strictly.
    Planned,
    /// The path of each application, by name.
    Given(Vec<String>),
}

/// The order in which a path serves waiting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// First in, first out.
    Fifo,
    /// Earliest deadline (sending time + latency target) first.
    Deadline,
}

/// Headers of a full-sized packet. They determine the floor with headers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Headers {
    /// Message bytes in a full packet.
    pub payload: Text<ByteCount>,
    /// All other bytes of that packet that use the path's bandwidth.
    pub overhead: Text<ByteCount>,
}

/// Extent of a measurement.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Runs of every variant; round r uses seed `seed` + r.
    pub rounds: u32,
    /// Time during which messages are sent in one run, warm-up included.
    pub duration: Text<Duration>,
    /// Messages sent in this first part are not counted.
    pub warm_up: Text<Duration>,
    /// Time to wait for messages in flight after the last one was sent.
    pub drain: Text<Duration>,
    /// The first round's seed.
    pub seed: u64,
}

impl Setup {
    /// Reads a setup; `file` names it in errors.
    ///
    /// # Errors
    /// The fault and its location.
    pub fn parse(file: &str, text: &str) -> Result<Self, PlanError> {
        let setup: Self = keiro_config::deserialize(text, file)?;
        setup
            .check()
            .map_err(|what| vary::located(file, text, &what))?;
        Ok(setup)
    }

    /// The index of the application of this name.
    pub fn application(&self, name: &str) -> Option<usize> {
        self.applications.iter().position(|a| a.name == name)
    }

    /// The index of the path of this name.
    pub fn path(&self, name: &str) -> Option<usize> {
        self.paths.iter().position(|p| p.name == name)
    }

    /// The index of the variant of this name.
    pub fn variant(&self, name: &str) -> Option<usize> {
        self.variants.iter().position(|v| v.name == name)
    }

    /// The part of each run in which messages count.
    pub fn window(&self, quick: bool) -> Window {
        let extent = self.extent(quick);
        Window {
            from: extent.warm_up.0,
            to: extent.duration.0,
        }
    }

    /// The extent of a full or of a quick run.
    pub fn extent(&self, quick: bool) -> &Extent {
        if quick { &self.quick } else { &self.run }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        unique("path", self.paths.iter().map(|p| &p.name))?;
        unique("application", self.applications.iter().map(|a| &a.name))?;
        unique("variant", self.variants.iter().map(|v| &v.name))?;
        unique("variant id", self.variants.iter().map(|v| &v.id))?;
        for path in &self.paths {
            if path.bandwidth.0 == Bandwidth::ZERO {
                return Err(format!("path `{}` has no bandwidth", path.name));
            }
        }
        for application in &self.applications {
            application.check()?;
        }
        for variant in &self.variants {
            self.check_variant(variant)?;
        }
        for (extent, table) in [(&self.run, "run"), (&self.quick, "quick")] {
            extent.check(table)?;
            let messages =
                |a: &Application| extent.duration.0.as_secs_f64() / a.interval.0.as_secs_f64();
            if self.applications.iter().map(messages).sum::<f64>() > MESSAGES_MAX {
                return Err(format!(
                    "[{table}]: a run has more than {MESSAGES_MAX} messages; make intervals longer or runs shorter"
                ));
            }
        }
        Ok(())
    }

    /// Whether the laboratory has the topology.
    pub(crate) fn check_topology(&self) -> Result<(), String> {
        let known = || TOPOLOGIES.iter().map(|(name, _)| *name);
        let topology = self.topology.as_str();
        if topology == GENERATED_TOPOLOGY || known().any(|name| name == topology) {
            return Ok(());
        }
        let near = nearest(topology, known());
        let all = known().collect::<Vec<_>>().join(", ");
        Err(format!(
            "there is no topology `{topology}`{near}; there are {all}"
        ))
    }

    fn check_variant(&self, variant: &Variant) -> Result<(), String> {
        let name = &variant.name;
        if name.split_whitespace().count() != 1 || name == SIMULATED_SUFFIX {
            return Err(format!(
                "variant name `{name}` must be one word other than `{SIMULATED_SUFFIX}`, because row names end in it"
            ));
        }
        if let Some(Assignment::OnePath(path)) = &variant.assignment
            && self.path(path).is_none()
        {
            let known = self.paths.iter().map(|p| p.name.as_str());
            return Err(format!(
                "variant `{name}` puts everything on path `{path}`, which is not among the paths{}",
                nearest(path, known)
            ));
        }
        if let Some(Assignment::Given(paths)) = &variant.assignment
            && (paths.len() != self.applications.len()
                || paths.iter().any(|path| self.path(path).is_none()))
        {
            return Err(format!(
                "variant `{name}`: `given` must name one of the paths for each application"
            ));
        }
        let gateway = variant.transport == Transport::Gateway;
        if gateway && (variant.assignment.is_none() || variant.scheduler.is_none()) {
            return Err(format!(
                "variant `{name}` runs over gateways and needs `assignment` and `scheduler`"
            ));
        }
        if variant.simulated && !gateway {
            return Err(format!(
                "variant `{name}` is marked `simulated`, but the simulator runs gateways only"
            ));
        }
        if variant.headers.payload.0 == ByteCount::ZERO {
            return Err(format!(
                "variant `{name}`: `headers.payload` must not be zero"
            ));
        }
        Ok(())
    }
}

impl Application {
    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.split_whitespace().count() != 1 {
            return Err(format!(
                "application name `{name}` must be one word, because row names begin with it"
            ));
        }
        if self.length.0 == ByteCount::ZERO
            || self.interval.0.is_zero()
            || self.latency_target.0.is_zero()
        {
            return Err(format!(
                "application `{name}`: length, interval and latency target must be above zero"
            ));
        }
        if self.length.0.get() > MESSAGE_BYTES_MAX {
            return Err(format!(
                "application `{name}`: a length of {} is more than {MESSAGE_BYTES_MAX} bytes, the longest message",
                self.length
            ));
        }
        Ok(())
    }
}

impl Extent {
    pub fn seed_of(&self, round: u32) -> u64 {
        self.seed.wrapping_add(u64::from(round))
    }

    /// Time in which counted messages are sent, over all rounds.
    pub fn counted(&self) -> Duration {
        self.duration.0.saturating_sub(self.warm_up.0) * self.rounds
    }

    pub(crate) fn check(&self, table: &str) -> Result<(), String> {
        if self.rounds == 0 || self.warm_up.0 >= self.duration.0 {
            return Err(format!(
                "[{table}] counts nothing: it needs a round, and a duration ({}) longer than its warm-up ({})",
                self.duration, self.warm_up
            ));
        }
        if self.rounds > ROUNDS_MAX || self.duration.0.max(self.drain.0) > RUN_MAX {
            return Err(format!(
                "[{table}] is too much: {ROUNDS_MAX} rounds and runs of {} at most",
                Text(RUN_MAX)
            ));
        }
        Ok(())
    }
}

/// Ours: far more than any experiment needs, and few enough to be kept in memory.
const ROUNDS_MAX: u32 = 1000;
const RUN_MAX: Duration = Duration::from_secs(24 * 3600);
const MESSAGES_MAX: f64 = 5e6;

/// The topology of a setup that has no file: two hosts and the setup's paths between them.
pub(crate) const GENERATED_TOPOLOGY: &str = "generated";

/// The word that marks a simulated row.
pub(crate) const SIMULATED_SUFFIX: &str = "sim";

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(format!("a {what} has an empty name"));
        }
        if !seen.insert(name) {
            return Err(format!("two {what}s are called `{name}`"));
        }
    }
    if seen.is_empty() {
        return Err(format!("there is no {what}; add at least one"));
    }
    Ok(())
}
