//! Tenants that only one gateway knows: the sender gets a report.

use super::*;

#[test]
fn sender_learns_that_the_peer_drops_packets_of_an_unknown_tenant() {
    let mut net = Net::new(20, narrow());
    let (now, peer) = (net.now, net.peers[0]);
    net.set(tenant(TWO, 1.0, ControllerConfig::Open));
    net.ends[0]
        .set_tenant(now, peer, tenant(ONE, 1.0, ControllerConfig::Open))
        .expect("room for tenants");
    net.run(Duration::from_secs(3), |net| {
        for id in [ONE, TWO] {
            net.send(id, 1, 100).expect("accepted");
        }
    });
    let sent = net.snapshot(ONE);
    let reported = sent.drops.unknown_at_peer;
    assert!(
        reported > 1000 && reported <= sent.stats.accepted_packets,
        "{reported} of {}",
        sent.stats.accepted_packets
    );
    assert_eq!(net.snapshot(TWO).drops.unknown_at_peer, 0);
    assert!(!net.arrived.contains_key(&ONE) && net.arrived.contains_key(&TWO));
    let peers = net.peers;
    let refused = (
        0,
        Event::TenantRefused {
            peer: peers[0],
            tenant: ONE,
        },
    );
    let unknown = (
        1,
        Event::TenantUnknown {
            peer: peers[1],
            tenant: ONE,
        },
    );
    net.reported.sort_by_key(|(side, _)| *side);
    assert_eq!(net.reported, [refused, unknown]);

    net.reported.clear();
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    let later = |net: &mut Net| net.send(ONE, 1, 100).expect("accepted");
    net.run(Duration::from_secs(1), later);
    let known = net.snapshot(ONE).drops.unknown_at_peer;
    net.run(Duration::from_secs(2), later);
    assert_eq!(net.snapshot(ONE).drops.unknown_at_peer, known);
    assert!(net.arrived.contains_key(&ONE));
    assert_eq!(net.reported, []);
}

/// Packets of a tenant that side 1 has dropped because of an address.
fn dropped(tenant: TenantId, last: u8, packets: u64) -> PrefixMismatch {
    PrefixMismatch {
        tenant,
        address: PacketAddress::Source([10, 9, 0, last].into()),
        packets,
    }
}

#[test]
fn sender_learns_which_address_the_peer_does_not_expect_once_a_minute() {
    let mut net = Net::new(20, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    for last in 0..3 {
        let peer = net.peers[1];
        net.ends[1].report_prefix_mismatch(peer, dropped(ONE, last, 5));
        // Nor of a tenant that it does not have.
        net.ends[1].report_prefix_mismatch(peer, dropped(TWO, last, 5));
        net.run(Duration::from_secs(5), |net| {
            net.send(ONE, 1, 100).expect("accepted");
        });
    }
    let peer = net.peers[0];
    let mismatch = dropped(ONE, 0, 5);
    assert_eq!(
        net.reported,
        [(0, Event::PacketsRefused { peer, mismatch })]
    );
}

#[test]
fn peer_that_reports_all_the_time_is_heard_once_a_minute_and_only_of_our_tenants() {
    let mut victim = Victim::new();
    let one = TenantConfig::new(ONE);
    victim
        .end
        .set_tenant(victim.now, victim.peer, one)
        .expect("room");
    let said = |tenant: u64, field: u8, version: u8| {
        let address = [10, 9, 0, 7];
        let body = [&varint(tenant)[..], &varint(5), &[field, version], &address].concat();
        frame(0x47, &[&varint(body.len() as u64), &body])
    };
    let mut heard = 0;
    for _ in 0..100 {
        // Source and destination of ours, and of another; what a later version may say.
        for (tenant, field, version) in [(1, 0, 4), (1, 1, 4), (2, 0, 4), (1, 9, 4), (1, 0, 9)] {
            victim.inject(&said(tenant, field, version));
        }
        let events = victim.hear().events.into_iter();
        heard += events
            .filter(|event| matches!(event, Event::PacketsRefused { .. }))
            .count();
    }
    assert_eq!(heard, 2);
    assert!(victim.drops().is_empty(), "{:?}", victim.drops());
    victim.inject(&said(1, 0, 6));
    victim.hear();
    assert_eq!(victim.drops(), [("malformed", 1)], "cut off");
    victim.assert_alive();
}

#[test]
fn reports_of_unknown_tenants_are_ignored() {
    let mut victim = Victim::new();
    let one = TenantConfig::new(ONE);
    victim
        .end
        .set_tenant(victim.now, victim.peer, one)
        .expect("room");
    let said = |tenant: u64, packets: u64| {
        let body = [varint(tenant), varint(packets)].concat();
        frame(0x45, &[&varint(body.len() as u64), &body])
    };
    let largest = (1 << 62) - 1;
    for (tenant, packets) in [(2, 7), (0, 7), (1, largest), (1, 3), (1, largest)] {
        victim.inject(&said(tenant, packets));
        victim.hear();
    }
    let tenants = victim
        .end
        .tenants(victim.now, victim.peer, None, usize::MAX);
    assert_eq!(tenants.len(), 1);
    assert_eq!(tenants[0].drops.unknown_at_peer, 2 * largest);
    assert!(victim.drops().is_empty(), "{:?}", victim.drops());
    victim.inject(&said(1 << 32, 1));
    victim.hear();
    assert_eq!(victim.drops(), [("malformed", 1)]);
    victim.assert_alive();
}
