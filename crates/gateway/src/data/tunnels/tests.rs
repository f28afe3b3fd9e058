//! Which packets pass, and whose devices are.

use std::{net::Ipv4Addr, time::Duration};

use keiro_core::{AppId, TenantConfig};
use keiro_ip::{
    Header,
    builtin_classes::{BuiltInClass, Sorting},
    checksum::Sum,
    icmp::Reason,
    rules::Match,
};

use super::{
    tenant::{ANSWERS_MAX, IcmpLimits, TokenBucket, TransitTarget},
    *,
};

const PEER: PeerId = PeerId(1);
const OTHER: PeerId = PeerId(2);
const OUTSIDE: PeerId = PeerId(3);

/// Own 10.1.0.0/16; behind one peer 10.2.0.0/16, behind the other 10.3.0.0/16.
fn tenant() -> Tenant {
    let peer = |prefix: &str| PeerSetup {
        prefixes: vec![prefix.parse().unwrap()],
        backup_prefixes: Vec::new(),
        is_direct: false,
        transit: false,
        app: AppId(1),
        rules: Vec::new(),
        classes: Vec::new(),
        split_app: None,
    };
    let setup = TenantSetup {
        config: TenantConfig::new(TenantId(1)),
        device: 0,
        mtu: 1400,
        icmp_source_v6: None,
        own: vec!["10.1.0.0/16".parse().unwrap()],
        exit: None,
        notes_destinations: false,
        splits_tcp: false,
        sorting: Sorting::default(),
        peers: BTreeMap::from([(PEER, peer("10.2.0.0/16")), (OTHER, peer("10.3.0.0/16"))]),
    };
    Tenant::new(Instant::ZERO, setup, Counts::default())
}

fn packet(source: [u8; 4], destination: [u8; 4], traffic_class: u8) -> Vec<u8> {
    let mut packet = vec![0x45, traffic_class, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend(Ipv4Addr::from(source).octets());
    packet.extend(Ipv4Addr::from(destination).octets());
    let sum = Sum::default().bytes(&packet).checksum();
    packet[10..12].copy_from_slice(&sum);
    packet.extend([0, 9, 0, 9, 0, 8, 0, 0]);
    packet
}

fn filtered(tenant: &mut Tenant, outer: u8, packet: &[u8]) -> Option<Vec<u8>> {
    let mut scratch = vec![0; 2000];
    match tenant.filter_from_peer(&from(PEER, outer, packet), &mut scratch) {
        PeerPacketAction::Deliver(packet) => Some(packet.to_vec()),
        PeerPacketAction::Transit(transit_packet) => panic!("it goes on: {transit_packet:?}"),
        PeerPacketAction::Dropped => None,
    }
}

fn from(peer: PeerId, ecn: u8, data: &[u8]) -> PacketFromPeer<'_> {
    PacketFromPeer {
        now: Instant::ZERO,
        peer,
        tenant: TenantId(1),
        ecn,
        data,
    }
}

/// To which peer a packet of another goes on, and with which ECN field.
fn passed_on(tenant: &mut Tenant, peer: PeerId, outer: u8, packet: &[u8]) -> Option<(PeerId, u8)> {
    passed_on_by(tenant, &NextHops::default(), peer, outer, packet)
}

/// The same where some peers are up.
fn passed_on_by(
    tenant: &mut Tenant,
    next_hops: &NextHops,
    peer: PeerId,
    outer: u8,
    packet: &[u8],
) -> Option<(PeerId, u8)> {
    let mut scratch = vec![0; 2000];
    match tenant.filter_from_peer(&from(peer, outer, packet), &mut scratch) {
        PeerPacketAction::Transit(transit_packet) => {
            let hop = tenant.next_hop_of(Instant::ZERO, next_hops, &transit_packet)?;
            Some((hop.peer, transit_packet.ecn as u8))
        }
        PeerPacketAction::Deliver(_) | PeerPacketAction::Dropped => None,
    }
}

/// The same with both peers sites of the network, and a third peer that is none, with 10.4.0.0/16.
fn hub() -> Tenant {
    let mut setup = tenant().setup;
    let mut outside = setup.peers[&PEER].clone();
    for peer in setup.peers.values_mut() {
        peer.transit = true;
    }
    outside.prefixes = vec!["10.4.0.0/16".parse().unwrap()];
    setup.peers.insert(OUTSIDE, outside);
    Tenant::new(Instant::ZERO, setup, Counts::default())
}

#[test]
fn packets_of_a_site_go_on_to_another_site_and_to_no_other_peer() {
    let mut hub = hub();
    let (one, other, outside) = ([10, 2, 0, 1], [10, 3, 0, 1], [10, 4, 0, 1]);
    for _ in 0..2 {
        let there = packet(one, other, 0);
        assert_eq!(passed_on(&mut hub, PEER, 0, &there), Some((OTHER, 0)));
        let back = packet(other, one, 0);
        assert_eq!(passed_on(&mut hub, OTHER, 0, &back), Some((PEER, 0)));
    }
    // A source that is not the site's, its own networks, a peer that is no site, one that is nowhere.
    for (peer, source, destination) in [
        (PEER, other, other),
        (PEER, outside, other),
        (PEER, one, [10, 2, 0, 9]),
        (PEER, one, outside),
        (PEER, one, [192, 0, 2, 1]),
        (OUTSIDE, outside, one),
    ] {
        let bad = packet(source, destination, 0);
        assert_eq!(
            passed_on(&mut hub, peer, 0, &bad),
            None,
            "{source:?} {destination:?}"
        );
    }
    let drops = &hub.counts.drops;
    assert_eq!((drops.peer_spoofed, drops.peer_foreign), (2, 4));
    // Without a network the same two peers do not reach each other.
    let there = packet(one, other, 0);
    assert_eq!(passed_on(&mut tenant(), PEER, 0, &there), None);
    // What is for this gateway's own networks is still written.
    let here = packet(one, [10, 1, 0, 1], 0);
    assert_eq!(filtered(&mut hub, 0, &here), Some(here.clone()));
}

/// With these peers up.
fn up(peers: &[PeerId]) -> NextHops {
    let mut hops = NextHops::default();
    for peer in peers {
        hops.on_peer_state(Instant::ZERO, *peer, true, Duration::ZERO);
    }
    hops
}

#[test]
fn a_branch_takes_packets_of_both_hubs_and_sends_to_the_first_that_is_up() {
    let mut setup = tenant().setup;
    let [first, second] = [PEER, OTHER].map(|peer| setup.peers[&peer].prefixes.clone());
    for (peer, backup) in [(PEER, second), (OTHER, first)] {
        let of = setup.peers.get_mut(&peer).expect("a hub");
        of.backup_prefixes = backup;
    }
    let mut branch = Tenant::new(Instant::ZERO, setup, Counts::default());
    let hop = |branch: &Tenant, hops: &NextHops, to: [u8; 4]| {
        let hop = branch.next_hop(Instant::ZERO, hops, Ipv4Addr::from(to).into());
        hop.map(|hop| (hop.peer, hop.is_backup))
    };
    for (peers, expected) in [
        (&[PEER, OTHER][..], [(PEER, false), (OTHER, false)]),
        (&[OTHER], [(OTHER, true), (OTHER, false)]),
        (&[PEER], [(PEER, false), (PEER, true)]),
        (&[], [(PEER, false), (OTHER, false)]),
    ] {
        let found = [[10, 2, 0, 1], [10, 3, 0, 1]].map(|to| hop(&branch, &up(peers), to));
        assert_eq!(found, expected.map(Some), "{peers:?}");
    }
    assert_eq!(hop(&branch, &up(&[PEER]), [10, 4, 0, 1]), None);
    let inward = packet([10, 2, 0, 1], [10, 1, 0, 1], 0);
    for hub in [PEER, OTHER] {
        let mut scratch = vec![0; 2000];
        let taken = branch.filter_from_peer(&from(hub, 0, &inward), &mut scratch);
        assert_eq!(taken, PeerPacketAction::Deliver(&inward), "{hub:?}");
    }
    // Nor does it pass anything on between its hubs.
    let through = packet([10, 2, 0, 1], [10, 3, 0, 1], 0);
    assert_eq!(passed_on(&mut branch, PEER, 0, &through), None);
}

#[test]
fn a_direct_session_comes_before_the_hub_which_is_no_backup_then() {
    let mut setup = tenant().setup;
    let behind = setup.peers[&OTHER].prefixes.clone();
    let hub = setup.peers.get_mut(&PEER).expect("the hub");
    hub.prefixes.extend(behind);
    let direct = setup.peers.get_mut(&OTHER).expect("the other site");
    direct.is_direct = true;
    let branch = Tenant::new(Instant::ZERO, setup, Counts::default());
    for (peers, expected) in [
        (&[PEER, OTHER][..], (OTHER, false)),
        (&[OTHER], (OTHER, false)),
        (&[PEER], (PEER, false)),
    ] {
        let to = Ipv4Addr::new(10, 3, 0, 1).into();
        let hop = branch.next_hop(Instant::ZERO, &up(peers), to);
        let hop = hop.map(|hop| (hop.peer, hop.is_backup));
        assert_eq!(hop, Some(expected), "{peers:?}");
    }
    assert!(branch.settle_time(OTHER) > branch.settle_time(PEER));
}

#[test]
fn a_hub_passes_packets_for_a_site_that_it_misses_to_the_other_hub_and_none_back() {
    let mut setup = hub().setup;
    let sites = [PEER, OTHER].map(|peer| setup.peers[&peer].prefixes.clone());
    let other_hub = setup.peers.get_mut(&OUTSIDE).expect("the other hub");
    other_hub.backup_prefixes = sites.concat();
    other_hub.transit = true;
    let mut hub = Tenant::new(Instant::ZERO, setup, Counts::default());
    let mut to_other = |peers: &[PeerId], from_peer| {
        let there = packet([10, 2, 0, 1], [10, 3, 0, 1], 0);
        let gone = passed_on_by(&mut hub, &up(peers), from_peer, 0, &there);
        gone.map(|(peer, _)| peer)
    };
    assert_eq!(to_other(&[PEER, OTHER, OUTSIDE], PEER), Some(OTHER));
    assert_eq!(to_other(&[PEER, OUTSIDE], PEER), Some(OUTSIDE));
    assert_eq!(to_other(&[OTHER, OUTSIDE], OUTSIDE), Some(OTHER));
    assert_eq!(to_other(&[OUTSIDE], OUTSIDE), Some(OTHER), "never back");
}

#[test]
fn ce_marks_before_the_hub_go_on_or_drop_the_packet() {
    let mut hub = hub();
    let inner = |ecn: u8| packet([10, 2, 0, 1], [10, 3, 0, 1], 46 << 2 | ecn);
    assert_eq!(passed_on(&mut hub, PEER, 3, &inner(2)), Some((OTHER, 3)));
    assert_eq!(passed_on(&mut hub, PEER, 2, &inner(2)), Some((OTHER, 2)));
    assert_eq!(passed_on(&mut hub, PEER, 0, &inner(1)), Some((OTHER, 1)));
    assert_eq!(passed_on(&mut hub, PEER, 3, &inner(0)), None);
    assert_eq!(hub.counts.drops.congested, 1);
}

#[test]
fn packets_to_a_site_that_is_away_and_those_at_their_last_hop_are_counted() {
    let key = keiro_core::PrivateKey::from_bytes([1; 32]);
    let config = keiro_core::EndpointConfig::new(key);
    let mut endpoint = Endpoint::new(Instant::ZERO, config, [0; 32]);
    let mut tunnels = Tunnels::new(&[0; 16], Quota::new(usize::MAX));
    tunnels.tenants.insert(TenantId(1), hub());
    let mut reporter = Reporter::new(std::sync::Arc::new(
        keiro_linux::epoll::Waker::new().unwrap(),
    ))
    .0;
    let there = packet([10, 2, 0, 1], [10, 3, 0, 1], 0);
    let mut last = there.clone();
    last[8] = 1;
    last[10..12].fill(0);
    let sum = Sum::default().bytes(&last[..20]).checksum();
    last[10..12].copy_from_slice(&sum);
    for data in [&there, &last, &there] {
        tunnels.deliver(&from(PEER, 0, data), &mut reporter);
    }
    tunnels.transit.check_invariants();
    assert!(!tunnels.must_send_transit());
    tunnels.send_transit(Instant::ZERO, &mut endpoint);
    tunnels.transit.check_invariants();
    let counts = &tunnels.tenants[&TenantId(1)].counts;
    assert_eq!((counts.drops.no_path, counts.drops.hop_limit), (2, 1));
    assert_eq!(counts.stats.transit_packets, 0);
    // The queue is bounded: the caller passes on before it takes more.
    let large = {
        let mut large = packet([10, 2, 0, 1], [10, 3, 0, 1], 0);
        large.resize(1400, 0);
        large[2..4].copy_from_slice(&1400_u16.to_be_bytes());
        large[24..26].copy_from_slice(&1380_u16.to_be_bytes());
        large[10..12].fill(0);
        let sum = Sum::default().bytes(&large[..20]).checksum();
        large[10..12].copy_from_slice(&sum);
        large
    };
    let mut taken = 0;
    while !tunnels.must_send_transit() {
        tunnels.deliver(&from(PEER, 0, &large), &mut reporter);
        taken += 1;
    }
    assert_eq!(taken, (1_usize << 20).div_ceil(1400));
    tunnels.send_transit(Instant::ZERO, &mut endpoint);
    assert!(!tunnels.must_send_transit());
}

#[test]
fn a_peer_sends_from_its_own_prefixes_to_ours_and_nowhere_else() {
    let mut tenant = tenant();
    let good = packet([10, 2, 0, 1], [10, 1, 0, 1], 0);
    assert_eq!(filtered(&mut tenant, 0, &good), Some(good.clone()));
    for source in [[10, 3, 0, 1], [10, 1, 0, 2], [192, 0, 2, 1], [127, 0, 0, 1]] {
        assert_eq!(
            filtered(&mut tenant, 0, &packet(source, [10, 1, 0, 1], 0)),
            None
        );
    }
    for destination in [[10, 2, 0, 2], [10, 3, 0, 1], [192, 0, 2, 1]] {
        assert_eq!(
            filtered(&mut tenant, 0, &packet([10, 2, 0, 1], destination, 0)),
            None
        );
    }
    for length in 0..good.len() {
        assert_eq!(filtered(&mut tenant, 0, &good[..length]), None);
    }
    let counts = tenant.counts;
    assert_eq!(
        (counts.drops.peer_spoofed, counts.drops.peer_foreign),
        (4, 3)
    );
    assert_eq!(counts.drops.peer_malformed, good.len() as u64);
    let faults = tenant.faults.take(Instant::ZERO);
    let address = |bytes: [u8; 4]| std::net::IpAddr::from(bytes);
    let expected = [
        PrefixMismatch {
            fault: PrefixFault::PeerSource(PEER),
            address: address([127, 0, 0, 1]),
            packets: 4,
        },
        PrefixMismatch {
            fault: PrefixFault::PeerDestination(PEER),
            address: address([192, 0, 2, 1]),
            packets: 3,
        },
    ];
    assert_eq!(faults, expected);
}

/// What a SYN of the peer asks for as it is written to the device.
fn asked_for(tenant: &mut Tenant, offered: u16) -> u16 {
    let mut syn = packet([10, 2, 0, 1], [10, 1, 0, 1], 0);
    syn.truncate(20);
    syn[3] = 44;
    syn[9] = keiro_ip::protocol::TCP;
    syn[10..12].fill(0);
    let sum = Sum::default().bytes(&syn).checksum();
    syn[10..12].copy_from_slice(&sum);
    syn.extend([
        0, 9, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0x60, 2, 0, 0, 0, 0, 0, 0, 2, 4,
    ]);
    syn.extend(offered.to_be_bytes());
    let written = filtered(tenant, 0, &syn).expect("it passes");
    u16::from_be_bytes([written[42], written[43]])
}

#[test]
fn the_first_syn_from_a_peer_asks_for_what_fits_before_anything_went_there() {
    let mut tenant = tenant();
    // No path is known: as much as the device of 1400 bytes takes.
    assert_eq!(asked_for(&mut tenant, 8960), 1360);
    assert_eq!(asked_for(&mut tenant, 536), 536);
    tenant
        .peers
        .get_mut(&PEER)
        .expect("it is there")
        .max_inner_packet = 1300;
    assert_eq!(asked_for(&mut tenant, 1360), 1260);
}

#[test]
fn whatever_changes_a_path_makes_rooms_be_asked_for_again() {
    use keiro_core::{MoveReason, PathId};
    let (peer, path) = (PEER, PathId(1));
    let at = "192.0.2.1:7600".parse().unwrap();
    let rtt = Duration::from_millis(1);
    let (app, from, to, reason) = (AppId(1), None, Some(path), MoveReason::PathUp);
    let changing = [
        Event::PathUp {
            peer,
            path,
            remote: at,
            rtt,
        },
        Event::PathMoved {
            peer,
            path,
            from: None,
            to: at,
        },
        Event::MtuChanged {
            peer,
            path,
            mtu: 1380,
        },
        Event::AppMoved {
            peer,
            app,
            from,
            to,
            reason,
        },
    ];
    let mut tunnels = Tunnels::new(&[0; 16], Quota::new(usize::MAX));
    let config = keiro_core::EndpointConfig::new(keiro_core::PrivateKey::from_bytes([1; 32]));
    let endpoint = Endpoint::new(Instant::ZERO, config, [0; 32]);
    for event in changing {
        tunnels.on_event(&event);
        assert_eq!(tunnels.changed_peers, BTreeSet::from([PEER]), "{event:?}");
        tunnels.update_peers(Instant::ZERO, &endpoint);
        assert!(tunnels.changed_peers.is_empty());
    }
}

#[test]
fn tenants_may_exchange_their_devices_and_pass_them_on() {
    let key = keiro_core::PrivateKey::from_bytes([1; 32]);
    let config = keiro_core::EndpointConfig::new(key);
    let mut endpoint = Endpoint::new(Instant::ZERO, config, [0; 32]);
    let mut tunnels = Tunnels::new(&[0; 16], Quota::new(usize::MAX));
    let mut set = |tunnels: &mut Tunnels, id: u32, device: u64| {
        let setup = TenantSetup {
            config: TenantConfig::new(TenantId(id)),
            device,
            peers: BTreeMap::new(),
            ..tenant().setup
        };
        tunnels.set(Instant::ZERO, setup, &mut endpoint);
    };
    for (id, device) in [(1, 10), (2, 20), (1, 20), (2, 10)] {
        set(&mut tunnels, id, device);
    }
    assert_eq!(tunnels.by_device.get(&20), Some(&TenantId(1)));
    assert_eq!(tunnels.by_device.get(&10), Some(&TenantId(2)));
    set(&mut tunnels, 1, 10);
    set(&mut tunnels, 2, 30);
    let taken = HashMap::from([(10, TenantId(1)), (30, TenantId(2))]);
    assert_eq!(tunnels.by_device, taken);
}

#[test]
fn outer_ce_mark_marks_or_drops_the_inner_packet() {
    let mut tenant = tenant();
    let inner = |ecn: u8| packet([10, 2, 0, 1], [10, 1, 0, 1], 46 << 2 | ecn);
    assert_eq!(filtered(&mut tenant, 3, &inner(2)), Some(inner(3)));
    assert_eq!(filtered(&mut tenant, 2, &inner(2)), Some(inner(2)));
    assert_eq!(filtered(&mut tenant, 3, &inner(0)), None);
    assert_eq!(tenant.counts.drops.congested, 1);
}

#[test]
fn icmp_answers_are_rate_limited() {
    let mut bucket = TokenBucket::new(Instant::ZERO);
    let now = Instant::ZERO + Duration::from_millis(1);
    let taken = (0..1000).filter(|_| bucket.take(now)).count();
    assert_eq!(taken, ANSWERS_MAX as usize);
    let later = now + Duration::from_millis(50);
    assert_eq!((0..1000).filter(|_| bucket.take(later)).count(), 5);
    let much_later = later + Duration::from_secs(1000);
    let taken = (0..1000).filter(|_| bucket.take(much_later)).count();
    assert_eq!(taken, ANSWERS_MAX as usize);
}

#[test]
fn icmp_rate_limits_are_per_kind() {
    let reasons = [
        Reason::TooBig { mtu: 1400 },
        Reason::HopLimitExceeded,
        Reason::NoRoute,
        Reason::HostUnreachable,
    ];
    let mut limits = IcmpLimits::new(Instant::ZERO);
    for reason in reasons {
        let taken = (0..1000).filter(|_| limits.of(reason).take(Instant::ZERO));
        assert_eq!(taken.count(), ANSWERS_MAX as usize, "{reason:?}");
    }
}

#[test]
fn packets_of_a_peer_are_counted_for_the_application_that_the_rules_give_them_to() {
    let mut setup = tenant().setup;
    let dscp = |dscp| Match {
        dscp: Some(dscp),
        ..Match::default()
    };
    let peer = setup.peers.get_mut(&PEER).unwrap();
    peer.rules = vec![(dscp(46), AppId(7)), (dscp(8), AppId(8))];
    let mut tenant = Tenant::new(Instant::ZERO, setup, Counts::default());
    for (traffic_class, count) in [(46 << 2, 3), (8 << 2, 2), (0, 1)] {
        let from_peer = packet([10, 2, 0, 1], [10, 1, 0, 1], traffic_class);
        for _ in 0..count {
            assert!(filtered(&mut tenant, 0, &from_peer).is_some());
        }
    }
    // What is dropped is not received.
    let foreign = packet([10, 2, 0, 1], [10, 3, 0, 1], 46 << 2);
    assert_eq!(filtered(&mut tenant, 0, &foreign), None);
    let of = |packets| ReceivedPackets {
        packets,
        bytes: packets * 28,
    };
    let expected = [(AppId(1), of(1)), (AppId(7), of(3)), (AppId(8), of(2))];
    assert_eq!(tenant.counts.received, BTreeMap::from(expected));
}

#[test]
fn exit_takes_unrouted_but_no_private_destinations() {
    let mut setup = hub().setup;
    let refused = ["10.0.0.0/8", "10.3.0.0/16", "192.0.2.0/24"];
    setup.exit = Some(ExitSetup {
        v4: true,
        v6: false,
        refused: refused.map(|prefix| prefix.parse().unwrap()).to_vec(),
    });
    let mut hub = Tenant::new(Instant::ZERO, setup, Counts::default());
    let site = [10, 2, 0, 1];
    let mut onward = |destination: [u8; 4]| {
        let mut scratch = vec![0; 2000];
        let packet = packet(site, destination, 0);
        match hub.filter_from_peer(&from(PEER, 0, &packet), &mut scratch) {
            PeerPacketAction::Deliver(_) => None,
            PeerPacketAction::Transit(transit_packet) => Some(transit_packet.to),
            PeerPacketAction::Dropped => panic!("{destination:?} is dropped"),
        }
    };
    let prohibited = Some(TransitTarget::Refused(Reason::Prohibited));
    for _ in 0..2 {
        assert_eq!(onward([198, 51, 100, 1]), None);
        // Behind the gateway, and behind another site.
        assert_eq!(onward([10, 1, 0, 1]), None);
        assert!(matches!(
            onward([10, 3, 0, 1]),
            Some(TransitTarget::Peer(_))
        ));
        assert_eq!(onward([10, 9, 0, 1]), prohibited);
        assert_eq!(onward([192, 0, 2, 1]), prohibited);
    }
    let stats = &hub.counts.stats;
    assert_eq!(
        (stats.to_internet_packets, stats.to_internet_bytes),
        (2, 56)
    );
    // A site does not speak for the Internet.
    let mut scratch = vec![0; 2000];
    let forged = packet([198, 51, 100, 1], [10, 1, 0, 1], 0);
    let action = hub.filter_from_peer(&from(PEER, 0, &forged), &mut scratch);
    assert_eq!(action, PeerPacketAction::Dropped);
    assert_eq!(hub.counts.drops.peer_spoofed, 1);
}

#[test]
fn a_packet_of_a_class_is_of_its_application_unless_a_rule_matches() {
    let [by_class, by_rule] = [AppId(7), AppId(8)];
    let received = |rules: Vec<(Match, AppId)>, sorts: bool| {
        let mut setup = tenant().setup;
        setup.sorting.has_classes = sorts;
        for peer in setup.peers.values_mut() {
            peer.classes = vec![(BuiltInClass::Interactive, by_class)];
            peer.rules = rules.clone();
        }
        let seed = FlowSeed::new(&[0; 16]);
        let flows = TenantFlowClassifier::of(Instant::ZERO, &setup.sorting, None, &seed);
        let mut tenant = Tenant::new(Instant::ZERO, setup, Counts::default());
        tenant.flows = flows;
        let mut query = packet([10, 2, 0, 1], [10, 1, 0, 1], 0);
        query[23] = 53;
        filtered(&mut tenant, 0, &query).expect("it passes");
        tenant.counts.received.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(received(Vec::new(), true), [by_class]);
    assert_eq!(received(Vec::new(), false), [AppId(1)]);
    let rule = Match {
        destination_ports: Some(53..=53),
        ..Match::default()
    };
    assert_eq!(received(vec![(rule, by_rule)], true), [by_rule]);
}

#[test]
fn the_flows_of_a_tenant_are_looked_through_only_where_they_are_asked_for() {
    let sorting = Sorting {
        has_classes: true,
        ..Sorting::default()
    };
    let seed = FlowSeed::new(&[0; 16]);
    let mut flows =
        TenantFlowClassifier::of(Instant::ZERO, &sorting, None, &seed).expect("it sorts");
    let query = packet([10, 2, 0, 1], [10, 1, 0, 1], 0);
    let header = Header::parse(&query).expect("a packet");
    flows.on_packet(Instant::ZERO, &header, &query, 1);
    let shown = [false, true].map(|with_flows| {
        let figures = flows.figures(Instant::ZERO, with_flows);
        (figures.counts.len(), figures.largest.len())
    });
    assert_eq!(shown, [(1, 0), (1, 1)]);
}
