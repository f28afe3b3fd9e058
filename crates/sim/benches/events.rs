//! Events per second of the bare simulator: `cargo bench -p keiro-sim`.
//!
//! Two nodes exchange packets over a link. For the ratio between two versions, not for a test.

use std::time::Duration;

use keiro_link::LinkConfig;
use keiro_sim::{Interface, LinkSpec, Network, Never, Node, Outbox, Packet};
use keiro_units::{Bandwidth, Instant};

/// Packets in flight at any time.
const UNDER_WAY: usize = 64;

struct Wall {
    starts: bool,
}

impl Node for Wall {
    fn handle_packet(
        &mut self,
        _: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    ) {
        out.send(interface, packet.source, packet.ecn, &packet.payload);
    }

    fn handle_timeout(&mut self, _: Instant, out: &mut Outbox<'_>) {
        self.starts = false;
        for i in 0..UNDER_WAY {
            out.send(0, ([10, 0, 0, 2], 2).into(), 0, &[i as u8; 100]);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.starts.then_some(Instant::ZERO)
    }
}

// A benchmark is the one place that measures real time.
#[allow(clippy::disallowed_methods)]
fn main() {
    let mut network = Network::new(1);
    let ends = [1, 2].map(|host| {
        let node = network.add_node(Wall { starts: host == 1 });
        let address = ([10, 0, 0, host], u16::from(host)).into();
        (node, network.add_interface(node, Interface::Host(address)))
    });
    let config = LinkConfig {
        rate: Some(Bandwidth::from_mbit_per_second(1000)),
        delay: Duration::from_micros(20),
        ..LinkConfig::default()
    };
    network.connect(ends[0], ends[1], LinkSpec::symmetric(config));
    let begun = std::time::Instant::now();
    let _ = network.run(Instant::ZERO + Duration::from_secs(5), &mut Never);
    let (events, elapsed) = (network.counts().events, begun.elapsed());
    println!(
        "{events} events in {elapsed:.2?}: {:.2} million a second",
        events as f64 / elapsed.as_secs_f64() / 1e6
    );
}
