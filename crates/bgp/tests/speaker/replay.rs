//! What was recorded makes the same tables when it is handed in again.

use std::time::Duration;

use keiro_bgp::{
    address::Family,
    record,
    speaker::{Input, Speaker},
};

use crate::network::{Network, neighbour};

#[test]
fn a_recorded_run_makes_the_same_table_again() {
    let mut network = Network::new();
    let (a, b, c) = (network.add(65001), network.add(65002), network.add(65003));
    for (x, y) in [(a, b), (b, c), (a, c)] {
        let of = |n: usize| neighbour(65001 + n as u32, &[Family::Ipv6, Family::Ipv4]);
        network.join(x, y, of(y), of(x));
    }
    network.start_all();
    for i in 0..40 {
        let prefix = format!("2001:db8:{i:x}::/48").parse().unwrap();
        network.hand(i % 3, Input::Originate(prefix));
        network.pass(Duration::from_millis(700));
        if i == 20 {
            network.cut(b, keiro_bgp::rib::NeighbourId(0));
        }
    }
    for node in &network.nodes {
        let mut again = Speaker::new(node.config);
        for config in &node.neighbours {
            again.add_neighbour(config.clone());
        }
        for line in &node.log {
            let (now, input) = record::read(line).unwrap();
            again.handle(now, input);
            while again.poll_action().is_some() {}
        }
        let table = |speaker: &Speaker| format!("{:?}", speaker.rib());
        assert_eq!(table(&again), table(&node.speaker));
        assert_eq!(node.speaker.rib().len(), 40);
    }
}
