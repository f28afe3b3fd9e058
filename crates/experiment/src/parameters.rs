//! Effects of S, I and N of aggregates, and of the controllers that adapt them.
//!
//! There are two kinds of study. With [`Controllers`], the same traffic meets one impairment after the other,
//! once per controller, and every change of S, I and N is recorded [aggregation table 2]. With [`Cells`],
//! every combination of S, I and N, fixed or as the initial setting of a controller, is measured in every
//! condition [aggregation table 1, §3.2.3, table 5]. A
//! [`StudyRunner`] carries the datagrams.

mod measure;
mod plan;
mod printed;
mod report;
mod simulated;

use std::{fmt, time::Duration};

use keiro_control::units::Text;
use keiro_model::aggregation;
use keiro_units::{Bandwidth, ByteCount, Probability};
use serde::Deserialize;

use crate::{
    record::EmulatorReport,
    row::Source,
    runner::Progress,
    setup::Extent,
    transactions::{Counter, Target},
};
pub(crate) use measure::{Measured, measure, select};
pub(crate) use plan::StudyFile;
pub use printed::TABLE2_PRINTED;
pub(crate) use report::{counters_csv, drawings, notes, rows, runs_reports, trace_csv};

/// A study of S, I and N.
#[derive(Clone, Debug)]
pub struct Study {
    /// The laboratory's topology, a path below `experiments/` without `.toml`.
    pub topology: String,
    /// The sources that measure it.
    pub sources: Vec<Source>,
    /// Gateways that send, each its own flow over its own line. The simulator has one of them, with its share
    /// of the receiver.
    pub senders: usize,
    /// Of each sender.
    pub flow: Flow,
    /// The line between the gateways.
    pub line: Line,
    pub kind: StudyKind,
    /// Extent of a full run in the laboratory; `None` is that of the simulator.
    pub lab: Option<Extent>,
    /// Targets of rows.
    pub targets: Vec<Target>,
}

/// The topologies have up to two sites that send.
pub(crate) const SENDERS_MAX: usize = 2;

#[derive(Clone, Debug)]
pub enum StudyKind {
    Controllers(Controllers),
    Cells(Cells),
}

/// Small datagrams from one site to the other at exponential intervals.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Mean payload rate.
    pub offered: Text<Bandwidth>,
    /// Payload of a datagram.
    pub datagram: Text<ByteCount>,
}

/// The line between the gateways, symmetric.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Rate including IP headers; the gateways are configured with the same.
    pub rate: Text<Bandwidth>,
    pub delay: Text<Duration>,
    /// Buffer of the line.
    pub buffer: Text<ByteCount>,
}

/// Controllers that meet one impairment after the other.
#[derive(Clone, Debug)]
pub struct Controllers {
    /// The controllers, in the order in which they take turns.
    pub controllers: Vec<Controller>,
    /// The impairments, with a calm phase before each and after the last.
    pub impairments: Vec<NamedImpairment>,
}

/// A controller with its aggregation mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Controller {
    /// Keiro's controller, fixed intervals.
    Adaptive,
    /// The paper's controller as intended, fixed intervals.
    Table2,
    /// The paper's controller as printed, fixed intervals.
    Table2Printed,
    /// No controller, fixed intervals.
    None,
    /// Keiro's controller, eager aggregation where the budget allows: Keiro's default.
    Eager,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedImpairment {
    /// The second part of the names of its rows.
    pub name: String,
    #[serde(rename = "trouble")]
    pub impairment: Impairment,
}

/// An impairment of the line or the receiver.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Impairment {
    /// The receiving gateway's machine is slow.
    Receiver {
        /// Extra delay of each packet.
        each: Text<Duration>,
        /// Maximum of packets that wait for it.
        room: u32,
    },
    /// Cross traffic overflows the receiving gateway's device.
    Bursts {
        /// Packets in a burst.
        packets: u32,
        /// Interval of packets in a burst, in the simulator.
        gap: Text<Duration>,
        /// Interval from start to start of bursts.
        every: Text<Duration>,
        /// Capacity of the device's ring, in packets.
        ring: u32,
    },
    /// The line loses this share of packets, independently.
    Loss(Text<Probability>),
    /// Cross traffic of this rate on the line.
    Others(Text<Bandwidth>),
    /// The line loses packets and carries cross traffic.
    Crowded {
        /// Loss probability, independent per packet.
        loss: Text<Probability>,
        /// Rate of cross traffic.
        others: Text<Bandwidth>,
    },
    /// Cross traffic on a line with a small buffer.
    Shallow {
        /// Buffer of the line.
        buffer: Text<ByteCount>,
        /// Rate of cross traffic.
        others: Text<Bandwidth>,
    },
    /// The line's rate drops to this.
    Rate(Text<Bandwidth>),
}

/// Every combination in every condition.
#[derive(Clone, Debug)]
pub struct Cells {
    /// Combinations of S, I and N.
    pub combinations: Vec<Combination>,
    pub conditions: Vec<Condition>,
}

/// S, I and N.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Combination {
    /// The first part of the names of its rows.
    pub name: String,
    pub size: Text<ByteCount>,
    pub interval: Text<Duration>,
    pub copies: u8,
    /// What changes them; by default they are fixed.
    #[serde(default = "fixed")]
    pub controller: Controller,
    /// The figure's columns in which it appears, with the label below.
    pub columns: Vec<(String, String)>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The second part of the names of its rows.
    pub name: String,
    /// An impairment during the whole run.
    #[serde(rename = "trouble")]
    pub impairment: Option<Impairment>,
    /// A flow that replaces the study's.
    pub flow: Option<Flow>,
    /// Whether figures leave it out, because it would stretch their axes.
    #[serde(default)]
    pub hidden: bool,
    /// Largest IP packet between the gateways, in bytes; 1500 by default.
    pub mtu: Option<u16>,
    /// Its place in figures; by default a line of its own.
    pub drawn: Option<Drawn>,
}

/// Place of a condition in figures.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drawn {
    /// The column in which it appears.
    pub column: String,
    /// The line that has it there.
    pub line: String,
}

/// What one run measures: a controller, or a combination in a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    Controller(Controller),
    /// Indices of a combination and a condition.
    Cell(usize, usize),
}

/// A phase of [`Controllers`].
#[derive(Clone, Debug)]
pub struct Phase {
    /// The second part of the names of its rows.
    pub name: String,
    /// Its impairment; `None` in a calm phase.
    pub impairment: Option<Impairment>,
}

/// Ethernet's MTU, in bytes.
const MTU_DEFAULT: u16 = 1500;

/// Carries out runs of studies.
pub trait StudyRunner {
    /// The source of its values.
    fn source(&self) -> Source;

    /// Carries out one run. Leaves nothing behind, also on failure.
    ///
    /// # Errors
    /// Why the run could not be carried out, and what to try.
    fn run(
        &mut self,
        request: &StudyRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<StudyOutcome>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct StudyRequest<'a> {
    pub study: &'a Study,
    pub case: Case,
    /// Seed of the datagrams' times and of losses.
    pub seed: u64,
    /// Time at the start of a run that is not counted.
    pub warm_up: Duration,
    /// Phases after the warm-up, each as long as `each`: those of controllers, or one for a cell.
    pub phases: &'a [Phase],
    /// Length of a phase.
    pub each: Duration,
    /// Time to wait for packets in flight at the end.
    pub drain: Duration,
}

/// Result of a run. All times count from the end of the warm-up.
#[derive(Clone, Debug, Default)]
pub struct StudyOutcome {
    /// Samples at equal intervals, including start and end.
    pub samples: Vec<Sample>,
    /// Every datagram sent after the warm-up, in order.
    pub datagrams: Vec<Datagram>,
    /// The kernel's counters at the receiving gateway, before and after; empty in the simulator.
    pub counters: Vec<Counter>,
    /// Lateness of the emulator; `None` in the simulator.
    pub emulator: Option<EmulatorReport>,
}

/// Counters and parameters at one time; all counts since the start of the gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// In seconds since the start of the run.
    pub at_s: f64,
    /// S, in bytes.
    pub size_bytes: u64,
    /// I, in ms.
    pub interval_ms: f64,
    pub copies: u8,
    /// IP bytes sent in all packets.
    pub bytes_sent: u64,
    /// Packets that the receiving gateway's core got.
    pub packets_received: u64,
    /// CPU time of the receiving gateway in s; `None` in the simulator.
    pub cpu_s: Option<f64>,
    /// Aggregates on which the peer reported, and those of which no copy arrived.
    pub aggregates: [u64; 2],
    /// Copies on which the peer reported, and those that did not arrive.
    pub copies_reported: [u64; 2],
    /// Packets dropped by buffers of the receiving side.
    pub overflows: u64,
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Datagram {
    /// When it was sent, in s.
    pub made_s: f64,
    /// Its delay in ms; `None` if it never arrived.
    pub delay_ms: Option<f64>,
}

impl Controller {
    pub const ALL: [Self; 5] = [
        Self::Adaptive,
        Self::Table2,
        Self::Table2Printed,
        Self::None,
        Self::Eager,
    ];

    /// The first part of the names of its rows.
    pub const fn name(self) -> &'static str {
        match self {
            // It differs from the adaptive one by its mode.
            Self::Eager => "eager",
            controller => controller.kind().name(),
        }
    }

    /// The controller of S, I and N.
    pub const fn kind(self) -> aggregation::ControllerKind {
        match self {
            Self::Adaptive | Self::Eager => aggregation::ControllerKind::Adaptive,
            Self::Table2 => aggregation::ControllerKind::Table2,
            Self::Table2Printed => aggregation::ControllerKind::Custom(&TABLE2_PRINTED),
            Self::None => aggregation::ControllerKind::None,
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Study {
    /// All cases, in the order in which they take turns.
    pub fn cases(&self) -> Vec<Case> {
        match &self.kind {
            StudyKind::Controllers(controllers) => controllers
                .controllers
                .iter()
                .map(|controller| Case::Controller(*controller))
                .collect(),
            StudyKind::Cells(cells) => {
                let conditions = 0..cells.conditions.len();
                conditions
                    .flat_map(|condition| {
                        let combinations = 0..cells.combinations.len();
                        combinations.map(move |combination| Case::Cell(combination, condition))
                    })
                    .collect()
            }
        }
    }

    pub fn name(&self, case: Case) -> String {
        match (case, &self.kind) {
            (Case::Controller(controller), _) => controller.to_string(),
            (Case::Cell(combination, condition), StudyKind::Cells(cells)) => format!(
                "{} {}",
                cells.combinations[combination].name, cells.conditions[condition].name
            ),
            (Case::Cell(..), StudyKind::Controllers(_)) => unreachable!("cells are cases of cells"),
        }
    }

    pub fn flow(&self, case: Case) -> Flow {
        let condition = self.condition(case);
        condition.and_then(|c| c.flow).unwrap_or(self.flow)
    }

    /// The largest IP packet between the gateways in a case, in bytes.
    pub fn mtu(&self, case: Case) -> u16 {
        let condition = self.condition(case);
        condition.and_then(|c| c.mtu).unwrap_or(MTU_DEFAULT)
    }

    /// What decides about S, I and N in a case.
    pub fn controller(&self, case: Case) -> Controller {
        match case {
            Case::Controller(controller) => controller,
            Case::Cell(..) => self.combination(case).map_or(fixed(), |c| c.controller),
        }
    }

    /// S, I and N of a case, in the beginning; `None` for studies of controllers.
    pub fn combination(&self, case: Case) -> Option<&Combination> {
        match (case, &self.kind) {
            (Case::Cell(combination, _), StudyKind::Cells(cells)) => {
                cells.combinations.get(combination)
            }
            _ => None,
        }
    }

    /// The condition of a case; `None` for controllers.
    pub fn condition(&self, case: Case) -> Option<&Condition> {
        match (case, &self.kind) {
            (Case::Cell(_, condition), StudyKind::Cells(cells)) => cells.conditions.get(condition),
            _ => None,
        }
    }

    pub(crate) fn phases(&self, case: Case) -> Vec<Phase> {
        let controllers = match &self.kind {
            StudyKind::Controllers(controllers) => controllers,
            StudyKind::Cells(_) => {
                let condition = self.condition(case);
                return vec![Phase {
                    name: "all".to_owned(),
                    impairment: condition.and_then(|condition| condition.impairment),
                }];
            }
        };
        let mut phases = vec![Phase {
            name: "before".to_owned(),
            impairment: None,
        }];
        for impairment in &controllers.impairments {
            phases.push(Phase {
                name: impairment.name.clone(),
                impairment: Some(impairment.impairment),
            });
            phases.push(Phase {
                name: format!("after {}", impairment.name),
                impairment: None,
            });
        }
        phases
    }
}

const fn fixed() -> Controller {
    Controller::None
}

impl Flow {
    /// The mean interval of datagrams.
    pub fn interval(&self) -> Duration {
        self.offered.0.transmission_time_nearest(self.datagram.0)
    }
}
