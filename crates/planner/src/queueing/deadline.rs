//! What messages wait where the earliest deadline goes first; see [`super`].
//!
//! Distributions are on a lattice whose range is that of the work that is found. It shrinks as the
//! more patient applications stop counting, and the lattice becomes finer with it: what an urgent
//! application waits is computed as finely, for itself, as what a patient one does.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use super::{
    Gateway,
    class::{Class, Detail, length_groups, stable_lattice, streams_where},
    lattice::{Lattice, SETTLED_AFTER, Workload},
    poisson::{self, Arrivals, StepWork, Stream},
    wait::{Blocking, BlockingCase, Quantiles, Steps, Wait},
};
use crate::delay::PathSpec;

/// The distribution of a response ends where a longer one has this probability.
///
/// The rest is then taken to meet no further overtaker, so nothing is lost but its own lateness.
const LATE_NEGLIGIBLE: f64 = 1e-4;

/// What has no latency target can wait long, and only its percentiles need a lattice: this many times
/// coarser is enough.
const PATIENT_COARSER: usize = 2;

/// A lattice is made finer as soon as the workload fits in half of it, and that is looked at so many
/// times while its range goes by.
const LOOKS: usize = 16;

/// A lattice is made finer if more than half of it has this probability; what is there goes to the
/// end of the finer one. Ours: far below what a 99th percentile depends on, and lower for the workload
/// that all later results rest on than for one response.
const BEYOND_HALF_OF_WORKLOAD: f64 = 1e-5;
const BEYOND_HALF_OF_RESPONSE: f64 = 1e-4;
/// Points of a distribution that is put together from those of messages of several lengths.
const POINTS_MAX: f64 = 4096.0;

pub(super) fn waits(
    gateway: &Gateway,
    path: &PathSpec,
    classes: &[Class],
    detail: Detail,
) -> Vec<Option<Wait>> {
    let mut waits = vec![None; classes.len()];
    with_target(gateway, path, classes, detail, &mut waits);
    without_target(gateway, path, classes, detail, &mut waits);
    waits
}

fn with_target(
    gateway: &Gateway,
    path: &PathSpec,
    classes: &[Class],
    detail: Detail,
    waits: &mut [Option<Wait>],
) {
    let Some(mut feeding) = Feeding::new(gateway, path, classes) else {
        return;
    };
    let less_urgent = LessUrgent::new(gateway, path, classes);
    let last = feeding.targets.len() - 1;
    // The workload just before the last arrival that counts: the most patient application's
    // first, then, as one after the other stops feeding, the less patient ones'.
    let mut before = feeding.settled(last);
    for index in (0..=last).rev() {
        let latency_target = Some(feeding.targets[index]);
        let found = feeding.found(&before, index);
        let blocking = less_urgent.blocking(feeding.free(&before, index));
        for asked in 0..classes.len() {
            if classes[asked].latency_target != latency_target {
                continue;
            }
            let same = |class: &Class| {
                class.latency_target == latency_target
                    && class.stream.service == classes[asked].stream.service
                    && class.longer == classes[asked].longer
            };
            waits[asked] = match classes[..asked].iter().position(same) {
                Some(earlier) => waits[earlier],
                None => {
                    let responses = feeding.responses(&found, &classes[asked], index);
                    Some(Wait {
                        mean: responses.mean + blocking.mean(),
                        quantiles: (detail == Detail::Everything)
                            .then(|| responses.quantiles(&blocking)),
                    })
                }
            };
        }
        if let Some(less) = index.checked_sub(1) {
            let time = feeding.targets[index] - feeding.targets[less];
            feeding.run(&mut before, less, time);
        }
    }
}

/// Applications without a latency target wait for all that have one. Priority is preemptive-resume until
/// the last unit is handed over, so the mean is exact but for what is handed over and for the lattice.
fn without_target(
    gateway: &Gateway,
    path: &PathSpec,
    classes: &[Class],
    detail: Detail,
    waits: &mut [Option<Wait>],
) {
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
    let hand_over = HandOver::new(gateway, path);
    let found = lattice.found(&lattice.stationary(&all), &all);
    let overtakers = [(f64::INFINITY, Rc::new(lattice.work(&urgent)))];
    for (asked, class) in classes.iter().enumerate() {
        if class.latency_target.is_some() {
            continue;
        }
        // The work found, and what overtakes it and the message's own until no more is left than
        // the path was handed.
        let service = class.stream.service;
        let overtaken = lattice.mean_beyond(&found, hand_over.committed(service) - service);
        let mean = poisson::mean_workload(&all) + overtaken * urgent_load / (1.0 - urgent_load);
        let quantiles = (detail == Detail::Everything).then(|| {
            let responses = Responses::of(class, |service| {
                let mass = response(&lattice, &found, service, hand_over, &overtakers);
                (mass, lattice.step)
            });
            responses.quantiles(&Blocking::default())
        });
        let mean = mean * class.waits;
        waits[asked] = Some(Wait { mean, quantiles });
    }
}

/// How a path is handed work: whole units, until it has [`Gateway::ahead`] to send. In s.
#[derive(Clone, Copy, Debug)]
struct HandOver {
    ahead: f64,
    unit: f64,
}

impl HandOver {
    fn new(gateway: &Gateway, path: &PathSpec) -> Self {
        let unit = gateway.wire.full_packet().max(gateway.committed);
        Self {
            ahead: gateway.ahead.as_secs_f64(),
            unit: path.bandwidth.transmission_time_ceil(unit).as_secs_f64(),
        }
    }

    /// What is left to send, of a message that takes `service` and all before it, when its last
    /// unit is handed over.
    fn committed(&self, service: f64) -> f64 {
        let units_before = (service / self.unit).ceil() - 1.0;
        self.ahead + (service - units_before.max(0.0) * self.unit).clamp(0.0, self.unit)
    }
}

/// Less urgent work that is being sent when a message arrives, and is not interrupted.
///
/// The path was handed [`Gateway::ahead`] and up to a unit more, or all that there was: what is
/// there is taken as exponential with the mean of the work that a busy path has.
struct LessUrgent {
    /// The probability that the path has nothing to send.
    idle: f64,
    /// What of it is met, if any is.
    cases: [BlockingCase; 2],
}

impl LessUrgent {
    fn new(gateway: &Gateway, path: &PathSpec, classes: &[Class]) -> Self {
        let all = streams_where(classes, |_| true);
        let longest_message = all.iter().map(|s| s.service).fold(0.0, f64::max);
        let HandOver { ahead, unit } = HandOver::new(gateway, path);
        let load = poisson::load(&all);
        let handed = ahead + unit / 2.0;
        // All of it is there where work never ends.
        let (more, less_than_that) = if ahead > 0.0 && load < 1.0 {
            let work = poisson::mean_workload(&all) / load;
            let more = (-handed / work).exp();
            (more, (work - handed * more / (1.0 - more)).max(0.0))
        } else {
            (1.0, 0.0)
        };
        let case = |probability, least, longest| BlockingCase {
            probability,
            least,
            longest,
        };
        Self {
            idle: (1.0 - load).max(0.0),
            cases: [
                case(more, ahead, ahead + unit.min(longest_message)),
                case(1.0 - more, 0.0, 2.0 * less_than_that),
            ],
        }
    }

    /// What a message waits for it. `free` is the probability that nothing as urgent is found. The
    /// first message of such a busy time may meet less urgent work, and delays all that follow in
    /// it by the same rest.
    fn blocking(&self, free: f64) -> Blocking {
        let is_met = free > self.idle;
        let met = if is_met { 1.0 - self.idle / free } else { 0.0 };
        Blocking {
            cases: self.cases.map(|case| BlockingCase {
                probability: met * case.probability,
                ..case
            }),
        }
    }
}

/// A workload and how often the steps of its lattice were halved; negative: doubled.
#[derive(Clone, Debug)]
struct FoundWorkload {
    workload: Workload,
    level: i32,
}

/// The applications with a latency target, by rising target, on lattices whose steps differ by
/// powers of two.
struct Feeding {
    /// Rising.
    targets: Vec<Duration>,
    /// By target.
    streams: Vec<Vec<Stream>>,
    /// By target: the level whose lattice has just the range of the workload of all up to it.
    levels: Vec<i32>,
    /// Of level 0.
    lattice: Lattice,
    hand_over: HandOver,
    /// By level and target: what all up to the target bring in one step, and in half a step.
    works: BTreeMap<(i32, usize), [Rc<StepWork>; 2]>,
}

impl Feeding {
    /// `None` where no application has a target, or the load of those that have is not below one.
    fn new(gateway: &Gateway, path: &PathSpec, classes: &[Class]) -> Option<Self> {
        let points = gateway.resolution.steps();
        let mut by_target: BTreeMap<Duration, Vec<Stream>> = BTreeMap::new();
        for class in classes {
            if let Some(target) = class.latency_target {
                let streams = by_target.entry(target).or_default();
                streams.extend_from_slice(&class.parts);
            }
        }
        let (targets, streams): (Vec<Duration>, Vec<Vec<Stream>>) = by_target.into_iter().unzip();
        if targets.is_empty() {
            return None;
        }
        let lattice = stable_lattice(points, &streams.concat())?;
        let mut levels = Vec::with_capacity(targets.len());
        let mut up_to = Vec::new();
        for streams in &streams {
            up_to.extend_from_slice(streams);
            let own = Lattice::new(points, &up_to)?;
            levels.push((lattice.step / own.step).log2().floor().max(0.0) as i32);
        }
        Some(Self {
            targets,
            streams,
            levels,
            lattice,
            hand_over: HandOver::new(gateway, path),
            works: BTreeMap::new(),
        })
    }

    fn lattice(&self, level: i32) -> Lattice {
        Lattice {
            step: self.lattice.step * f64::from(-level).exp2(),
            ..self.lattice
        }
    }

    /// What all up to the target at `index` bring in a step of `level`, and in half of one.
    fn works(&mut self, level: i32, index: usize) -> [Rc<StepWork>; 2] {
        if let Some(works) = self.works.get(&(level, index)) {
            return works.clone();
        }
        let Lattice { step, points } = self.lattice(level);
        let mut arrivals = Arrivals::new(step, points - 1);
        for (index, streams) in self.streams[..=index].iter().enumerate() {
            for stream in streams {
                arrivals.add(stream);
            }
            let works = [1.0, 0.5].map(|part| Rc::new(arrivals.work(part)));
            self.works.insert((level, index), works);
        }
        self.works[&(level, index)].clone()
    }

    /// The stationary workload of all up to the target at `index`.
    fn settled(&mut self, index: usize) -> FoundWorkload {
        let level = self.levels[index];
        let [work, _] = self.works(level, index);
        FoundWorkload {
            workload: Workload::stationary(&work, self.lattice.points),
            level,
        }
    }

    /// The workload that a message finds at a random time within a step: half a step's arrivals
    /// more than just before it. With it the mean is Pollaczek and Khinchine's.
    fn found(&mut self, before: &FoundWorkload, index: usize) -> FoundWorkload {
        let mut found = before.clone();
        let [_, half] = self.works(before.level, index);
        found.workload.add(&half);
        found
    }

    /// The probability that a message finds none: exactly one less the load, once that has settled.
    fn free(&mut self, before: &FoundWorkload, index: usize) -> f64 {
        let [work, _] = self.works(before.level, index);
        before.workload.idle() * work.none * (1.0 - work.steady())
    }

    /// Lets `time` pass in which all up to the target at `index` send.
    fn run(&mut self, found: &mut FoundWorkload, index: usize, time: Duration) {
        let (finest, points) = (self.levels[index], self.lattice.points);
        let (mut left, mut looks) = (time.as_secs_f64(), 0);
        loop {
            while found.level < finest
                && found.workload.beyond(points / 2) < BEYOND_HALF_OF_WORKLOAD
            {
                found.workload.refine();
                found.level += 1;
            }
            let [work, _] = self.works(found.level, index);
            let step = self.lattice(found.level).step * work.time;
            let steps = (left / step).round() as usize;
            if found.level == finest {
                found.workload.run(&work, steps);
                return;
            }
            let now = steps.min((points / LOOKS).max(1));
            if now == 0 {
                return;
            }
            looks += 1;
            if looks > SETTLED_AFTER * LOOKS {
                *found = self.settled(index);
                return;
            }
            for _ in 0..now {
                found.workload.step(&work);
            }
            left -= now as f64 * step;
        }
    }

    /// What a class with the target at `index` waits if it finds `found`; longer messages are
    /// overtaken more.
    fn responses(&mut self, found: &FoundWorkload, class: &Class, index: usize) -> Responses {
        Responses::of(class, |service| self.response(found, service, index))
    }

    /// As [`response`], and the step of its lattice, in s.
    fn response(&mut self, found: &FoundWorkload, service: f64, index: usize) -> (Vec<f64>, f64) {
        let mut found = found.clone();
        // A long message needs no lattice as fine as what it finds.
        let enough = self.lattice.points as f64 / 2.0;
        while service > enough * self.lattice(found.level).step {
            found.workload.coarsen();
            found.level -= 1;
        }
        // What overtakes must fit in a lattice that is made finer.
        let finest = index.checked_sub(1).map(|sooner| self.levels[sooner]);
        while finest.is_some_and(|finest| found.level < finest)
            && found.workload.beyond(enough as usize) < BEYOND_HALF_OF_RESPONSE
            && 2.0 * service <= enough * self.lattice(found.level).step
        {
            found.workload.refine();
            found.level += 1;
        }
        let lattice = self.lattice(found.level);
        let phases: Vec<_> = (0..index)
            .rev()
            .map(|sooner| {
                let until = self.targets[index] - self.targets[sooner];
                let [work, _] = self.works(found.level, sooner);
                (until.as_secs_f64() / lattice.step, work)
            })
            .collect();
        let mass = response(&lattice, &found.workload, service, self.hand_over, &phases);
        (mass, lattice.step)
    }
}

/// The probabilities that a message of `service` seconds waits 0, 1, 2 … steps beyond them, if it
/// finds `found`.
///
/// What was handed to the path is overtaken no longer. `phases`: what comes later and is served earlier, each until so many steps after the message's
/// arrival, by rising end.
fn response(
    lattice: &Lattice,
    found: &Workload,
    service: f64,
    hand_over: HandOver,
    phases: &[(f64, Rc<StepWork>)],
) -> Vec<f64> {
    let own = (service / lattice.step).round() as usize;
    let committed = (hand_over.committed(service) / lattice.step).round() as usize;
    let mut done = Completions {
        own: own as f64,
        mass: Vec::new(),
    };
    let mut left = vec![0.0; own];
    left.extend_from_slice(found.mass());
    // What fits into that is handed to the path at once.
    for steps in own..committed.min(left.len()) {
        done.add(steps as f64, std::mem::take(&mut left[steps]));
    }
    left.drain(..committed.min(left.len()));
    let done_after = committed as f64;
    let mut now = 0.0;
    let mut next = Vec::new();
    for (until, work) in phases {
        // A steady flow may take nearly all of the path: neither steps nor time may become too many.
        let end = until.min(now + (SETTLED_AFTER * lattice.points) as f64);
        let steps = ((end - now) / work.time).round().max(0.0) as usize;
        for _ in 0..steps {
            let unfinished: f64 = left.iter().sum();
            if unfinished < LATE_NEGLIGIBLE {
                break;
            }
            done.add(now + done_after, left[0]);
            advance(&left, work, lattice.points + own, &mut next);
            std::mem::swap(&mut left, &mut next);
            now += work.time;
        }
    }
    // Nothing overtakes any more: what is left takes just its time.
    for (steps, &p) in left.iter().enumerate() {
        done.add(now + done_after + steps as f64, p);
    }
    done.mass
}

/// One step of sending what is `left`; what was at zero is done and gone.
fn advance(left: &[f64], work: &StepWork, points_max: usize, next: &mut Vec<f64>) {
    let rest = &left[1.min(left.len())..];
    let largest = work.atoms.last().map_or(0, |&(size, _)| size);
    let points = (rest.len() + largest).min(points_max).max(1);
    next.clear();
    next.resize(points, 0.0);
    for (to, from) in next.iter_mut().zip(rest) {
        *to = work.none * from;
    }
    for &(size, p) in &work.atoms {
        let near = points.saturating_sub(size).min(rest.len());
        let (near, far) = rest.split_at(near);
        for (to, from) in next[points.min(size)..].iter_mut().zip(near) {
            *to += p * from;
        }
        if !far.is_empty() {
            next[points - 1] += p * far.iter().sum::<f64>();
        }
    }
    while next.len() > 1 && next[next.len() - 1] < LATE_NEGLIGIBLE * 1e-5 {
        next.pop();
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
    /// From what messages of each service time, in s, wait beyond it, with the step of that
    /// distribution, in s.
    fn of(class: &Class, mut response: impl FnMut(f64) -> (Vec<f64>, f64)) -> Self {
        let Some(&shortest) = class.longer.first() else {
            let (mass, step) = response(class.stream.service);
            let step = step * class.waits;
            let mean = Steps { mass: &mass, step }.mean();
            return Self {
                mass,
                step,
                shortest: 0.0,
                mean,
            };
        };
        let lanes: Vec<(&[f64], Vec<f64>, f64)> = length_groups(&class.longer)
            .into_iter()
            .map(|chunk| {
                let longer = chunk.iter().sum::<f64>() / chunk.len() as f64;
                let (waits, step) = response(class.stream.service + longer);
                (chunk, waits, step * class.waits)
            })
            .collect();
        let ends = lanes
            .iter()
            .map(|(_, waits, step)| waits.len() as f64 * step);
        let longest = class
            .longer
            .last()
            .map_or(0.0, |longest| longest - shortest);
        let range = ends.fold(0.0, f64::max) + longest;
        let finest = lanes
            .iter()
            .map(|&(_, _, step)| step)
            .fold(f64::MAX, f64::min);
        let step = finest.max(range / POINTS_MAX);
        let (mut mass, mut mean) = (vec![0.0; (range / step) as usize + 3], 0.0);
        let share = 1.0 / class.longer.len() as f64;
        for (chunk, waits, own_step) in lanes {
            let steps = Steps {
                mass: &waits,
                step: own_step,
            };
            mean += steps.mean() * share * chunk.len() as f64;
            for own in chunk {
                // Between two points, so that the mean is right.
                for (steps, p) in waits.iter().enumerate().filter(|(_, p)| **p > 0.0) {
                    let position = (own - shortest + steps as f64 * own_step) / step;
                    let (point, above) = (position as usize, position.fract());
                    mass[point] += p * share * (1.0 - above);
                    mass[point + 1] += p * share * above;
                }
            }
        }
        Self {
            mass,
            step,
            shortest,
            mean,
        }
    }

    fn quantiles(&self, blocking: &Blocking) -> Quantiles {
        let steps = Steps {
            mass: &self.mass,
            step: self.step,
        };
        steps.quantiles(blocking, &[]).later_by(self.shortest)
    }
}

/// Probabilities of being done, by the steps waited beyond the message's own.
struct Completions {
    own: f64,
    mass: Vec<f64>,
}

impl Completions {
    fn add(&mut self, after: f64, p: f64) {
        // Between two points, so that the mean is right.
        let waited = (after - self.own).max(0.0);
        let (point, above) = (waited as usize, waited.fract());
        if self.mass.len() < point + 2 {
            self.mass.resize(point + 2, 0.0);
        }
        self.mass[point] += p * (1.0 - above);
        self.mass[point + 1] += p * above;
    }
}
