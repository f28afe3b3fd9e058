//! The fairness paper's simulations with gateways, real windows and TCP hosts:
//! `cargo run --release -p keiro-sim --example fairness [setting [row [seeds [linux|rfc [seconds]]]]]`.
//!
//! Settings: `one` (figs. 2, 3), `three` (fig. 7), `inside` (figs. 4, 5), `all`; rows are selected by a part
//! of their names. With a fifth argument the first seed is printed second by second: goodput of every tenant,
//! and the inputs of its controller at the ingress. Every run lasts 50 s, flows begin between 5 s and 6 s,
//! all statistics are from 10 s on.

use std::time::Duration;

use keiro_core::{TenantConfig, TenantId};
use keiro_model::fairness::{
    aimd::{Aimd, Provider},
    controller::{ControllerConfig, Weight},
    jain,
};
use keiro_sim::traffic::{Activity, Chain, ChainRun, Device, HasHost, Station, TcpConfig};
use keiro_units::{Bandwidth, Instant};

const BEGIN: Instant = second(5);
const FROM: Instant = second(10);
const END: Instant = second(50);
/// Access lines of gateways: far above every bottleneck, as the paper's are unlimited.
const LINE: Bandwidth = Bandwidth::from_mbit_per_second(1000);

/// A topology with its flows, and its provider's parameters.
struct Setting {
    name: String,
    chain: Chain,
    /// Unit of controller `keiro`.
    unit: Bandwidth,
    /// What a weight of 1 gets, the unit of controller `i2vfc`.
    share: Bandwidth,
    /// Values of a and b₁.
    parameters: Vec<(f64, f64)>,
}

#[derive(Clone, Copy)]
enum Row {
    None,
    Open,
    /// A window per tenant as in TCP, regardless of weights and round trips.
    Aimd,
    /// The paper's controller: a and b of tenant 1.
    I2vfc(f64, f64),
    Keiro,
}

/// Result of a run.
#[derive(Default)]
struct Outcome {
    by_second: Vec<f64>,
    whole: f64,
    /// Jain's index within tenants, mean over tenants: per second, and over all of the time.
    inside_by_second: f64,
    inside: f64,
    goodput: f64,
    used: Vec<f64>,
    queue_ms: Vec<f64>,
    drops: Vec<f64>,
    seconds: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let wanted = argument(0).unwrap_or("all");
    let rows_wanted = argument(1).unwrap_or("");
    let seeds = argument(2)
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(3);
    let tcp = match argument(3) {
        Some("rfc") => TcpConfig::RFC,
        _ => TcpConfig::LINUX,
    };
    println!(
        "{:?}, least timeout {:?}; seeds 0 to {}; from 10 s to 50 s",
        tcp.congestion,
        tcp.rto_floor,
        seeds - 1
    );
    for setting in settings(tcp) {
        if wanted != "all" && !setting.name.starts_with(wanted) {
            continue;
        }
        println!("\n{}", setting.name);
        println!(
            "row                     F mean   F 5 %  F whole  inside 1 s  whole  Mbit/s  used %  queue ms  drops %  s per run"
        );
        for row in setting.rows() {
            if row.name().contains(rows_wanted) && argument(4).is_some() {
                setting.follow(row);
            } else if row.name().contains(rows_wanted) {
                print(&row.name(), (0..seeds).map(|seed| setting.run(row, seed)));
            }
        }
    }
}

fn settings(tcp: TcpConfig) -> Vec<Setting> {
    let later = |mut chain: Chain| {
        for group in &mut chain.groups {
            group.activity = Some(Activity::from(BEGIN));
        }
        chain
    };
    let mut settings = vec![Setting {
        name: "one bottleneck, 5 tenants of 30 flows".to_owned(),
        chain: later(Chain::one_bottleneck(tcp)),
        unit: Bandwidth::from_bits_per_second(50_000_000 / 12),
        share: Bandwidth::from_bits_per_second(35_000_000 / 12),
        parameters: [0.01, 0.1, 1.0]
            .iter()
            .flat_map(|&a| [(a, 0.1), (a, 0.25)])
            .collect(),
    }];
    for third in [10, 20, 30] {
        settings.push(Setting {
            name: format!("three bottlenecks, the third of {third} Mbit/s"),
            chain: later(Chain::three_bottlenecks(third, tcp)),
            unit: Bandwidth::from_mbit_per_second(5),
            share: Bandwidth::from_bits_per_second(3_750_000),
            parameters: vec![(0.5, 0.01)],
        });
    }
    for flows in [2, 10] {
        let mut chain = later(Chain::one_bottleneck(tcp));
        chain.groups.truncate(4);
        for group in &mut chain.groups {
            group.flows = flows;
        }
        settings.push(Setting {
            name: format!("inside tenants, 4 of {flows} flows"),
            chain,
            unit: Bandwidth::from_bits_per_second(50_000_000 / 8),
            share: Bandwidth::from_bits_per_second(35_000_000 / 8),
            parameters: vec![(0.1, 0.1), (0.5, 0.25), (1.0, 0.5), (5.0, 0.75)],
        });
    }
    settings
}

impl Setting {
    fn rows(&self) -> Vec<Row> {
        let paper = self.parameters.iter().map(|&(a, b)| Row::I2vfc(a, b));
        [Row::None, Row::Open, Row::Aimd]
            .into_iter()
            .chain(paper)
            .chain([Row::Keiro])
            .collect()
    }

    fn run(&self, row: Row, seed: u64) -> Outcome {
        let begun = wall_clock();
        let mut outcome = match row {
            Row::None => measured(self.chain.build(seed)),
            _ => {
                let groups = 0..self.chain.groups.len();
                let tenants: Vec<_> = groups.map(|group| self.tenant(row, group)).collect();
                measured(self.chain.build_with_edges(seed, LINE, &tenants))
            }
        };
        outcome.seconds = begun.elapsed().as_secs_f64();
        outcome
    }

    /// Prints a run second by second.
    fn follow(&self, row: Row) {
        println!("{}", row.name());
        let groups = 0..self.chain.groups.len();
        let tenants: Vec<_> = groups.map(|group| self.tenant(row, group)).collect();
        let mut run = self.chain.build_with_edges(0, LINE, &tenants);
        for at in 5..50 {
            run.run(Instant::ZERO, second(at + 1));
            let index = run.weighted_index(second(at), second(at + 1));
            println!("{at} s  F {:.3}", index.unwrap_or(0.0));
            for (group, placed) in run.groups.iter().enumerate() {
                let bytes = run.group(group, second(at), second(at + 1)).bytes();
                let ingress = placed.ingress.and_then(|node| run.mesh.device(node));
                let Some(edge) = ingress.and_then(Station::gateway) else {
                    continue;
                };
                let snapshots = edge.tenants(second(at + 1));
                let Some(tenant) = snapshots.first() else {
                    continue;
                };
                print!(
                    "  {} {:6.2} Mbit/s, {:6} bytes wait, {} delayed, {} too long,",
                    group + 1,
                    bytes as f64 * 8.0 / 1e6,
                    tenant.stats.queued_bytes,
                    tenant.drops.delayed,
                    tenant.drops.too_long,
                );
                for path in &tenant.paths {
                    let window = path.stats.window_packets.unwrap_or(0);
                    print!(" {} lost, window {window},", path.stats.lost_packets);
                    for (name, value) in &path.terms {
                        print!(" {name} {value:.3}");
                    }
                }
                println!();
            }
        }
    }

    fn tenant(&self, row: Row, group: usize) -> TenantConfig {
        let weight = Weight::new(self.chain.groups[group].weight).expect("above 0");
        let window = |(a, b), of: usize, unit, spaced| {
            ControllerConfig::I2vfc(Provider {
                aimd: Aimd::new(a, b).expect("within bounds"),
                round_trip: self.round_trip(of),
                unit,
                spaced,
            })
        };
        let (controller, weight) = match row {
            Row::None | Row::Open => (ControllerConfig::Open, weight),
            // Its own round trip is the reference, so that a and b are the same for all.
            Row::Aimd => (window((1.0, 0.5), group, None, false), Weight::ONE),
            Row::I2vfc(a, b) => (window((a, b), 0, Some(self.share), true), weight),
            Row::Keiro => (
                ControllerConfig::Keiro {
                    unit: Some(self.unit),
                },
                weight,
            ),
        };
        TenantConfig {
            weight,
            controller,
            ..TenantConfig::new(TenantId(group as u32 + 1))
        }
    }

    /// Round trip of a tenant with half-full buffers on its path.
    fn round_trip(&self, group: usize) -> Duration {
        let group = &self.chain.groups[group];
        let crossed = &self.chain.bottlenecks[group.crosses.clone()];
        let waits = crossed.iter().map(|bottleneck| {
            let bits = f64::from(bottleneck.buffer_packets) * 1500.0 * 8.0 / 2.0;
            Duration::from_secs_f64(bits / bottleneck.rate.as_bits_per_second() as f64)
        });
        group.delay * 2 + waits.sum::<Duration>()
    }
}

impl Row {
    fn name(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Open => "gateways, no window".to_owned(),
            Self::Aimd => "aimd, no weights".to_owned(),
            Self::I2vfc(a, b) => format!("i2vfc a={a} b1={b}"),
            Self::Keiro => "keiro".to_owned(),
        }
    }
}

fn measured<D: Device + HasHost>(mut run: ChainRun<D>) -> Outcome {
    run.run(FROM, END);
    let by_second = run.weighted_index_by_second(FROM, END);
    let inside = |from, to| {
        let groups = 0..run.groups.len();
        let shares = groups.map(|group| run.group(group, from, to).flow_bytes);
        let indices = shares.map(|shares| {
            let shares: Vec<f64> = shares.iter().map(|&bytes| bytes as f64).collect();
            jain(&shares).unwrap_or(0.0)
        });
        mean(&indices.collect::<Vec<_>>())
    };
    let seconds: Vec<f64> = (10..50)
        .map(|at| inside(second(at), second(at + 1)))
        .collect();
    let ports: Vec<_> = (0..run.bottlenecks.len())
        .map(|link| run.port(link))
        .collect();
    Outcome {
        by_second: by_second.into_iter().map(|f| f.unwrap_or(0.0)).collect(),
        whole: run.weighted_index(FROM, END).unwrap_or(0.0),
        inside_by_second: mean(&seconds),
        inside: inside(FROM, END),
        goodput: run.goodput(FROM, END).as_bits_per_second() as f64 / 1e6,
        used: ports
            .iter()
            .map(|port| port.utilisation.unwrap_or(0.0) * 100.0)
            .collect(),
        queue_ms: ports
            .iter()
            .map(|port| port.waiting_mean().as_secs_f64() * 1e3)
            .collect(),
        drops: ports.iter().map(|port| port.drop_rate() * 100.0).collect(),
        seconds: 0.0,
    }
}

fn print(name: &str, outcomes: impl Iterator<Item = Outcome>) {
    let outcomes: Vec<Outcome> = outcomes.collect();
    let over = |value: &dyn Fn(&Outcome) -> f64| {
        let values: Vec<f64> = outcomes.iter().map(value).collect();
        mean(&values)
    };
    let lists = |value: fn(&Outcome) -> &[f64], digits: usize| {
        let links = 0..value(&outcomes[0]).len();
        let means = links.map(|link| format!("{:.digits$}", over(&|o| value(o)[link])));
        means.collect::<Vec<_>>().join(" ")
    };
    let mut seconds: Vec<f64> = outcomes.iter().flat_map(|o| o.by_second.clone()).collect();
    seconds.sort_by(f64::total_cmp);
    println!(
        "{name:22} {:7.3} {:7.3} {:8.3} {:11.3} {:6.3} {:7.2}  {}  {}  {}  {:.2}",
        mean(&seconds),
        seconds[seconds.len() / 20],
        over(&|o| o.whole),
        over(&|o| o.inside_by_second),
        over(&|o| o.inside),
        over(&|o| o.goodput),
        lists(|o| &o.used, 1),
        lists(|o| &o.queue_ms, 1),
        lists(|o| &o.drops, 2),
        over(&|o| o.seconds),
    );
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

// The cost of runs is one of the results; nothing simulated depends on it.
#[allow(clippy::disallowed_methods)]
fn wall_clock() -> std::time::Instant {
    std::time::Instant::now()
}

const fn second(n: u64) -> Instant {
    Instant::from_nanos(n * 1_000_000_000)
}
