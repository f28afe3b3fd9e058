//! From a path's applications to the distribution of each one's delay.

use std::time::Duration;

use super::{
    DelayDistribution, Forecast, Gateway, Outcome, Scheduler, Terms,
    lattice::Workload,
    poisson::{self, StepWork, Stream},
};
use crate::{
    Bandwidth,
    delay::{AppSpec, PathSpec},
};

/// The workload's range on the lattice ends where more has this probability, roughly.
const BEYOND_RANGE: f64 = 1e-8;

/// The distribution of a response ends where a longer one has this probability.
const LATE_NEGLIGIBLE: f64 = 1e-7;

/// After this many times the workload's range, what is still unfinished is taken to meet no
/// further overtaker. A bound on the work near a load of one, nothing else ever gets there.
const SETTLED_AFTER: usize = 16;

/// An application's messages as the queue sees them.
#[derive(Clone, Copy, Debug)]
struct Class {
    stream: Stream,
    /// `None`: after all that have one.
    demand: Option<Duration>,
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
    let load: f64 = terms.iter().map(|terms| terms.own_load).sum();
    let classes: Vec<Class> = members
        .iter()
        .zip(&terms)
        .map(|(&app, terms)| Class {
            stream: Stream {
                rate: 1.0 / apps[app].interval.as_secs_f64(),
                service: terms.transmission.as_secs_f64(),
            },
            demand: apps[app].demand,
        })
        .collect();
    let waits = match gateway.scheduler {
        Scheduler::Fifo => fifo(gateway, &classes, load),
        Scheduler::Deadline => deadline(gateway, path, &classes),
    };
    members
        .iter()
        .zip(terms)
        .zip(waits)
        .map(|((&app, terms), wait)| Forecast {
            terms: Terms { load, ..terms },
            demand: apps[app].demand,
            outcome: match wait {
                None => Outcome::Overloaded,
                Some(wait) => {
                    Outcome::Stable(wait.after(path.delay.saturating_add(terms.transmission)))
                }
            },
        })
        .collect()
}

fn terms_of(gateway: &Gateway, path: &PathSpec, app: &AppSpec) -> Terms {
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

/// What a message waits beyond its own transmission, in seconds.
#[derive(Clone, Copy, Debug)]
struct Wait {
    mean: f64,
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Wait {
    fn after(self, floor: Duration) -> DelayDistribution {
        let plus = |seconds: f64| {
            let nanos = (seconds.max(0.0) * 1e9).ceil();
            floor.saturating_add(Duration::from_nanos(nanos as u64))
        };
        DelayDistribution {
            mean: plus(self.mean),
            p50: plus(self.p50),
            p95: plus(self.p95),
            p99: plus(self.p99),
        }
    }

    fn shifted(self, seconds: f64) -> Self {
        Self {
            mean: self.mean + seconds,
            p50: self.p50 + seconds,
            p95: self.p95 + seconds,
            p99: self.p99 + seconds,
        }
    }

    /// From the probabilities of waiting 0, 1, 2 … steps.
    ///
    /// Zero is exactly zero; every other point stands for the step around it.
    fn of(mass: &[f64], step: f64) -> Self {
        let whole: f64 = mass.iter().sum();
        let mean: f64 = mass
            .iter()
            .enumerate()
            .map(|(steps, p)| steps as f64 * p)
            .sum();
        let quantile = |probability: f64| {
            let mut left = probability * whole - mass[0];
            for (steps, &p) in mass.iter().enumerate().skip(1) {
                if left <= 0.0 {
                    return 0.0;
                }
                if left <= p {
                    return (steps as f64 - 0.5 + left / p) * step;
                }
                left -= p;
                if left <= 0.0 {
                    return (steps as f64 + 0.5) * step;
                }
            }
            0.0_f64.max(left.signum()) * mass.len() as f64 * step
        };
        Self {
            mean: mean / whole * step,
            p50: quantile(0.50),
            p95: quantile(0.95),
            p99: quantile(0.99),
        }
    }
}

/// Every message waits for the whole workload that it finds.
fn fifo(gateway: &Gateway, classes: &[Class], load: f64) -> Vec<Option<Wait>> {
    if load.is_nan() || load >= 1.0 {
        return vec![None; classes.len()];
    }
    let streams: Vec<Stream> = classes.iter().map(|class| class.stream).collect();
    let Some(lattice) = Lattice::new(gateway, &streams) else {
        return vec![None; classes.len()];
    };
    let found = lattice.found(&lattice.stationary(&streams), &streams);
    let wait = Wait {
        // The lattice is for the percentiles; the mean is known exactly.
        mean: poisson::mean_workload(&streams),
        ..Wait::of(found.mass(), lattice.step)
    };
    vec![Some(wait); classes.len()]
}

/// Steps of time and their number.
#[derive(Clone, Copy, Debug)]
struct Lattice {
    /// Seconds.
    step: f64,
    points: usize,
}

impl Lattice {
    /// For the workload of `streams`; `None` at a load of one.
    fn new(gateway: &Gateway, streams: &[Stream]) -> Option<Self> {
        let points = gateway.resolution.steps();
        let longest = streams.iter().map(|s| s.service).fold(0.0, f64::max);
        let range = if longest > 0.0 {
            -BEYOND_RANGE.ln() / poisson::tail_rate(streams)? + longest
        } else {
            1.0
        };
        Some(Self {
            step: range / points as f64,
            points,
        })
    }

    fn work(&self, streams: &[Stream]) -> StepWork {
        StepWork::new(streams, self.step, 1.0, self.points - 1)
    }

    fn stationary(&self, streams: &[Stream]) -> Workload {
        Workload::stationary(&self.work(streams), self.points)
    }

    /// The workload that a message finds at a random time within a step: half a step's arrivals
    /// more than just before it. With it the mean is Pollaczek and Khinchine's.
    fn found(&self, before: &Workload, feeding: &[Stream]) -> Workload {
        let mut found = before.clone();
        found.add(&StepWork::new(feeding, self.step, 0.5, self.points - 1));
        found
    }

    fn steps_in(&self, time: Duration) -> usize {
        (time.as_secs_f64() / self.step).round() as usize
    }
}

/// Earliest deadline first; see the module's head.
fn deadline(gateway: &Gateway, path: &PathSpec, classes: &[Class]) -> Vec<Option<Wait>> {
    let mut demands: Vec<Duration> = classes.iter().filter_map(|class| class.demand).collect();
    demands.sort_unstable();
    demands.dedup();
    let urgent: Vec<Stream> = streams_where(classes, |demand| demand.is_some());
    let all: Vec<Stream> = streams_where(classes, |_| true);
    let blocking = Blocking::new(gateway, path, &all);

    let mut waits = vec![None; classes.len()];
    if let Some(lattice) = stable_lattice(gateway, &urgent) {
        let mut before = lattice.stationary(&urgent);
        for (index, &demand) in demands.iter().enumerate().rev() {
            let feeding = streams_where(classes, |other| other.is_some_and(|d| d <= demand));
            let found = lattice.found(&before, &feeding);
            let blocked = blocking.mean(before.idle());
            for (wait, class) in waits.iter_mut().zip(classes) {
                if class.demand == Some(demand) {
                    let overtakers = Overtakers::of(classes, &demands[..index], demand);
                    let response = lattice.response(&found, class.stream.service, &overtakers);
                    *wait = Some(response.shifted(blocked));
                }
            }
            if let Some(less) = index.checked_sub(1).map(|previous| demands[previous]) {
                let feeding = streams_where(classes, |other| other.is_some_and(|d| d <= less));
                before.run(&lattice.work(&feeding), lattice.steps_in(demand - less));
            }
        }
    }
    if all.len() > urgent.len()
        && let Some(lattice) = stable_lattice(gateway, &all)
    {
        let found = lattice.found(&lattice.stationary(&all), &all);
        let overtakers = Overtakers::always(&urgent);
        let (all_load, urgent_load) = (poisson::load(&all), poisson::load(&urgent));
        for (wait, class) in waits.iter_mut().zip(classes) {
            if class.demand.is_none() {
                let own = class.stream.service;
                // Preemptive-resume priority, exact: the work found and its own, and what
                // overtakes it meanwhile.
                let found_mean = poisson::mean_workload(&all);
                let mean = (found_mean + own * urgent_load) / (1.0 - urgent_load);
                debug_assert!(all_load < 1.0);
                *wait = Some(Wait {
                    mean,
                    ..lattice.response(&found, own, &overtakers)
                });
            }
        }
    }
    waits
}

fn streams_where(classes: &[Class], feeds: impl Fn(Option<Duration>) -> bool) -> Vec<Stream> {
    classes
        .iter()
        .filter(|class| feeds(class.demand))
        .map(|class| class.stream)
        .collect()
}

fn stable_lattice(gateway: &Gateway, streams: &[Stream]) -> Option<Lattice> {
    let load = poisson::load(streams);
    (load < 1.0)
        .then(|| Lattice::new(gateway, streams))
        .flatten()
}

/// Less urgent work that is being sent when a message arrives, and is not interrupted.
#[derive(Clone, Copy, Debug)]
struct Blocking {
    /// The mean rest of what is being sent, in seconds.
    rest: f64,
    /// The probability that nothing at all is being sent.
    idle: f64,
}

impl Blocking {
    fn new(gateway: &Gateway, path: &PathSpec, all: &[Stream]) -> Self {
        let unit = gateway.wire.full_packet().max(gateway.committed);
        let longest = all.iter().map(|s| s.service).fold(0.0, f64::max);
        let unit = path.bandwidth.transmission_time_ceil(unit).as_secs_f64();
        Self {
            rest: unit.min(longest) / 2.0,
            idle: (1.0 - poisson::load(all)).max(0.0),
        }
    }

    /// The mean wait for it, where nothing as urgent is found with the probability `free`.
    fn mean(&self, free: f64) -> f64 {
        if free <= 0.0 {
            return 0.0;
        }
        self.rest * (1.0 - self.idle / free).max(0.0)
    }
}

/// Who comes later and is served earlier, and for how long: feeding streams, each set until a
/// time after the message's arrival. The first set is the one that ends first.
struct Overtakers {
    phases: Vec<(Option<Duration>, Vec<Stream>)>,
}

impl Overtakers {
    /// Of a message with `demand`; `smaller` are the demands below it, ascending.
    fn of(classes: &[Class], smaller: &[Duration], demand: Duration) -> Self {
        let phases = smaller.iter().rev().map(|&largest| {
            let feeding = streams_where(classes, |other| other.is_some_and(|d| d <= largest));
            (Some(demand - largest), feeding)
        });
        Self {
            phases: phases.collect(),
        }
    }

    /// Streams that always are.
    fn always(streams: &[Stream]) -> Self {
        Self {
            phases: vec![(None, streams.to_vec())],
        }
    }
}

impl Lattice {
    /// What a message of `service` seconds waits beyond them, if it finds `found`.
    fn response(&self, found: &Workload, service: f64, overtakers: &Overtakers) -> Wait {
        let own = (service / self.step).round() as usize;
        let mut left = vec![0.0; own];
        left.extend_from_slice(found.mass());
        let mut done = Completions {
            own,
            mass: Vec::new(),
        };
        let mut now = 0_usize;
        for (until, feeding) in &overtakers.phases {
            let until = until.map_or(usize::MAX, |until| self.steps_in(until));
            let until = until.min(now.saturating_add(SETTLED_AFTER * self.points));
            let work = self.work(feeding);
            while now < until {
                let unfinished: f64 = left.iter().sum();
                if unfinished < LATE_NEGLIGIBLE {
                    return done.wait(self.step);
                }
                done.add(now, left[0]);
                left = advance(&left, &work, self.points + own);
                now += 1;
            }
        }
        // Nothing overtakes any more: what is left takes just its time.
        for (steps, &p) in left.iter().enumerate() {
            done.add(now + steps, p);
        }
        done.wait(self.step)
    }
}

/// One step of sending what is `left`; what was at zero is done and gone.
fn advance(left: &[f64], work: &StepWork, points_max: usize) -> Vec<f64> {
    let rest = &left[1.min(left.len())..];
    let largest = work.atoms.last().map_or(0, |&(size, _)| size);
    let points = (rest.len() + largest).min(points_max).max(1);
    let mut next = vec![0.0; points];
    for (to, from) in next.iter_mut().zip(rest) {
        *to = work.none * from;
    }
    for &(size, p) in &work.atoms {
        let near = points.saturating_sub(size).min(rest.len());
        if near > 0 {
            for (to, from) in next[size..].iter_mut().zip(&rest[..near]) {
                *to += p * from;
            }
        }
        next[points - 1] += p * rest[near..].iter().sum::<f64>();
    }
    while next.len() > 1 && next[next.len() - 1] < LATE_NEGLIGIBLE * 1e-6 {
        next.pop();
    }
    next
}

/// Probabilities of being done, by the steps waited beyond the message's own.
struct Completions {
    own: usize,
    mass: Vec<f64>,
}

impl Completions {
    fn add(&mut self, after: usize, p: f64) {
        let waited = after.saturating_sub(self.own);
        if self.mass.len() <= waited {
            self.mass.resize(waited + 1, 0.0);
        }
        self.mass[waited] += p;
    }

    fn wait(&self, step: f64) -> Wait {
        Wait::of(&self.mass, step)
    }
}
