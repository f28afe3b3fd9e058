//! `keiro measure HOST:PORT`: measures towards a server, and shows and writes what was found.
//!
//! Whatever ends it, what was measured so far is kept: it goes to standard output first, then to
//! files, then the reason is printed.

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use clap::ValueEnum as _;
use keiro_control::key::load_private_key;
use keiro_linux::signal::Signals;
use keiro_measure::{
    net::{
        Connection, Credentials, Direction, Identity, NetError, ProbePlan, ProbeReport, Session,
        TrainPlan, TrainReport, TransferPlan, TransferProgress, Transfers, measure_probes,
        measure_trains, measure_transfers,
    },
    series::Series,
};
use keiro_model::fit::{Fit, FitError, Sample};
use keiro_units::ByteCount;

use super::{
    super::{Outcome, keys::public_key},
    destination::{Content, Destination},
    found::{Measured, MeasurementResult},
    picture,
    serve::wait_for_stop,
    waiting::{Waiting, WaitsFor},
};
use crate::{
    PROGRAM,
    args::{self, MeasurePart},
    failure::Failure,
    output, usage,
};

/// Measures towards `target`.
pub(super) fn run(target: &str, args: &args::MeasureNet) -> Outcome {
    let credentials = credentials(args)?;
    let plan = TransferPlan {
        sizes: usage::sizes(args)?,
        direction: direction(args),
        connection: connection(args),
        precision: args.precision.0.get(),
        budget: args.time.0,
        repeats_max: args.repeats.into(),
        pause: args.pause.0,
        seed: args.seed,
    };
    let probes = usage::probes(args);
    // Now rather than after a minute's work.
    let files = Files::prepare(args)?;
    let system = |error| Failure::new("cannot watch for signals").because(error);
    // Before any thread is started, so that all of them leave signals alone.
    let mut signals = Signals::block().map_err(system)?;
    let stop = AtomicBool::new(false);
    let measured = Mutex::new(Measured::default());
    let waits_for = WaitsFor::new(format!("a connection to {target} over TCP"));
    let work = Work {
        target,
        waits_for: &waits_for,
        credentials: credentials.as_ref(),
        probes: &probes,
        transfers: &plan,
        args,
    };
    let ended = thread::scope(|scope| {
        let working = scope.spawn(|| measure(&work, &stop, &measured));
        let waited = wait_for_stop(&mut signals, || {
            waits_for.say_if_long();
            working.is_finished()
        });
        stop.store(true, Ordering::Release);
        let ended = working.join().expect("measuring does not panic");
        waited.map_err(system).map(|()| ended)
    })?;
    let measured = measured
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if measured.is_empty()
        && let Err(error) = ended
    {
        return Err(error.into());
    }
    show(&measured, &plan, args, ended.err().as_ref(), files)
}

/// Where what was found is put beside standard output.
struct Files<'a> {
    csv: Option<Destination<'a>>,
    figure: Option<Destination<'a>>,
}

impl<'a> Files<'a> {
    fn prepare(args: &'a args::MeasureNet) -> Result<Self, Failure> {
        let (csv, figure) = (args.csv.as_deref(), args.figure.as_deref());
        let figure = figure.map(|file| picture::prepare(file, csv)).transpose()?;
        let csv = csv.map(|file| Destination::prepare(Content::Transfers, file));
        Ok(Self {
            csv: csv.transpose()?,
            figure,
        })
    }
}

fn direction(args: &args::MeasureNet) -> Direction {
    match args.reverse {
        true => Direction::Back,
        false => Direction::There,
    }
}

fn connection(args: &args::MeasureNet) -> Connection {
    match args.fresh {
        true => Connection::Fresh,
        false => Connection::Warm,
    }
}

fn credentials(args: &args::MeasureNet) -> Result<Option<Credentials>, Failure> {
    if args.open {
        return Ok(None);
    }
    let (Some(key), Some(peer)) = (&args.key, args.peer) else {
        return Err(usage::keys_missing());
    };
    let private = load_private_key(key)?;
    Ok(Some(Credentials {
        own: public_key(&private),
        identity: Identity { private, peer },
    }))
}

/// What is to be measured, and how.
struct Work<'a> {
    target: &'a str,
    waits_for: &'a WaitsFor,
    credentials: Option<&'a Credentials>,
    probes: &'a ProbePlan,
    transfers: &'a TransferPlan,
    args: &'a args::MeasureNet,
}

/// Does one part after the other and stores the result of each in `measured`.
fn measure(work: &Work<'_>, stop: &AtomicBool, measured: &Mutex<Measured>) -> Result<(), NetError> {
    let args = work.args;
    let mut session = Session::connect(work.target, work.credentials, stop)?;
    {
        let mut measured = lock(measured);
        measured.server = Some(session.server());
        measured.round_trip_min = session.round_trip_min();
    }
    let parts = MeasurePart::value_variants().iter();
    let parts = parts.filter(|part| args.measures(**part)).count();
    let mut waiting = Waiting::new(parts, work.waits_for);
    if args.measures(MeasurePart::Udp) {
        let mut report = None;
        let ended = probe(work, &mut session, &mut waiting, &mut report);
        lock(measured).probes = report;
        ended?;
    }
    if args.measures(MeasurePart::Capacity) {
        let report = send_trains(work, &mut session, &mut waiting)?;
        lock(measured).trains = Some(report);
    }
    if args.measures(MeasurePart::Tcp) {
        let mut found = Transfers::default();
        let ended = transfer(work, &mut session, &mut waiting, &mut found);
        let mut measured = lock(measured);
        measured.transfers = found;
        measured.round_trip_min = session.round_trip_min();
        ended?;
    }
    Ok(())
}

fn lock(measured: &Mutex<Measured>) -> MutexGuard<'_, Measured> {
    measured.lock().unwrap_or_else(PoisonError::into_inner)
}

fn probe(
    work: &Work<'_>,
    session: &mut Session<'_>,
    waiting: &mut Waiting,
    report: &mut Option<ProbeReport>,
) -> Result<(), NetError> {
    let Work {
        probes, waits_for, ..
    } = work;
    waiting.begin("probes over UDP");
    waits_for.begin(format!(
        "replies to the probes from UDP {}; without any it goes on after 4 s at most",
        session.server()
    ));
    let all = f64::from(probes.count.max(1));
    let mut replies = 0;
    measure_probes(session, probes, report, &mut |progress| {
        let sent = progress.sent as f64;
        if std::mem::replace(&mut replies, progress.replies) < progress.replies {
            waits_for.on_progress();
        }
        let left = probes.interval.mul_f64((all - sent).max(0.0));
        waiting.show(sent / all, left, "probes over UDP");
    })
}

fn send_trains(
    work: &Work<'_>,
    session: &mut Session<'_>,
    waiting: &mut Waiting,
) -> Result<TrainReport, NetError> {
    let Work {
        args, waits_for, ..
    } = work;
    waiting.begin("trains for the capacity");
    waits_for.begin(format!(
        "a train to arrive at UDP {}; if none of the first does, it goes on without the capacity",
        session.server()
    ));
    let trains = TrainPlan {
        trains: args.trains,
        packets: TRAIN_PACKETS,
        bytes: TRAIN_BYTES,
        seed: args.seed,
    };
    let begin = std::time::Instant::now();
    let all = f64::from(args.trains.max(1));
    measure_trains(session, &trains, &mut |progress| {
        if progress.arrived {
            waits_for.on_progress();
        }
        let share = progress.done as f64 / all;
        let left = begin.elapsed().mul_f64((1.0 - share).max(0.0) / share);
        waiting.show(share, left, "trains for the capacity");
    })
}

fn transfer(
    work: &Work<'_>,
    session: &mut Session<'_>,
    waiting: &mut Waiting,
    found: &mut Transfers,
) -> Result<(), NetError> {
    let waits_for = work.waits_for;
    waiting.begin("transfers over TCP");
    waits_for.begin(format!(
        "a transfer over TCP with {} to end; a long one on a slow line takes minutes",
        session.server()
    ));
    measure_transfers(session, work.transfers, found, &mut |progress| {
        waits_for.on_progress();
        let total = (progress.elapsed + progress.left).as_secs_f64();
        let share = progress.elapsed.as_secs_f64() / total.max(1e-9);
        waiting.show(share, progress.left, &transfers(progress));
    })
}

fn transfers(progress: &TransferProgress) -> String {
    format!(
        "{} transfers over TCP, {} of {} sizes known",
        progress.transfers, progress.precise, progress.sizes
    )
}

/// Packets of a train; ours: 4.5 ms at 100 Mbit/s, and most buffers hold them.
const TRAIN_PACKETS: u16 = 40;
/// UDP payload of a train's packets; ours: 1400 bytes over IPv4, which nearly every path carries.
const TRAIN_BYTES: usize = 1372;

/// Standard output, files, and how it ended, in this order.
fn show(
    measured: &Measured,
    plan: &TransferPlan,
    args: &args::MeasureNet,
    ended: Option<&NetError>,
    files: Files<'_>,
) -> Outcome {
    let samples: Vec<Sample> = measured
        .transfers
        .samples
        .iter()
        .filter_map(|timed| Sample::new(ByteCount::new(timed.bytes), timed.seconds).ok())
        .collect();
    let fit = Fit::of(&samples);
    let found = MeasurementResult {
        measured,
        plan,
        authenticated: !args.open,
        fit: fit.as_ref(),
        paper_units: args.paper_units,
        ended,
    };
    let shown = match args.json {
        true => output::json(&found.document()),
        false => output::text(found.text()),
    };
    // Of several that fail, the first is printed last, where it is read. That one place is full costs
    // nothing at the others.
    let mut failures = Vec::new();
    failures.extend(ended.map(|error| early(error, &measured.transfers)));
    failures.extend(output::allow_closed_reader(shown).err());
    // Without any, the reason is printed already, and what is there says more.
    if let Some(file) = files.csv.filter(|_| !samples.is_empty()) {
        let series = Series { samples };
        failures.extend(write_csv(&series, &found.comments(), file).err());
    }
    if let (Some(file), Some(path)) = (files.figure, &args.figure) {
        failures.extend(draw(file, path, &found.title(), fit.as_ref()).err());
    }
    failures.reverse();
    let last = failures.pop();
    for failure in failures {
        crate::output::message!("{}", failure.message(PROGRAM).to_string().trim_end());
    }
    match last {
        Some(failure) => Err(failure),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The measurement ended early.
fn early(error: &NetError, transfers: &Transfers) -> Failure {
    let failure = Failure::new(error.to_string());
    match (error, transfers.samples.len()) {
        // It says what to try.
        (NetError::NoTime { .. }, _) => failure,
        (_, 0) => failure.hint("again; what was measured until then is kept, no transfer among it"),
        (_, count) => failure.hint(format!(
            "again; what was measured until then is kept, {count} transfers among it"
        )),
    }
}

fn write_csv(series: &Series, comments: &[String], to: Destination<'_>) -> Result<(), Failure> {
    let mut text = Vec::new();
    series
        .write_csv(&mut text, comments)
        .map_err(|error| Failure::new("cannot write the transfers").because(error))?;
    to.write(&text, KEPT)
}

fn draw(
    to: Destination<'_>,
    path: &Path,
    title: &str,
    fit: Result<&Fit, &FitError>,
) -> Result<(), Failure> {
    let fit = fit.map_err(|error| {
        let what = format!("no figure in {}: there is no fit to draw", path.display());
        Failure::new(what).because(error).hint(error.hint())
    })?;
    picture::draw(to, title, fit, KEPT)
}

/// What there is where there is no room for a file.
const KEPT: &str =
    "; what is on standard output is complete, and with --json `keiro measure fit` reads it";
