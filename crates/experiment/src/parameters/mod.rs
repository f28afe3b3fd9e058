//! What S, I and N of aggregates do, and what controllers make of them.
//!
//! Two kinds of study. Where [`Controllers`] are followed, the same traffic meets one trouble after the
//! other, once under each controller, and every change of S, I and N is noted [aggregation table 2]. Where
//! there are [`Cells`], S, I and N are fixed, every combination in every condition
//! [aggregation table 1, §3.2.3]. How datagrams travel is the [`StudyRunner`]'s.

mod measure;
mod plan;
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
pub(crate) use report::{counters_csv, drawings, notes, rows, runs_reports, trace_csv};

/// A study of S, I and N.
#[derive(Clone, Debug)]
pub struct Study {
    /// The laboratory's topology, a path below `experiments/` without `.toml`.
    pub topology: String,
    /// Where it is measured.
    pub sources: Vec<Source>,
    /// What is sent.
    pub flow: Flow,
    /// The line between the gateways.
    pub line: Line,
    /// What is studied.
    pub of: Of,
    /// How much a full run measures in the laboratory, if not as much as in the simulator.
    pub lab: Option<Extent>,
    /// What is asked of rows.
    pub targets: Vec<Target>,
}

/// What is studied.
#[derive(Clone, Debug)]
pub enum Of {
    /// Controllers, over time.
    Controllers(Controllers),
    /// Fixed combinations.
    Cells(Cells),
}

/// Small datagrams from one site to the other, at exponential intervals.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Payload a second, in the mean.
    pub offered: Text<Bandwidth>,
    /// The payload of a datagram.
    pub datagram: Text<ByteCount>,
}

/// The line between the gateways, the same both ways.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// What it carries, IP bytes; the gateways are configured with the same.
    pub rate: Text<Bandwidth>,
    /// One-way propagation delay.
    pub delay: Text<Duration>,
    /// What may wait for it.
    pub buffer: Text<ByteCount>,
}

/// Controllers that meet one trouble after the other.
#[derive(Clone, Debug)]
pub struct Controllers {
    /// Which, in the order in which they take turns.
    pub controllers: Vec<Controller>,
    /// The troubles, with a calm phase before each and after the last.
    pub troubles: Vec<NamedTrouble>,
}

/// A controller with the mode in which it is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Controller {
    /// Keiro's controller, aggregates by the clock.
    Adaptive,
    /// The paper's controller as meant, aggregates by the clock.
    Table2,
    /// The paper's controller as printed, aggregates by the clock.
    Table2Printed,
    /// No controller, aggregates by the clock.
    None,
    /// Keiro's controller, aggregates at once where the budget allows: Keiro's default.
    Eager,
}

/// A trouble and its name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedTrouble {
    /// The second part of its rows' names.
    pub name: String,
    /// What happens.
    pub trouble: Trouble,
}

/// What happens to a line or a receiver.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Trouble {
    /// The receiving gateway's machine takes its time.
    Receiver {
        /// For each packet.
        each: Text<Duration>,
        /// Packets that wait for it at most.
        room: u32,
    },
    /// Others' packets come to the receiving gateway's device faster than it is emptied.
    Bursts {
        /// Packets in a burst.
        packets: u32,
        /// From one to the next, in the simulator.
        gap: Text<Duration>,
        /// From the beginning of a burst to that of the next.
        every: Text<Duration>,
        /// Packets that the device holds.
        ring: u32,
    },
    /// The line loses this part, each packet by itself.
    Loss(Text<Probability>),
    /// Others send so much over the line.
    Others(Text<Bandwidth>),
    /// The line loses packets, and carries others' as well.
    Crowded {
        /// This part is lost, each packet by itself.
        loss: Text<Probability>,
        /// Others send so much.
        others: Text<Bandwidth>,
    },
    /// Others send over the line, whose buffer is small.
    Shallow {
        /// What the buffer holds.
        buffer: Text<ByteCount>,
        /// Others send so much.
        others: Text<Bandwidth>,
    },
    /// The line carries so much only.
    Rate(Text<Bandwidth>),
}

/// Every combination in every condition.
#[derive(Clone, Debug)]
pub struct Cells {
    /// S, I and N.
    pub combinations: Vec<Combination>,
    /// What they meet.
    pub conditions: Vec<Condition>,
}

/// S, I and N, fixed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Combination {
    /// The first part of its rows' names.
    pub name: String,
    /// S.
    pub size: Text<ByteCount>,
    /// I.
    pub interval: Text<Duration>,
    /// N.
    pub copies: u8,
    /// The columns of the figure in which it stands, with what is written below it.
    pub columns: Vec<(String, String)>,
}

/// What combinations meet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The second part of its rows' names.
    pub name: String,
    /// What goes wrong all the time.
    pub trouble: Option<Trouble>,
    /// Another flow than the study's.
    pub flow: Option<Flow>,
    /// Whether it is left out of figures, whose axes it would stretch.
    #[serde(default)]
    pub hidden: bool,
    /// Largest IP packet between the gateways, bytes; 1500 without it.
    pub mtu: Option<u16>,
}

/// What one run measures: a controller by index, or a combination in a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// A controller.
    Controller(Controller),
    /// A combination and a condition, by index.
    Cell(usize, usize),
}

/// A stretch of time of [`Controllers`].
#[derive(Clone, Debug)]
pub struct Phase {
    /// The second part of its rows' names.
    pub name: String,
    /// What goes wrong in it; `None`: nothing.
    pub trouble: Option<Trouble>,
}

/// Ethernet's.
const MTU_DEFAULT: u16 = 1500;

/// Carries out runs of studies.
pub trait StudyRunner {
    /// Where its values are from.
    fn source(&self) -> Source;

    /// Carries out one run. Leaves nothing behind, whether it succeeds or not.
    ///
    /// # Errors
    /// What kept the run from being carried out, and what to try.
    fn run(
        &mut self,
        request: &StudyRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<StudyOutcome>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct StudyRequest<'a> {
    /// What is studied.
    pub study: &'a Study,
    /// The case.
    pub case: Case,
    /// Chooses when datagrams are made, and what is lost.
    pub seed: u64,
    /// The uncounted beginning.
    pub warm_up: Duration,
    /// What follows, in order, each as long as `each`: the phases of controllers, or one for a cell.
    pub phases: &'a [Phase],
    /// How long a phase is.
    pub each: Duration,
    /// How long a run may wait for what is still under way.
    pub drain: Duration,
}

/// What a run gave. All times count from the end of the warm-up.
#[derive(Clone, Debug, Default)]
pub struct StudyOutcome {
    /// Counters at equal intervals, the first at the beginning and the last at the end.
    pub samples: Vec<Sample>,
    /// Every datagram made after the warm-up, in order.
    pub datagrams: Vec<Datagram>,
    /// The kernel's counters at the receiving gateway, before and after; none in the simulator.
    pub counters: Vec<Counter>,
    /// How the emulator kept its time; `None` in the simulator.
    pub emulator: Option<EmulatorReport>,
}

/// How things stand; all counts since the start of the gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, in s.
    pub at_s: f64,
    /// S in bytes.
    pub size_bytes: u64,
    /// I in ms.
    pub interval_ms: f64,
    /// N.
    pub copies: u8,
    /// IP bytes sent, all packets.
    pub bytes_sent: u64,
    /// Packets that the receiving gateway's core got.
    pub packets_received: u64,
    /// CPU time of the receiving gateway in s; `None` in the simulator.
    pub cpu_s: Option<f64>,
    /// Aggregates that the peer reported on, and those of them of which no copy came.
    pub aggregates: [u64; 2],
    /// The same of copies.
    pub copies_told: [u64; 2],
    /// Packets that the receiving side's buffers had no room for.
    pub overflows: u64,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Datagram {
    /// When it was made, in s.
    pub made_s: f64,
    /// From then to its arrival, in ms; `None`: it never arrived.
    pub delay_ms: Option<f64>,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Adaptive,
        Self::Table2,
        Self::Table2Printed,
        Self::None,
        Self::Eager,
    ];

    /// The first part of its rows' names.
    pub const fn name(self) -> &'static str {
        match self {
            // Its controller is the adaptive one. What distinguishes it is the mode.
            Self::Eager => "eager",
            controller => controller.kind().name(),
        }
    }

    /// What adapts S, I and N.
    pub const fn kind(self) -> aggregation::ControllerKind {
        match self {
            Self::Adaptive | Self::Eager => aggregation::ControllerKind::Adaptive,
            Self::Table2 => aggregation::ControllerKind::Table2,
            Self::Table2Printed => aggregation::ControllerKind::Table2Printed,
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
        match &self.of {
            Of::Controllers(controllers) => controllers
                .controllers
                .iter()
                .map(|controller| Case::Controller(*controller))
                .collect(),
            Of::Cells(cells) => {
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

    /// What a case is called.
    pub fn name(&self, case: Case) -> String {
        match (case, &self.of) {
            (Case::Controller(controller), _) => controller.to_string(),
            (Case::Cell(combination, condition), Of::Cells(cells)) => format!(
                "{} {}",
                cells.combinations[combination].name, cells.conditions[condition].name
            ),
            (Case::Cell(..), Of::Controllers(_)) => unreachable!("cells are cases of cells"),
        }
    }

    /// What is sent in a case.
    pub fn flow(&self, case: Case) -> Flow {
        let condition = self.condition(case);
        condition.and_then(|c| c.flow).unwrap_or(self.flow)
    }

    /// The largest IP packet between the gateways in a case, bytes.
    pub fn mtu(&self, case: Case) -> u16 {
        let condition = self.condition(case);
        condition.and_then(|c| c.mtu).unwrap_or(MTU_DEFAULT)
    }

    /// S, I and N of a case; `None` for controllers.
    pub fn combination(&self, case: Case) -> Option<&Combination> {
        match (case, &self.of) {
            (Case::Cell(combination, _), Of::Cells(cells)) => cells.combinations.get(combination),
            _ => None,
        }
    }

    /// What a case meets; `None` for controllers.
    pub fn condition(&self, case: Case) -> Option<&Condition> {
        match (case, &self.of) {
            (Case::Cell(_, condition), Of::Cells(cells)) => cells.conditions.get(condition),
            _ => None,
        }
    }

    /// The phases of a case.
    pub(crate) fn phases(&self, case: Case) -> Vec<Phase> {
        let controllers = match &self.of {
            Of::Controllers(controllers) => controllers,
            Of::Cells(_) => {
                let condition = self.condition(case);
                return vec![Phase {
                    name: "all".to_owned(),
                    trouble: condition.and_then(|condition| condition.trouble),
                }];
            }
        };
        let mut phases = vec![Phase {
            name: "before".to_owned(),
            trouble: None,
        }];
        for trouble in &controllers.troubles {
            phases.push(Phase {
                name: trouble.name.clone(),
                trouble: Some(trouble.trouble),
            });
            phases.push(Phase {
                name: format!("after {}", trouble.name),
                trouble: None,
            });
        }
        phases
    }
}

impl Flow {
    /// The mean interval between two datagrams.
    pub fn interval(&self) -> Duration {
        self.offered.0.transmission_time_nearest(self.datagram.0)
    }
}
