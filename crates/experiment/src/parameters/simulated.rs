//! Studies in the simulator: real sessions over a simulated line, and a receiver whose buffers overflow.

use std::time::Duration;

use anyhow::{Context, anyhow};
use keiro_core::{AggregationConfig, AggregationMode};
use keiro_link::{Buffer, LinkConfig, Loss};
use keiro_model::aggregation::{Limits, LimitsError, Settings};
use keiro_sim::{
    Arrivals, Bursts, Change, Cross, GatewayPair, Length, PathDirection, PathSpec, Processing,
    Report, Scenario, ScenarioEvent, Side, TimedEvent,
};
use keiro_units::{Bandwidth, Instant, Probability};

use super::{
    Case, Combination, Controller, Datagram, Impairment, Phase, Sample, Study, StudyOutcome,
    StudyRequest, StudyRunner,
};
use crate::{row::Source, runner::Progress, simulator::Simulator};

/// Period of sampling counters. Ours: shorter than a controller's period, except its shortest.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Share of the path for packet trains: the gateway's default.
const PROBE_SHARE: f64 = 0.005;
/// Greatest lateness of a gateway's timers, as measured on gateways. Ours.
const TIMER_LATE_MAX: Duration = Duration::from_micros(50);
/// Rate of the sending gateway's interface: the upper limit of the bandwidth estimator.
const FEED: Bandwidth = Bandwidth::from_mbit_per_second(1000);

impl StudyRunner for Simulator {
    fn source(&self) -> Source {
        Source::Sim
    }

    fn run(
        &mut self,
        request: &StudyRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<StudyOutcome> {
        let scenario = scenario(request)?;
        let mut pair = GatewayPair::new(&scenario, request.seed);
        pair.set_up()
            .map_err(|failure| anyhow!("the simulation failed: {failure}"))?;
        pair.begin();
        pair.run_for(request.warm_up);
        let from = pair.now();
        let duration = request.each * request.phases.len() as u32;
        let mut samples = vec![sample(&pair, from)?];
        let mut elapsed = Duration::ZERO;
        while elapsed < duration {
            let step = SAMPLE_EVERY.min(duration - elapsed);
            pair.run_for(step);
            elapsed += step;
            samples.push(sample(&pair, from)?);
            progress(&Progress {
                elapsed: request.warm_up + elapsed,
                applications: Vec::new(),
            });
        }
        pair.run_for(request.drain);
        let report = pair.report();
        if let Some(violation) = report.violations.first() {
            anyhow::bail!("the simulation went wrong: {violation}");
        }
        Ok(StudyOutcome {
            samples,
            datagrams: datagrams(&report, from),
            counters: Vec::new(),
            emulator: None,
        })
    }
}

/// S, I and N as the combination or the defaults begin, and what changes them.
pub(crate) fn aggregation(study: &Study, case: Case) -> anyhow::Result<AggregationConfig> {
    let controller = study.controller(case);
    let default = AggregationConfig::default();
    let limits = study.combination(case).map(limits).transpose()?;
    Ok(AggregationConfig {
        mode: match controller {
            Controller::Eager => AggregationMode::Eager,
            _ => AggregationMode::Fixed,
        },
        controller: controller.kind(),
        limits: limits.unwrap_or_else(|| default.limits.clone()),
        ..default
    })
}

/// The paper's limits; the combination is the initial setting.
pub(super) fn limits(combination: &Combination) -> Result<Limits, LimitsError> {
    let paper = Settings::default();
    let mut intervals = paper.intervals.clone();
    if !intervals.contains(&combination.interval.0) {
        intervals.push(combination.interval.0);
        intervals.sort_unstable();
    }
    Limits::try_from(Settings {
        intervals,
        interval_initial: combination.interval.0,
        copies_initial: combination.copies,
        size_initial: combination.size.0,
        ..paper
    })
}

fn scenario(request: &StudyRequest<'_>) -> anyhow::Result<Scenario> {
    let (study, case) = (request.study, request.case);
    let line = &study.line;
    let link = LinkConfig {
        rate: Some(line.rate.0),
        delay: line.delay.0,
        buffer: Buffer::Bytes(line.buffer.0),
        ..LinkConfig::default()
    };
    let mut path = PathSpec::over(link, line.rate.0);
    path.mtu_max = study.mtu(case);
    path.link.mtu = path.mtu_max;
    path.cross = Some(Cross {
        rate: Bandwidth::ZERO,
        feed: FEED,
    });
    let mut scenario = Scenario::new(vec![path]);
    scenario.patience = request.drain.max(Duration::from_secs(60));
    let aggregation = aggregation(study, case)?;
    for gateway in [&mut scenario.a, &mut scenario.b] {
        gateway.aggregation = aggregation.clone();
        gateway.probe_share = Probability::new(PROBE_SHARE).context("a share")?;
        gateway.processing = Processing {
            timer_late_max: TIMER_LATE_MAX,
            ..Processing::default()
        };
    }
    let flow = study.flow(case);
    let app = scenario.add_datagram_app(None, &[0]);
    let made = Arrivals::Exponential {
        mean: flow.interval(),
        duration: request.warm_up + request.each * request.phases.len() as u32,
    };
    let length = usize::try_from(flow.datagram.0.get())?;
    scenario.add_traffic(app, made, Length::Fixed(length));
    let usual = scenario.paths[0].link.forward;
    for (index, phase) in (0..).zip(request.phases) {
        let from = request.warm_up + request.each * index;
        let to = from + request.each;
        for (begins, ends) in happenings(&scenario, study.senders, phase, usual) {
            let both = [(from, begins), (to, ends)].map(|(at, what)| TimedEvent { at, what });
            scenario.events.extend(both);
        }
    }
    Ok(scenario)
}

/// Events that begin a phase's impairment, and those that end it. One of `senders` is simulated.
fn happenings(
    scenario: &Scenario,
    senders: usize,
    phase: &Phase,
    usual: LinkConfig,
) -> Vec<(ScenarioEvent, ScenarioEvent)> {
    let forward = |change| ScenarioEvent::Path {
        path: 0,
        direction: PathDirection::Forward,
        change,
    };
    let lost = |loss: Probability| {
        let changed = |loss| forward(Change::Loss(loss));
        (changed(Loss::Bernoulli(loss)), changed(Loss::None))
    };
    let crossed = |others| {
        let cross = |rate| ScenarioEvent::Cross { path: 0, rate };
        (cross(others), cross(Bandwidth::ZERO))
    };
    let side = Side::B;
    let Some(impairment) = phase.impairment else {
        return Vec::new();
    };
    match impairment {
        Impairment::Receiver { each, room } => {
            let receive = |each, inbox_max| ScenarioEvent::Receive {
                side,
                each,
                inbox_max,
            };
            let usual = scenario.gateway(side);
            vec![(
                receive(each.0 * senders as u32, room as usize / senders),
                receive(usual.processing.receive, usual.inbox_max),
            )]
        }
        Impairment::Bursts {
            packets,
            gap,
            every,
            ring,
        } => {
            let load = Bursts {
                datagrams: packets,
                gap: gap.0,
                every: every.0,
                ring,
            };
            let bursts = |bursts| ScenarioEvent::Bursts { side, bursts };
            vec![(bursts(Some(load)), bursts(None))]
        }
        Impairment::Loss(loss) => vec![lost(loss.0)],
        Impairment::Others(others) => vec![crossed(others.0)],
        Impairment::Crowded { loss, others } => vec![lost(loss.0), crossed(others.0)],
        Impairment::Shallow { buffer, others } => {
            let holds = |buffer| forward(Change::Replace(LinkConfig { buffer, ..usual }));
            let shallow = holds(Buffer::Bytes(buffer.0));
            vec![(shallow, holds(usual.buffer)), crossed(others.0)]
        }
        Impairment::Rate(less) => vec![(
            forward(Change::Rate(Some(less.0))),
            forward(Change::Rate(usual.rate)),
        )],
    }
}

fn sample(pair: &GatewayPair, from: Instant) -> anyhow::Result<Sample> {
    let session = pair.gateway(Side::A).session().context("no session")?;
    let path = session.paths.first().context("no path")?;
    let aggregation = path.aggregation.as_ref().context("nothing is gathered")?;
    let received = pair.gateway(Side::B).session().context("no session")?;
    let received = received.paths.first().context("no path")?;
    let parameters = aggregation.parameters;
    Ok(Sample {
        at_s: (pair.now() - from).as_secs_f64(),
        size_bytes: parameters.size().get(),
        interval_ms: parameters.interval().as_secs_f64() * 1e3,
        copies: parameters.copies(),
        bytes_sent: path.stats.sent_bytes,
        packets_received: received.stats.received_packets,
        cpu_s: None,
        aggregates: [
            aggregation.stats.sent_aggregates,
            aggregation.stats.lost_aggregates,
        ],
        copies_reported: [aggregation.stats.sent_copies, aggregation.stats.lost_copies],
        overflows: aggregation.stats.peer_socket_dropped_packets
            + aggregation.stats.peer_system_dropped_packets,
    })
}

fn datagrams(report: &Report, from: Instant) -> Vec<Datagram> {
    let counted = report.datagrams.iter().filter(|d| d.made >= from);
    counted
        .map(|datagram| Datagram {
            made_s: (datagram.made - from).as_secs_f64(),
            delay_ms: datagram
                .delivered_at
                .map(|at| (at - datagram.made).as_secs_f64() * 1e3),
        })
        .collect()
}
