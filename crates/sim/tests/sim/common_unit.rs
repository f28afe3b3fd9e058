//! Gateways that send to one gateway find what a weight of 1 gets there: shares are as the weights without a
//! configured unit.

use std::time::Duration;

use keiro_core::{TenantConfig, TenantId};
use keiro_model::fairness::controller::{ControllerConfig, Weight};
use keiro_sim::traffic::{Activity, Bottleneck, Chain, Group, Station, TcpConfig};
use keiro_units::{Bandwidth, Instant, Probability};

const LINE: Bandwidth = Bandwidth::from_mbit_per_second(1000);

fn second(n: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(n)
}

/// Three tenants over 10 Mbit/s that always have something to send, from 2, 4 and 6 s on.
fn chain() -> Chain {
    let groups = [(1.0, 10), (4.0, 30), (2.0, 3)];
    let groups = groups
        .iter()
        .enumerate()
        .map(|(index, (weight, delay))| Group {
            weight: *weight,
            udp: Bandwidth::from_mbit_per_second(12),
            activity: Some(Activity::from(second(2 + 2 * index as u64))),
            ..Group::new(Duration::from_millis(*delay), 0, TcpConfig::LINUX)
        });
    Chain {
        bottlenecks: vec![Bottleneck::new(10, 20, Duration::ZERO, Probability::ZERO)],
        access: None,
        groups: groups.collect(),
        ..Chain::reference(0, TcpConfig::LINUX)
    }
}

#[test]
fn a_common_egress_reports_the_unit_by_which_tenants_share() {
    let chain = chain();
    let groups = chain.groups.iter().enumerate();
    let tenants: Vec<TenantConfig> = groups
        .map(|(index, group)| TenantConfig {
            weight: Weight::new(group.weight).expect("above 0"),
            controller: ControllerConfig::Keiro { unit: None },
            ..TenantConfig::new(TenantId(index as u32 + 1))
        })
        .collect();
    let mut run = chain.build_with_common_egress(1, Some(LINE), &tenants);
    run.run(second(12), second(20));
    let index = run.weighted_index(second(12), second(20)).unwrap();
    let used = run.port(0).utilisation.unwrap();
    assert!(index >= 0.97 && used >= 0.95, "F {index}, used {used}");
    for placed in &run.groups {
        let ingress = placed.ingress.and_then(|node| run.mesh.device(node));
        let edge = ingress
            .and_then(Station::gateway)
            .expect("a gateway was put there");
        let tenants = edge.tenants(second(20));
        let found = tenants[0].paths[0]
            .stats
            .found_unit
            .expect("it is reported");
        let found = found.as_bits_per_second() as f64 / 1e6;
        assert!((1.0..2.5).contains(&found), "{found} of 10/7 Mbit/s");
    }
}
