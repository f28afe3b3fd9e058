//! Gateways with real endpoints between hosts and routers: carried packets arrive, and tenants get shares by
//! their weights.

use std::time::Duration;

use keiro_core::{TenantConfig, TenantId};
use keiro_model::fairness::{
    aimd::{Aimd, Provider},
    controller::{ControllerConfig, Weight},
};
use keiro_sim::traffic::{Activity, Chain, ChainRun, Edge, Group, Station, TcpConfig};
use keiro_units::{Bandwidth, Instant};

const LINE: Bandwidth = Bandwidth::from_mbit_per_second(1000);

fn second(n: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(n)
}

/// Two tenants of `flows` flows over 50 Mbit/s; they begin when the gateways are connected.
fn chain(flows: u32, tcp: TcpConfig) -> Chain {
    let mut chain = Chain::reference(flows, tcp);
    let group = Group {
        activity: Some(Activity::from(second(2))),
        ..Group::new(Duration::ZERO, flows, tcp)
    };
    chain.groups = vec![group; 2];
    chain
}

fn tenants(controller: ControllerConfig, weights: [f64; 2]) -> Vec<TenantConfig> {
    let tenant = |(index, weight): (usize, f64)| TenantConfig {
        weight: Weight::new(weight).expect("above 0"),
        controller,
        ..TenantConfig::new(TenantId(index as u32 + 1))
    };
    weights.into_iter().enumerate().map(tenant).collect()
}

fn keiro(unit: u64) -> ControllerConfig {
    ControllerConfig::Keiro {
        unit: Some(Bandwidth::from_mbit_per_second(unit)),
    }
}

fn run(
    chain: &Chain,
    seed: u64,
    tenants: &[TenantConfig],
    seconds: u64,
) -> ChainRun<Station<Edge>> {
    let mut run = chain.build_with_edges(seed, LINE, tenants);
    run.run(second(5), second(seconds));
    run
}

#[test]
fn gateways_carry_tcp_both_ways_and_lose_nothing_themselves() {
    let tenants = tenants(keiro(25), [1.0, 1.0]);
    let run = run(&chain(5, TcpConfig::LINUX), 1, &tenants, 12);
    let goodput = run.goodput(second(5), second(12));
    assert!(goodput > Bandwidth::from_mbit_per_second(40), "{goodput}");
    for placed in &run.groups {
        for node in [placed.ingress, placed.egress] {
            let edge = run.mesh.device(node.unwrap()).and_then(Station::gateway);
            let counts = edge.unwrap().counts();
            assert!(
                counts.taken > 5_000 && counts.put_back > 5_000,
                "{counts:?}"
            );
            let wrong = counts.no_path + counts.too_long + counts.refused + counts.damaged;
            assert_eq!(wrong + counts.wrongly_marked, 0, "{counts:?}");
        }
    }
    assert_eq!(run.mesh.counts().too_long, 0);
}

#[test]
fn tenants_get_what_their_weights_say_whatever_their_number_of_flows() {
    let mut chain = chain(3, TcpConfig::LINUX);
    chain.groups[0].flows = 30;
    chain.groups[1].weight = 3.0;
    let run = run(&chain, 1, &tenants(keiro(12), [1.0, 3.0]), 25);
    let index = run.weighted_index(second(10), second(25)).unwrap();
    assert!(index > 0.98, "{index}");
    let used = run.port(0).utilisation.unwrap();
    assert!(used > 0.9, "{used}");
}

#[test]
fn ecn_marks_reach_hosts() {
    let tcp = TcpConfig {
        ecn: true,
        ..TcpConfig::LINUX
    };
    let mut chain = chain(5, tcp);
    chain.bottlenecks[0].mark_above = Some(20);
    let run = run(&chain, 1, &tenants(ControllerConfig::Open, [1.0, 1.0]), 12);
    let port = run.port(0);
    assert!(port.marked > 0 && port.dropped == 0, "{port:?}");
    let counts = run.sender_counts();
    assert!(counts.marks > 0 && counts.timeouts == 0, "{counts:?}");
}

/// The paper's controller over three bottlenecks `[fairness fig. 7]`; its tenants begin at 5 s.
fn i2vfc_over_three_bottlenecks(third: u64, seconds: u64) -> ChainRun<Station<Edge>> {
    let mut chain = Chain::three_bottlenecks(third, TcpConfig::LINUX);
    for group in &mut chain.groups {
        group.activity = Some(Activity::from(second(5)));
    }
    // All three buffers half full.
    let waits = 1.2 * (1.0 / 20.0 + 1.0 / 10.0 + 1.0 / third as f64);
    let controller = ControllerConfig::I2vfc(Provider {
        aimd: Aimd::new(0.5, 0.01).expect("within bounds"),
        round_trip: Duration::from_secs_f64(waits),
        unit: Some(Bandwidth::from_bits_per_second(3_750_000)),
        spaced: true,
    });
    let groups = chain.groups.iter().enumerate();
    let tenants: Vec<TenantConfig> = groups
        .map(|(index, group)| TenantConfig {
            weight: Weight::new(group.weight).expect("above 0"),
            controller,
            ..TenantConfig::new(TenantId(index as u32 + 1))
        })
        .collect();
    let mut run = chain.build_with_edges(1, LINE, &tenants);
    run.run(second(10), second(seconds));
    run
}

/// Mean F of bins of a second.
fn mean_fairness(run: &ChainRun<Station<Edge>>, from: u64, to: u64) -> f64 {
    let seconds = run.weighted_index_by_second(second(from), second(to));
    let seconds: Vec<f64> = seconds.into_iter().map(|f| f.unwrap_or(0.0)).collect();
    seconds.iter().sum::<f64>() / seconds.len() as f64
}

#[test]
fn i2vfc_shares_three_bottlenecks_from_the_start_on() {
    for third in [10, 20, 30] {
        let found = mean_fairness(&i2vfc_over_three_bottlenecks(third, 50), 10, 50);
        assert!(found > 0.95, "{third} Mbit/s: {found}");
    }
}

#[test]
fn i2vfc_goes_on_sharing_where_one_tenant_loses_more() {
    // With b from the round trip alone it falls below 0.9, and 100 s are enough for that.
    let found = mean_fairness(&i2vfc_over_three_bottlenecks(30, 200), 100, 200);
    assert!(found > 0.95, "{found}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = |seed| {
        let run = run(
            &chain(3, TcpConfig::LINUX),
            seed,
            &tenants(keiro(25), [1.0, 1.0]),
            7,
        );
        run.mesh.trace_hash()
    };
    assert_eq!(once(1), once(1));
    assert_ne!(once(1), once(2));
}
