//! From a path's applications to the distribution of each one's delay.

use std::time::Duration;

use super::{
    Forecast, Gateway, Outcome, Scheduler, Spread, Terms, Traffic,
    lattice::{SETTLED_AFTER, Workload},
    poisson::{self, StepWork, Stream, Varied},
    traffic,
    wait::{self, Blocking, Quantiles, Steps, Wait},
};
use crate::delay::{AppSpec, Delay, PathSpec};
use keiro_units::Bandwidth;

/// The workload's range on the lattice ends where more has this probability, roughly.
const BEYOND_RANGE: f64 = 1e-8;

/// The distribution of a response ends where a longer one has this probability.
///
/// The rest is then taken to meet no further overtaker, so nothing is lost but its own lateness.
const LATE_NEGLIGIBLE: f64 = 1e-5;

/// What has no latency target can wait long, and only its percentiles need a lattice: this many times
/// coarser is enough.
const PATIENT_COARSER: usize = 4;

/// An application's messages as the queue sees them.
#[derive(Clone, Debug)]
struct Class {
    /// Messages of the mean length.
    stream: Stream,
    /// The same work as streams of some lengths that vary as much; `stream` if none do.
    parts: Vec<Stream>,
    /// How much longer than the mean a message takes, each as likely, in s; empty if none does.
    longer: Vec<f64>,
    /// By what waiting is multiplied for intervals that are not exponential.
    waits: f64,
    /// `None`: after all that have one.
    latency_target: Option<Duration>,
}

/// Lengths, each as likely, that stand for lengths that vary.
const LENGTHS: usize = 256;

/// Lengths that are taken together to save work, `rising` being all: the shorter half, half of
/// the rest, and so on, because the longest make the tails.
fn together(rising: &[f64]) -> Vec<&[f64]> {
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
enum Ask {
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
    let varied: Vec<Varied> = classes
        .iter()
        .zip(members)
        .map(|(class, &member)| Varied {
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
    let waits = waits(gateway, path, classes, Ask::Everything);
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
    waits(gateway, path, &classes, Ask::Mean)
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
        self.parts = together(&lengths)
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
fn waits(gateway: &Gateway, path: &PathSpec, classes: &[Class], ask: Ask) -> Vec<Option<Wait>> {
    match gateway.scheduler {
        Scheduler::Fifo => fifo(gateway, classes, ask),
        Scheduler::Deadline => deadline(gateway, path, classes, ask),
    }
}

/// Every message waits for the whole workload that it finds.
fn fifo(gateway: &Gateway, classes: &[Class], ask: Ask) -> Vec<Option<Wait>> {
    let streams = streams_where(classes, |_| true);
    let Some(lattice) = stable_lattice(gateway.resolution.steps(), &streams) else {
        return vec![None; classes.len()];
    };
    let quantiles = (ask == Ask::Everything).then(|| {
        let found = lattice.found(&lattice.stationary(&streams), &streams);
        move |class: &Class| steps_of(found.mass(), lattice.step, class, &Blocking::NONE)
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

/// Steps of time and their number.
#[derive(Clone, Copy, Debug)]
struct Lattice {
    /// In seconds.
    step: f64,
    points: usize,
}

impl Lattice {
    /// For the workload of `streams`; `None` at a load of one.
    fn new(points: usize, streams: &[Stream]) -> Option<Self> {
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
fn deadline(gateway: &Gateway, path: &PathSpec, classes: &[Class], ask: Ask) -> Vec<Option<Wait>> {
    let mut waits = vec![None; classes.len()];
    with_target(gateway, path, classes, ask, &mut waits);
    without_target(gateway, classes, ask, &mut waits);
    waits
}

fn with_target(
    gateway: &Gateway,
    path: &PathSpec,
    classes: &[Class],
    ask: Ask,
    waits: &mut [Option<Wait>],
) {
    let mut latency_targets: Vec<Duration> = classes
        .iter()
        .filter_map(|class| class.latency_target)
        .collect();
    latency_targets.sort_unstable();
    latency_targets.dedup();
    let feeding_until = |limit: Duration| {
        streams_where(classes, |latency_target| {
            latency_target.is_some_and(|latency_target| latency_target <= limit)
        })
    };
    let urgent = streams_where(classes, |latency_target| latency_target.is_some());
    let Some(lattice) = stable_lattice(gateway.resolution.steps(), &urgent) else {
        return;
    };
    // The workload just before the last arrival that counts: the most patient application's
    // first, then, as one after the other stops feeding, the less patient ones'.
    let mut before = lattice.stationary(&urgent);
    for (index, &latency_target) in latency_targets.iter().enumerate().rev() {
        let found = lattice.found(&before, &feeding_until(latency_target));
        let blocking = blocking(gateway, path, classes, before.idle());
        let overtakers = Overtakers::of(classes, &latency_targets[..index], latency_target);
        for asked in 0..classes.len() {
            if classes[asked].latency_target != Some(latency_target) {
                continue;
            }
            let same = |class: &Class| {
                class.latency_target == Some(latency_target)
                    && class.stream.service == classes[asked].stream.service
                    && class.longer == classes[asked].longer
            };
            waits[asked] = match classes[..asked].iter().position(same) {
                Some(earlier) => waits[earlier],
                None => {
                    let responses = lattice.responses(&found, &classes[asked], &overtakers);
                    Some(Wait {
                        mean: responses.mean + blocking.mean(),
                        quantiles: (ask == Ask::Everything).then(|| responses.quantiles(&blocking)),
                    })
                }
            };
        }
        if let Some(less) = index
            .checked_sub(1)
            .map(|previous| latency_targets[previous])
        {
            let work = lattice.work(&feeding_until(less));
            before.run(&work, lattice.steps_in(latency_target - less));
        }
    }
}

/// Applications without a latency target wait for all that have one. Priority is preemptive-resume, so the
/// mean is known exactly.
fn without_target(gateway: &Gateway, classes: &[Class], ask: Ask, waits: &mut [Option<Wait>]) {
    if classes.iter().all(|class| class.latency_target.is_some()) {
        return;
    }
    let all = streams_where(classes, |_| true);
    let urgent = streams_where(classes, |latency_target| latency_target.is_some());
    let points = gateway.resolution.steps() / PATIENT_COARSER;
    let Some(lattice) = stable_lattice(points, &all) else {
        return;
    };
    let urgent_load = poisson::load(&urgent);
    let found = lattice.found(&lattice.stationary(&all), &all);
    let overtakers = Overtakers::always(&urgent);
    for (wait, class) in waits.iter_mut().zip(classes) {
        if class.latency_target.is_some() {
            continue;
        }
        // The work found and the message's own, and what overtakes it meanwhile.
        let service = class.stream.service;
        let mean = (poisson::mean_workload(&all) + service * urgent_load) / (1.0 - urgent_load);
        let quantiles = (ask == Ask::Everything).then(|| {
            let responses = lattice.responses(&found, class, &overtakers);
            responses.quantiles(&Blocking::NONE)
        });
        let mean = mean * class.waits;
        *wait = Some(Wait { mean, quantiles });
    }
}

fn streams_where(classes: &[Class], feeds: impl Fn(Option<Duration>) -> bool) -> Vec<Stream> {
    classes
        .iter()
        .filter(|class| feeds(class.latency_target))
        .flat_map(|class| class.parts.iter().copied())
        .collect()
}

/// `None` where the load is not below one.
fn stable_lattice(points: usize, streams: &[Stream]) -> Option<Lattice> {
    let load = poisson::load(streams);
    (load < 1.0)
        .then(|| Lattice::new(points, streams))
        .flatten()
}

/// Less urgent work that is being sent when a message arrives, and is not interrupted.
///
/// `free` is the probability that nothing as urgent is found. The first message of such a busy
/// time may meet less urgent work, and delays all that follow in it by the same rest.
///
/// The path was handed [`Gateway::ahead`] and up to a unit more, unless less was there: what is
/// there is taken as exponential with the mean of the work that a busy path has.
fn blocking(gateway: &Gateway, path: &PathSpec, classes: &[Class], free: f64) -> Blocking {
    let all = streams_where(classes, |_| true);
    let longest_message = all.iter().map(|s| s.service).fold(0.0, f64::max);
    let unit = gateway.wire.full_packet().max(gateway.committed);
    let unit = path.bandwidth.transmission_time_ceil(unit).as_secs_f64();
    let ahead = gateway.ahead.as_secs_f64();
    let load = poisson::load(&all);
    let idle = (1.0 - load).max(0.0);
    // What of it is there, on average; all of it where work never ends.
    let there = if ahead > 0.0 && load < 1.0 {
        let wanted = ahead + unit / 2.0;
        let work = poisson::mean_workload(&all) / load;
        work * -(-wanted / work).exp_m1() / wanted
    } else {
        1.0
    };
    Blocking {
        probability: if free > idle { 1.0 - idle / free } else { 0.0 },
        least: (ahead * there).min(longest_message),
        longest: ((ahead + unit) * there).min(longest_message),
    }
}

/// Who comes later and is served earlier, and for how long: feeding streams, each set until a
/// time after the message's arrival. The first set is the one that ends first.
struct Overtakers {
    phases: Vec<(Option<Duration>, Vec<Stream>)>,
}

impl Overtakers {
    /// Of a message with `latency_target`; `smaller` are the latency targets below it, ascending.
    fn of(classes: &[Class], smaller: &[Duration], latency_target: Duration) -> Self {
        let phases = smaller.iter().rev().map(|&largest| {
            let feeding = streams_where(classes, |other| other.is_some_and(|d| d <= largest));
            (Some(latency_target - largest), feeding)
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

/// What a class waits beyond its mean message's own time.
struct Responses {
    /// Probabilities by step beyond `shortest`.
    mass: Vec<f64>,
    /// In seconds.
    step: f64,
    /// By how much the shortest message's own time is longer than the mean one's, in s: negative,
    /// or zero if lengths do not vary.
    shortest: f64,
    /// In seconds.
    mean: f64,
}

impl Responses {
    fn quantiles(&self, blocking: &Blocking) -> Quantiles {
        let steps = Steps {
            mass: &self.mass,
            step: self.step,
        };
        steps.quantiles(blocking, &[]).later_by(self.shortest)
    }
}

impl Lattice {
    /// What a class waits if it finds `found`; longer messages are overtaken more.
    fn responses(&self, found: &Workload, class: &Class, overtakers: &Overtakers) -> Responses {
        let step = self.step * class.waits;
        let Some(&shortest) = class.longer.first() else {
            let mass = self.response(found, class.stream.service, overtakers);
            let steps = Steps { mass: &mass, step };
            let mean = steps.mean();
            return Responses {
                mass,
                step,
                shortest: 0.0,
                mean,
            };
        };
        let (mut mass, mut mean) = (Vec::new(), 0.0);
        let share = 1.0 / class.longer.len() as f64;
        for chunk in together(&class.longer) {
            let longer = chunk.iter().sum::<f64>() / chunk.len() as f64;
            let service = class.stream.service + longer;
            let waits = self.response(found, service, overtakers);
            let steps = Steps { mass: &waits, step };
            mean += steps.mean() * share * chunk.len() as f64;
            for own in chunk {
                // Between two points, so that the mean is right.
                let position = (own - shortest) / step;
                let (point, above) = (position as usize, position.fract());
                if mass.len() < point + waits.len() + 1 {
                    mass.resize(point + waits.len() + 1, 0.0);
                }
                for (steps, p) in waits.iter().enumerate() {
                    mass[point + steps] += p * share * (1.0 - above);
                    mass[point + steps + 1] += p * share * above;
                }
            }
        }
        Responses {
            mass,
            step,
            shortest,
            mean,
        }
    }

    /// The probabilities that a message of `service` seconds waits 0, 1, 2 … steps beyond them,
    /// if it finds `found`.
    fn response(&self, found: &Workload, service: f64, overtakers: &Overtakers) -> Vec<f64> {
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
                    break;
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
        done.mass
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
}
