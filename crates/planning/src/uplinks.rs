//! What applications to different peers share: the uplinks.
//!
//! Each path to a peer has its own delay, loss and narrowest line, which is mostly that of the other end. On an uplink
//! all of them meet. While it has room, that delays none of them by more than a packet; when it may fill, what the
//! gateway sends to others is planned with as what other gateways of a site are ([`keiro_planner::queueing::SharedLine`]).

use std::collections::BTreeMap;

use keiro_control::config::{AppIndex, PathIndex, PathOrigin, PeerIndex};
use keiro_planner::queueing::{Offered, Traffic};
use keiro_units::Bandwidth;

use crate::{
    config::PlannerConfig,
    forecast::wire_format,
    input::{MeasuredWorkload, PlannerInput, traffic_of},
};

/// From this part of its rate on an uplink may delay packets by more than the transmission of one: below, the mean wait
/// of an M/D/1 queue is less than half of a packet's. Ours.
const SHARE_WITH_ROOM: f64 = 0.5;
/// What an uplink without a configured rate carries beyond what it carries now. Ours: it would have lost some otherwise.
const ROOM_LEFT: f64 = 4.0 / 3.0;

/// Uplinks that all traffic together may fill.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uplinks {
    rates: BTreeMap<PathIndex, Bandwidth>,
}

/// What the gateway sends over a path's uplink to other peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Neighbours {
    /// What the uplink carries.
    pub(crate) rate: Bandwidth,
    pub(crate) offered: Offered,
}

/// What is sent over uplinks, by uplink and peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct UplinkLoads(BTreeMap<(PathIndex, PeerIndex), Offered>);

/// The path that another one leaves by: itself, unless it is a further one over an uplink.
fn uplink(config: &PlannerConfig, path: PathIndex) -> PathIndex {
    match config[path].origin {
        PathOrigin::Further(of) => of,
        PathOrigin::Written | PathOrigin::Auto => path,
    }
}

impl Uplinks {
    /// Those that may fill when applications to several peers are on them.
    pub(crate) fn that_may_fill(config: &PlannerConfig, input: &PlannerInput) -> Self {
        let mut present: BTreeMap<PathIndex, Bandwidth> = BTreeMap::new();
        let mut possible: BTreeMap<(PeerIndex, PathIndex), Bandwidth> = BTreeMap::new();
        let mut uplinks_to: BTreeMap<PeerIndex, Vec<PathIndex>> = BTreeMap::new();
        for (path, peer) in input.up.keys() {
            let uplinks = uplinks_to.entry(*peer).or_default();
            let uplink = uplink(config, *path);
            if !uplinks.contains(&uplink) {
                uplinks.push(uplink);
            }
        }
        for (number, app) in config.apps.iter().enumerate() {
            let index = AppIndex(number);
            let rate = Offered::of([&traffic(config, input, index)], &format()).rate();
            for uplink in uplinks_to.get(&app.peer).into_iter().flatten() {
                let sum = possible.entry((app.peer, *uplink)).or_default();
                *sum = sum.saturating_add(rate);
            }
            let is_sending = matches!(
                input.workloads.get(&index),
                Some(MeasuredWorkload::Sending(_))
            );
            if let Some(at) = input.now.get(&index).filter(|_| is_sending) {
                let sum = present.entry(uplink(config, *at)).or_default();
                *sum = sum.saturating_add(rate);
            }
        }
        let mut sums: BTreeMap<PathIndex, (usize, Bandwidth)> = BTreeMap::new();
        for ((_, uplink), rate) in possible {
            let (peers, sum) = sums.entry(uplink).or_default();
            (*peers, *sum) = (*peers + 1, sum.saturating_add(rate));
        }
        let may_fill = |(uplink, (peers, sum)): (PathIndex, (usize, Bandwidth))| {
            let now = present.get(&uplink).copied().unwrap_or_default();
            let rate = rate_of(config, input, uplink, now);
            let part = sum.ratio_of(rate).unwrap_or(f64::INFINITY);
            (peers > 1 && part > SHARE_WITH_ROOM).then_some((uplink, rate))
        };
        Self {
            rates: sums.into_iter().filter_map(may_fill).collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// What applications send over these uplinks where `places` has them.
    pub(crate) fn loads(
        &self,
        config: &PlannerConfig,
        input: &PlannerInput,
        places: &BTreeMap<AppIndex, PathIndex>,
    ) -> UplinkLoads {
        let mut loads = UplinkLoads::default();
        for (app, path) in places {
            loads.add(self, config, input, *app, *path);
        }
        loads
    }
}

impl UplinkLoads {
    pub(crate) fn add(
        &mut self,
        uplinks: &Uplinks,
        config: &PlannerConfig,
        input: &PlannerInput,
        app: AppIndex,
        path: PathIndex,
    ) {
        let uplink = uplink(config, path);
        if uplinks.rates.contains_key(&uplink) {
            let of_peer = self.0.entry((uplink, config[app].peer)).or_default();
            of_peer.add(&traffic(config, input, app), &format());
        }
    }

    /// Forgets what is sent to a peer.
    pub(crate) fn remove(&mut self, peer: PeerIndex) {
        self.0.retain(|(_, of), _| *of != peer);
    }

    /// What is sent to others than `peer`, by path.
    pub(crate) fn beside(
        &self,
        uplinks: &Uplinks,
        config: &PlannerConfig,
        peer: PeerIndex,
    ) -> BTreeMap<PathIndex, Neighbours> {
        let mut sums: BTreeMap<PathIndex, Offered> = BTreeMap::new();
        for ((uplink, of), offered) in &self.0 {
            if *of != peer {
                sums.entry(*uplink).or_default().add_all(offered);
            }
        }
        let paths = (0..config.paths.len()).map(PathIndex);
        let neighbours = |path: PathIndex| {
            let uplink = uplink(config, path);
            let neighbours = Neighbours {
                rate: *uplinks.rates.get(&uplink)?,
                offered: *sums.get(&uplink)?,
            };
            Some((path, neighbours))
        };
        paths.filter_map(neighbours).collect()
    }
}

impl Neighbours {
    /// What they leave of a path that carries `path` when it is alone on the uplink.
    pub(crate) fn take_of(&self, path: Bandwidth) -> Bandwidth {
        let wanted = path.saturating_add(self.offered.rate());
        wanted.saturating_sub(self.rate).min(path)
    }
}

/// What an uplink carries: as configured, otherwise no less than was measured of a path over it and than it carries now.
fn rate_of(
    config: &PlannerConfig,
    input: &PlannerInput,
    at: PathIndex,
    now: Bandwidth,
) -> Bandwidth {
    if let Some(rate) = config[at].rate {
        return rate;
    }
    let over_it = input.up.iter();
    let over_it = over_it.filter(|((path, _), _)| uplink(config, *path) == at);
    let measured = over_it.map(|((path, _), sample)| {
        let assumed = config[*path].rate_assumed();
        sample.map_or(assumed, |sample| sample.bandwidth)
    });
    let carried = now.as_bits_per_second() as f64 * ROOM_LEFT;
    let carried = Bandwidth::from_bits_per_second(carried as u64);
    measured.max().unwrap_or_default().max(carried)
}

fn traffic(config: &PlannerConfig, input: &PlannerInput, app: AppIndex) -> Traffic {
    traffic_of(&config[app], input.workloads.get(&app).copied())
}

/// Headers count, acknowledgements hardly do.
fn format() -> keiro_planner::queueing::WireFormat {
    wire_format(Bandwidth::from_bits_per_second(u64::MAX), 0.0)
}
