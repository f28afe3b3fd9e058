//! Mean delays in a closed form, for planners that ask about thousands of sets of applications.
//!
//! First in, first out, the mean is Pollaczek and Khinchine's, as in the forecast. By deadline the
//! computation follows the forecast's: the work that a message finds before it is that of all
//! applications with a target, less what was sent since the more patient of them stopped counting;
//! and while it is being served, each application with an earlier deadline adds to it, for as long
//! as the targets differ (Wald). Only means and the probability of an empty queue are kept: what is
//! above zero is taken as exponential. Applications beyond [`GROUPS_MAX`] are taken together with
//! neighbours in order of their targets. There are no transcendental functions, so that every
//! machine computes the same.

use super::{
    Gateway, Scheduler, Spread, Traffic,
    poisson::{RenewalStream, Stream, arrival_factor},
    response::terms_of,
};
use crate::delay::PathSpec;

/// Beyond so many applications with a target, neighbours are taken together.
const GROUPS_MAX: usize = 12;
/// How often the equation of a response is iterated.
const ROUNDS: usize = 3;

/// A path, as estimates need it.
#[derive(Clone, Copy, Debug)]
pub struct PathEstimate {
    gateway: Gateway,
    path: PathSpec,
    /// The time to send a full packet, in s.
    unit: f64,
}

/// An application on one path, as estimates need it.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Part of the path's time.
    load: f64,
    /// In s.
    service: f64,
    /// What it adds to the mean workload of an idle path: λE\[S²\]/2, in s.
    residual: f64,
    rate: f64,
    length_spread: f64,
    interval_spread: f64,
    /// In s; infinite without one.
    target: f64,
}

/// Applications with nearly one target, taken together.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    count: f64,
    load: f64,
    residual: f64,
    /// Mean by load, in s.
    target: f64,
    /// Mean by load, in s.
    service: f64,
    /// What their messages find before them.
    found: Backlog,
    /// What overtakes a message, as a part of what it finds and its own time.
    overtaken: f64,
    /// What overtakes a message at most, in s.
    overtakers: f64,
}

/// Work that waits, as far as it is as urgent as a message.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    /// In s.
    mean: f64,
    /// The probability that there is any.
    busy: f64,
}

impl PathEstimate {
    /// For the means of a gateway's forecasts over `path`.
    pub fn new(gateway: &Gateway, path: &PathSpec) -> Self {
        let unit = gateway.wire.full_packet().max(gateway.committed);
        let unit = path.bandwidth.transmission_time_ceil(unit).as_secs_f64();
        Self {
            gateway: *gateway,
            path: *path,
            unit,
        }
    }

    /// An application on this path.
    pub fn flow(&self, traffic: &Traffic) -> Flow {
        let terms = terms_of(&self.gateway, &self.path, &traffic.app);
        let service = terms.transmission.as_secs_f64();
        let rate = 1.0 / traffic.app.interval.as_secs_f64();
        let load = rate * service;
        let target = traffic.app.latency_target;
        Flow {
            load,
            service,
            residual: load * service * (1.0 + traffic.length_spread.ratio()) / 2.0,
            rate,
            length_spread: traffic.length_spread.ratio(),
            interval_spread: traffic.interval_spread.ratio(),
            target: target.map_or(f64::INFINITY, |target| target.as_secs_f64()),
        }
    }

    /// The work of [`delays`](Self::delays) for so many, a unit being about ten nanoseconds.
    pub fn work(&self, flows: usize) -> u64 {
        let flows = flows as u64;
        let rounds = ROUNDS as u64;
        match self.gateway.scheduler {
            Scheduler::Fifo => 6 + flows / 2,
            Scheduler::Deadline if flows > GROUPS_MAX as u64 => {
                8 * flows + rounds * (GROUPS_MAX * GROUPS_MAX) as u64 / 2
            }
            Scheduler::Deadline => 4 + flows * (4 + rounds * flows / 2),
        }
    }

    /// The mean delay of each of `flows` in seconds when exactly they share the path; infinite
    /// where it is overloaded for it. Replaces what `delays` holds.
    pub fn delays(&self, flows: &[Flow], delays: &mut Vec<f64>) {
        delays.clear();
        let load: f64 = flows.iter().map(|flow| flow.load).sum();
        let residual: f64 = flows.iter().map(|flow| flow.residual).sum();
        let waits = waits_factor(flows);
        let workload = workload(residual, load);
        match self.gateway.scheduler {
            Scheduler::Fifo => delays.extend(
                flows
                    .iter()
                    .map(|flow| self.path.delay.as_secs_f64() + flow.service + workload * waits),
            ),
            Scheduler::Deadline => self.by_deadline(flows, load, workload, waits, delays),
        }
    }

    fn by_deadline(
        &self,
        flows: &[Flow],
        load: f64,
        workload_of_all: f64,
        waits: f64,
        delays: &mut Vec<f64>,
    ) {
        let propagation = self.path.delay.as_secs_f64();
        let urgent = flows.iter().filter(|flow| flow.target.is_finite());
        let (urgent_load, residual) = urgent.fold((0.0, 0.0), |(load, residual), flow| {
            (load + flow.load, residual + flow.residual)
        });
        let urgent_work = workload(residual, urgent_load);
        let mut groups = groups_of(flows);
        // Of many applications, those of a group are overtaken alike.
        let is_grouped = flows.len() > GROUPS_MAX;
        if is_grouped {
            overtake(&mut groups);
        }
        let blocking = self.blocking(flows, load, workload_of_all);
        delays.extend(flows.iter().map(|flow| {
            if flow.target.is_infinite() {
                let wait = (workload_of_all + flow.service * urgent_load) / (1.0 - urgent_load);
                return match load < 1.0 {
                    true => propagation + flow.service + wait * waits,
                    false => f64::INFINITY,
                };
            }
            if urgent_work.is_infinite() {
                return f64::INFINITY;
            }
            let position = groups.partition_point(|group| group.target < flow.target);
            let found = match groups.get(position).or(groups.last()) {
                Some(group) => group.found,
                None => Backlog::default(),
            };
            let response = match groups.get(position).or(groups.last()) {
                Some(group) if is_grouped => {
                    let least = found.mean + flow.service;
                    least + (least * group.overtaken).min(group.overtakers)
                }
                _ => response(&groups, flow.target, flow.service, found),
            };
            let free = 1.0 - found.busy;
            let idle = (1.0 - load).max(0.0);
            let blocked = match free > idle {
                true => (1.0 - idle / free) * blocking,
                false => 0.0,
            };
            propagation + flow.service + (response - flow.service) * waits + blocked
        }));
    }

    /// The mean of what a message waits for less urgent work that is being sent, if it meets any.
    fn blocking(&self, flows: &[Flow], load: f64, workload: f64) -> f64 {
        let longest = flows.iter().map(|flow| flow.service).fold(0.0, f64::max);
        let ahead = self.gateway.ahead.as_secs_f64();
        let there = if ahead > 0.0 && load < 1.0 && workload > 0.0 {
            let wanted = ahead + self.unit / 2.0;
            smaller(workload / load, 1.0, wanted) / wanted
        } else {
            1.0
        };
        let least = (ahead * there).min(longest);
        let most = ((ahead + self.unit) * there).min(longest);
        f64::midpoint(least, most)
    }
}

impl Flow {
    /// Part of the path's time that it takes.
    pub const fn load(&self) -> f64 {
        self.load
    }
}

/// What overtakes messages of each group.
fn overtake(groups: &mut [Group]) {
    for index in 0..groups.len() {
        let group = groups[index];
        let least = group.found.mean + group.service;
        let response = response(&groups[..index], group.target, group.service, group.found);
        let overtakers = groups[..index].iter();
        groups[index].overtakers = overtakers
            .map(|other| other.load * (group.target - other.target))
            .sum();
        groups[index].overtaken = match least > 0.0 {
            true => response / least - 1.0,
            false => 0.0,
        };
    }
}

/// How long a message with a `target` that takes `service` takes from its arrival until its last
/// byte is sent, if it finds `found`.
fn response(groups: &[Group], target: f64, service: f64, found: Backlog) -> f64 {
    let least = found.mean + service;
    let mut response = least;
    for _ in 0..ROUNDS {
        let beyond = response - service;
        let overtakes = groups.iter().map(|group| {
            let sooner = target - group.target;
            match sooner > service {
                _ if sooner <= 0.0 => 0.0,
                true => {
                    let busy = found.busy.max(beyond / response);
                    group.load * (service + smaller(beyond, busy, sooner - service))
                }
                false => group.load * sooner,
            }
        });
        response = least + overtakes.sum::<f64>();
    }
    response
}

impl Backlog {
    /// After `time` in which only streams arrive that together would have the backlog `settled`.
    ///
    /// The mean falls by what is sent, which is `busy`, less what arrives. An exponential backlog
    /// without arrivals does so exactly.
    fn after(self, time: f64, settled: Self) -> Self {
        let (more, busier) = (self.mean - settled.mean, self.busy - settled.busy);
        if more <= 0.0 || busier <= 0.0 {
            return settled;
        }
        let left = decay(time * busier / more);
        Self {
            mean: settled.mean + more * left,
            busy: settled.busy + busier * left,
        }
    }
}

/// The mean of the smaller of `time` and what has this mean and is above zero with `probability`,
/// and is exponential then.
fn smaller(mean: f64, probability: f64, time: f64) -> f64 {
    if mean <= 0.0 || probability <= 0.0 {
        return 0.0;
    }
    mean * (1.0 - decay(time * probability / mean))
}

/// e^-x, within 0.01.
fn decay(x: f64) -> f64 {
    1.0 / (1.0 + x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x / 24.0))))
}

fn workload(residual: f64, load: f64) -> f64 {
    match load < 1.0 {
        true => residual / (1.0 - load),
        false => f64::INFINITY,
    }
}

/// By what waiting is multiplied where intervals are not exponential.
fn waits_factor(flows: &[Flow]) -> f64 {
    let exponential = Spread::EXPONENTIAL.ratio();
    if flows.iter().all(|flow| flow.interval_spread == exponential) {
        return 1.0;
    }
    let varied: Vec<RenewalStream> = flows
        .iter()
        .map(|flow| RenewalStream {
            stream: Stream {
                rate: flow.rate,
                service: flow.service,
            },
            length_spread: flow.length_spread,
            interval_spread: flow.interval_spread,
        })
        .collect();
    arrival_factor(&varied)
}

/// The flows with a target, by rising target, as groups of about equal load where they are many.
fn groups_of(flows: &[Flow]) -> Vec<Group> {
    let mut rising: Vec<&Flow> = flows.iter().filter(|f| f.target.is_finite()).collect();
    rising.sort_by(|one, other| one.target.total_cmp(&other.target));
    let load: f64 = rising.iter().map(|flow| flow.load).sum();
    let enough = match rising.len() <= GROUPS_MAX {
        true => 0.0,
        false => load / GROUPS_MAX as f64,
    };
    let mut groups: Vec<Group> = Vec::with_capacity(rising.len().min(GROUPS_MAX + 1));
    for flow in rising {
        match groups.last_mut() {
            Some(group) if group.load < enough || group.target == flow.target => group.add(flow),
            _ => {
                let mut group = Group::default();
                group.add(flow);
                groups.push(group);
            }
        }
    }
    let mut settled: Vec<Backlog> = Vec::with_capacity(groups.len());
    let (mut load, mut residual) = (0.0, 0.0);
    for group in &groups {
        load += group.load;
        residual += group.residual;
        settled.push(Backlog {
            mean: workload(residual, load),
            busy: load,
        });
    }
    let mut found = settled.last().copied().unwrap_or_default();
    for index in (0..groups.len()).rev() {
        groups[index].found = found;
        if let Some(less) = index.checked_sub(1) {
            found = found.after(groups[index].target - groups[less].target, settled[less]);
        }
    }
    groups
}

impl Group {
    fn add(&mut self, flow: &Flow) {
        let load = self.load + flow.load;
        let share = match load > 0.0 {
            true => flow.load / load,
            false => 1.0 / (self.count + 1.0),
        };
        self.count += 1.0;
        self.load = load;
        self.residual += flow.residual;
        self.service += (flow.service - self.service) * share;
        self.target += (flow.target - self.target) * share;
    }
}
