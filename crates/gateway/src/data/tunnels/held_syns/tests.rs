//! What waits, what that is bounded by, and what is remembered.

use std::sync::atomic::{AtomicUsize, Ordering};

use keiro_core::Delivery;

use super::*;
use crate::data::joined::Joined;

const TENANT: TenantId = TenantId(1);
const SERVER: &str = "10.2.0.5:80";

/// A TCP packet of IPv4 with these flags and field of fragments, of a length that a first fragment may have.
fn segment(flags: u8, fragment: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 44, 0, 0];
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol::TCP, 0, 0, 10, 1, 0, 5, 10, 2, 0, 5]);
    let sum = keiro_ip::checksum::Sum::default().bytes(&packet).checksum();
    packet[10..12].copy_from_slice(&sum);
    packet.extend([0x9c, 0x41, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags]);
    packet.extend([0; 10]);
    packet
}

#[test]
fn only_a_whole_packet_with_syn_alone_begins_a_connection() {
    let flow = |flags, fragment| {
        let packet = segment(flags, fragment);
        begun_by(&Header::parse(&packet).unwrap(), &packet)
    };
    let expected = FlowAddresses {
        source: "10.1.0.5:40001".parse().unwrap(),
        destination: "10.2.0.5:80".parse().unwrap(),
    };
    assert_eq!(flow(2, 0), Some(expected));
    // With both flags of ECN, as hosts begin that want it (RFC 3168 §6.1.1).
    assert_eq!(flow(2 | 0xc0, 0), Some(expected));
    for other in [16, 18, 4, 20, 17, 3, 0] {
        assert_eq!(flow(other, 0), None, "{other:#x}");
    }
    // More fragments follow.
    assert_eq!(flow(2, 0x2000), None);
}

/// Packets that wait beside two cores, of which the second is the peer.
struct Bench {
    joined: Joined,
    held: HeldSyns,
}

impl Bench {
    /// With room for so many handshakes of the tenant, and so many descriptors.
    fn new(handshakes: usize, descriptors: usize) -> Self {
        let mut joined = Joined::new(app_of(TENANT));
        joined.bring_up();
        let mut held = HeldSyns::new(Quota::new(descriptors));
        held.machine = Machine {
            is_own: |_| false,
            has_begun: |_| false,
        };
        held.add_tenant(TENANT, handshakes);
        Self { joined, held }
    }

    fn hold(&mut self, client: &str, server: &str) -> Result<Hold, Option<&'static str>> {
        self.hold_of(TENANT, client, server)
    }

    fn hold_of(
        &mut self,
        tenant: TenantId,
        client: &str,
        server: &str,
    ) -> Result<Hold, Option<&'static str>> {
        let packet = segment(2, 0);
        let new = NewConnection {
            tenant,
            peer: self.joined.peers[0],
            flow: flow(client, server),
            header: &Header::parse(&packet).unwrap(),
            sorted: Classification::default(),
            packet: &packet,
        };
        let endpoint = &mut self.joined.ends[0];
        let held = self.held.hold(self.joined.now, &new, endpoint);
        self.held.check_invariants();
        held.map_err(|reason| reason.map(name_of))
    }

    /// How many connections of a client wait at most, from the given port on.
    fn fill(&mut self, client: &str, first_port: u16) -> usize {
        let mut ports = first_port..;
        let mut waits = || {
            let client = format!("{client}:{}", ports.next().unwrap());
            self.hold(&client, SERVER) == Ok(Hold::Wait)
        };
        std::iter::repeat_with(&mut waits)
            .take_while(|waits| *waits)
            .count()
    }

    /// The peer answers all streams that it knows: it is connected, or says why not. What came of the packets that waited:
    /// `None` is one that is written back.
    fn answer(&mut self, refusal: Option<ResetReason>) -> Vec<Option<ResetReason>> {
        let mut answers = Vec::new();
        for _ in 0..4 {
            self.joined.exchange();
            let (now, peer) = (self.joined.now, self.joined.peers[1]);
            for (stream, signal) in std::mem::take(&mut self.joined.signals) {
                if !matches!(signal, StreamSignal::Opened { .. }) {
                    continue;
                }
                let endpoint = &mut self.joined.ends[1];
                match refusal {
                    Some(reason) => endpoint.reset_stream(peer, stream, reason),
                    None => {
                        endpoint.write_stream(now, peer, stream, &[CONNECTED]);
                    }
                }
            }
            while let Some(delivery) = self.joined.ends[0].poll_delivery() {
                if let Delivery::Stream {
                    peer,
                    stream,
                    signal,
                    ..
                } = delivery
                {
                    let (now, endpoint) = (self.joined.now, &mut self.joined.ends[0]);
                    let answer = self.held.on_signal(now, peer, stream, signal, endpoint);
                    answers.extend(match answer {
                        Answer::Connected(..) => Some(None),
                        Answer::Refused(_, reason) => Some(Some(reason)),
                        Answer::Wait => None,
                    });
                }
            }
        }
        self.held.check_invariants();
        answers
    }

    fn pass(&mut self, time: Duration) {
        self.joined.now += time;
        self.held.tick(self.joined.now, &mut self.joined.ends[0]);
        self.held.check_invariants();
        self.joined.exchange();
        self.joined.bring_up();
    }
}

fn flow(client: &str, server: &str) -> FlowAddresses {
    FlowAddresses {
        source: client.parse().unwrap(),
        destination: server.parse().unwrap(),
    }
}

fn name_of(reason: Reason) -> &'static str {
    let mut counts = NotSplit::default();
    *reason(&mut counts) += 1;
    let counted = counts.by_reason().into_iter().find(|(_, count)| *count > 0);
    counted.expect("one is counted").0
}

#[test]
fn one_client_has_half_of_what_its_tenant_has_and_leaves_room_for_others() {
    let mut bench = Bench::new(64, usize::MAX);
    assert_eq!(bench.fill("10.1.0.5", 2000), 16);
    assert_eq!(bench.fill("10.1.0.6", 2000), 8);
    assert_eq!(bench.hold("10.1.0.5:9", SERVER), Err(Some("limit")));
    // A tenant without listeners has no room.
    let other = bench.hold_of(TenantId(2), "10.1.0.7:2000", SERVER);
    assert_eq!(other, Err(Some("limit")));
}

#[test]
fn each_first_packet_reserves_the_descriptor_of_its_client() {
    let mut bench = Bench::new(4096, 20);
    assert_eq!(bench.fill("10.1.0.5", 2000), 10);
    // The eleventh was sent, and the client of the first is given up.
    bench.pass(HOLD_MAX);
    assert_eq!(bench.fill("10.1.0.5", 3000), 10);
}

#[test]
fn the_kernel_is_not_asked_about_clients_beyond_a_limit() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let mut bench = Bench::new(64, usize::MAX);
    bench.held.machine.is_own = |_| {
        ASKED.fetch_add(1, Ordering::Relaxed);
        false
    };
    assert_eq!(bench.fill("10.1.0.5", 2000), 16);
    for port in 5000..5100 {
        let held = bench.hold(&format!("10.1.0.5:{port}"), SERVER);
        assert_eq!(held, Err(Some("limit")));
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 16);
    bench.held.machine.is_own = |_| true;
    let own = bench.hold("10.1.0.6:2000", SERVER);
    assert_eq!(own, Err(Some("own_address")));
}

#[test]
fn a_handshake_of_the_kernel_keeps_its_place_until_it_is_over() {
    let mut bench = Bench::new(16, usize::MAX);
    assert_eq!(bench.fill("10.1.0.5", 2000), 4);
    assert_eq!(bench.answer(None), [None; 4]);
    // One client is accepted, the streams of the others end: the tenant ends, for example.
    let first = flow("10.1.0.5:2000", SERVER);
    let now = bench.joined.now;
    assert!(bench.held.take_accepted(now, TenantId(2), first).is_none());
    assert!(bench.held.take_accepted(now, TENANT, first).is_some());
    bench
        .held
        .forget_where(&mut bench.joined.ends[0], |_, _| true);
    bench.held.check_invariants();
    assert_eq!(bench.fill("10.1.0.5", 3000), 1);
    // A client that is accepted after all is not ours any more, and its handshake is over.
    let second = flow("10.1.0.5:2001", SERVER);
    assert!(bench.held.take_accepted(now, TENANT, second).is_none());
    assert_eq!(bench.fill("10.1.0.5", 4000), 1);
    bench.pass(ACCEPT_MAX);
    assert_eq!(bench.fill("10.1.0.5", 5000), 2);
}

#[test]
fn what_is_forbidden_to_one_client_is_not_to_another() {
    let mut bench = Bench::new(4096, usize::MAX);
    assert_eq!(bench.hold("10.1.0.5:2000", SERVER), Ok(Hold::Wait));
    let forbidden = Some(ResetReason::Forbidden);
    assert_eq!(bench.answer(forbidden), [forbidden]);
    // Its first packet has gone on, and may come again.
    assert_eq!(bench.hold("10.1.0.5:2000", SERVER), Err(None));
    let again = bench.hold("10.1.0.5:2001", SERVER);
    assert_eq!(again, Err(Some("destination")));
    assert_eq!(bench.hold("10.1.0.5:2002", "10.2.0.5:81"), Ok(Hold::Wait));
    assert_eq!(bench.hold("10.1.0.6:2000", SERVER), Ok(Hold::Wait));
    bench.pass(FORBIDDEN_FOR);
    assert_eq!(bench.hold("10.1.0.5:2003", SERVER), Ok(Hold::Wait));
}

#[test]
fn a_machine_that_takes_no_client_leaves_packets_and_one_that_drops_some_splits_the_others() {
    let mut bench = Bench::new(4096, usize::MAX);
    let repeat = |bench: &mut Bench, client: &str, server: &str| {
        assert_eq!(bench.hold(client, server), Ok(Hold::Wait));
        assert_eq!(bench.answer(None), [None]);
        // It may have waited in the device.
        assert_eq!(bench.hold(client, server), Ok(Hold::Wait));
        bench.pass(REPEAT_MIN);
        assert_eq!(bench.hold(client, server), Ok(Hold::WriteBack));
        bench.pass(REPEAT_MIN);
        bench.hold(client, server)
    };
    // The kernel's answers are lost on their way to the client.
    bench.held.machine.has_begun = |_| true;
    let lossy = repeat(&mut bench, "10.1.0.5:2000", SERVER);
    assert_eq!(lossy, Ok(Hold::WriteBack));
    let now = bench.joined.now;
    let first = flow("10.1.0.5:2000", SERVER);
    assert!(bench.held.take_accepted(now, TENANT, first).is_some());
    // A firewall drops one port.
    bench.held.machine.has_begun = |_| false;
    let dropped = repeat(&mut bench, "10.1.0.5:2001", "10.2.0.5:22");
    assert_eq!(dropped, Err(Some("diversion")));
    let again = bench.hold("10.1.0.5:2002", "10.2.0.5:22");
    assert_eq!(again, Err(Some("diversion")));
    assert_eq!(bench.hold("10.1.0.5:2003", SERVER), Ok(Hold::Wait));
    // Or all, by now.
    bench.pass(FORBIDDEN_FOR);
    let dropped = repeat(&mut bench, "10.1.0.5:2004", SERVER);
    assert_eq!(dropped, Err(Some("diversion")));
    let other = bench.hold("10.1.0.6:2000", "10.2.0.6:80");
    assert_eq!(other, Err(Some("diversion")));
    bench.pass(FORBIDDEN_FOR);
    assert_eq!(bench.hold("10.1.0.6:2001", SERVER), Ok(Hold::Wait));
}
