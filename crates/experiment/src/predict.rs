//! Predictions for a setup: paths, delays, floors.
//!
//! The mathematics is in `keiro_model`. This module maps a setup's variants to its problems and returns
//! answers in milliseconds.

use std::time::Duration;

use keiro_planner::{
    delay::{AppSpec, Equation3, OverloadPolicy, PathSpec, Tolerance},
    plan::{self, Budget, Problem},
    queueing::{self, Forecast, Gateway, Statistic, WireFormat},
};
use keiro_units::ByteCount;

use crate::setup::{Assignment, Headers, Scheduler, Setup, Transport, Variant};

/// Predictions for one variant.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The path of every application, as an index into the setup's paths.
    pub assignment: Vec<usize>,
    /// Every application's mean delay by [path-selection eq. 3], in ms; `None` if overloaded.
    pub eq3_ms: Vec<Option<f64>>,
    /// Every application's delay by the model of the variant's scheduler, headers included.
    pub forecasts: Vec<Forecast>,
}

impl Predicted {
    /// The mean by the model of the scheduler, in ms; `None` if overloaded.
    pub fn mean_ms(&self, application: usize) -> Option<f64> {
        let delay = self.forecasts[application].delay(Statistic::Mean);
        delay.finite().map(millis)
    }
}

/// Predictions for a variant; `None` if its transport chooses paths itself.
pub fn predict(setup: &Setup, variant: usize) -> Option<Predicted> {
    let (paths, applications) = (paths(setup), applications(setup));
    let variant = &setup.variants[variant];
    let assignment = assignment(setup, variant)?;
    let equation = Equation3 {
        saturation: OverloadPolicy::AsPrinted,
    };
    let problem = Problem::new(&paths, &applications, &equation).ok()?;
    let eq3 = problem.evaluate(&assignment).predictions;
    let mut forecasts = vec![None; applications.len()];
    for (index, path) in paths.iter().enumerate() {
        let members: Vec<usize> = (0..applications.len())
            .filter(|&a| assignment[a] == index)
            .collect();
        let wire = wire_format_on(setup, variant, index)?;
        let reported = gateway(variant, wire).forecast(path, &applications, &members);
        for (member, forecast) in members.into_iter().zip(reported) {
            forecasts[member] = Some(forecast);
        }
    }
    Some(Predicted {
        eq3_ms: eq3.iter().map(|p| p.delay.finite().map(millis)).collect(),
        forecasts: forecasts.into_iter().collect::<Option<_>>()?,
        assignment,
    })
}

/// The path of every application, as an index into the setup's paths; `None` if the transport chooses.
///
/// [`Assignment::Planned`] is the gateway's own plan: the frugal planner with [path-selection eq. 3] and
/// strict latency targets. The laboratory checks that the gateways agree.
pub fn assignment(setup: &Setup, variant: &Variant) -> Option<Vec<usize>> {
    let (paths, applications) = (paths(setup), applications(setup));
    match variant.assignment.as_ref()? {
        Assignment::OnePath(name) => Some(vec![setup.path(name)?; applications.len()]),
        Assignment::Given(names) => names.iter().map(|name| setup.path(name)).collect(),
        Assignment::Paper { tolerance } => {
            let tolerance = Tolerance::from_ratio(tolerance.0.get())?;
            let equation = Equation3::default();
            let problem = Problem::new(&paths, &applications, &equation).ok()?;
            Some(plan::greedy(&problem.with_tolerance(tolerance)).assignment)
        }
        Assignment::Planned => {
            let equation = Equation3::default();
            let problem = Problem::new(&paths, &applications, &equation).ok()?;
            Some(plan::frugal(&problem, Budget::default()).assignment)
        }
    }
}

/// Delay of an idle path for an application's message, in ms: [path-selection eq. 1].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Without headers: no protocol can be faster.
    pub bare_ms: f64,
    /// With the headers of the variant's transport.
    pub with_headers_ms: f64,
}

/// The floor of an application in a variant: on its path, or over all paths together if the transport uses
/// them so.
pub fn floor(setup: &Setup, variant: usize, application: usize) -> Floor {
    let variant = &setup.variants[variant];
    let paths = paths(setup);
    let used: Vec<PathSpec> = match assignment(setup, variant) {
        Some(assignment) if variant.transport != Transport::Mptcp => {
            vec![paths[assignment[application]]]
        }
        _ => paths,
    };
    let length = setup.applications[application].length.0;
    let wire = wire_format(variant.headers).map_or(length, |wire| wire.wire_length(length));
    Floor {
        bare_ms: idle_ms(&used, length),
        with_headers_ms: idle_ms(&used, wire),
    }
}

/// Time in ms until `length` bytes have arrived over the idle `paths` used together: the least t with Σ Wᵢ·(t
/// − Tᵢ)⁺ ≥ length. For one path this is eq. 1.
fn idle_ms(paths: &[PathSpec], length: ByteCount) -> f64 {
    let mut paths: Vec<&PathSpec> = paths.iter().collect();
    paths.sort_by_key(|path| path.delay);
    let bits = length.get() as f64 * 8.0;
    let mut best = f64::INFINITY;
    // With the k fastest paths in use, t = (bits + Σ Wᵢ·Tᵢ) / Σ Wᵢ. A further path helps only if t exceeds
    // its delay; the first such t is the answer.
    let (mut rate, mut under_way) = (0.0, 0.0);
    for path in paths {
        let bandwidth = path.bandwidth.as_bits_per_second() as f64;
        rate += bandwidth;
        under_way += bandwidth * path.delay.as_secs_f64();
        best = f64::min(best, (bits + under_way) / rate);
    }
    best * 1e3
}

fn paths(setup: &Setup) -> Vec<PathSpec> {
    let spec = |path: &crate::setup::Path| PathSpec {
        bandwidth: path.bandwidth.0,
        delay: path.delay.0,
    };
    setup.paths.iter().map(spec).collect()
}

fn applications(setup: &Setup) -> Vec<AppSpec> {
    let spec = |application: &crate::setup::Application| AppSpec {
        length: application.length.0,
        interval: application.interval.0,
        latency_target: Some(application.latency_target.0),
    };
    setup.applications.iter().map(spec).collect()
}

/// The queueing model of a variant. Plain TCP counts as first in, first out, which is closest to connections
/// that share a path without loss.
fn gateway(variant: &Variant, wire: WireFormat) -> Gateway {
    let scheduler = match variant.scheduler {
        Some(Scheduler::Deadline) => queueing::Scheduler::Deadline,
        Some(Scheduler::Fifo) | None => queueing::Scheduler::Fifo,
    };
    // Kernel TCP cannot reorder messages, and its forecast has no urgent ones.
    Gateway {
        ahead: AHEAD,
        ..Gateway::new(scheduler, wire)
    }
}

/// Work that Keiro's pacer hands to an idle path ahead of its rate.
pub(crate) const AHEAD: Duration = Duration::from_millis(1);

/// Size of an acknowledgement within a packet with data: type, path, number 4, arrival time 4, delay 2,
/// marks, ranges and the single range 4. Two of them are shorter early in a session.
const ACKNOWLEDGEMENT: ByteCount = ByteCount::new(18);

/// Header cost on one of the setup's paths; `None` if packets have no room.
///
/// Between gateways, the outcome of every message is returned at once over the path with the lowest delay, as
/// a packet that requests an acknowledgement. So packets on that path carry acknowledgements for the messages
/// of all paths.
pub(crate) fn wire_format_on(setup: &Setup, variant: &Variant, path: usize) -> Option<WireFormat> {
    let wire = wire_format(variant.headers)?;
    let quickest = (0..setup.paths.len()).min_by_key(|index| setup.paths[*index].delay.0);
    if variant.transport != Transport::Gateway || quickest != Some(path) {
        return Some(wire);
    }
    let rates = setup.applications.iter().map(|application| {
        let interval = application.interval.0.as_secs_f64();
        if interval > 0.0 { 1.0 / interval } else { 0.0 }
    });
    let bandwidth = setup.paths[path].bandwidth.0;
    Some(wire.acknowledging(rates.sum(), ACKNOWLEDGEMENT, bandwidth))
}

pub(crate) fn wire_format(headers: Headers) -> Option<WireFormat> {
    WireFormat::new(headers.payload.0, headers.overhead.0)
}

fn millis(delay: Duration) -> f64 {
    delay.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use keiro_planner::{delay, paper};

    use super::*;
    use crate::plan::Plan;

    fn setup() -> Setup {
        Plan::find("path-selection/table6").unwrap().setup
    }

    #[test]
    fn the_setup_is_the_papers() {
        let setup = setup();
        assert_eq!(paths(&setup), paper::PATHS);
        assert_eq!(applications(&setup), paper::APPS);
        assert!(
            setup
                .applications
                .iter()
                .map(|a| a.name.as_str())
                .eq(paper::APP_NAMES)
        );
    }

    #[test]
    fn assignments_are_the_papers_and_the_strict_one() {
        let setup = setup();
        let of = |name: &str| {
            let variant = &setup.variants[setup.variant(name).unwrap()];
            assignment(&setup, variant)
        };
        assert_eq!(of("conventional").unwrap(), paper::CONVENTIONAL);
        assert_eq!(of("paper-assignment").unwrap(), paper::ASSIGNMENT);
        // A4 is predicted 101.5 ms on path 1, more than its 100 ms.
        assert_eq!(of("keiro").unwrap(), [0, 0, 1, 1, 1]);
        assert_eq!(of("mptcp"), None);
    }

    #[test]
    fn keiros_plan_meets_all_targets_at_the_99th_percentile() {
        let setup = setup();
        let predicted = predict(&setup, setup.variant("keiro").unwrap()).unwrap();
        for (application, forecast) in setup.applications.iter().zip(&predicted.forecasts) {
            assert!(
                forecast.margin(Statistic::P99).is_met(),
                "{}: {:?} on {:?}",
                application.name,
                forecast.outcome,
                predicted.assignment
            );
        }
    }

    #[test]
    fn floors_are_those_of_an_idle_path() {
        let setup = setup();
        let keiro = setup.variant("conventional").unwrap();
        let a3 = floor(&setup, keiro, 2);
        assert!((a3.bare_ms - 10.0).abs() < 1e-9, "{a3:?}");
        assert!((a3.with_headers_ms - 10.5).abs() < 0.2, "{a3:?}");
        let a5 = floor(&setup, keiro, 4);
        assert!((a5.bare_ms - 2.8).abs() < 1e-9, "{a5:?}");
    }

    #[test]
    fn several_paths_help_only_beyond_the_slower_ones_delay() {
        let setup = setup();
        let paths = paths(&setup);
        // All 100 kB go over path 2 before path 1 could deliver a byte.
        assert!((idle_ms(&paths, ByteCount::new(100_000)) - 10.0).abs() < 1e-9);
        // 10 MB: 2 ms + 80 Mbit over 200 Mbit/s, plus half of the 98 ms that path 1 starts later.
        let both = idle_ms(&paths, ByteCount::new(10_000_000));
        assert!((both - (400.0 + 51.0)).abs() < 1e-9, "{both}");
    }

    #[test]
    fn the_quickest_paths_packets_acknowledge_the_outcomes_of_all_messages() {
        let mut setup = setup();
        let keiro = setup.variant("conventional").unwrap();
        let overhead = |setup: &Setup, variant: usize, path| {
            let wire = wire_format_on(setup, &setup.variants[variant], path).unwrap();
            wire.overhead_per_packet().get() - setup.variants[variant].headers.overhead.0.get()
        };
        // With few outcomes per second, hardly a packet carries one.
        assert_eq!(overhead(&setup, keiro, 1), 0);
        setup.applications[0].interval.0 = Duration::from_micros(10);
        // Path 2 has the lower delay, and an outcome for every packet.
        assert_eq!([0, 1].map(|path| overhead(&setup, keiro, path)), [0, 18]);
        let tcp = |variant: &Variant| variant.transport == Transport::Tcp;
        let tcp = setup.variants.iter().position(tcp).unwrap();
        assert_eq!(overhead(&setup, tcp, 1), 0);
    }

    #[test]
    fn equation_1_is_the_floor_of_one_path() {
        let alone = delay::alone(&paper::PATHS[1], &paper::APPS[2]);
        let expected = alone.delay.finite().map(millis).unwrap();
        let floor = idle_ms(&paper::PATHS[1..], paper::APPS[2].length);
        assert!((expected - floor).abs() < 1e-6);
    }
}
