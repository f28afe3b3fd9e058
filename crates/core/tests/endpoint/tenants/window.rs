//! What counts in a tenant's window.

use keiro_core::{
    FlowId, NewDatagram, TenantId,
    wire::{Frame, Reader},
};

use super::{AppId, DATAGRAMS, Duration, ONE, Victim, keiro, peer, tenant};

fn in_flight(victim: &Victim, id: TenantId) -> u64 {
    let tenants = victim
        .end
        .tenants(victim.now, victim.peer, None, usize::MAX);
    let tenant = tenants.into_iter().find(|tenant| tenant.id == id);
    let paths = tenant.expect("it is configured").paths;
    paths.iter().map(|path| path.stats.in_flight_bytes).sum()
}

/// A datagram that has no room beside an acknowledgement leaves in the next packet. The packet with
/// the acknowledgement alone is never acknowledged, so it would stay in the window for ever.
#[test]
fn acknowledgement_that_leaves_alone_is_not_charged_to_the_tenant_whose_turn_it_was() {
    let mut victim = Victim::new();
    let window = tenant(ONE, 1.0, keiro());
    victim
        .end
        .set_tenant(victim.now, victim.peer, window)
        .expect("room for tenants");
    let mut app = peer(2, None).apps[1].clone();
    app.tenant = ONE;
    victim.end.set_app(victim.peer, app);
    assert_eq!(in_flight(&victim, ONE), 0);
    let before = victim
        .end
        .tenants(victim.now, victim.peer, None, usize::MAX);
    println!("{before:?}");

    // The peer is owed an acknowledgement, which travels with data, and nothing else waits.
    victim.now += Duration::from_millis(20);
    victim.hear();
    victim.inject(&[1]);
    // 1280 bytes without the headers of IPv4, UDP, the data packet and the frame, and its tag.
    let datagram = vec![1; 1280 - 28 - 10 - 16 - 8];
    let app = AppId::of_name(DATAGRAMS);
    victim
        .end
        .send_datagram(
            victim.now,
            victim.peer,
            NewDatagram::new(app, FlowId(3), victim.now, &datagram),
        )
        .expect("room");
    let packets = victim.hear().packets;
    let kinds: Vec<Vec<&str>> = packets.iter().map(|(_, clear)| kinds_of(clear)).collect();
    let alone = kinds.iter().position(|kinds| kinds == &["ack"]);
    let with_data = kinds.iter().position(|kinds| kinds == &["datagram"]);
    assert!(alone < with_data && alone.is_some(), "{kinds:?}");
    assert_eq!(in_flight(&victim, ONE), 1280, "the datagram");
}

fn kinds_of(clear: &[u8]) -> Vec<&'static str> {
    let mut reader = Reader::new(clear);
    let frames = std::iter::from_fn(|| Frame::decode(&mut reader).expect("well-formed frames"));
    frames
        .map(|frame| match frame {
            Frame::Ack(_) => "ack",
            Frame::Datagram { .. } => "datagram",
            _ => "other",
        })
        .collect()
}
