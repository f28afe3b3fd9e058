//! From a path's applications to the distribution of each one's delay.

use super::{
    Forecast, ForecastTerms, Gateway, Outcome, Scheduler, Traffic,
    class::{Class, Detail, stable_lattice, streams_where},
    deadline,
    poisson::{self, RenewalStream, Stream},
    wait::{self, Blocking, Quantiles, Steps, Wait},
};
use crate::delay::{AppSpec, Delay, PathSpec};
use keiro_units::Bandwidth;

pub(super) fn forecast(
    gateway: &Gateway,
    path: &PathSpec,
    apps: &[AppSpec],
    members: &[usize],
) -> Vec<Forecast> {
    let terms: Vec<ForecastTerms> = members
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
    let terms: Vec<ForecastTerms> = members
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
    terms: Vec<ForecastTerms>,
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
                terms: ForecastTerms { load, ..terms },
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
    let terms: Vec<ForecastTerms> = members
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

fn classes_of(apps: &[AppSpec], members: &[usize], terms: &[ForecastTerms]) -> Vec<Class> {
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

pub(super) fn terms_of(gateway: &Gateway, path: &PathSpec, app: &AppSpec) -> ForecastTerms {
    let wire_length = gateway.wire.wire_length(app.length);
    let rate = wire_length.rate_over_ceil(app.interval);
    let own_load = match rate {
        Bandwidth::MAX => None,
        rate => rate.ratio_of(path.bandwidth),
    };
    ForecastTerms {
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
