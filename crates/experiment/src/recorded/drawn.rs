//! Figures of recorded links: throughput and queueing over time.

use keiro_lab::emulator::{QUEUEING_BIN, QueueingBin};

use super::{Measured, Recorded, Transport, measure::RecordedRun};
use crate::{
    evaluate::NamedDrawing,
    figure::{self, DrawError, TimeFigure, TimeLine, TimePanel},
    row::Source,
};

/// Bins of the measurement in a step of a figure. Ours: half a second can be seen.
const STEP_BINS: usize = 5;
const PANEL_HEIGHT: i32 = 130;
/// Range of the queueing axis, ms.
const QUEUE_RANGE: (f64, f64) = (1.0, 10_000.0);
const HEADROOM: f64 = 1.1;

/// A figure for every link: the first round in each source.
///
/// # Errors
/// See [`DrawError`].
pub(crate) fn drawings(
    recorded: &Recorded,
    measured: &Measured,
    quick: bool,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let quick_words = if quick {
        "; a quick run, not for publication"
    } else {
        ""
    };
    let mut drawings = Vec::new();
    for run in measured.runs.iter().filter(|run| run.round == 0) {
        let link = &recorded.links[run.link];
        let (place, suffix) = match run.source {
            Source::Lab => ("laboratory", ""),
            Source::Sim => ("simulator", "-sim"),
        };
        let figure = TimeFigure {
            title: format!("Bulk transfers over the recorded line {}", link.name),
            subtitle: format!(
                "{place}; {} one way, a buffer of {}; steps of {} s{quick_words}",
                link.delay,
                recorded.buffer,
                step_s()
            ),
            to_s: run.seconds,
            spans: Vec::new(),
            panels: vec![throughput(run), queueing(run)],
        };
        drawings.push((format!("{}{suffix}", link.name), figure.draw()?));
    }
    Ok(drawings)
}

fn step_s() -> f64 {
    QUEUEING_BIN.as_secs_f64() * STEP_BINS as f64
}

fn mbit(bytes: u64) -> f64 {
    bytes as f64 * 8e-6 / step_s()
}

fn line<T>(name: &str, colour: usize, bins: &[T], value: impl Fn(&[T]) -> Option<f64>) -> TimeLine {
    let steps = bins.chunks(STEP_BINS).enumerate();
    let steps = steps.map(|(place, step)| (place as f64 * step_s(), value(step)));
    let end = bins.len().div_ceil(STEP_BINS) as f64 * step_s();
    TimeLine {
        name: name.to_owned(),
        colour: figure::colour(colour),
        // The last value holds to the end.
        steps: steps.chain([(end, None)]).collect(),
    }
}

/// The bins of a transport that lie within the run, without a rest that fills no bin.
fn of_transport(run: &RecordedRun, transport: Transport) -> Option<Vec<QueueingBin>> {
    let carried = run.outcome.carried.get(&transport)?;
    let mut bins = carried.bins.clone();
    bins.resize(run.capacity.len(), QueueingBin::default());
    Some(bins)
}

fn throughput(run: &RecordedRun) -> TimePanel {
    let sum = |step: &[QueueingBin]| Some(mbit(step.iter().map(|bin| bin.bytes).sum()));
    let carries = |step: &[u64]| Some(mbit(step.iter().sum()));
    let mut lines = vec![line("the line", PLACES[0], &run.capacity, carries)];
    for (transport, colour) in Transport::BULK.into_iter().zip(&PLACES[1..]) {
        let bins = of_transport(run, transport);
        lines.extend(bins.map(|bins| line(transport.name(), *colour, &bins, sum)));
    }
    let steps = run.capacity.chunks(STEP_BINS);
    let most = steps
        .map(|step| mbit(step.iter().sum()))
        .fold(1.0, f64::max);
    TimePanel {
        name: "IP packets that arrive (Mbit/s)".to_owned(),
        height: PANEL_HEIGHT,
        range: (0.0, most * HEADROOM),
        logarithmic: false,
        ticks: linear_ticks(most),
        lines,
    }
}

fn queueing(run: &RecordedRun) -> TimePanel {
    let mean = |step: &[QueueingBin]| {
        let packets: u64 = step.iter().map(|bin| bin.packets).sum();
        let wait_us: u64 = step.iter().map(|bin| bin.wait_us).sum();
        (packets > 0).then(|| wait_us as f64 / packets as f64 / 1e3)
    };
    let mut lines = Vec::new();
    for (transport, colour) in Transport::BULK.into_iter().zip(&PLACES[1..]) {
        let bins = of_transport(run, transport);
        lines.extend(bins.map(|bins| line(transport.name(), *colour, &bins, mean)));
    }
    TimePanel {
        name: "mean of what packets wait for others (ms, logarithmic; below 1 ms drawn at 1 ms)"
            .to_owned(),
        height: PANEL_HEIGHT,
        range: QUEUE_RANGE,
        logarithmic: true,
        ticks: [1.0, 10.0, 100.0, 1000.0, 10_000.0]
            .map(|ms| (ms, format!("{ms}")))
            .to_vec(),
        lines,
    }
}

/// Colours: the line, then the transports.
const PLACES: [usize; 4] = [5, 1, 2, 0];

/// Marks at round numbers, four at most above zero.
fn linear_ticks(most: f64) -> Vec<(f64, String)> {
    let magnitude = 10_f64.powf((most / 4.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
    let step = steps.into_iter().find(|step| most / step <= 4.0);
    let step = step.unwrap_or(magnitude * 10.0);
    let count = (most / step).floor() as u32;
    (0..=count)
        .map(|number| {
            let value = f64::from(number) * step;
            (value, format!("{}", (value * 1e6).round() / 1e6))
        })
        .collect()
}
