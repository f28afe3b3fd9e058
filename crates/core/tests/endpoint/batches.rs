//! Datagrams that leave and arrive together are handled as one by one.

use std::time::Duration;

use keiro_core::{
    AppId, DatagramMeta, Delivery, Endpoint, Instant, IpPacket, PeerId, SocketId, TenantConfig,
    TenantId, TransmitBuf,
};
use keiro_model::fairness::controller::{ControllerConfig, Weight};
use keiro_units::Bandwidth;
use proptest::prelude::*;

use crate::support::{DATAGRAMS, address, endpoint, peer};

/// What happens to a batch on its way.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Nothing,
    /// Half of it is lost.
    Loss,
    /// It comes again.
    Replay,
    /// A byte of each datagram of this number and of each second one behind it is altered.
    Forgery(usize),
    /// What is behind this length is cut off.
    Cut(usize),
    /// Datagrams without meaning are in between.
    Noise,
}

/// IP packets that are queued at once: tenant, flow, length, ECN bits.
type Burst = Vec<(u32, u32, usize, u8)>;

/// How the second endpoint gets what the first one sends.
#[derive(Clone, Copy, PartialEq)]
enum Handling {
    Joined,
    OneByOne,
}

/// What came of it.
#[derive(Debug, PartialEq)]
struct Outcome {
    delivered: Vec<(TenantId, u8, Vec<u8>)>,
    refused: usize,
    /// Everything that both gateways count and estimate.
    figures: [String; 2],
}

struct Gateways {
    now: Instant,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    handling: Handling,
    delivered: Vec<(TenantId, u8, Vec<u8>)>,
    refused: usize,
}

impl Gateways {
    fn new(handling: Handling) -> Self {
        let mut ends = [endpoint(1), endpoint(2)];
        let peers = [0, 1].map(|side| {
            let mut config = peer(2 - side as u8, Some(address(2 - side as u16)));
            config.paths[0].rate = Some(Bandwidth::from_mbit_per_second(10_000));
            let id = ends[side].add_peer(Instant::ZERO, config);
            let controllers = [
                ControllerConfig::Open,
                ControllerConfig::Keiro {
                    unit: Some(Bandwidth::from_mbit_per_second(100)),
                },
                ControllerConfig::default(),
            ];
            for (tenant, controller) in (1..).zip(controllers) {
                let config = TenantConfig {
                    controller,
                    weight: Weight::new(f64::from(tenant)).expect("above 0"),
                    ..TenantConfig::new(TenantId(tenant))
                };
                let set = ends[side].set_tenant(Instant::ZERO, id, config);
                set.expect("within the limit");
            }
            id
        });
        let mut gateways = Self {
            now: Instant::ZERO,
            ends,
            peers,
            handling,
            delivered: Vec::new(),
            refused: 0,
        };
        for _ in 0..50 {
            gateways.turn(Harm::Nothing);
        }
        assert!(gateways.ends[0].is_up(gateways.peers[0]));
        gateways
    }

    fn queue(&mut self, burst: &Burst) {
        for (tenant, flow_hash, len, ecn) in burst {
            let packet = IpPacket {
                flow_hash: *flow_hash,
                ecn: *ecn,
                needs_order: false,
                data: vec![*len as u8; *len],
            };
            let app = AppId::of_name(DATAGRAMS);
            let (peer, tenant) = (self.peers[0], TenantId(*tenant));
            let queued = self.ends[0].send_packet(self.now, peer, tenant, app, packet);
            // Where large packets are lost, the path carries less from then on.
            self.refused += usize::from(queued.is_err());
        }
    }

    /// One turn of both drivers; `harm` is done to what the first one sends.
    fn turn(&mut self, harm: Harm) {
        self.now += Duration::from_micros(300);
        for side in 0..2 {
            self.ends[side].handle_timeout(self.now);
            let mut buf = TransmitBuf::new(40);
            while let Some(transmit) = self.ends[side].poll_transmit(self.now, &mut buf) {
                let harm = if side == 0 { harm } else { Harm::Nothing };
                let stride = transmit.segment_size;
                let bytes = harmed(buf.filled().to_vec(), stride, harm);
                self.receive(1 - side, transmit.ecn, bytes, stride);
            }
            self.deliver(1 - side);
        }
    }

    fn receive(&mut self, side: usize, ecn: u8, mut bytes: Vec<u8>, stride: usize) {
        let meta = DatagramMeta {
            socket: SocketId(0),
            remote: address(2 - side as u16),
            ecn,
            received_at: self.now,
        };
        self.ends[side].begin_turn(self.now);
        if self.handling == Handling::Joined {
            return self.ends[side].handle_datagrams(self.now, meta, &mut bytes, stride);
        }
        for datagram in bytes.chunks_mut(stride) {
            self.ends[side].handle_datagram(self.now, meta, datagram);
        }
    }

    fn deliver(&mut self, side: usize) {
        while let Some(delivery) = self.ends[side].poll_delivery() {
            if let Delivery::Packet {
                tenant, ecn, data, ..
            } = delivery
            {
                self.delivered.push((tenant, ecn, data.to_vec()));
            }
        }
    }

    fn outcome(self) -> Outcome {
        let figures = [0, 1].map(|side| {
            let (end, peer) = (&self.ends[side], self.peers[side]);
            let tenants = end.tenants(self.now, peer, None, usize::MAX);
            format!("{:?} {:?} {tenants:?}", end.snapshot(), end.session(peer))
        });
        Outcome {
            delivered: self.delivered,
            refused: self.refused,
            figures,
        }
    }
}

/// The bytes of a batch after what happens to it; datagrams keep their length.
fn harmed(mut bytes: Vec<u8>, stride: usize, harm: Harm) -> Vec<u8> {
    match harm {
        Harm::Nothing => {}
        Harm::Loss => {
            let kept = bytes.chunks(stride).step_by(2);
            bytes = kept.flatten().copied().collect();
        }
        Harm::Replay => {
            let whole = bytes.len() / stride * stride;
            bytes.extend_from_within(..whole);
            bytes.rotate_right(whole);
        }
        Harm::Forgery(first) => {
            for datagram in bytes.chunks_mut(stride).skip(first).step_by(2) {
                let last = datagram.len() - 1;
                datagram[last] ^= 1;
            }
        }
        Harm::Cut(len) => bytes.truncate(len.max(1)),
        Harm::Noise => {
            let noise = (0u8..6).map(|kind| vec![kind; stride]);
            let all = noise.zip(bytes.chunks(stride).map(<[u8]>::to_vec));
            let mut mixed: Vec<u8> = all
                .flat_map(|(noise, datagram)| {
                    let whole = if datagram.len() == stride {
                        noise
                    } else {
                        Vec::new()
                    };
                    [whole, datagram].concat()
                })
                .collect();
            std::mem::swap(&mut bytes, &mut mixed);
        }
    }
    bytes
}

fn run(handling: Handling, bursts: &[(Burst, Harm)]) -> Outcome {
    let mut gateways = Gateways::new(handling);
    for (burst, harm) in bursts {
        gateways.queue(burst);
        gateways.turn(*harm);
    }
    for _ in 0..200 {
        gateways.turn(Harm::Nothing);
    }
    gateways.ends.iter().for_each(Endpoint::check_invariants);
    gateways.outcome()
}

fn any_harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        4 => Just(Harm::Nothing),
        1 => Just(Harm::Loss),
        1 => Just(Harm::Replay),
        1 => (0usize..4).prop_map(Harm::Forgery),
        1 => (0usize..4000).prop_map(Harm::Cut),
        1 => Just(Harm::Noise),
    ]
}

fn any_burst() -> impl Strategy<Value = Burst> {
    let len = prop_oneof![Just(1200usize), 20usize..1200];
    proptest::collection::vec((1u32..4, 0u32..3, len, 0u8..3), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Also where batches are lost, come again, are forged or cut off, and where others are among them.
    #[test]
    fn batched_datagrams_are_handled_like_single_ones(
        bursts in proptest::collection::vec((any_burst(), any_harm()), 1..12),
    ) {
        let joined = run(Handling::Joined, &bursts);
        prop_assert_eq!(joined, run(Handling::OneByOne, &bursts));
    }
}

#[test]
fn a_burst_of_one_flow_leaves_together_and_arrives_in_order() {
    let mut gateways = Gateways::new(Handling::Joined);
    gateways.queue(&(0..40).map(|number| (1, 1, 1160 + number, 0)).collect());
    gateways.turn(Harm::Nothing);
    let lengths: Vec<usize> = gateways
        .delivered
        .iter()
        .map(|(_, _, data)| data.len())
        .collect();
    assert!(lengths.len() >= 20, "{lengths:?}");
    assert!(lengths.is_sorted(), "{lengths:?}");
}
