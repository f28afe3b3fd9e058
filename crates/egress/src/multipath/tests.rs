use super::*;

const TOKEN: Token = Token(7);

fn ends(local: &str) -> Ends {
    Ends {
        local: format!("[{local}]:80").parse().unwrap(),
        remote: "[2001:db8:c1::1]:4000".parse().unwrap(),
    }
}

fn two() -> Multipath {
    let own = ["fd00::a", "fd00::b"].map(|own| own.parse().unwrap());
    let class = Class {
        name: "video".to_owned(),
        ports: [443].into(),
        prefer: [1].into(),
    };
    Multipath::new(own, vec![class], Comparison::new(NONE_HELD_OUT, 0))
}

const NONE_HELD_OUT: Settings = Settings {
    held_out: 0.0,
    ..Settings::DEFAULT
};

const NO_OTHERS: Others<'_> = Others {
    classes: &[],
    comparison: NONE_HELD_OUT,
};

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn announce(own: &str, id: u8) -> Act {
    Act::Announce(TOKEN, own.parse().unwrap(), NonZeroU8::new(id).unwrap())
}

#[test]
fn only_addresses_whose_tables_lead_to_the_client_are_announced() {
    let mut all = two();
    let only_b = |peer: PeerIndex, _: IpAddr| peer.0 == 1;
    let acts = all.handle(at(0), Event::Established(TOKEN, ends("fd00::1")), &only_b);
    assert_eq!(acts, [announce("fd00::b", 2)]);
    let acts = all.on_routes(at(1), &|_| true, &|_, _| true);
    assert_eq!(acts, [announce("fd00::a", 1)]);
    assert_eq!(all.on_routes(at(2), &|_| true, &|_, _| true), []);
    all.handle(at(3), Event::Closed(TOKEN), &only_b);
    assert_eq!(all.on_routes(at(4), &|_| true, &only_b), []);
}

#[test]
fn a_connection_that_began_with_an_address_is_not_told_of_it() {
    let mut all = two();
    let acts = all.handle(
        at(0),
        Event::Established(TOKEN, ends("fd00::a")),
        &|_, _| true,
    );
    assert_eq!(acts, [announce("fd00::b", 2)]);
}

/// A connection of which a subflow on each EPE address is there.
fn joined(all: &mut Multipath) -> [Ends; 3] {
    let three = [ends("fd00::1"), ends("fd00::a"), ends("fd00::b")];
    let [first, others @ ..] = three;
    all.handle(at(0), Event::Established(TOKEN, first), &|_, _| true);
    for on in others {
        let acts = all.handle(at(1), Event::SubflowEstablished(TOKEN, on), &|_, _| true);
        assert_eq!(acts, []);
    }
    three
}

fn without_a(peer: PeerIndex, _: IpAddr) -> bool {
    peer.0 != 0
}

const ONE: NonZeroU8 = NonZeroU8::MIN;

#[test]
fn a_subflow_whose_route_goes_is_ended_at_once_and_the_first_one_spared_meanwhile() {
    let mut all = two();
    let [first, on_a, on_b] = joined(&mut all);
    let acts = all.on_routes(at(2), &|_| false, &without_a);
    assert_eq!(acts, [], "not concerned");
    let acts = all.on_routes(at(2), &|_| true, &without_a);
    let expected = [
        Act::Backup(TOKEN, first, true),
        Act::Withdraw(TOKEN, ONE),
        Act::End(TOKEN, on_a),
    ];
    assert_eq!(acts, expected);
    assert_eq!(all.subflows(PeerIndex(0)), 0);
    assert_eq!(all.on_routes(at(3), &|_| true, &without_a), []);
    // B goes where it goes.
    assert_eq!(all.handle_timeout(at(1001)), []);
    assert_eq!(all.poll_timeout(), None);
    all.handle(at(1500), Event::SubflowClosed(TOKEN, on_b), &|_, _| true);
    assert_eq!(all.poll_timeout(), Some(at(2500)));
    let acts = all.handle_timeout(at(2500));
    assert_eq!(acts, [Act::Backup(TOKEN, first, false)]);
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn the_first_subflow_is_a_backup_where_others_go_its_way_for_a_while() {
    let mut all = two();
    let [first, on_a, on_b] = [ends("fd00::1"), ends("fd00::a"), ends("fd00::b")];
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    all.handle(at(0), Event::Established(TOKEN, first), &everywhere);
    all.handle(at(5), Event::SubflowEstablished(TOKEN, on_a), &everywhere);
    // The best path may lead by B, which nobody has joined.
    assert_eq!(all.poll_timeout(), None);
    all.handle(at(9), Event::SubflowEstablished(TOKEN, on_b), &everywhere);
    assert_eq!(all.poll_timeout(), Some(at(1009)));
    assert_eq!(all.handle_timeout(at(1008)), []);
    let acts = all.handle_timeout(at(1009));
    assert_eq!(acts, [Act::Backup(TOKEN, first, true)]);
    // It has nothing under way when A goes, and is told nothing.
    let acts = all.on_routes(at(2000), &|_| true, &without_a);
    assert_eq!(acts, [Act::Withdraw(TOKEN, ONE), Act::End(TOKEN, on_a)]);
    // A client that does not join again, however often it is told, leaves it as the only way by A.
    all.on_routes(at(2001), &|_| true, &everywhere);
    let mut told = Vec::new();
    while let Some(due) = all.poll_timeout() {
        told.extend(all.handle_timeout(due).into_iter().map(|act| (due, act)));
    }
    let of_first = told
        .iter()
        .filter(|(_, act)| matches!(act, Act::Backup(..)));
    let expected = (at(11_151), Act::Backup(TOKEN, first, false));
    assert_eq!(of_first.collect::<Vec<_>>(), [&expected], "{told:?}");
}

#[test]
fn a_connection_to_an_epe_address_is_no_backup() {
    let mut all = two();
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    all.handle(
        at(0),
        Event::Established(TOKEN, ends("fd00::a")),
        &everywhere,
    );
    all.handle(
        at(1),
        Event::SubflowEstablished(TOKEN, ends("fd00::b")),
        &everywhere,
    );
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn the_first_subflow_carries_what_no_other_can() {
    let mut all = two();
    let [_, on_a, on_b] = joined(&mut all);
    all.handle(at(2), Event::SubflowClosed(TOKEN, on_b), &|_, _| true);
    let acts = all.on_routes(at(3), &|_| true, &without_a);
    assert_eq!(acts, [Act::Withdraw(TOKEN, ONE), Act::End(TOKEN, on_a)]);
    assert_eq!(all.handle_timeout(at(2000)), []);
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn an_address_that_is_back_is_announced_until_the_client_joins_it() {
    let mut all = two();
    let [_, on_a, _] = joined(&mut all);
    all.on_routes(at(2), &|_| true, &without_a);
    let acts = all.on_routes(at(100), &|_| true, &|_, _| true);
    assert_eq!(acts, [announce("fd00::a", 1)]);
    // The client has missed that its subflow is no more.
    assert_eq!(all.poll_timeout(), Some(at(350)));
    assert_eq!(all.handle_timeout(at(350)), [Act::Withdraw(TOKEN, ONE)]);
    assert_eq!(all.poll_timeout(), Some(at(450)));
    assert_eq!(all.handle_timeout(at(450)), [announce("fd00::a", 1)]);
    assert_eq!(all.poll_timeout(), Some(at(950)));
    all.handle(at(460), Event::SubflowEstablished(TOKEN, on_a), &|_, _| {
        true
    });
    assert_eq!(all.handle_timeout(at(950)), []);
    assert_eq!((all.poll_timeout(), all.subflows(PeerIndex(0))), (None, 1));
}

#[test]
fn a_client_that_never_joins_again_is_left_alone_after_some_tries() {
    let mut all = two();
    joined(&mut all);
    all.on_routes(at(2), &|_| true, &without_a);
    all.on_routes(at(3), &|_| true, &|_, _| true);
    let mut announced = 0;
    while let Some(due) = all.poll_timeout() {
        let acts = all.handle_timeout(due);
        announced += acts
            .iter()
            .filter(|act| matches!(act, Act::Announce(..)))
            .count();
    }
    assert_eq!(announced, 4);
    // It may still come.
    let acts = all.on_routes(at(60_000), &|_| true, &without_a);
    assert_eq!(acts, [Act::Withdraw(TOKEN, ONE)]);
}

#[test]
fn what_nobody_has_joined_is_taken_back_and_a_late_join_ended() {
    let mut all = two();
    all.handle(
        at(0),
        Event::Established(TOKEN, ends("fd00::1")),
        &|_, _| true,
    );
    let acts = all.on_routes(at(1), &|_| true, &without_a);
    assert_eq!(acts, [Act::Withdraw(TOKEN, ONE)]);
    let late = ends("fd00::a");
    let acts = all.handle(at(2), Event::SubflowEstablished(TOKEN, late), &without_a);
    assert_eq!(acts, [Act::End(TOKEN, late)]);
    assert_eq!((all.poll_timeout(), all.subflows(PeerIndex(0))), (None, 0));
}

#[test]
fn peers_that_go_are_taken_back_and_new_ones_announced_to_connections_that_are_there() {
    let mut all = two();
    let [first, on_a, _] = joined(&mut all);
    let peers = |of: &[(usize, &str)]| -> BTreeMap<PeerIndex, Ipv6Addr> {
        let of = of.iter();
        of.map(|(at, own)| (PeerIndex(*at), own.parse().unwrap()))
            .collect()
    };
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    // B stays, A goes, and C comes under a number of its own.
    let now = peers(&[(1, "fd00::b"), (2, "fd00::c")]);
    let acts = all.set(at(2), &now, &NO_OTHERS, &everywhere);
    let expected = [
        Act::Backup(TOKEN, first, true),
        Act::Withdraw(TOKEN, ONE),
        Act::End(TOKEN, on_a),
    ];
    assert_eq!(acts, expected);
    let acts = all.on_routes(at(3), &|_| true, &everywhere);
    assert_eq!(acts, [announce("fd00::c", 3)]);
    // Whoever comes by the old address is nobody's.
    let acts = all.handle(at(4), Event::SubflowEstablished(TOKEN, on_a), &everywhere);
    assert_eq!(acts, []);
    assert_eq!(all.subflows(PeerIndex(0)), 0);
    all.handle(
        at(5),
        Event::SubflowEstablished(TOKEN, ends("fd00::c")),
        &everywhere,
    );
    assert_eq!([1, 2].map(|at| all.subflows(PeerIndex(at))), [1, 1]);
    // A connection that begins now knows them as well.
    let other = Token(8);
    let acts = all.handle(
        at(6),
        Event::Established(other, ends("fd00::1")),
        &everywhere,
    );
    assert_eq!(acts.len(), 2);
    assert_eq!(
        all.set(at(7), &peers(&[]), &NO_OTHERS, &everywhere).len(),
        6
    );
}

#[test]
fn a_class_has_all_but_its_preferred_peers_as_backups() {
    let of_class = |local: &str| Ends {
        local: format!("[{local}]:443").parse().unwrap(),
        ..ends(local)
    };
    let [first, on_a, on_b] = ["fd00::1", "fd00::a", "fd00::b"].map(of_class);
    let mut all = two();
    let acts = all.handle(at(0), Event::Established(TOKEN, first), &|_, _| true);
    assert_eq!(acts[0], Act::Backup(TOKEN, first, true));
    assert_eq!(acts.len(), 3);
    let acts = all.handle(at(1), Event::SubflowEstablished(TOKEN, on_a), &|_, _| true);
    assert_eq!(acts, [Act::Backup(TOKEN, on_a, true)]);
    let acts = all.handle(at(1), Event::SubflowEstablished(TOKEN, on_b), &|_, _| true);
    assert_eq!(acts, []);
    // The first one is spared anyway, and stays so.
    let acts = all.on_routes(at(2), &|_| true, &without_a);
    assert_eq!(acts, [Act::Withdraw(TOKEN, ONE), Act::End(TOKEN, on_a)]);
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn a_connection_that_is_held_out_is_told_of_nothing_ever() {
    let own = ["fd00::a", "fd00::b"].map(|own| own.parse().unwrap());
    let half = Settings {
        held_out: 0.5,
        ..Settings::DEFAULT
    };
    let mut all = Multipath::new(own, Vec::new(), Comparison::new(half, 1));
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    let mut held = Vec::new();
    for number in 0..40 {
        let begins = Event::Established(Token(number), ends("fd00::1"));
        let acts = all.handle(at(0), begins, &everywhere);
        assert!(acts.is_empty() || acts.len() == 2, "{acts:?}");
        if acts.is_empty() {
            held.push(Token(number));
        }
    }
    assert!((10..30).contains(&held.len()), "{held:?}");
    let acts = all.on_routes(at(1), &|_| true, &|_, _| false);
    assert_eq!(acts.len(), 2 * (40 - held.len()));
    let acts = all.on_routes(at(2), &|_| true, &everywhere);
    let told = acts.iter().filter_map(|act| match act {
        Act::Announce(token, ..) => Some(token),
        _ => None,
    });
    assert!(told.clone().all(|token| !held.contains(token)));
    assert_eq!(told.count(), 2 * (40 - held.len()));
    // All of them are measured at this share, and until they are closed.
    let mut read = 0;
    while all.poll_read(at(100)).is_some() {
        all.on_read(at(100), None);
        read += 1;
    }
    assert_eq!(read, 40);
    for number in 0..40 {
        all.handle(at(101), Event::Closed(Token(number)), &everywhere);
    }
    while all.poll_read(at(101)).is_some() {
        all.on_read(at(101), None);
        read += 1;
    }
    assert_eq!((read, all.poll_timeout()), (80, None));
}

#[test]
fn where_multipath_is_worse_nothing_is_announced_any_more() {
    let own = ["fd00::a"].map(|own| own.parse().unwrap());
    let half = Settings {
        held_out: 0.5,
        bytes_min: 1,
        ..Settings::DEFAULT
    };
    let mut all = Multipath::new(own, Vec::new(), Comparison::new(half, 1));
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    // One that stays, and was told.
    let mut number = 0;
    let mut begin = |all: &mut Multipath| {
        number += 1;
        let token = Token(number);
        let acts = all.handle(
            at(0),
            Event::Established(token, ends("fd00::1")),
            &everywhere,
        );
        (token, acts)
    };
    let stays = std::iter::repeat_with(|| begin(&mut all))
        .find(|(_, acts)| !acts.is_empty())
        .unwrap()
        .0;
    let decided = (0..1000).find_map(|_| {
        let (token, acts) = begin(&mut all);
        all.handle(at(1), Event::Closed(token), &everywhere);
        let busy = if acts.is_empty() { 100 } else { 200 };
        let reading = Reading {
            bytes: 1_000_000 + u64::from(token.0),
            busy: vec![Duration::from_millis(busy)],
        };
        assert_eq!(all.poll_read(at(1)).unwrap().0, token);
        all.on_read(at(1), Some(&reading));
        all.poll_decision()
    });
    let decided = decided.expect("twice as long is worse");
    assert_eq!(decided.standing, crate::status::Standing::SinglePath);
    assert_eq!(decided.evidence.loss_permille, Some(500));
    for _ in 0..100 {
        assert_eq!(begin(&mut all).1, []);
    }
    // Whoever has joined stays, but is told of nothing new.
    let acts = all.on_routes(at(2), &|_| true, &|_, _| false);
    assert_eq!(acts, [Act::Withdraw(stays, ONE)]);
    assert_eq!(all.on_routes(at(3), &|_| true, &everywhere), []);
}
