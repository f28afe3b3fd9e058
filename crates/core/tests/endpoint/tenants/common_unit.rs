//! Which tenants are limited, and what a weight of 1 gets, between two gateways.

use keiro_core::wire::{Features, Frame, Reader};

use super::{ControllerConfig, Duration, IpPacket, ONE, TWO, Victim, app, tenant};
use crate::support::{Hello, endpoint, frame, tenant_limited, tenant_unit, varint};

/// A peer that has announced `features`; a tenant without a configured unit has more to send than it may.
fn backlogged(features: Features) -> Victim {
    let mut hello = Hello::new(2, 1, 1);
    hello.features = features.bits();
    let mut victim = Victim::with_hello(endpoint(1), hello);
    let config = tenant(ONE, 1.0, ControllerConfig::default());
    let set = victim.end.set_tenant(victim.now, victim.peer, config);
    set.expect("room for tenants");
    for _ in 0..100 {
        let packet = IpPacket {
            flow_hash: 1,
            ecn: 0,
            needs_order: false,
            data: vec![0x45; 1000],
        };
        let sent = victim
            .end
            .send_packet(victim.now, victim.peer, ONE, app(), packet);
        sent.expect("there is room");
    }
    victim
}

/// Tenants that are said to be limited, and units that are reported, in two seconds. What the endpoint sends is not
/// acknowledged, so that its tenant's window stays full; challenges are answered.
fn heard(victim: &mut Victim, arriving: &[Vec<u8>]) -> (Vec<u32>, Vec<u64>) {
    let (mut limited, mut units) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        victim.now += Duration::from_millis(10);
        for frame in arriving {
            victim.inject(frame);
        }
        let mut challenges = Vec::new();
        for (_, clear) in victim.hear().packets {
            let mut reader = Reader::new(&clear);
            while let Some(frame) = Frame::decode(&mut reader).expect("sound frames") {
                match frame {
                    Frame::TenantLimited(tenant) => limited.push(tenant),
                    Frame::TenantUnit(unit) => units.push(unit),
                    Frame::PathChallenge(token) => challenges.push(token),
                    _ => {}
                }
            }
        }
        for token in challenges {
            victim.inject(&frame(4, &[&token.to_be_bytes()]));
        }
    }
    (limited, units)
}

#[test]
fn limited_tenants_are_announced_only_with_the_feature() {
    // What arrives is acknowledged, and acknowledgements have room for it.
    let arriving = [frame(0x12, &[&varint(1), &varint(100), &[0x45; 100]])];
    let (limited, _) = heard(&mut backlogged(Features::COMMON_UNIT), &arriving);
    assert!(
        limited.contains(&ONE.0) && limited.len() <= 20,
        "{limited:?}"
    );
    let (limited, _) = heard(&mut backlogged(Features::SPLIT_PACKETS), &arriving);
    assert_eq!(limited, []);
}

#[test]
fn a_peer_that_is_alone_hears_no_unit() {
    let mut victim = backlogged(Features::COMMON_UNIT);
    let frames = [
        tenant_limited(ONE.0.into()),
        // Unknown here.
        tenant_limited(TWO.0.into()),
        frame(0x12, &[&varint(1), &varint(100), &[0x45; 100]]),
    ];
    let (_, units) = heard(&mut victim, &frames);
    assert_eq!(units, []);
    victim.end.check_invariants();
}

#[test]
fn impossible_units_are_tolerated() {
    let mut victim = backlogged(Features::COMMON_UNIT);
    for unit in [0, 1, (1 << 62) - 1] {
        victim.inject(&tenant_unit(unit));
        let _ = heard(&mut victim, &[]);
    }
    victim.end.check_invariants();
    assert_eq!(victim.drops(), []);
    victim.assert_alive();
}
