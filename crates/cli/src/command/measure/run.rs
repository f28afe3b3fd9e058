//! `keiro measure HOST:PORT`: measures towards a server, and shows and writes what was found.
//!
//! Whatever ends it, what was measured so far is kept: it goes to standard output first, then to
//! files, then the reason is told.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use clap::ValueEnum as _;
use keiro_control::key::load_private_key;
use keiro_linux::signal::Signals;
use keiro_measure::{
    net::{
        Connection, Credentials, Direction, Identity, NetError, ProbePlan, Session, TrainPlan,
        TransferPlan, TransferProgress, log_spaced, measure_probes, measure_trains,
        measure_transfers,
    },
    series::Series,
};
use keiro_model::{
    ByteCount,
    fit::{Fit, FitError, Sample},
};

use super::{
    super::{Outcome, keys::public_key},
    found::{Found, Measured},
    picture::{self, unwritable},
    serve::wait_for_stop,
    waiting::Waiting,
};
use crate::{
    args::{self, MeasurePart},
    failure::Failure,
    output, usage,
};

/// Measures towards `target`.
pub(super) fn run(target: &str, args: &args::MeasureNet) -> Outcome {
    let credentials = credentials(args)?;
    let plan = TransferPlan {
        sizes: log_spaced(
            args.sizes.first.get(),
            args.sizes.last.get(),
            args.per_decade.into(),
        )?,
        direction: direction(args),
        connection: connection(args),
        precision: args.precision.0.get(),
        budget: args.time.0,
        repeats_max: args.repeats.into(),
        pause: args.pause.0,
        seed: args.seed,
    };
    // Now rather than after a minute's work.
    if let Some(file) = &args.figure {
        picture::check(file, args.csv.as_deref())?;
    }
    let csv = args.csv.as_deref().map(create).transpose()?;
    let system = |error| Failure::new("cannot watch for signals").because(error);
    // Before any thread is started, so that all of them leave signals alone.
    let mut signals = Signals::block().map_err(system)?;
    let stop = AtomicBool::new(false);
    let measured = Mutex::new(Measured::default());
    let ended = thread::scope(|scope| {
        let work = || measure(target, credentials.as_ref(), &plan, args, &stop, &measured);
        let working = scope.spawn(work);
        let waited = wait_for_stop(&mut signals, || working.is_finished());
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
    show(&measured, &plan, args, ended.err().as_ref(), csv)
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

/// Does one part after the other and keeps in `measured` what each finds.
fn measure(
    target: &str,
    credentials: Option<&Credentials>,
    plan: &TransferPlan,
    args: &args::MeasureNet,
    stop: &AtomicBool,
    measured: &Mutex<Measured>,
) -> Result<(), NetError> {
    let keep = |change: &mut dyn FnMut(&mut Measured)| {
        change(&mut measured.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let mut session = Session::connect(target, credentials, stop)?;
    keep(&mut |measured| {
        measured.server = Some(session.server());
        measured.round_trip_min = session.round_trip_min();
    });
    let mut waiting = Waiting::new(
        MeasurePart::value_variants()
            .iter()
            .filter(|part| args.measures(**part))
            .count(),
    );
    if args.measures(MeasurePart::Udp) {
        waiting.begin("probes over UDP");
        let probes = ProbePlan {
            count: args.probes,
            interval: args.probe_interval.0,
            bytes: PROBE_BYTES,
        };
        let all = f64::from(args.probes.max(1));
        let mut report = None;
        let ended = measure_probes(&mut session, &probes, &mut report, &mut |sent| {
            let left = args.probe_interval.0.mul_f64((all - sent as f64).max(0.0));
            waiting.show(sent as f64 / all, left, "probes over UDP");
        });
        keep(&mut |measured| measured.probes = report.take());
        ended?;
    }
    if args.measures(MeasurePart::Capacity) {
        waiting.begin("trains for the capacity");
        let trains = TrainPlan {
            trains: args.trains,
            packets: TRAIN_PACKETS,
            bytes: TRAIN_BYTES,
            seed: args.seed,
        };
        let begin = std::time::Instant::now();
        let all = f64::from(args.trains.max(1));
        let report = measure_trains(&mut session, &trains, &mut |done| {
            let share = done as f64 / all;
            let left = begin.elapsed().mul_f64((1.0 - share).max(0.0) / share);
            waiting.show(share, left, "trains for the capacity");
        })?;
        keep(&mut |measured| measured.trains = Some(report.clone()));
    }
    if args.measures(MeasurePart::Tcp) {
        waiting.begin("transfers over TCP");
        let mut found = keiro_measure::net::Transfers::default();
        let ended = measure_transfers(&mut session, plan, &mut found, &mut |progress| {
            let total = (progress.elapsed + progress.left).as_secs_f64();
            let share = progress.elapsed.as_secs_f64() / total.max(1e-9);
            waiting.show(share, progress.left, &transfers(progress));
        });
        keep(&mut |measured| {
            measured.transfers = std::mem::take(&mut found);
            measured.round_trip_min = session.round_trip_min();
        });
        ended?;
    }
    Ok(())
}

fn transfers(progress: &TransferProgress) -> String {
    format!(
        "{} transfers over TCP, {} of {} sizes known",
        progress.transfers, progress.precise, progress.sizes
    )
}

/// Length of a probe; ours: that of a voice packet.
const PROBE_BYTES: usize = 172;
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
    csv: Option<File>,
) -> Outcome {
    let samples: Vec<Sample> = measured
        .transfers
        .samples
        .iter()
        .filter_map(|timed| Sample::new(ByteCount::new(timed.bytes), timed.seconds).ok())
        .collect();
    let fit = Fit::of(&samples);
    let found = Found {
        measured,
        plan,
        authenticated: !args.open,
        fit: fit.as_ref(),
        paper_units: args.paper_units,
        ended,
    };
    let told = match args.json {
        true => output::json(&found.document()),
        false => output::text(found.text()),
    };
    // Of several that fail, the first is told last, where it is read. That one place is full costs
    // nothing at the others.
    let mut failures = Vec::new();
    failures.extend(ended.map(|error| early(error, &measured.transfers)));
    failures.extend(output::whoever_reads(told).err());
    if let (Some(file), Some(path)) = (csv, &args.csv) {
        let comments = found.comments();
        let series = Series { samples };
        failures.extend(write_csv(&series, &comments, file, path).err());
    }
    if let Some(file) = &args.figure {
        failures.extend(draw(file, &found.title(), fit.as_ref()).err());
    }
    failures.reverse();
    let last = failures.pop();
    for failure in failures {
        crate::output::tell!("{}", failure.to_string().trim_end());
    }
    match last {
        Some(failure) => Err(failure),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The measurement ended early.
fn early(error: &NetError, transfers: &keiro_measure::net::Transfers) -> Failure {
    Failure::new(error.to_string()).hint(format!(
        "again; what was measured until then is kept, {} transfers among it",
        transfers.samples.len()
    ))
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| unwritable(path, &error))
}

fn write_csv(
    series: &Series,
    comments: &[String],
    mut file: File,
    path: &Path,
) -> Result<(), Failure> {
    let mut text = Vec::new();
    series
        .write_csv(&mut text, comments)
        .and_then(|()| file.write_all(&text))
        // A full disk may be noticed no earlier than here.
        .and_then(|()| file.sync_all().or_else(only_if_not_a_disk))
        .map_err(|error| unwritable(path, &error))
}

/// Pipes and terminals cannot be synced and need not be.
fn only_if_not_a_disk(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(error),
    }
}

fn draw(file: &Path, title: &str, fit: Result<&Fit, &FitError>) -> Result<(), Failure> {
    let fit = fit.map_err(|error| {
        let what = format!("no figure in {}: there is no fit to draw", file.display());
        Failure::new(what).because(error).hint(error.hint())
    })?;
    picture::write(file, title, fit)
}
