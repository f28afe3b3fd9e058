//! Runs variants in the simulator: the same protocol in virtual time.

use anyhow::{Context, anyhow};
use keiro_core::SchedulerKind;
use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Scenario};

use crate::{
    predict,
    record::MessageRecord,
    row::Source,
    runner::{Arrived, MessageRunner, Outcome, Progress, Request},
    setup::{Scheduler, Setup, Transport},
};

/// Runs two gateways over loss-free simulated paths, on machines without processing time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simulator;

impl MessageRunner for Simulator {
    fn source(&self) -> Source {
        Source::Sim
    }

    fn can_run(&self, setup: &Setup, variant: usize) -> bool {
        let variant = &setup.variants[variant];
        variant.simulated && variant.transport == Transport::Gateway
    }

    fn run(
        &mut self,
        request: &Request<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Outcome> {
        let scenario = scenario(request)?;
        let pair = GatewayPair::new(&scenario, request.schedule.seed);
        let report = pair
            .try_run()
            .map_err(|failure| anyhow!("the simulation failed: {failure}"))?;
        let mut records = Vec::with_capacity(report.messages.len());
        let mut sequence = vec![0; request.setup.applications.len()];
        for message in &report.messages {
            let next = &mut sequence[message.app];
            let since = |at: keiro_units::Instant| {
                let offset = at.saturating_duration_since(report.measured_from);
                u64::try_from(offset.as_nanos()).unwrap_or(u64::MAX)
            };
            records.push(MessageRecord {
                application: message.app,
                sequence: *next,
                made_ns: since(message.made),
                received_ns: message.delivered_at.map(since),
                length: message.bytes as u64,
            });
            *next += 1;
        }
        progress(&Progress {
            elapsed: request.extent.duration.0,
            applications: arrived(request.setup, &records),
        });
        Ok(Outcome {
            records,
            emulator: None,
        })
    }
}

fn scenario(request: &Request<'_>) -> anyhow::Result<Scenario> {
    let setup = request.setup;
    let variant = &setup.variants[request.variant];
    let assignment = predict::assignment(setup, variant)
        .with_context(|| format!("variant {} has no assignment", variant.name))?;
    let paths = setup
        .paths
        .iter()
        .map(|path| PathSpec::new(path.bandwidth.0, path.delay.0));
    let mut scenario = Scenario::new(paths.collect());
    let scheduler = match variant.scheduler {
        Some(Scheduler::Deadline) => SchedulerKind::Deadline,
        Some(Scheduler::Fifo) | None => SchedulerKind::Fifo,
    };
    scenario.a.scheduler = scheduler;
    scenario.b.scheduler = scheduler;
    scenario.patience = request.extent.drain.0;
    for (application, path) in setup.applications.iter().zip(assignment) {
        let app = scenario.add_message_app(Some(application.latency_target.0), &[path]);
        let made = Arrivals::Exponential {
            mean: application.interval.0,
            duration: request.extent.duration.0,
        };
        let length = usize::try_from(application.length.0.get())?;
        scenario.add_traffic(app, made, Length::Fixed(length));
    }
    Ok(scenario)
}

fn arrived(setup: &Setup, records: &[MessageRecord]) -> Vec<Arrived> {
    let mut arrived = vec![Arrived::default(); setup.applications.len()];
    for record in records {
        let of_application = &mut arrived[record.application];
        of_application.made += 1;
        if record.received_ns.is_some() {
            let latency_target = setup.applications[record.application].latency_target.0;
            of_application.add(record.delay_ms(), latency_target.as_secs_f64() * 1e3);
        }
    }
    arrived
}
