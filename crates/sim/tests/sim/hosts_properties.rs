//! Whatever links do, a TCP receiver's application gets the bytes that were sent, each once and in order, and
//! every flow completes. More cases: `PROPTEST_CASES=2000`.

use std::{collections::BTreeMap, time::Duration};

use keiro_link::{Buffer, LinkConfig, Loss, Reorder};
use keiro_sim::{
    LinkSpec, Stop,
    traffic::{
        Activity, Body, Device, DeviceOutput, HasHost, Host, IpPacket, Mesh, TcpConfig, TcpSpec,
        tcp::{CongestionControl, LossDetection, RtoFloor},
    },
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};
use proptest::prelude::*;

/// A host that compares its receiver's output with its input.
struct Watched {
    host: Host,
    /// Port of the receiver and its peer's first sequence number; `None` if there is nothing to check.
    receiver: Option<(u16, u32)>,
    /// Bytes of the stream that arrived, as ranges that do not touch.
    came: BTreeMap<u64, u64>,
    violations: Vec<String>,
}

impl Watched {
    fn new() -> Self {
        Self {
            host: Host::new(),
            receiver: None,
            came: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    fn delivered(&self) -> u64 {
        let receiver = self
            .receiver
            .and_then(|(port, _)| self.host.tcp_receiver(port));
        receiver.map_or(0, |tcp| tcp.delivered())
    }

    fn note(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        while let Some((&begin, &end)) = self.came.range(..=to).next_back() {
            if end < from {
                break;
            }
            from = from.min(begin);
            to = to.max(end);
            self.came.remove(&begin);
        }
        self.came.insert(from, to);
    }
}

impl Device for Watched {
    fn handle_packet(
        &mut self,
        now: Instant,
        port: usize,
        packet: &IpPacket,
        out: &mut DeviceOutput<'_>,
    ) {
        let before = self.delivered();
        if let (Body::Tcp(header), Some((_, first))) = (&packet.body, self.receiver)
            && header.payload > 0
        {
            // Streams of the test are shorter than 2^31 bytes.
            let from = u64::from(header.sequence.wrapping_sub(first.wrapping_add(1)));
            self.note(from, from + u64::from(header.payload));
        }
        self.host.handle_packet(now, port, packet, out);
        let after = self.delivered();
        let expected = self.came.get(&0).copied().unwrap_or(0);
        if self.receiver.is_some() && (after < before || after != expected) {
            let message = format!("{now}: gave {before} → {after}, came without a gap {expected}");
            self.violations.push(message);
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut DeviceOutput<'_>) {
        self.host.handle_timeout(now, out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.host.poll_timeout()
    }
}

impl HasHost for Watched {
    fn host(&self) -> Option<&Host> {
        Some(&self.host)
    }

    fn host_mut(&mut self) -> Option<&mut Host> {
        Some(&mut self.host)
    }
}

fn links() -> impl Strategy<Value = LinkConfig> {
    let probability = |most: f64| (0.0..most).prop_map(|p| Probability::new(p).unwrap());
    let chances = (
        probability(0.15),
        probability(0.1),
        probability(0.05),
        probability(0.2),
    );
    let times = (0..60_u64, 0..30_u64, any::<bool>(), 0..80_u64);
    (chances, times, 1..100_u64, 1..60_u32).prop_map(
        |((loss, duplicate, corrupt, held), (delay, jitter, overtakes, extra), rate, buffer)| {
            LinkConfig {
                rate: Some(Bandwidth::from_mbit_per_second(rate)),
                delay: Duration::from_millis(delay),
                jitter: Duration::from_millis(jitter),
                jitter_overtakes: overtakes,
                loss: Loss::Bernoulli(loss),
                duplicate,
                corrupt,
                reorder: Reorder {
                    probability: held,
                    extra_delay: Duration::from_millis(extra),
                },
                buffer: Buffer::Packets(buffer),
                ..LinkConfig::default()
            }
        },
    )
}

fn configs() -> impl Strategy<Value = TcpConfig> {
    let congestion =
        prop::sample::select(vec![CongestionControl::NewReno, CongestionControl::Cubic]);
    let detection = prop::sample::select(vec![LossDetection::Sack, LossDetection::SackAndTime]);
    let floor = (any::<bool>(), 1..1000_u64).prop_map(|(whole, ms)| {
        let floor = Duration::from_millis(ms);
        if whole {
            RtoFloor::Timeout(floor)
        } else {
            RtoFloor::BeyondRoundTrip(floor)
        }
    });
    let delayed_ack = prop::option::of((1..500_u64).prop_map(Duration::from_millis));
    let sizes = (1..1460_u16, 1..20_u32, 10..22_u32);
    (
        congestion,
        detection,
        floor,
        delayed_ack,
        any::<bool>(),
        any::<bool>(),
        sizes,
    )
        .prop_map(
            |(congestion, loss_detection, rto_floor, delayed_ack, timestamps, ecn, sizes)| {
                TcpConfig {
                    congestion,
                    loss_detection,
                    rto_floor,
                    delayed_ack,
                    timestamps,
                    ecn,
                    mss: sizes.0,
                    initial_window: sizes.1,
                    receive_buffer: ByteCount::new(1 << sizes.2),
                    ..TcpConfig::RFC
                }
            },
        )
}

proptest! {
    #[test]
    fn every_byte_arrives_once_and_in_order(
        seed in any::<u64>(),
        forward in links(),
        backward in links(),
        tcp in configs(),
        segments in 1..300_u64,
        rest in 0..1460_u64,
        first_sequence in any::<u32>(),
    ) {
        let length = segments * u64::from(tcp.mss) + rest;
        let mut mesh = Mesh::new(seed);
        let [a, b] = [(); 2].map(|()| mesh.add_host(Watched::new()));
        mesh.connect(a, b, LinkSpec { forward, backward, mtu: 1500 });
        let receiver = mesh.with_host(b, |host| host.add_tcp_receiver(tcp));
        mesh.drive(b, |watched, _, _| watched.receiver = Some((receiver, first_sequence)));
        let spec = TcpSpec {
            to: (mesh.address(b), receiver),
            config: tcp,
            length: Some(length),
            activity: Activity::from(Instant::ZERO),
            first_sequence,
        };
        let sender = mesh.with_host(a, |host| host.add_tcp_sender(spec));
        // Fifteen consecutive losses with timeouts up to a minute, repeatedly.
        let stop = mesh.run_until(Instant::ZERO + Duration::from_secs(100_000));
        let watched = mesh.device(b).unwrap();
        prop_assert!(watched.violations.is_empty(), "{:?}", watched.violations);
        prop_assert_eq!(watched.delivered(), length);
        let host = mesh.device(a).unwrap().host().unwrap();
        let tcp = host.tcp_sender(sender).unwrap();
        prop_assert!(tcp.is_finished(), "{:?} {:?}", tcp, stop);
        prop_assert_eq!(stop, Stop::Idle);
        prop_assert_eq!(host.stuck(mesh.now()).count(), 0);
    }
}
