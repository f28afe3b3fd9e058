//! Tenants of four gateways that begin one after the other and arrive at one, without a configured unit:
//! `cargo run --release -p keiro-sim --example common_unit [Mbit/s [found|paced [unit in kbit/s, 0: none
//! [common|apart [udp|tcp]]]]]`.

use std::time::Duration;

use keiro_core::{TenantConfig, TenantId};
use keiro_model::fairness::controller::{ControllerConfig, Weight};
use keiro_sim::traffic::{Activity, Bottleneck, Chain, Group, Station, TcpConfig};
use keiro_units::{Bandwidth, Instant, Probability};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mbit: u64 = arguments
        .first()
        .map_or(50, |mbit| mbit.parse().expect("Mbit/s"));
    let paced = arguments.get(1).is_some_and(|word| word == "paced");
    let unit = arguments
        .get(2)
        .map_or(0, |kbit| kbit.parse().expect("kbit/s"));
    let common = arguments.get(3).is_none_or(|word| word != "apart");
    let tcp = arguments.get(4).is_some_and(|word| word == "tcp");
    let flows = if tcp { 4 } else { 0 };
    let packets = (mbit * 1_000_000 * 12 / 1000 / 8 / 1500).max(20) as u32;
    let groups = [(1.0, 20), (8.0, 60), (2.0, 5), (4.0, 150)];
    let begin = |index: usize| second(5 * index as u64 + 3);
    let groups = groups
        .iter()
        .enumerate()
        .map(|(index, (weight, round_trip))| {
            let mut spans = vec![(begin(index), second(28))];
            if index == 3 {
                spans[0].1 = second(100);
            }
            Group {
                weight: *weight,
                activity: Some(Activity::stretches(spans).expect("in order")),
                udp: match tcp {
                    true => Bandwidth::ZERO,
                    false => Bandwidth::from_bits_per_second(mbit * 1_200_000),
                },
                ..Group::new(
                    Duration::from_millis(round_trip / 2),
                    flows,
                    TcpConfig::LINUX,
                )
            }
        });
    let groups: Vec<Group> = groups.collect();
    let chain = Chain {
        bottlenecks: vec![Bottleneck::new(
            mbit,
            packets,
            Duration::ZERO,
            Probability::ZERO,
        )],
        access: None,
        groups,
        starts: Duration::from_millis(10),
        ..Chain::reference(0, TcpConfig::LINUX)
    };
    let tenants: Vec<TenantConfig> = chain
        .groups
        .iter()
        .enumerate()
        .map(|(index, group)| TenantConfig {
            weight: Weight::new(group.weight).expect("above 0"),
            controller: ControllerConfig::Keiro {
                unit: (unit > 0).then(|| Bandwidth::from_bits_per_second(unit * 1000)),
            },
            ..TenantConfig::new(TenantId(index as u32 + 1))
        })
        .collect();
    let rate = paced.then(|| Bandwidth::from_mbit_per_second(10_000));
    let mut run = match common {
        true => chain.build_with_common_egress(1, rate, &tenants),
        false => chain.build_with_edges(1, rate.expect("paced"), &tenants),
    };
    for at in 0..40 {
        run.run(second(at), second(at + 1));
        let index = run
            .weighted_index(second(at), second(at + 1))
            .unwrap_or(0.0);
        let port = run.port(0);
        print!(
            "{at:3} F {index:.3} used {:.3} queue {:6.2} ms lost {:.4} |",
            port.utilisation.unwrap_or(0.0),
            port.waiting_mean().as_secs_f64() * 1e3,
            port.drop_rate(),
        );
        for (group, placed) in run.groups.iter().enumerate() {
            let bytes = run.group(group, second(at), second(at + 1)).bytes();
            let weight = chain.groups[group].weight;
            print!(" {:8.3}", bytes as f64 * 8.0 / 1e6 / weight);
            let ingress = placed.ingress.and_then(|node| run.mesh.device(node));
            let edge = ingress.and_then(Station::gateway).expect("it is there");
            let snapshots = edge.tenants(second(at + 1));
            if let Some(path) = snapshots.first().and_then(|tenant| tenant.paths.first()) {
                for (name, value) in &path.terms {
                    if ["queue_ms", "unit_mbit", "capacity_mbit"].contains(name) {
                        print!(" {name} {value:.2}");
                    }
                }
            }
        }
        println!();
    }
}

const fn second(n: u64) -> Instant {
    Instant::from_nanos(n * 1_000_000_000)
}
