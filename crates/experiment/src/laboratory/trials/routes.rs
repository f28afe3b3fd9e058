//! Time until the server has a change of what the clients' provider announces.
//!
//! The clients' provider announces and withdraws a prefix at transit A. Transit B has it all the time, so
//! that the best path alternates. The command goes over an open connection, and `ip monitor` gives the times
//! of kernel changes. The recordings of our daemons give the arrival of BGP messages. All use one clock.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_lab::{Lab, gobgp};
use keiro_linux::clock;

use super::super::{
    Laboratory,
    egress::{
        Arrival, BY_A, BY_B, CHANGES, Content, DaemonRecords, Flow, Monitor, Provider, RouteChange,
        TABLE_AT_BORDER, TABLE_OF_A, longest_gap, longest_gap_of,
    },
    emulator_report,
};
use crate::{
    record,
    runner::Progress,
    stats,
    trials::{Reflector, Routes, Samples, Transport, TrialOutcome, TrialRequest},
};

const NO_UPDATE: &str = "a recording has no UPDATE of a change";

/// Time limit of a change.
const CHANGE_WAIT: Duration = Duration::from_secs(20);

/// Times of one change, all in ns on one clock.
struct Change {
    announced: bool,
    ordered: u64,
    /// The border router's kernel has the change.
    at_border: u64,
    /// The server's table of transit A has the change.
    epe: u64,
    /// The server's main table has changed its best path.
    best: u64,
}

/// In ms.
#[derive(Default)]
struct Times {
    epe: Vec<f64>,
    best: Vec<f64>,
}

/// Delays of all changes of a run, in ms.
#[derive(Default)]
struct Delays {
    announced: Times,
    withdrawn: Times,
    /// From the border router's UPDATE to the server's route.
    total: Vec<f64>,
    /// The part of it in our daemons.
    own: Vec<f64>,
    /// From the UPDATE of a withdrawal until the flow moved.
    moved: Vec<f64>,
    /// Longest gap of the flow after a withdrawal.
    stalled: Vec<f64>,
}

impl Delays {
    /// `records` are those of the border router and of the server; the flow ended at `ended`.
    fn of(
        changes: &[Change],
        records: &[DaemonRecords; 2],
        arrivals: &[Arrival],
        ended: u64,
    ) -> anyhow::Result<Self> {
        let [border, server] = records;
        let mut delays = Self::default();
        let ends = changes.iter().skip(1).map(|next| next.ordered);
        for (change, until) in changes.iter().zip(ends.chain([ended])) {
            let times = match change.announced {
                true => &mut delays.announced,
                false => &mut delays.withdrawn,
            };
            times.epe.push(ms(change.ordered, change.epe));
            times.best.push(ms(change.ordered, change.best));
            let (own, total) = shares(change, border, server).context(NO_UPDATE)?;
            delays.own.push(own);
            delays.total.push(total);
            if change.announced {
                continue;
            }
            let gap = longest_gap(arrivals, change.ordered, until);
            delays.stalled.push(gap.ms());
            // Packets are lost only before the server has the change.
            let begun = change.epe.max(change.best);
            let gap = longest_gap_of(arrivals, change.ordered, begun, until);
            let update = border.first_from(change.ordered).context(NO_UPDATE)?;
            delays.moved.push(ms(update, gap.to_ns));
        }
        Ok(delays)
    }

    /// In the order of the trial's quantities.
    fn values(&self) -> Vec<Option<f64>> {
        vec![
            stats::median(&self.announced.epe),
            stats::median(&self.withdrawn.epe),
            stats::median(&self.announced.best),
            stats::median(&self.withdrawn.best),
            stats::median(&self.total),
            stats::median(&self.own),
            greatest(&self.own),
            stats::median(&self.moved),
            greatest(&self.moved),
            stats::median(&self.stalled),
            greatest(&self.stalled),
        ]
    }

    fn samples(&self) -> Vec<Samples> {
        let samples = [
            ("announced", "EPE route", &self.announced.epe),
            ("announced", "best path", &self.announced.best),
            ("withdrawn", "EPE route", &self.withdrawn.epe),
            ("withdrawn", "best path", &self.withdrawn.best),
            ("withdrawn", "a flow without data", &self.stalled),
        ];
        let samples = samples.map(|(group, name, values)| Samples {
            group: group.to_owned(),
            name: name.to_owned(),
            values: values.clone(),
        });
        samples.into()
    }
}

fn greatest(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::max)
}

impl Laboratory {
    pub(super) fn routes(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        routes: &Routes,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let reflector = *routes.reflectors.get(request.case).context("a case")?;
        let mut provider = Provider::start(lab, reflector, &self.programs.keiro)?;
        let monitors = [
            Monitor::start(lab, "asbr1")?,
            Monitor::start(lab, "server")?,
        ];
        let content = Content::Rate(routes.flow.0, routes.write.0.get());
        let flow = Flow::start(lab, Transport::Mptcp, content)?;
        // The first connection, and one subflow by each transit.
        flow.wait_for_subflows(3)?;
        lab.measure_from_now()?;
        let begun = Instant::now();
        let mut changes = Vec::new();
        for number in 0..2 * routes.changes.of(request.quick) {
            thread::sleep(routes.apart.0);
            let change = change(&mut provider, &monitors, number % 2 == 1);
            changes.push(change.with_context(|| provider.log_tail())?);
            progress(&Progress {
                elapsed: begun.elapsed().min(request.extent.duration.0),
                applications: Vec::new(),
            });
        }
        thread::sleep(routes.apart.0);
        let ended = clock::monotonic_nanos();
        let arrivals = flow.stop().with_context(|| provider.log_tail())?;
        let records = [provider.records("asbr1")?, provider.records("server")?];
        let delays = Delays::of(&changes, &records, &arrivals, ended)?;
        let timed = delays.announced.epe.iter().chain(&delays.withdrawn.epe);
        Ok(TrialOutcome {
            values: delays.values(),
            durations_ms: timed.copied().collect(),
            traces: Vec::new(),
            samples: delays.samples(),
            remarks: Vec::new(),
            void: lacks_traffic(&changes, &arrivals, routes),
            emulator: emulator_report(lab)?,
        })
    }
}

/// The flow's goodput before the change that had least, if that is too little.
fn lacks_traffic(changes: &[Change], arrivals: &[Arrival], routes: &Routes) -> Option<String> {
    let apart_ns = routes.apart.0.as_nanos() as u64;
    let before = |change: &Change| {
        let span = change.ordered.saturating_sub(apart_ns)..change.ordered;
        let of_span = arrivals
            .iter()
            .filter(|arrival| span.contains(&arrival.at_ns));
        let bytes: u64 = of_span.map(|arrival| arrival.bytes).sum();
        bytes as f64 * 8e3 / apart_ns as f64
    };
    let least = changes.iter().map(before).reduce(f64::min)?;
    let expected = routes.flow.0.as_bits_per_second() as f64 / 1e6;
    record::lacks_traffic("the MPTCP connection", least, expected)
}

/// Why this reflector cannot be measured here; `None` if it can.
pub(super) fn missing(reflector: Reflector) -> Option<String> {
    let missing = reflector == Reflector::Gobgp && !gobgp::Reflector::is_possible();
    missing.then(|| gobgp::GobgpError::Missing.to_string())
}

/// Makes the change and waits until all kernels have it.
fn change(
    provider: &mut Provider,
    [border, server]: &[Monitor; 2],
    announced: bool,
) -> anyhow::Result<Change> {
    let expected = |table, removed, with| RouteChange {
        prefix: CHANGES,
        table,
        removed,
        with,
    };
    let ordered = clock::monotonic_nanos();
    provider.announce_to_a(announced)?;
    let end = Instant::now() + CHANGE_WAIT;
    let best = if announced { BY_A } else { BY_B };
    let at_border = expected(Some(TABLE_AT_BORDER), !announced, "");
    Ok(Change {
        announced,
        ordered,
        at_border: border.wait(&at_border, ordered, end)?,
        epe: server.wait(&expected(Some(TABLE_OF_A), !announced, ""), ordered, end)?,
        best: server.wait(&expected(None, false, best), ordered, end)?,
    })
}

/// Per change, in ms: the time of our daemons, from the UPDATE to the kernel's route in both; and the time
/// from the border router's UPDATE to the server's route, including what is between.
fn shares(change: &Change, border: &DaemonRecords, server: &DaemonRecords) -> Option<(f64, f64)> {
    let arrived = border.first_from(change.ordered)?;
    let arrived_at_server = server.last_until(change.epe)?;
    let own = ms(arrived, change.at_border) + ms(arrived_at_server, change.epe);
    Some((own, ms(arrived, change.epe)))
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::Plan, trials::Trial};

    #[test]
    fn a_connection_that_crawls_before_one_change_voids_the_run() {
        let plan = Plan::find("egress/scenario3").expect("a plan");
        let Trial::Routes(routes) = &plan.trials().expect("of trials").trial else {
            panic!("routes");
        };
        let change = |second: u64| Change {
            announced: false,
            ordered: second * 1_000_000_000,
            at_border: 0,
            epe: 0,
            best: 0,
        };
        let changes = [change(1), change(2), change(3)];
        // 10 Mbit/s in blocks, and in the third second a twentieth of that.
        let arrivals = |crawls: bool| -> Vec<Arrival> {
            let at = |ms: u64| Arrival {
                at_ns: ms * 1_000_000,
                bytes: if crawls && ms >= 2000 { 625 } else { 12_500 },
            };
            (0..300).map(|step| at(step * 10)).collect()
        };
        assert_eq!(lacks_traffic(&changes, &arrivals(false), routes), None);
        let why = lacks_traffic(&changes, &arrivals(true), routes).expect("it crawls");
        assert!(why.contains("0.50 Mbit/s of 10.00"), "{why}");
        assert!(lacks_traffic(&changes, &[], routes).is_some());
    }
}
