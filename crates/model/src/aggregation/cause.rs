//! Why a controller does what it does, in numbers.

use std::{fmt, time::Duration};

use keiro_units::{Bandwidth, Probability};

/// Why parameters are what they are. Shares of loss are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// Nothing calls for a change, or nothing is left to change.
    Steady,
    /// The bandwidth leaves less, or more again, than before.
    Bandwidth {
        /// M of what is wanted.
        wanted: Bandwidth,
        /// The path's bandwidth.
        bandwidth: Bandwidth,
    },
    /// The receiver drops what it has no room for: it gets fewer aggregates, or smaller ones.
    Overflows {
        per_second: f64,
        /// From how many on something is done.
        threshold: u32,
    },
    /// Fewer aggregates did not help the receiver: others overflow it, and it gets what it got.
    OverflowsStay {
        /// How many there were.
        before: f64,
        /// How many there are with fewer aggregates.
        after: f64,
    },
    /// The receiver keeps up: it may get more, or sooner.
    NoOverflows {
        /// How many it drops still.
        per_second: f64,
        /// Up to how many count as none.
        threshold: u32,
    },
    /// Aggregates are lost: more copies are tried.
    Loss {
        /// Share of aggregates lost.
        loss: f64,
        /// From which on something is done.
        threshold: Probability,
    },
    /// More copies made it worse, so the network has too much: fewer.
    LossGrew {
        /// Share of aggregates lost before.
        before: f64,
        /// Share of aggregates lost with more copies.
        after: f64,
    },
    /// With more copies more of them were lost, so the network has too much: fewer.
    CopyLossGrew {
        /// Share of copies lost before, at most: the upper end of a confidence interval.
        before: f64,
        /// Share of copies lost with more of them.
        after: f64,
    },
    /// Fewer copies were not few enough: fewer still.
    LossStays {
        /// Share of aggregates lost.
        loss: f64,
        /// From which on something is done.
        threshold: Probability,
    },
    /// Hardly an aggregate is lost: N is as at first again.
    LossGone {
        /// Share of aggregates lost.
        loss: f64,
        /// Up to which there is said to be none.
        threshold: Probability,
    },
    /// The line loses `copies`, of which N copies leave the loss wanted, or the nearest to it.
    LineLoss {
        /// Share of copies that the line loses.
        copies: f64,
        /// The share lost of second copies behind a lost first one.
        together: f64,
        /// Share of aggregates that will be lost with the new N.
        residual: f64,
        /// The share wanted at most.
        target: Probability,
    },
    /// The copies in force leave too much loss: for a moment there are fewer, to see whether the
    /// copies are the cause.
    Doubt {
        /// Share of aggregates that is lost, by what is known of the copies.
        residual: f64,
        /// The share wanted at most.
        target: Probability,
    },
    /// Loss came with a queue, or with more copies: the network has too much. Copies that the line
    /// does not need go first, then M is held at what arrived.
    Congestion {
        /// Share of copies lost.
        loss: f64,
        /// Share that the line loses by itself.
        line: f64,
        /// Queueing delay. `None`: not known.
        queueing: Option<Duration>,
        arrived: Bandwidth,
    },
    /// More copies would take the room of what is to be carried.
    Crowded {
        /// What is to be carried, as it is with one copy.
        offered: Bandwidth,
        /// What M must stay within.
        bandwidth: Bandwidth,
    },
    /// Nothing has happened for long enough to try one step back.
    Calm { calm: Duration },
}

impl Cause {
    /// A fixed name for each kind, as metrics count them.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Bandwidth { .. } => "bandwidth",
            Self::Overflows { .. } => "overflows",
            Self::OverflowsStay { .. } => "overflows_stay",
            Self::NoOverflows { .. } => "no_overflows",
            Self::Loss { .. } => "loss",
            Self::LossGrew { .. } => "loss_grew",
            Self::CopyLossGrew { .. } => "copy_loss_grew",
            Self::LossStays { .. } => "loss_stays",
            Self::LossGone { .. } => "loss_gone",
            Self::LineLoss { .. } => "line_loss",
            Self::Doubt { .. } => "doubt",
            Self::Congestion { .. } => "congestion",
            Self::Crowded { .. } => "crowded",
            Self::Calm { .. } => "calm",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Steady => f.write_str("nothing calls for a change"),
            Self::Bandwidth { wanted, bandwidth } => {
                write!(f, "{wanted} are wanted, the path gives {bandwidth}")
            }
            Self::Overflows {
                per_second,
                threshold,
            } => write!(
                f,
                "the receiver overflows {per_second:.0} times per second, {threshold} or more"
            ),
            Self::OverflowsStay { before, after } => write!(
                f,
                "fewer aggregates did not help: {before:.0} overflows per second before, \
                 {after:.0} with them, so others cause them"
            ),
            Self::NoOverflows {
                per_second,
                threshold,
            } => write!(
                f,
                "the receiver overflows {per_second:.0} times per second, {threshold} or fewer"
            ),
            Self::Loss { loss, threshold } => write!(
                f,
                "{} of aggregates lost, {} or more: more copies may help",
                Percent(loss),
                Percent(threshold.get())
            ),
            Self::LossGrew { before, after } => write!(
                f,
                "more copies raised the loss of aggregates from {} to {}",
                Percent(before),
                Percent(after)
            ),
            Self::CopyLossGrew { before, after } => write!(
                f,
                "with more copies {} of them are lost, at most {} were before",
                Percent(after),
                Percent(before)
            ),
            Self::LossStays { loss, threshold } => write!(
                f,
                "{} of aggregates lost still, {} or more",
                Percent(loss),
                Percent(threshold.get())
            ),
            Self::LossGone { loss, threshold } => write!(
                f,
                "{} of aggregates lost, {} or less",
                Percent(loss),
                Percent(threshold.get())
            ),
            Self::LineLoss {
                copies,
                together,
                residual,
                target,
            } => write!(
                f,
                "the line loses {} of copies, and {} of those behind a lost one: {} of aggregates \
                 will be lost, {} are wanted",
                Percent(copies),
                Percent(together),
                Percent(residual),
                Percent(target.get())
            ),
            Self::Doubt { residual, target } => write!(
                f,
                "by what is known of the copies {} of aggregates are lost, {} are wanted: are the \
                 copies the cause?",
                Percent(residual),
                Percent(target.get())
            ),
            Self::Congestion {
                loss,
                line,
                queueing,
                arrived,
            } => {
                write!(
                    f,
                    "congestion: {} of copies lost where the line loses {}",
                    Percent(loss),
                    Percent(line)
                )?;
                if let Some(queueing) = queueing {
                    write!(f, ", queueing {queueing:.1?}")?;
                }
                write!(f, ", {arrived} arrived")
            }
            Self::Crowded { offered, bandwidth } => write!(
                f,
                "{offered} are to be carried on {bandwidth}: there is no room for more copies"
            ),
            Self::Calm { calm } => write!(f, "nothing happened for {calm:.1?}"),
        }
    }
}

/// A share in per cent, to three digits.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        let digits = match percent {
            10.0.. => 1,
            1.0.. => 2,
            0.1.. => 3,
            _ => 4,
        };
        write!(f, "{percent:.digits$} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_explains_itself_in_numbers() {
        let threshold = Probability::new(0.005).unwrap();
        let mbit = Bandwidth::from_mbit_per_second;
        let cases = [
            (
                Cause::Overflows {
                    per_second: 63.7,
                    threshold: 40,
                },
                "the receiver overflows 64 times per second, 40 or more",
            ),
            (
                Cause::Loss {
                    loss: 0.0123,
                    threshold,
                },
                "1.23 % of aggregates lost, 0.500 % or more: more copies may help",
            ),
            (
                Cause::LossGrew {
                    before: 0.004,
                    after: 0.031,
                },
                "more copies raised the loss of aggregates from 0.400 % to 3.10 %",
            ),
            (
                Cause::CopyLossGrew {
                    before: 0.02,
                    after: 0.15,
                },
                "with more copies 15.0 % of them are lost, at most 2.00 % were before",
            ),
            (
                Cause::LineLoss {
                    copies: 0.05,
                    together: 0.1,
                    residual: 0.0005,
                    target: Probability::new(0.001).unwrap(),
                },
                "the line loses 5.00 % of copies, and 10.0 % of those behind a lost one: 0.0500 % \
                 of aggregates will be lost, 0.100 % are wanted",
            ),
            (
                Cause::Doubt {
                    residual: 0.0631,
                    target: Probability::new(0.001).unwrap(),
                },
                "by what is known of the copies 6.31 % of aggregates are lost, 0.100 % are \
                 wanted: are the copies the cause?",
            ),
            (
                Cause::Congestion {
                    loss: 0.2,
                    line: 0.01,
                    queueing: Some(Duration::from_micros(12_345)),
                    arrived: mbit(8),
                },
                "congestion: 20.0 % of copies lost where the line loses 1.00 %, queueing 12.3ms, \
                 8Mbit/s arrived",
            ),
            (
                Cause::Calm {
                    calm: Duration::from_millis(1234),
                },
                "nothing happened for 1.2s",
            ),
        ];
        for (cause, said) in cases {
            assert_eq!(cause.to_string(), said);
        }
    }
}
