//! Configuration values in the core's types.

use keiro_control::config::{
    self, Aggregation, AggregationMode, Config, CopySpread, Fec, Redundancy,
};
use keiro_core::{self as core, AggregationConfig, SchedulerKind};

pub(crate) fn aggregation(config: &Config) -> AggregationConfig {
    let Aggregation {
        mode,
        controller,
        limits,
        spread,
        redundancy,
    } = &config.aggregation;
    AggregationConfig {
        mode: match mode {
            AggregationMode::Eager => core::AggregationMode::Eager,
            AggregationMode::Fixed => core::AggregationMode::Fixed,
            AggregationMode::Off => core::AggregationMode::Off,
        },
        limits: limits.clone(),
        controller: *controller,
        spread: match spread {
            CopySpread::BackToBack => core::CopySpread::BackToBack,
            CopySpread::Paths => core::CopySpread::Paths,
            CopySpread::Spaced(gap) => core::CopySpread::Spaced(*gap),
        },
        redundancy: match redundancy {
            Redundancy::Copies => core::Redundancy::Copies,
            Redundancy::Fec(Fec {
                group,
                parity,
                wait,
            }) => core::Parity::new(*group, *parity, *wait)
                .map_or(core::Redundancy::Copies, core::Redundancy::Parity),
        },
    }
}

pub(crate) fn scheduler(config: &Config) -> SchedulerKind {
    match config.gateway.scheduler {
        config::Scheduler::Deadline => SchedulerKind::Deadline,
        config::Scheduler::Fifo => SchedulerKind::Fifo,
    }
}
