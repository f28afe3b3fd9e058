//! Goodput of a client of a provider by TCP, by several TCP connections at once and by MPTCP, one after the
//! other.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_lab::{Lab, emulator::Direction};
use keiro_link::{Buffer, Loss};
use keiro_linux::clock;

use super::super::{
    Laboratory, PROGRESS_STEP,
    egress::{Content, Flow, Provider},
    emulator_report,
};
use crate::{
    runner::Progress,
    trials::{IspTransport, Isps, Line, Reflector, Transport, TrialOutcome, TrialRequest},
};

/// Pause between transports, in which queues drain and connections close.
const REST: Duration = Duration::from_millis(700);

impl Laboratory {
    pub(super) fn isps(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        isps: &Isps,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let isp = isps.isp.get(request.case).context("a case")?;
        let provider = Provider::start(lab, Reflector::Frr, &self.programs.keiro)?;
        set(lab, "a", &isp.a)?;
        set(lab, "b", &isp.b)?;
        lab.measure_from_now()?;
        let time = isps.time.of(request.quick).0;
        let begun = Instant::now();
        let mut report_progress = || {
            progress(&Progress {
                elapsed: begun.elapsed().min(request.extent.duration.0),
                applications: Vec::new(),
            });
        };
        let mut goodputs = Vec::new();
        for transport in IspTransport::ALL {
            thread::sleep(REST);
            let measured = goodput(lab, transport, time, &mut report_progress);
            goodputs.push(measured.with_context(|| provider.log_tail())?);
        }
        let gain = (goodputs[1] / goodputs[0] - 1.0) * 100.0;
        let values = goodputs.iter().copied().chain([gain]);
        Ok(TrialOutcome {
            values: values.map(Some).collect(),
            durations_ms: Vec::new(),
            traces: Vec::new(),
            samples: Vec::new(),
            remarks: Vec::new(),
            void: None,
            emulator: emulator_report(lab)?,
        })
    }
}

/// Mbit/s of payload that the client reads within `time` from the start of the first connection.
fn goodput(
    lab: &Lab,
    transport: IspTransport,
    time: Duration,
    report_progress: &mut dyn FnMut(),
) -> anyhow::Result<f64> {
    let (count, transport) = match transport {
        IspTransport::Tcp(count) => (count, Transport::Tcp),
        IspTransport::Mptcp => (1, Transport::Mptcp),
    };
    let begun_ns = clock::monotonic_nanos();
    let begun = Instant::now();
    // All at once, because a handshake takes a round trip.
    let flows = thread::scope(|scope| {
        let start = || Flow::start(lab, transport, Content::Bytes(u64::MAX));
        let starting: Vec<_> = (0..count).map(|_| scope.spawn(start)).collect();
        let started = starting.into_iter().map(|one| one.join());
        started
            .map(|one| one.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<anyhow::Result<Vec<Flow>>>()
    })?;
    while begun.elapsed() < time {
        thread::sleep(PROGRESS_STEP.min(time - begun.elapsed().min(time)));
        report_progress();
    }
    let end_ns = begun_ns + time.as_nanos() as u64;
    let mut bytes = 0;
    for flow in flows {
        let arrivals = flow.stop()?;
        let counted = arrivals.iter().filter(|arrival| arrival.at_ns < end_ns);
        bytes += counted.map(|arrival| arrival.bytes).sum::<u64>();
    }
    Ok(bytes as f64 * 8.0 / 1e6 / time.as_secs_f64())
}

/// Configures a link; clients are at its end b.
fn set(lab: &Lab, link: &str, line: &Line) -> anyhow::Result<()> {
    let link = lab.link(link)?;
    let current = link.current().context("the link is emulated")?;
    let mut down = current.a_to_b;
    down.rate = Some(line.rate.0);
    down.delay = line.delay.0;
    down.buffer = Buffer::Bytes(line.buffer.0);
    down.loss = match line.loss {
        Some(loss) => Loss::Bernoulli(loss.0),
        None => Loss::None,
    };
    let mut back = down;
    back.rate = Some(line.back.unwrap_or(line.rate).0);
    back.loss = Loss::None;
    link.set(Direction::AToB, down)?;
    link.set(Direction::BToA, back)?;
    Ok(())
}
