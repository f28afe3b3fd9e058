//! Devices between hosts and routers: they receive every packet on its path, carry it as bytes inside their
//! own datagrams, and decapsulate it at the other end.

use std::{net::Ipv4Addr, time::Duration};

use keiro_sim::traffic::{
    Body, Chain, Device, DeviceOutput, DevicePosition, Ecn, Group, IpPacket, Station, TcpConfig,
    wire,
};
use keiro_units::Instant;

const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 4500;

/// The simplest gateway: one packet per datagram, no window, no encryption.
#[derive(Default)]
struct Tunnel {
    peer: Option<Ipv4Addr>,
    written: Vec<u8>,
    carried: u64,
    put_back: u64,
    damaged: u64,
}

impl Device for Tunnel {
    fn handle_packet(
        &mut self,
        _now: Instant,
        _port: usize,
        packet: &IpPacket,
        out: &mut DeviceOutput<'_>,
    ) {
        let Some(peer) = self.peer else {
            return out.forward(packet);
        };
        match packet.body {
            Body::Bytes(_, id) if packet.destination == out.address() => {
                match wire::decode(out.bytes_mut(id)) {
                    Some(mut inside) => {
                        // RFC 6040: a mark of the outer header is copied to the inner one.
                        if packet.ecn == Ecn::Congestion && inside.ecn == Ecn::Capable {
                            inside.ecn = Ecn::Congestion;
                        }
                        self.put_back += 1;
                        out.send(inside);
                    }
                    None => self.damaged += 1,
                }
            }
            _ if wire::encode(packet, &mut self.written) => {
                self.carried += 1;
                out.send_bytes(peer, (PORT, PORT), packet.ecn, &self.written);
            }
            _ => out.forward(packet),
        }
    }
}

#[test]
fn gateways_carry_everything_both_ways_and_marks_come_through() {
    // A segment of 1500 bytes and the tunnel's 28 must pass links of 1500.
    let tcp = TcpConfig {
        mss: 1460 - 28,
        ecn: true,
        ..TcpConfig::LINUX
    };
    let mut chain = Chain {
        groups: vec![Group::new(Duration::ZERO, 5, tcp); 2],
        ..Chain::reference(0, tcp)
    };
    chain.bottlenecks[0].mark_above = Some(20);
    // The second group has no gateways.
    let between = |place| {
        let first = matches!(
            place,
            DevicePosition::Ingress(0) | DevicePosition::Egress(0)
        );
        first.then(|| Station::Gateway(Box::<Tunnel>::default()))
    };
    let mut run = chain.build_with(1, Station::Host, between);
    let ends = [
        run.groups[0].ingress.unwrap(),
        run.groups[0].egress.unwrap(),
    ];
    assert_eq!(run.groups[1].ingress, None);
    for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let peer = run.mesh.address(peer);
        run.mesh.drive(end, |station, _, _| {
            if let Some(tunnel) = station.gateway_mut() {
                tunnel.peer = Some(peer);
            }
        });
    }
    let (from, to) = (Instant::ZERO + 2 * SECOND, Instant::ZERO + 12 * SECOND);
    run.run(from, to);
    let counts = ends.map(|end| {
        let station = run.mesh.device(end).expect("a tunnel stands there");
        let tunnel = station.gateway().expect("a tunnel stands there");
        assert_eq!(tunnel.damaged, 0);
        (tunnel.carried, tunnel.put_back)
    });
    assert!(counts[0].0 > 10_000 && counts[1].0 > 5_000, "{counts:?}");
    assert!(
        counts[1].1 > counts[0].0 - 300 && counts[0].1 > counts[1].0 - 300,
        "{counts:?}"
    );
    let bytes = [0, 1].map(|group| run.group(group, from, to).bytes());
    assert!(bytes.iter().all(|&bytes| bytes > 20_000_000), "{bytes:?}");
    assert!(run.port(0).marked > 0 && run.port(0).dropped == 0);
    assert_eq!(run.mesh.counts().too_long, 0);
    // Only packets in flight have bytes.
    assert!(
        run.mesh.buffers_in_use() < 300,
        "{}",
        run.mesh.buffers_in_use()
    );
}
