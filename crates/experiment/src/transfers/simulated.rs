//! Transfers in the simulator: two hosts with TCP and the network between them.

use std::time::Duration;

use anyhow::{Context, ensure};
use keiro_link::{Buffer, LinkConfig};
use keiro_sim::{
    Direction, LinkSpec, Stop,
    traffic::{
        Activity, Body, Device, DeviceOutput, HasHost, Host, IpPacket, Mesh, MeshLink, MeshNode,
        Station, TcpConfig, TcpSpec,
    },
};
use keiro_units::{Bandwidth, ByteCount, Instant};

use super::{Network, TransferOutcome, TransferRunner};
use crate::{row::Source, simulator::Simulator};

/// How often a transfer is looked at, in simulated time.
const STEP: Duration = Duration::from_millis(1);

/// Records when data last arrived at the receiver.
#[derive(Default)]
struct Tap {
    last: Instant,
}

impl Device for Tap {
    fn handle_packet(
        &mut self,
        now: Instant,
        _port: usize,
        packet: &IpPacket,
        out: &mut DeviceOutput<'_>,
    ) {
        if let Body::Tcp(header) = packet.body
            && header.payload > 0
        {
            self.last = now;
        }
        out.forward(packet);
    }
}

struct Line {
    mesh: Mesh<Station<Tap>>,
    tap: MeshNode,
    receiver: (MeshNode, u16),
    link: MeshLink,
    config: LinkConfig,
}

impl TransferRunner for Simulator {
    fn source(&self) -> Source {
        Source::Sim
    }

    fn transfer(
        &mut self,
        network: &Network,
        size: ByteCount,
        seed: u64,
        limit: Duration,
    ) -> anyhow::Result<TransferOutcome> {
        let mut line = Line::new(network, size, seed)?;
        let mut full = network.full;
        let mut at = Duration::ZERO;
        while line.delivered()? < size.get() {
            if at >= limit {
                return Ok(TransferOutcome {
                    seconds: None,
                    emulator: None,
                });
            }
            if let Some(full) = full.take_if(|full| {
                line.delivered()
                    .is_ok_and(|delivered| delivered >= full.after.0.get())
            }) {
                line.set_rate(Bandwidth::ZERO);
                at += full.standstill.0;
                line.run_until(at)?;
                line.set_rate(full.rate.0);
            }
            at += STEP;
            line.run_until(at)?;
        }
        let tap = line.mesh.device(line.tap).and_then(Station::gateway);
        let last = tap.context("the tap is there")?.last;
        let took = last.saturating_duration_since(Instant::ZERO);
        Ok(TransferOutcome {
            seconds: Some(took.as_secs_f64()),
            emulator: None,
        })
    }
}

impl Line {
    fn new(network: &Network, size: ByteCount, seed: u64) -> anyhow::Result<Self> {
        let config = LinkConfig {
            rate: Some(network.rate.0),
            delay: network.delay.0,
            jitter: network.jitter.0,
            buffer: Buffer::Bytes(network.buffer.0),
            ..LinkConfig::default()
        };
        let tcp = TcpConfig {
            receive_buffer: network.receive_buffer.0,
            ..TcpConfig::LINUX
        };
        let mut mesh = Mesh::new(seed);
        let from = mesh.add_host(Station::Host(Host::new()));
        let tap = mesh.add_gateway(Station::Gateway(Box::default()));
        let to = mesh.add_host(Station::Host(Host::new()));
        let link = mesh.connect(from, tap, LinkSpec::symmetric(config));
        mesh.connect(tap, to, LinkSpec::symmetric(LinkConfig::default()));
        let port = mesh.with_host(to, |host| host.add_tcp_receiver(tcp));
        let spec = TcpSpec {
            to: (mesh.address(to), port),
            config: tcp,
            length: Some(size.get()),
            activity: Activity::from(Instant::ZERO),
            first_sequence: 0,
        };
        mesh.with_host(from, |host| host.add_tcp_sender(spec));
        Ok(Self {
            mesh,
            tap,
            receiver: (to, port),
            link,
            config,
        })
    }

    fn delivered(&self) -> anyhow::Result<u64> {
        let (node, port) = self.receiver;
        let host = self.mesh.device(node).and_then(HasHost::host);
        let receiver = host.and_then(|host| host.tcp_receiver(port));
        Ok(receiver.context("the receiver is there")?.delivered())
    }

    fn set_rate(&mut self, rate: Bandwidth) {
        self.config.rate = Some(rate);
        self.mesh
            .set_link(self.link, Direction::Forward, self.config);
    }

    fn run_until(&mut self, at: Duration) -> anyhow::Result<()> {
        let stop = self.mesh.run_until(Instant::ZERO + at);
        ensure!(stop != Stop::Livelock, "the simulation makes no progress");
        Ok(())
    }
}
