//! A running chain, and the goodput of its groups and flows.

use std::time::Duration;

use keiro_model::fairness;
use keiro_units::{Bandwidth, ByteCount, Instant};

use super::{Device, HasHost, Host, Mesh, MeshLink, MeshNode, PortReport, tcp::SenderCounts};
use crate::{Direction, Stop};

/// A running [`Chain`](super::Chain).
#[derive(Debug)]
pub struct ChainRun<D> {
    pub mesh: Mesh<D>,
    /// The bottlenecks in order; data flows forward.
    pub bottlenecks: Vec<MeshLink>,
    /// Nodes of the groups, in order.
    pub groups: Vec<Placed>,
}

/// Nodes of a group.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The host of its senders.
    pub senders: MeshNode,
    /// The host of its receivers.
    pub receivers: MeshNode,
    /// The device between its senders and the first bottleneck.
    pub ingress: Option<MeshNode>,
    /// The device between the last bottleneck and its receivers.
    pub egress: Option<MeshNode>,
    /// Ports of its TCP flows, at the sender and at the receiver.
    pub flows: Vec<Ports>,
    /// Ports of its UDP flow.
    pub udp: Option<Ports>,
    pub weight: f64,
}

/// Ports of a flow, at its sender and at its receiver.
pub type Ports = (u16, u16);

/// Goodput of a group over a period.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReport {
    /// Payload bytes of each TCP receiver's application, in order.
    pub flow_bytes: Vec<u64>,
    /// Payload bytes of its UDP flow that arrived.
    pub udp_bytes: u64,
}

impl<D: Device + HasHost> ChainRun<D> {
    /// Runs for a warm-up, resets the ports' measurements, and runs until `end`.
    ///
    /// # Panics
    ///
    /// On a livelock, or if a flow is stuck.
    pub fn run(&mut self, warm_up: Instant, end: Instant) {
        for (index, until) in [warm_up, end].into_iter().enumerate() {
            let stop = self.mesh.run_until(until);
            assert!(stop != Stop::Livelock, "time stands still");
            let stuck = self.stuck();
            assert!(stuck.is_empty(), "flows {stuck:?} never send again");
            if index == 0 {
                self.mesh.measure_anew();
            }
        }
    }

    /// TCP flows, as group and index, that will never send again although they have data to send, which is a
    /// bug.
    pub fn stuck(&self) -> Vec<(usize, usize)> {
        let now = self.mesh.now();
        let flows = self.flows();
        flows
            .filter(|&(group, _, ports)| {
                let host = self.host(self.groups[group].senders);
                host.tcp_sender(ports.0)
                    .is_some_and(|tcp| tcp.is_stuck(now))
            })
            .map(|(group, index, _)| (group, index))
            .collect()
    }

    /// Measurements of a bottleneck towards the receivers since the warm-up.
    pub fn port(&self, bottleneck: usize) -> PortReport {
        let link = self.bottlenecks[bottleneck];
        self.mesh.port_report(link, Direction::Forward)
    }

    /// Goodput of a group in the seconds that begin in `from..to`.
    pub fn group(&self, group: usize, from: Instant, to: Instant) -> GroupReport {
        let placed = &self.groups[group];
        let host = self.host(placed.receivers);
        let bytes = |port: u16| host.received(port).map_or(0, |bins| bins.sum(from, to));
        GroupReport {
            flow_bytes: placed.flows.iter().map(|ports| bytes(ports.1)).collect(),
            udp_bytes: placed.udp.map_or(0, |ports| bytes(ports.1)),
        }
    }

    /// Payload of all groups in the seconds that begin in `from..to`.
    pub fn goodput(&self, from: Instant, to: Instant) -> Bandwidth {
        let groups = 0..self.groups.len();
        let bytes = groups
            .map(|group| self.group(group, from, to).bytes())
            .sum();
        ByteCount::new(bytes).rate_over_floor(to - from)
    }

    /// Jain's index over all TCP flows, in the seconds that begin in `from..to`; `None` if no data arrived.
    pub fn jain_of_flows(&self, from: Instant, to: Instant) -> Option<f64> {
        let groups = 0..self.groups.len();
        let bytes = groups.flat_map(|group| self.group(group, from, to).flow_bytes);
        let shares: Vec<f64> = bytes.map(|bytes| bytes as f64).collect();
        fairness::jain(&shares)
    }

    /// F between groups in the seconds that begin in `from..to`, `[fairness eq. 1]`; `None` if no data
    /// arrived.
    pub fn weighted_index(&self, from: Instant, to: Instant) -> Option<f64> {
        let groups = 0..self.groups.len();
        let bytes = groups.map(|group| self.group(group, from, to).bytes() as f64);
        let shares: Vec<f64> = bytes.collect();
        let weights: Vec<f64> = self.groups.iter().map(|group| group.weight).collect();
        fairness::weighted_index(&shares, &weights)
    }

    /// F between groups in every second of `from..to`, see
    /// [`weighted_index`](Self::weighted_index).
    pub fn weighted_index_by_second(&self, from: Instant, to: Instant) -> Vec<Option<f64>> {
        let second = Duration::from_secs(1);
        let mut indices = Vec::new();
        let mut at = from;
        while at < to {
            indices.push(self.weighted_index(at, at + second));
            at += second;
        }
        indices
    }

    /// Counters of all TCP senders, from the beginning; the longest silence is the maximum over all.
    pub fn sender_counts(&self) -> SenderCounts {
        let mut sum = SenderCounts::default();
        for (group, _, ports) in self.flows() {
            let host = self.host(self.groups[group].senders);
            if let Some(tcp) = host.tcp_sender(ports.0) {
                sum.add(tcp.counts());
            }
        }
        sum
    }

    fn flows(&self) -> impl Iterator<Item = (usize, usize, Ports)> + '_ {
        self.groups.iter().enumerate().flat_map(|(group, placed)| {
            let flows = placed.flows.iter().enumerate();
            flows.map(move |(index, &ports)| (group, index, ports))
        })
    }

    fn host(&self, node: MeshNode) -> &Host {
        let device = self.mesh.device(node).and_then(HasHost::host);
        device.expect("groups stand on hosts")
    }
}

impl GroupReport {
    pub fn bytes(&self) -> u64 {
        self.flow_bytes.iter().sum::<u64>() + self.udp_bytes
    }
}
