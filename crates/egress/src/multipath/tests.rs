use super::*;

const TOKEN: Token = Token(7);

fn ends(local: &str) -> Ends {
    Ends {
        local: format!("[{local}]:80").parse().unwrap(),
        remote: "[2001:db8:c1::1]:4000".parse().unwrap(),
    }
}

/// EPE addresses that end alike.
fn addresses(ipv6: &str) -> EpeAddresses {
    let last = ipv6.parse::<std::net::Ipv6Addr>().unwrap().octets()[15];
    EpeAddresses {
        ipv6: ipv6.parse().unwrap(),
        ipv4: Some([192, 0, 2, last].into()),
    }
}

fn two() -> Multipath {
    let own = ["fd00::a", "fd00::b"].map(addresses);
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

const NO_OTHERS: ConnectionSettings<'_> = ConnectionSettings {
    classes: &[],
    comparison: NONE_HELD_OUT,
};

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn announce(own: &str, id: u8) -> PathAction {
    PathAction::Announce(TOKEN, own.parse().unwrap(), NonZeroU8::new(id).unwrap())
}

#[test]
fn only_addresses_whose_tables_lead_to_the_client_are_announced() {
    let mut all = two();
    let only_b = |peer: PeerIndex, _: IpAddr| peer.0 == 1;
    let actions = all.handle(at(0), Event::Established(TOKEN, ends("fd00::1")), &only_b);
    assert_eq!(actions, [announce("fd00::b", 2)]);
    let actions = all.on_routes(at(1), &|_| true, &|_, _| true);
    assert_eq!(actions, [announce("fd00::a", 1)]);
    assert_eq!(all.on_routes(at(2), &|_| true, &|_, _| true), []);
    all.handle(at(3), Event::Closed(TOKEN), &only_b);
    assert_eq!(all.on_routes(at(4), &|_| true, &only_b), []);
}

#[test]
fn a_connection_that_began_with_an_address_does_not_get_it_announced() {
    let mut all = two();
    let actions = all.handle(
        at(0),
        Event::Established(TOKEN, ends("fd00::a")),
        &|_, _| true,
    );
    assert_eq!(actions, [announce("fd00::b", 2)]);
}

/// A connection with a subflow on each EPE address.
fn joined(all: &mut Multipath) -> [Ends; 3] {
    let three = [ends("fd00::1"), ends("fd00::a"), ends("fd00::b")];
    let [first, others @ ..] = three;
    all.handle(at(0), Event::Established(TOKEN, first), &|_, _| true);
    for on in others {
        let actions = all.handle(at(1), Event::SubflowEstablished(TOKEN, on), &|_, _| true);
        assert_eq!(actions, []);
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
    let actions = all.on_routes(at(2), &|_| false, &without_a);
    assert_eq!(actions, [], "not concerned");
    let actions = all.on_routes(at(2), &|_| true, &without_a);
    let expected = [
        PathAction::Backup(TOKEN, first, true),
        PathAction::Withdraw(TOKEN, ONE),
        PathAction::End(TOKEN, on_a),
    ];
    assert_eq!(actions, expected);
    assert_eq!(all.subflows(PeerIndex(0)), 0);
    assert_eq!(all.on_routes(at(3), &|_| true, &without_a), []);
    // B goes where it goes.
    assert_eq!(all.handle_timeout(at(1001)), []);
    assert_eq!(all.poll_timeout(), None);
    all.handle(at(1500), Event::SubflowClosed(TOKEN, on_b), &|_, _| true);
    assert_eq!(all.poll_timeout(), Some(at(2500)));
    let actions = all.handle_timeout(at(2500));
    assert_eq!(actions, [PathAction::Backup(TOKEN, first, false)]);
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn the_first_subflow_is_a_backup_where_others_go_its_way_for_a_while() {
    let mut all = two();
    let [first, on_a, on_b] = [ends("fd00::1"), ends("fd00::a"), ends("fd00::b")];
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    all.handle(at(0), Event::Established(TOKEN, first), &everywhere);
    all.handle(at(5), Event::SubflowEstablished(TOKEN, on_a), &everywhere);
    // The best path may lead by B, which the client has not joined.
    assert_eq!(all.poll_timeout(), None);
    all.handle(at(9), Event::SubflowEstablished(TOKEN, on_b), &everywhere);
    assert_eq!(all.poll_timeout(), Some(at(1009)));
    assert_eq!(all.handle_timeout(at(1008)), []);
    let actions = all.handle_timeout(at(1009));
    assert_eq!(actions, [PathAction::Backup(TOKEN, first, true)]);
    // It has no data in flight when A is withdrawn, so no action is needed.
    let actions = all.on_routes(at(2000), &|_| true, &without_a);
    assert_eq!(
        actions,
        [
            PathAction::Withdraw(TOKEN, ONE),
            PathAction::End(TOKEN, on_a)
        ]
    );
    // If the client does not join again, the first subflow stays the only one by A.
    all.on_routes(at(2001), &|_| true, &everywhere);
    let mut reported = Vec::new();
    while let Some(due) = all.poll_timeout() {
        reported.extend(
            all.handle_timeout(due)
                .into_iter()
                .map(|action| (due, action)),
        );
    }
    let of_first = reported
        .iter()
        .filter(|(_, action)| matches!(action, PathAction::Backup(..)));
    let expected = (at(11_151), PathAction::Backup(TOKEN, first, false));
    assert_eq!(of_first.collect::<Vec<_>>(), [&expected], "{reported:?}");
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
    let actions = all.on_routes(at(3), &|_| true, &without_a);
    assert_eq!(
        actions,
        [
            PathAction::Withdraw(TOKEN, ONE),
            PathAction::End(TOKEN, on_a)
        ]
    );
    assert_eq!(all.handle_timeout(at(2000)), []);
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn an_address_that_is_back_is_announced_until_the_client_joins_it() {
    let mut all = two();
    let [_, on_a, _] = joined(&mut all);
    all.on_routes(at(2), &|_| true, &without_a);
    let actions = all.on_routes(at(100), &|_| true, &|_, _| true);
    assert_eq!(actions, [announce("fd00::a", 1)]);
    // The client has missed that its subflow was closed.
    assert_eq!(all.poll_timeout(), Some(at(350)));
    assert_eq!(
        all.handle_timeout(at(350)),
        [PathAction::Withdraw(TOKEN, ONE)]
    );
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
        let actions = all.handle_timeout(due);
        announced += actions
            .iter()
            .filter(|action| matches!(action, PathAction::Announce(..)))
            .count();
    }
    assert_eq!(announced, 4);
    // It may still come.
    let actions = all.on_routes(at(60_000), &|_| true, &without_a);
    assert_eq!(actions, [PathAction::Withdraw(TOKEN, ONE)]);
}

#[test]
fn unjoined_addresses_are_withdrawn_and_late_joins_ended() {
    let mut all = two();
    all.handle(
        at(0),
        Event::Established(TOKEN, ends("fd00::1")),
        &|_, _| true,
    );
    let actions = all.on_routes(at(1), &|_| true, &without_a);
    assert_eq!(actions, [PathAction::Withdraw(TOKEN, ONE)]);
    let late = ends("fd00::a");
    let actions = all.handle(at(2), Event::SubflowEstablished(TOKEN, late), &without_a);
    assert_eq!(actions, [PathAction::End(TOKEN, late)]);
    assert_eq!((all.poll_timeout(), all.subflows(PeerIndex(0))), (None, 0));
}

#[test]
fn peers_that_go_are_taken_back_and_new_ones_announced_to_connections_that_are_there() {
    let mut all = two();
    let [first, on_a, _] = joined(&mut all);
    let peers = |of: &[(usize, &str)]| -> BTreeMap<PeerIndex, EpeAddresses> {
        let of = of.iter();
        of.map(|(at, own)| (PeerIndex(*at), addresses(own)))
            .collect()
    };
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    // B stays, A is removed, and C is added under its own number.
    let now = peers(&[(1, "fd00::b"), (2, "fd00::c")]);
    let actions = all.set(at(2), &now, &NO_OTHERS, &everywhere);
    let expected = [
        PathAction::Backup(TOKEN, first, true),
        PathAction::Withdraw(TOKEN, ONE),
        PathAction::End(TOKEN, on_a),
    ];
    assert_eq!(actions, expected);
    let actions = all.on_routes(at(3), &|_| true, &everywhere);
    assert_eq!(actions, [announce("fd00::c", 3)]);
    // A subflow on the old address belongs to no peer.
    let actions = all.handle(at(4), Event::SubflowEstablished(TOKEN, on_a), &everywhere);
    assert_eq!(actions, []);
    assert_eq!(all.subflows(PeerIndex(0)), 0);
    all.handle(
        at(5),
        Event::SubflowEstablished(TOKEN, ends("fd00::c")),
        &everywhere,
    );
    assert_eq!([1, 2].map(|at| all.subflows(PeerIndex(at))), [1, 1]);
    // A new connection gets them as well.
    let other = Token(8);
    let actions = all.handle(
        at(6),
        Event::Established(other, ends("fd00::1")),
        &everywhere,
    );
    assert_eq!(actions.len(), 2);
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
    let actions = all.handle(at(0), Event::Established(TOKEN, first), &|_, _| true);
    assert_eq!(actions[0], PathAction::Backup(TOKEN, first, true));
    assert_eq!(actions.len(), 3);
    let actions = all.handle(at(1), Event::SubflowEstablished(TOKEN, on_a), &|_, _| true);
    assert_eq!(actions, [PathAction::Backup(TOKEN, on_a, true)]);
    let actions = all.handle(at(1), Event::SubflowEstablished(TOKEN, on_b), &|_, _| true);
    assert_eq!(actions, []);
    // The first subflow is a backup anyway, and stays one.
    let actions = all.on_routes(at(2), &|_| true, &without_a);
    assert_eq!(
        actions,
        [
            PathAction::Withdraw(TOKEN, ONE),
            PathAction::End(TOKEN, on_a)
        ]
    );
    assert_eq!(all.poll_timeout(), None);
}

#[test]
fn a_held_out_connection_gets_no_addresses_announced() {
    let own = ["fd00::a", "fd00::b"].map(addresses);
    let half = Settings {
        held_out: 0.5,
        ..Settings::DEFAULT
    };
    let mut all = Multipath::new(own, Vec::new(), Comparison::new(half, 1));
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    let mut held = Vec::new();
    for number in 0..40 {
        let begins = Event::Established(Token(number), ends("fd00::1"));
        let actions = all.handle(at(0), begins, &everywhere);
        assert!(actions.is_empty() || actions.len() == 2, "{actions:?}");
        if actions.is_empty() {
            held.push(Token(number));
        }
    }
    assert!((10..30).contains(&held.len()), "{held:?}");
    let actions = all.on_routes(at(1), &|_| true, &|_, _| false);
    assert_eq!(actions.len(), 2 * (40 - held.len()));
    let actions = all.on_routes(at(2), &|_| true, &everywhere);
    let reported = actions.iter().filter_map(|action| match action {
        PathAction::Announce(token, ..) => Some(token),
        _ => None,
    });
    assert!(reported.clone().all(|token| !held.contains(token)));
    assert_eq!(reported.count(), 2 * (40 - held.len()));
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
    let own = ["fd00::a"].map(addresses);
    let half = Settings {
        held_out: 0.5,
        bytes_min: 1,
        ..Settings::DEFAULT
    };
    let mut all = Multipath::new(own, Vec::new(), Comparison::new(half, 1));
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    // One that stays, and was announced.
    let mut number = 0;
    let mut begin = |all: &mut Multipath| {
        number += 1;
        let token = Token(number);
        let actions = all.handle(
            at(0),
            Event::Established(token, ends("fd00::1")),
            &everywhere,
        );
        (token, actions)
    };
    let stays = std::iter::repeat_with(|| begin(&mut all))
        .find(|(_, actions)| !actions.is_empty())
        .unwrap()
        .0;
    let decided = (0..1000).find_map(|_| {
        let (token, actions) = begin(&mut all);
        all.handle(at(1), Event::Closed(token), &everywhere);
        let busy = if actions.is_empty() { 100 } else { 200 };
        let reading = Reading {
            bytes: 1_000_000 + u64::from(token.0),
            busy: vec![Duration::from_millis(busy)],
        };
        assert_eq!(all.poll_read(at(1)).unwrap().0, token);
        all.on_read(at(1), Some(&reading));
        all.poll_decision()
    });
    let decided = decided.expect("twice as long is worse");
    assert_eq!(decided.mode, crate::status::PrefixMode::SinglePath);
    assert_eq!(decided.evidence.loss_permille, Some(500));
    for _ in 0..100 {
        assert_eq!(begin(&mut all).1, []);
    }
    // Existing subflows stay, but no new address is announced.
    let actions = all.on_routes(at(2), &|_| true, &|_, _| false);
    assert_eq!(actions, [PathAction::Withdraw(stays, ONE)]);
    assert_eq!(all.on_routes(at(3), &|_| true, &everywhere), []);
}

#[test]
fn a_client_is_announced_addresses_of_its_family_whatever_socket_it_comes_to() {
    let everywhere = |_: PeerIndex, _: IpAddr| true;
    for (local, remote) in [
        ("192.0.2.1:80", "198.51.100.1:4000"),
        ("[::ffff:192.0.2.1]:80", "[::ffff:198.51.100.1]:4000"),
    ] {
        let mut all = two();
        let first = Ends {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        };
        let asked = std::cell::RefCell::new(Vec::new());
        let actions = all.handle(at(0), Event::Established(TOKEN, first), &|_, client| {
            asked.borrow_mut().push(client);
            true
        });
        let own: [IpAddr; 2] = [[192, 0, 2, 0xa].into(), [192, 0, 2, 0xb].into()];
        let [a, b] = own;
        let expected = [
            PathAction::Announce(TOKEN, a, ONE),
            PathAction::Announce(TOKEN, b, 2.try_into().unwrap()),
        ];
        assert_eq!(actions, expected);
        let client: IpAddr = [198, 51, 100, 1].into();
        assert!(asked.borrow().iter().all(|asked| *asked == client));
        // What the kernel reports has the form of the socket, and so has what it is asked to end.
        let on_a = Ends {
            local: local.replace("192.0.2.1", "192.0.2.10").parse().unwrap(),
            ..first
        };
        all.handle(at(1), Event::SubflowEstablished(TOKEN, on_a), &everywhere);
        assert_eq!(all.subflows(PeerIndex(0)), 1);
        let concerned = |of: IpAddr| of == client;
        let actions = all.on_routes(at(2), &concerned, &|peer, _| peer != PeerIndex(0));
        assert!(
            actions.contains(&PathAction::End(TOKEN, on_a)),
            "{actions:?}"
        );
    }
}
