//! Sharing in the simulator: TCP hosts, routers, and gateways with the core's endpoint.

use std::time::Duration;

use anyhow::{Context, bail};
use keiro_core::{TenantConfig, TenantId};
use keiro_model::fairness::{
    aimd::{Aimd, Provider},
    controller::{ControllerConfig, Weight},
    jain, weighted_index,
};
use keiro_sim::{
    Direction, Stop,
    traffic::{
        Activity, Bottleneck, Chain, ChainRun, Classes, Device, Group, HasHost, TcpConfig,
        tcp::RtoFloor,
    },
};
use keiro_units::{Bandwidth, Instant};

use super::{
    Case, Controller, Hosts, HostsLike, Setting, Shared, Sharing, SharingRequest, SharingRunner,
};
use crate::{row::Source, runner::Progress, simulator::Simulator};

/// Access lines of gateways: far above every bottleneck, as the paper's are unlimited.
const LINE: Bandwidth = Bandwidth::from_mbit_per_second(1000);
/// Period of progress reports, in simulated time.
const STEP: Duration = Duration::from_secs(5);

impl SharingRunner for Simulator {
    fn source(&self) -> Source {
        Source::Sim
    }

    fn run(
        &mut self,
        request: &SharingRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Shared> {
        let (sharing, case) = (request.sharing, request.case);
        let setting = &sharing.settings[case.setting];
        let chain = chain(sharing, case)?;
        match sharing.controls[case.control].controller {
            Controller::None => {
                let mut run = chain.build(request.seed);
                go(&mut run, request, progress, &mut |_, _| {})?;
                Ok(shared(&run, request))
            }
            Controller::Classes => {
                let mut run = chain.build(request.seed);
                add_classes(&mut run, setting);
                go(&mut run, request, progress, &mut |run, at| {
                    set_classes(run, setting, at);
                })?;
                Ok(shared(&run, request))
            }
            controller => {
                let tenant = |index, at| tenant(setting, controller, index, at);
                let tenants = 0..setting.tenants.len();
                let tenants: Vec<TenantConfig> = tenants
                    .map(|index| tenant(index, Duration::ZERO))
                    .collect::<Option<_>>()
                    .context("a weight or parameter is out of bounds")?;
                let mut run = chain.build_with_edges(request.seed, LINE, &tenants);
                go(&mut run, request, progress, &mut |run, at| {
                    for (index, shares) in setting.tenants.iter().enumerate() {
                        let changed = shares.changes.iter().any(|change| change.at.0 == at);
                        if let Some(tenant) = tenant(index, at).filter(|_| changed) {
                            run.set_tenant(index, tenant);
                        }
                    }
                })?;
                Ok(shared(&run, request))
            }
        }
    }
}

/// Runs to the end; calls `change` at every time at which the setting changes.
fn go<D: Device + HasHost>(
    run: &mut ChainRun<D>,
    request: &SharingRequest<'_>,
    progress: &mut dyn FnMut(&Progress),
    change: &mut dyn FnMut(&mut ChainRun<D>, Duration),
) -> anyhow::Result<()> {
    let setting = &request.sharing.settings[request.case.setting];
    let (warm_up, end) = (request.extent.warm_up.0, request.extent.duration.0);
    let changes = setting.tenants.iter().flat_map(|t| &t.changes);
    let mut stops: Vec<Duration> = changes.map(|c| c.at.0).chain([warm_up, end]).collect();
    let mut step = STEP;
    while step < end {
        stops.push(step);
        step += STEP;
    }
    stops.sort_unstable();
    stops.dedup();
    for at in stops.into_iter().filter(|at| *at <= end) {
        if run.mesh.run_until(Instant::ZERO + at) == Stop::Livelock {
            bail!("the simulation's time stood still before {at:?}");
        }
        if at == warm_up {
            run.mesh.measure_anew();
        }
        change(run, at);
        progress(&Progress {
            elapsed: at,
            applications: Vec::new(),
        });
    }
    let stuck = run.stuck();
    if !stuck.is_empty() {
        bail!("the simulation went wrong: flows {stuck:?} never send again");
    }
    Ok(())
}

fn chain(sharing: &Sharing, case: Case) -> anyhow::Result<Chain> {
    let setting = &sharing.settings[case.setting];
    let tcp = tcp(&sharing.hosts[case.hosts]);
    let mut groups = Vec::with_capacity(setting.tenants.len());
    for tenant in &setting.tenants {
        let stretches = tenant.stretches(sharing.begin).into_iter();
        let stretches = stretches.map(|(from, to)| (Instant::ZERO + from, Instant::ZERO + to));
        let activity = Activity::stretches(stretches.collect());
        let [first, last] = tenant.crosses.unwrap_or([1, 1]);
        groups.push(Group {
            crosses: first - 1..last,
            weight: tenant.weight,
            udp: tenant.udp.map_or(Bandwidth::ZERO, |rate| rate.0),
            activity: Some(activity.context("`active` is not in order")?),
            ..Group::new(tenant.delay.0, tenant.flows, tcp)
        });
    }
    let links = setting.bottlenecks.iter();
    let bottlenecks = links.map(|link| Bottleneck {
        rate: link.rate.0,
        buffer_packets: link.buffer_packets,
        delay: Duration::ZERO,
        mark_above: None,
        background: link.background.0,
    });
    Ok(Chain {
        bottlenecks: bottlenecks.collect(),
        access: None,
        groups,
        ..Chain::reference(0, tcp)
    })
}

fn tcp(hosts: &Hosts) -> TcpConfig {
    let like = match hosts.like {
        HostsLike::Linux => TcpConfig::LINUX,
        HostsLike::Rfc => TcpConfig::RFC,
    };
    let rto_floor = match (like.rto_floor, hosts.least_timeout) {
        (as_it_is, None) => as_it_is,
        (RtoFloor::BeyondRoundTrip(_), Some(least)) => RtoFloor::BeyondRoundTrip(least),
        (RtoFloor::Timeout(_), Some(least)) => RtoFloor::Timeout(least),
    };
    TcpConfig { rto_floor, ..like }
}

/// A class for every tenant at every bottleneck, and one for the background.
fn add_classes<D: Device + HasHost>(run: &mut ChainRun<D>, setting: &Setting) {
    for (index, link) in setting.bottlenecks.iter().enumerate() {
        let weights = class_weights(setting, link, Duration::ZERO);
        let hosts = run.groups.iter().enumerate();
        let of = hosts.map(|(class, group)| (run.mesh.address(group.senders), class));
        let classes = Classes {
            weights,
            of: of.collect(),
            buffer_packets: link.buffer_packets as usize,
        };
        let link = run.bottlenecks[index];
        run.mesh.set_classes(link, Direction::Forward, classes);
    }
}

/// The classes at a time.
fn set_classes<D: Device + HasHost>(run: &mut ChainRun<D>, setting: &Setting, at: Duration) {
    for (index, link) in setting.bottlenecks.iter().enumerate() {
        let weights = class_weights(setting, link, at);
        let link = run.bottlenecks[index];
        run.mesh
            .set_class_weights(link, Direction::Forward, &weights);
    }
}

/// The tenants' weights, and one for the background that gives it its share.
fn class_weights(setting: &Setting, link: &super::Bottleneck, at: Duration) -> Vec<f64> {
    let tenants = setting.tenants.iter();
    let mut weights: Vec<f64> = tenants.map(|tenant| tenant.weight_at(at)).collect();
    let part = link.background.0.get().clamp(0.01, 0.99);
    weights.push(weights.iter().sum::<f64>() * part / (1.0 - part));
    weights
}

/// A tenant at a time; `None` if out of bounds.
fn tenant(
    setting: &Setting,
    controller: Controller,
    index: usize,
    at: Duration,
) -> Option<TenantConfig> {
    let weight = Weight::new(setting.tenants[index].weight_at(at))?;
    let window = |(a, b), of: usize, unit, spaced| {
        Some(ControllerConfig::I2vfc(Provider {
            aimd: Aimd::new(a, b)?,
            round_trip: round_trip(setting, of),
            unit,
            spaced,
        }))
    };
    let times_unit = |factor| {
        let bits = setting.unit.0.as_bits_per_second() as f64 * factor;
        Bandwidth::from_bits_per_second(bits as u64)
    };
    let (controller, weight) = match controller {
        Controller::None | Controller::Classes | Controller::Open => {
            (ControllerConfig::Open, weight)
        }
        // Its own round trip is the reference, so that a and b are the same for all.
        Controller::Aimd => (window((1.0, 0.5), index, None, false)?, Weight::ONE),
        Controller::I2vfc { a, b, bursts, unit } => {
            let unit = Some(times_unit(unit));
            (window((a, b), 0, unit, !bursts)?, weight)
        }
        Controller::Keiro { unit } => {
            let unit = times_unit(unit);
            (ControllerConfig::Keiro { unit: Some(unit) }, weight)
        }
    };
    Some(TenantConfig {
        weight,
        controller,
        ..TenantConfig::new(TenantId(index as u32 + 1))
    })
}

/// Round trip of a tenant with half-full buffers on its path.
fn round_trip(setting: &Setting, index: usize) -> Duration {
    let tenant = &setting.tenants[index];
    let [first, last] = tenant.crosses.unwrap_or([1, 1]);
    let waits = setting.bottlenecks[first - 1..last].iter().map(|link| {
        let bits = f64::from(link.buffer_packets) * 1500.0 * 8.0 / 2.0;
        Duration::from_secs_f64(bits / link.rate.0.as_bits_per_second() as f64)
    });
    tenant.delay.0 * 2 + waits.sum::<Duration>()
}

fn shared<D: Device + HasHost>(run: &ChainRun<D>, request: &SharingRequest<'_>) -> Shared {
    let sharing = request.sharing;
    let setting = &sharing.settings[request.case.setting];
    let second = |index: usize| Duration::from_secs(index as u64);
    let got = |tenant, from: Duration, to: Duration| {
        run.group(tenant, Instant::ZERO + from, Instant::ZERO + to)
    };
    let seconds = request.extent.duration.0.as_secs() as usize;
    let tenants = 0..setting.tenants.len();
    let goodput: Vec<Vec<f64>> = tenants
        .clone()
        .map(|tenant| {
            let bytes = (0..seconds).map(|s| got(tenant, second(s), second(s + 1)).bytes());
            bytes.map(|bytes| bytes as f64 * 8.0 / 1e6).collect()
        })
        .collect();
    let is_on = |tenant: usize, index: usize| {
        let stretches = setting.tenants[tenant].stretches(sharing.begin);
        let within = |(from, to)| from <= second(index) && second(index + 1) <= to;
        stretches.into_iter().any(within)
    };
    let index = |s: usize| {
        let on: Vec<usize> = tenants.clone().filter(|t| is_on(*t, s)).collect();
        let shares: Vec<f64> = on.iter().map(|t| goodput[*t][s]).collect();
        let weights = on.iter().map(|t| setting.tenants[*t].weight_at(second(s)));
        weighted_index(&shares, &weights.collect::<Vec<_>>())
    };
    let inside = |from, to| {
        let of_tenant = |tenant| {
            let bytes = got(tenant, from, to).flow_bytes;
            jain(&bytes.iter().map(|b| *b as f64).collect::<Vec<_>>())
        };
        mean(tenants.clone().filter_map(of_tenant))
    };
    let (from, to) = (request.extent.warm_up.0, request.extent.duration.0);
    let counted = from.as_secs() as usize..seconds;
    let ports: Vec<_> = (0..run.bottlenecks.len())
        .map(|link| run.port(link))
        .collect();
    Shared {
        index: (0..seconds).map(index).collect(),
        inside: [
            mean(counted.map(|s| inside(second(s), second(s + 1)))),
            inside(from, to),
        ],
        goodput,
        used: ports.iter().map(|p| p.utilisation.unwrap_or(0.0)).collect(),
        queue_ms: ports
            .iter()
            .map(|p| p.waiting_mean().as_secs_f64() * 1e3)
            .collect(),
        dropped: ports.iter().map(|p| p.drop_rate()).collect(),
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
    sum / f64::max(count, 1.0)
}
