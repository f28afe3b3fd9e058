//! How long a change of the clients' provider's announcements takes until the server has it.
//!
//! The clients' provider begins and ends announcing a prefix to transit A; transit B has it all the
//! time, so that best paths change between the two. The command is given over a connection that is
//! there, and `ip monitor` shows when kernels have changed. When octets came to our daemons is in their
//! recordings. All of these are read on one clock.

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
        BY_A, BY_B, CHANGES, Content, Flow, Heard, Monitor, Provider, TABLE_AT_BORDER, TABLE_OF_A,
        Wanted, longest_gap, longest_gap_of,
    },
    emulator_report,
};
use crate::{
    runner::Progress,
    stats,
    trials::{Reflector, Routes, Samples, Transport, TrialOutcome, TrialRequest},
};

const NO_UPDATE: &str = "a recording has no UPDATE of a change";

/// How long a change may take.
const CHANGE_WAIT: Duration = Duration::from_secs(20);

/// One change, all in ns on one clock.
struct Change {
    announced: bool,
    ordered: u64,
    /// The border router's kernel has it.
    at_border: u64,
    /// The server's table of transit A has it.
    epe: u64,
    /// The server's main table has another best path.
    best: u64,
}

/// In ms.
#[derive(Default)]
struct Times {
    epe: Vec<f64>,
    best: Vec<f64>,
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
        let flow = Flow::start(lab, Transport::Mptcp, Content::Rate(routes.flow.0, 1))?;
        // The first, and one by each transit.
        flow.wait_for_subflows(3)?;
        lab.measure_from_now()?;
        let begun = Instant::now();
        let mut changes = Vec::new();
        for number in 0..2 * routes.changes.of(request.quick) {
            thread::sleep(routes.apart.0);
            let change = change(&mut provider, &monitors, number % 2 == 1);
            changes.push(change.with_context(|| provider.last_words())?);
            progress(&Progress {
                elapsed: begun.elapsed().min(request.extent.duration.0),
                applications: Vec::new(),
            });
        }
        thread::sleep(routes.apart.0);
        let ended = clock::monotonic_nanos();
        let arrivals = flow.stop().with_context(|| provider.last_words())?;
        let until = changes
            .iter()
            .skip(1)
            .map(|next| next.ordered)
            .chain([ended]);
        let withdrawals = changes
            .iter()
            .zip(until)
            .filter(|(change, _)| !change.announced);
        let (border, server) = (provider.heard("asbr1")?, provider.heard("server")?);
        let (mut stalled, mut moved) = (Vec::new(), Vec::new());
        for (change, until) in withdrawals {
            let gap = longest_gap(&arrivals, change.ordered, until);
            stalled.push(gap.ms());
            // What is lost is lost before the server has the change.
            let begun = change.epe.max(change.best);
            let gap = longest_gap_of(&arrivals, change.ordered, begun, until);
            let came = border.first_from(change.ordered);
            moved.push(ms(came.context(NO_UPDATE)?, gap.to_ns));
        }
        let mut times = [Times::default(), Times::default()];
        let (mut own, mut between) = (Vec::new(), Vec::new());
        for change in &changes {
            let of = &mut times[usize::from(change.announced)];
            of.epe.push(ms(change.ordered, change.epe));
            of.best.push(ms(change.ordered, change.best));
            let shares = shares(change, &border, &server);
            let (ours, all) = shares.context(NO_UPDATE)?;
            own.push(ours);
            between.push(all);
        }
        let [withdrawn, announced] = times;
        let largest = |values: &[f64]| values.iter().copied().reduce(f64::max);
        let values = vec![
            stats::median(&announced.epe),
            stats::median(&withdrawn.epe),
            stats::median(&announced.best),
            stats::median(&withdrawn.best),
            stats::median(&between),
            stats::median(&own),
            largest(&own),
            stats::median(&moved),
            largest(&moved),
            stats::median(&stalled),
            largest(&stalled),
        ];
        let samples = [
            ("announced", "EPE route", &announced.epe),
            ("announced", "best path", &announced.best),
            ("withdrawn", "EPE route", &withdrawn.epe),
            ("withdrawn", "best path", &withdrawn.best),
            ("withdrawn", "a flow without data", &stalled),
        ];
        let samples = samples.map(|(group, name, values)| Samples {
            group: group.to_owned(),
            name: name.to_owned(),
            values: values.clone(),
        });
        let timed = announced.epe.iter().chain(&withdrawn.epe).copied();
        Ok(TrialOutcome {
            values,
            durations_ms: timed.collect(),
            traces: Vec::new(),
            samples: samples.into(),
            remarks: Vec::new(),
            emulator: emulator_report(lab)?,
        })
    }
}

/// Why there is no such reflector here; `None` if there is.
pub(super) fn missing(reflector: Reflector) -> Option<String> {
    let missing = reflector == Reflector::Gobgp && !gobgp::Reflector::is_possible();
    missing.then(|| gobgp::GobgpError::Missing.to_string())
}

/// Has the change made, and waits until everybody has it.
fn change(
    provider: &mut Provider,
    [border, server]: &[Monitor; 2],
    announced: bool,
) -> anyhow::Result<Change> {
    let wanted = |table, removed, with| Wanted {
        prefix: CHANGES,
        table,
        removed,
        with,
    };
    let ordered = clock::monotonic_nanos();
    provider.announce_to_a(announced)?;
    let end = Instant::now() + CHANGE_WAIT;
    let best = if announced { BY_A } else { BY_B };
    let at_border = wanted(Some(TABLE_AT_BORDER), !announced, "");
    Ok(Change {
        announced,
        ordered,
        at_border: border.wait(&at_border, ordered, end)?,
        epe: server.wait(&wanted(Some(TABLE_OF_A), !announced, ""), ordered, end)?,
        best: server.wait(&wanted(None, false, best), ordered, end)?,
    })
}

/// Of a change, in ms: our daemons' time, from the UPDATE to the kernel's route in both of them; and all
/// from the border router's UPDATE to the server's route, with what is between.
fn shares(change: &Change, border: &Heard, server: &Heard) -> Option<(f64, f64)> {
    let came = border.first_from(change.ordered)?;
    let came_to_server = server.last_until(change.epe)?;
    let own = ms(came, change.at_border) + ms(came_to_server, change.epe);
    Some((own, ms(came, change.epe)))
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}
