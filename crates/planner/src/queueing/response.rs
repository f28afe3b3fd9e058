//! From a path's applications to the distribution of each one's delay.

use std::time::Duration;

use super::{
    Forecast, Gateway, Outcome, Scheduler, Spread, Terms, Traffic, deadline,
    lattice::Lattice,
    poisson::{self, RenewalStream, Stream},
    traffic,
    wait::{self, Blocking, Quantiles, Steps, Wait},
};
use crate::delay::{AppSpec, Delay, PathSpec};
use keiro_units::Bandwidth;

/// An application's messages as the queue sees them.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// Messages of the mean length.
    pub(super) stream: Stream,
    /// The same work as streams of some lengths that vary as much; `stream` if none do.
    pub(super) parts: Vec<Stream>,
    /// How much longer than the mean a message takes, each as likely, in s; empty if none does.
    pub(super) longer: Vec<f64>,
    /// By what waiting is multiplied for intervals that are not exponential.
    pub(super) waits: f64,
    /// `None`: after all that have one.
    pub(super) latency_target: Option<Duration>,
}

/// Lengths, each as likely, that stand for lengths that vary.
const LENGTHS: usize = 256;

/// Lengths that are taken together to save work, `rising` being all: the shorter half, half of
/// the rest, and so on, because the longest make the tails.
pub(super) fn length_groups(rising: &[f64]) -> Vec<&[f64]> {
    let (mut parts, mut rest) = (Vec::new(), rising);
    while rest.len() > 2 {
        let (part, longer) = rest.split_at(rest.len() / 2);
        parts.push(part);
        rest = longer;
    }
    parts.push(rest);
    parts
}

/// What is to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Mean,
    Everything,
}

pub(super) fn forecast(
    gateway: &Gateway,
    path: &PathSpec,
    apps: &[AppSpec],
    members: &[usize],
) -> Vec<Forecast> {
    let terms: Vec<Terms> = members
        .iter()
        .map(|&app| terms_of(gateway, path, &apps[app]))
        .collect();
    let classes = classes_of(apps, members, &terms);
    answer(gateway, path, apps, members, terms, &classes)
}

/// As [`forecast`], for messages whose lengths and intervals vary.
pub(super) fn forecast_traffic(
    gateway: &Gateway,
    path: &PathSpec,
    varying: &[Traffic],
    members: &[usize],
) -> Vec<Forecast> {
    let apps: Vec<AppSpec> = varying.iter().map(|traffic| traffic.app).collect();
    let terms: Vec<Terms> = members
        .iter()
        .map(|&app| terms_of(gateway, path, &apps[app]))
        .collect();
    let mut classes = classes_of(&apps, members, &terms);
    for (class, &member) in classes.iter_mut().zip(members) {
        class.vary(varying[member].length_spread);
    }
    let varied: Vec<RenewalStream> = classes
        .iter()
        .zip(members)
        .map(|(class, &member)| RenewalStream {
            stream: class.stream,
            length_spread: varying[member].length_spread.ratio(),
            interval_spread: varying[member].interval_spread.ratio(),
        })
        .collect();
    let waits = poisson::arrival_factor(&varied);
    for class in &mut classes {
        class.waits = waits;
    }
    answer(gateway, path, &apps, members, terms, &classes)
}

fn answer(
    gateway: &Gateway,
    path: &PathSpec,
    apps: &[AppSpec],
    members: &[usize],
    terms: Vec<Terms>,
    classes: &[Class],
) -> Vec<Forecast> {
    let load: f64 = terms.iter().map(|terms| terms.own_load).sum();
    let waits = waits(gateway, path, classes, Detail::Everything);
    members
        .iter()
        .zip(terms)
        .zip(waits)
        .map(|((&app, terms), wait)| {
            let floor = path.delay.saturating_add(terms.transmission);
            Forecast {
                terms: Terms { load, ..terms },
                latency_target: apps[app].latency_target,
                outcome: wait
                    .and_then(|wait| wait.after(floor))
                    .map_or(Outcome::Overloaded, Outcome::Stable),
            }
        })
        .collect()
}

/// The means alone, which take less work.
pub(super) fn means(
    gateway: &Gateway,
    path: &PathSpec,
    apps: &[AppSpec],
    members: &[usize],
) -> Vec<Delay> {
    let terms: Vec<Terms> = members
        .iter()
        .map(|&app| terms_of(gateway, path, &apps[app]))
        .collect();
    let classes = classes_of(apps, members, &terms);
    waits(gateway, path, &classes, Detail::Mean)
        .into_iter()
        .zip(terms)
        .map(|(wait, terms)| match wait {
            None => Delay::Overloaded,
            Some(wait) => {
                let floor = path.delay.saturating_add(terms.transmission);
                Delay::Finite(wait::later(floor, wait.mean))
            }
        })
        .collect()
}

fn classes_of(apps: &[AppSpec], members: &[usize], terms: &[Terms]) -> Vec<Class> {
    members
        .iter()
        .zip(terms)
        .map(|(&app, terms)| {
            let stream = Stream {
                rate: 1.0 / apps[app].interval.as_secs_f64(),
                service: terms.transmission.as_secs_f64(),
            };
            Class {
                stream,
                parts: vec![stream],
                longer: Vec::new(),
                waits: 1.0,
                latency_target: apps[app].latency_target,
            }
        })
        .collect()
}

impl Class {
    /// Lets lengths vary: a Poisson stream falls into Poisson streams, one for each length.
    fn vary(&mut self, spread: Spread) {
        if spread == Spread::NONE {
            return;
        }
        let lengths = traffic::values(self.stream.service, spread, LENGTHS);
        self.longer = lengths.iter().map(|l| l - self.stream.service).collect();
        // Fewer streams for the lattice: neighbours together, with their mean square kept.
        self.parts = length_groups(&lengths)
            .into_iter()
            .map(|chunk| {
                let count = chunk.len() as f64;
                let mean = chunk.iter().sum::<f64>() / count;
                let square = chunk.iter().map(|l| l * l).sum::<f64>() / count;
                // A stream of this length and rate has the chunk's work and second moment.
                let service = square / mean;
                let share = count / lengths.len() as f64;
                Stream {
                    rate: self.stream.rate * share * mean / service,
                    service,
                }
            })
            .collect();
    }
}

pub(super) fn terms_of(gateway: &Gateway, path: &PathSpec, app: &AppSpec) -> Terms {
    let wire_length = gateway.wire.wire_length(app.length);
    let rate = wire_length.rate_over_ceil(app.interval);
    let own_load = match rate {
        Bandwidth::MAX => None,
        rate => rate.ratio_of(path.bandwidth),
    };
    Terms {
        propagation: path.delay,
        bandwidth: path.bandwidth,
        length: app.length,
        wire_length,
        transmission: path.bandwidth.transmission_time_ceil(wire_length),
        own_load: own_load.unwrap_or(f64::INFINITY),
        load: f64::INFINITY,
    }
}

/// The wait of every application, `None` where overloaded.
fn waits(
    gateway: &Gateway,
    path: &PathSpec,
    classes: &[Class],
    detail: Detail,
) -> Vec<Option<Wait>> {
    match gateway.scheduler {
        Scheduler::Fifo => fifo(gateway, classes, detail),
        Scheduler::Deadline => deadline::waits(gateway, path, classes, detail),
    }
}

/// Every message waits for the whole workload that it finds.
fn fifo(gateway: &Gateway, classes: &[Class], detail: Detail) -> Vec<Option<Wait>> {
    let streams = streams_where(classes, |_| true);
    let Some(lattice) = stable_lattice(gateway.resolution.steps(), &streams) else {
        return vec![None; classes.len()];
    };
    let quantiles = (detail == Detail::Everything).then(|| {
        let found = lattice.found(&lattice.stationary(&streams), &streams);
        move |class: &Class| steps_of(found.mass(), lattice.step, class, &Blocking::default())
    });
    // The lattice is for the percentiles; the mean is known exactly.
    let mean = poisson::mean_workload(&streams);
    let mut waits: Vec<Option<Wait>> = Vec::with_capacity(classes.len());
    for (index, class) in classes.iter().enumerate() {
        let same = |other: &Class| other.longer == class.longer && other.waits == class.waits;
        waits.push(match classes[..index].iter().position(same) {
            Some(earlier) => waits[earlier],
            None => Some(Wait {
                mean: mean * class.waits,
                quantiles: quantiles.as_ref().map(|of| of(class)),
            }),
        });
    }
    waits
}

/// The percentiles of what a class waits and of how much longer its messages take.
fn steps_of(mass: &[f64], step: f64, class: &Class, blocking: &Blocking) -> Quantiles {
    let steps = Steps {
        mass,
        step: step * class.waits,
    };
    steps.quantiles(blocking, &class.longer)
}

pub(super) fn streams_where(
    classes: &[Class],
    feeds: impl Fn(Option<Duration>) -> bool,
) -> Vec<Stream> {
    classes
        .iter()
        .filter(|class| feeds(class.latency_target))
        .flat_map(|class| class.parts.iter().copied())
        .collect()
}

/// `None` where the load is not below one.
pub(super) fn stable_lattice(points: usize, streams: &[Stream]) -> Option<Lattice> {
    let load = poisson::load(streams);
    (load < 1.0)
        .then(|| Lattice::new(points, streams))
        .flatten()
}
