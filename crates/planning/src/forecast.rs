//! Forecasts of delays for the scheduler in use: mean and percentiles, corrected by what was
//! measured of the path before; or the reason why there are none.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{PathIndex, Scheduler},
    protocol::PredictedPercentiles,
};
use keiro_planner::{
    delay::{Delay, PathSpec},
    queueing::{
        self, DelayDistribution, Forecast, Gateway, LossRecoveryDelay, NoForecast, Offered,
        Residual, Resolution, SharedLine, Statistic, Traffic, TrafficWindow, WireFormat,
    },
};
use keiro_units::{Bandwidth, ByteCount};

/// The queueing model's forecast for one application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DelayForecast {
    /// Before corrections; measurements are compared with this.
    pub forecast: Forecast,
    /// The corrected delay, or why there is none.
    pub delay: Result<DelayDistribution, NoForecast>,
}

/// What forecasts rest on besides path and traffic.
#[derive(Clone, Debug, Default)]
pub struct ForecastState {
    /// Learnt corrections by path.
    pub residuals: BTreeMap<PathIndex, Residual>,
    /// Recently computed forecasts.
    cache: ForecastCache,
}

/// A cache of forecasts. They are shown every second and cost up to tens of milliseconds per
/// application, but change only with their inputs.
#[derive(Clone, Debug, Default)]
struct ForecastCache(RefCell<CachedSets>);

#[derive(Clone, Debug, Default)]
struct CachedSets {
    /// Those of one key are compared one by one.
    sets: BTreeMap<SetKey, Vec<CachedForecasts>>,
    /// Applications in all of them.
    apps: usize,
    /// Raised by every use.
    uses: u64,
}

/// What most sets differ by: the path's rate and delay in nanoseconds, the number of applications, and the sums of their
/// lengths and intervals.
type SetKey = (u64, u128, usize, u64, u128);

#[derive(Clone, Debug)]
struct CachedForecasts {
    gateway: Gateway,
    path: PathSpec,
    traffic: Vec<Traffic>,
    forecasts: Vec<Forecast>,
    /// [`CachedSets::uses`] when it was used last.
    used: u64,
}

/// Applications in all cached forecasts. Ours: some 6 MB, and as many as a gateway has.
const CACHED_APPS_MAX: usize = 16_384;
/// Of all uses, those since which half of the applications that are cached have been used; the others are forgotten.
const KEPT_PART: usize = 2;

impl ForecastCache {
    fn forecasts(&self, gateway: Gateway, path: &PathSpec, traffic: Vec<Traffic>) -> Vec<Forecast> {
        let mut cached = self.0.borrow_mut();
        cached.uses += 1;
        let now = cached.uses;
        let key = key(path, &traffic);
        let mut of_key = cached.sets.get_mut(&key).into_iter().flatten();
        let known = of_key
            .find(|set| set.gateway == gateway && set.path == *path && set.traffic == traffic);
        if let Some(known) = known {
            known.used = now;
            return known.forecasts.clone();
        }
        let members: Vec<usize> = (0..traffic.len()).collect();
        let forecasts = gateway.forecast_traffic(path, &traffic, &members);
        cached.apps += traffic.len();
        cached.sets.entry(key).or_default().push(CachedForecasts {
            gateway,
            path: *path,
            forecasts: forecasts.clone(),
            traffic,
            used: now,
        });
        if cached.apps > CACHED_APPS_MAX {
            cached.forget_oldest();
        }
        forecasts
    }
}

impl CachedSets {
    /// Forgets what was used the longest time ago, half of the applications.
    fn forget_oldest(&mut self) {
        let all = self.sets.values().flatten();
        let mut by_use: Vec<(u64, usize)> = all.map(|set| (set.used, set.traffic.len())).collect();
        by_use.sort_unstable_by_key(|(used, _)| std::cmp::Reverse(*used));
        let (mut kept, mut least) = (0, u64::MAX);
        for (used, apps) in by_use {
            if kept + apps > CACHED_APPS_MAX / KEPT_PART {
                break;
            }
            (kept, least) = (kept + apps, used);
        }
        self.sets.retain(|_, sets| {
            sets.retain(|set| set.used >= least);
            !sets.is_empty()
        });
        self.apps = kept;
    }
}

fn key(path: &PathSpec, traffic: &[Traffic]) -> SetKey {
    let lengths = traffic.iter().map(|traffic| traffic.app.length.get());
    let intervals = traffic
        .iter()
        .map(|traffic| traffic.app.interval.as_nanos());
    (
        path.bandwidth.as_bits_per_second(),
        path.delay.as_nanos(),
        traffic.len(),
        lengths.fold(0, u64::wrapping_add),
        intervals.sum(),
    )
}

/// Bytes per packet: IPv4 and UDP 28, our header and tag 26, the message frame about 18.
const OVERHEAD_PER_PACKET: u64 = 72;
/// Messages in packets.
const MESSAGES: WireFormat = {
    let payload = ByteCount::new(PACKET_BYTES - OVERHEAD_PER_PACKET);
    match WireFormat::new(payload, ByteCount::new(OVERHEAD_PER_PACKET)) {
        Some(format) => format,
        None => panic!("a packet has room for a message"),
    }
};
/// An acknowledgement within a data packet: type, path, number 4, arrival time 4 (8 after 18
/// minutes), delay 2, ECN marks, range count and one range 4.
const ACKNOWLEDGEMENT: ByteCount = ByteCount::new(18);
/// IP bytes of a full packet.
const PACKET_BYTES: u64 = 1500;
/// Sets of more applications are forecast coarsely.
const FINE_APPS_MAX: usize = 8;
/// The data thread passes packets to a path while less than this is queued: the pacer's burst
/// bound.
const AHEAD: Duration = Duration::from_millis(1);

/// Packets of a message of `length`.
pub fn packets_of(length: ByteCount) -> u64 {
    MESSAGES.packets(length)
}

/// Wire bytes of a message of `length`, without acknowledgements.
pub fn wire_length(length: ByteCount) -> ByteCount {
    MESSAGES.wire_length(length)
}

/// The wire format over a path of `bandwidth` over which `outcomes` return per second and are
/// acknowledged.
pub fn wire_format(bandwidth: Bandwidth, outcomes: f64) -> WireFormat {
    MESSAGES.acknowledging(outcomes, ACKNOWLEDGEMENT, bandwidth)
}

/// The resolution for `apps` applications on one path.
pub fn resolution(apps: usize) -> Resolution {
    match apps <= FINE_APPS_MAX {
        true => Resolution::FINE,
        false => Resolution::COARSE,
    }
}

/// A path as forecasts need it.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    pub index: PathIndex,
    /// Without the cost of losses.
    pub path: PathSpec,
    pub repair: LossRecoveryDelay,
    /// Message outcomes that return over it per second, and are acknowledged.
    pub outcomes: f64,
    /// Other gateways on it; `None`: there are none.
    pub shared: Option<&'a SharedLine>,
}

/// An application as forecasts need it.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub traffic: Traffic,
    /// Observations of its traffic, where they matter.
    pub traffic_window: Option<TrafficWindow>,
    /// Its losses are retransmitted.
    pub is_repaired: bool,
}

/// The queueing model of a path.
pub fn gateway(scheduler: Scheduler, line: &Line<'_>, resolution: Resolution) -> Gateway {
    let wire = wire_format(line.path.bandwidth, line.outcomes);
    let scheduler = match scheduler {
        Scheduler::Deadline => queueing::Scheduler::Deadline,
        Scheduler::Fifo => queueing::Scheduler::Fifo,
    };
    Gateway {
        ahead: AHEAD,
        resolution,
        ..Gateway::new(scheduler, wire)
    }
}

/// Forecasts for applications that share a path.
pub fn forecasts_of(
    scheduler: Scheduler,
    line: &Line<'_>,
    apps: &[Sender],
    forecast_state: &ForecastState,
    resolution: Resolution,
) -> Vec<DelayForecast> {
    let gateway = gateway(scheduler, line, resolution);
    let traffic: Vec<Traffic> = apps.iter().map(|app| app.traffic).collect();
    let own = Offered::of(&traffic, &gateway.wire);
    let mut forecasts = forecast_state.cache.forecasts(gateway, &line.path, traffic);
    let residual = forecast_state.residuals.get(&line.index);
    let mut bursts = bursts(&forecasts, apps);
    if let Some(joint) = line.shared.map(|shared| shared.joint(&own)) {
        forecasts.iter_mut().for_each(|f| *f = joint.of(*f));
        bursts += joint.bursts();
    }
    let forecast = |(forecast, app): (Forecast, &Sender)| {
        let checked = app.check_traffic(&forecast);
        let checked =
            checked.and_then(|()| NoForecast::if_among_bursts(bursts).map_or(Ok(()), Err));
        let forecast = match app.is_repaired {
            true => line.repair.of(forecast, packets_of(app.traffic.app.length)),
            false => forecast,
        };
        let corrected = || match residual {
            Some(residual) => residual.correct(&forecast).map(|corrected| corrected.delay),
            None => Residual::new()
                .correct(&forecast)
                .map(|corrected| corrected.delay),
        };
        DelayForecast {
            forecast,
            delay: checked.and_then(|()| corrected()),
        }
    };
    forecasts.into_iter().zip(apps).map(forecast).collect()
}

/// Load of the applications that send bursts, as a part of the path's rate.
fn bursts(forecasts: &[Forecast], apps: &[Sender]) -> f64 {
    let of_bursts = |(forecast, app): &(&Forecast, &Sender)| {
        let checked = app.check_traffic(forecast);
        checked.is_err_and(|invalid| invalid.is_bursts())
    };
    let loads = forecasts.iter().zip(apps).filter(of_bursts);
    loads.map(|(forecast, _)| forecast.terms.own_load).sum()
}

impl Sender {
    /// Whether its observed traffic can be forecast.
    fn check_traffic(&self, forecast: &Forecast) -> Result<(), NoForecast> {
        let load = forecast.terms.load;
        self.traffic_window
            .map_or(Ok(()), |window| window.check(load))
    }
}

impl DelayForecast {
    /// The mean; `None` where there is no forecast for another reason than overload.
    pub fn mean(&self) -> Option<Delay> {
        match self.delay {
            Ok(delay) => Some(Delay::Finite(delay.get(Statistic::Mean))),
            Err(NoForecast::Overloaded { .. }) => Some(Delay::Overloaded),
            Err(_) => None,
        }
    }

    /// A statistic in seconds; `None`: no forecast.
    pub fn seconds(&self, statistic: Statistic) -> Option<f64> {
        let delay = self.delay.ok()?;
        Some(delay.get(statistic).as_secs_f64())
    }

    /// For the protocol.
    pub fn percentiles(&self) -> PredictedPercentiles {
        PredictedPercentiles {
            p50_seconds: self.seconds(Statistic::P50),
            p95_seconds: self.seconds(Statistic::P95),
            p99_seconds: self.seconds(Statistic::P99),
        }
    }

    /// Why there is no forecast, if there is none.
    pub fn why_not(&self) -> Option<String> {
        self.delay.err().map(|invalid| invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_forecasts_are_those_of_their_inputs_and_bounded() {
        let cache = ForecastCache::default();
        let scheduler = queueing::Scheduler::Fifo;
        let gateway = Gateway {
            resolution: Resolution::COARSE,
            ..Gateway::new(
                scheduler,
                wire_format(Bandwidth::from_mbit_per_second(10), 0.0),
            )
        };
        let path = |number: u64| PathSpec {
            bandwidth: Bandwidth::from_bits_per_second(10_000_000 + number),
            delay: Duration::from_millis(5),
        };
        let traffic = |number: usize| {
            let app = keiro_planner::delay::AppSpec {
                length: ByteCount::new(100 + number as u64 % 7),
                interval: Duration::from_secs(100),
                latency_target: None,
            };
            vec![Traffic::paper(app); 64]
        };
        let direct = |number: usize| {
            let members: Vec<usize> = (0..64).collect();
            gateway.forecast_traffic(&path(number as u64), &traffic(number), &members)
        };
        for number in 0..2 * CACHED_APPS_MAX / 64 {
            let path = path(number as u64);
            let found = cache.forecasts(gateway, &path, traffic(number));
            let again = cache.forecasts(gateway, &path, traffic(number));
            assert_eq!(found, again);
            let cached = cache.0.borrow();
            let apps = cached.sets.values().flatten().map(|set| set.traffic.len());
            assert_eq!(apps.sum::<usize>(), cached.apps);
            assert!(cached.apps <= CACHED_APPS_MAX, "{}", cached.apps);
        }
        assert_eq!(cache.forecasts(gateway, &path(3), traffic(3)), direct(3));
    }
}
