//! What tenants have in the kernel when others were there first, change it, or come later.

use std::collections::BTreeSet;

use keiro_linux::process::{SIGKILL, SIGTERM};

use crate::{
    gateways::{Gateways, MIB, tenant},
    harness::{Ran, eventually, run, shown},
};

fn blue_and_red(own: usize) -> String {
    tenant(own, "blue", 1, "table = 101\n") + &tenant(own, "red", 2, "table = 102\n")
}

fn reload(gateways: &Gateways, text: &str) -> Ran {
    gateways.sites[0].write("gateway.toml", text);
    let socket = shown(&gateways.sites[0].path("control.sock"));
    run(["reload", "--socket", &socket]).expect_code(0)
}

fn configuration(gateways: &Gateways) -> String {
    let file = gateways.sites[0].path("gateway.toml");
    std::fs::read_to_string(file).expect("a file")
}

fn log(gateways: &Gateways) -> String {
    std::fs::read_to_string(gateways.sites[0].path("log")).expect("a log")
}

#[test]
fn a_route_in_one_tenants_way_keeps_no_other_from_its_own() {
    let gateways = Gateways::start(blue_and_red);
    let with = configuration(&gateways);
    reload(
        &gateways,
        with.split("[tenant").next().expect("a beginning"),
    );
    gateways.ip(0, "route add 10.2.0.0/24 dev lo table 101");
    reload(&gateways, &with).says(&[
        "tenant `blue`: route 10.2.0.0/24 dev t-blue table 101 would replace route 10.2.0.0/24 dev lo \
         table 101",
        "tries again every second",
    ]);
    gateways.transfer(0, "10.2.0.1", Some("t-red"), MIB);
    gateways.ping(0, "fd00:2::1", Some("t-red"));
    gateways.ping(0, "fd00:2::1", Some("t-blue"));
    gateways.ip(0, "route delete 10.2.0.0/24 dev lo table 101");
    eventually("blue has its route", || {
        let table = gateways.ip(0, "route show table 101");
        table.contains("10.2.0.0/24 dev t-blue").then_some(())
    });
    eventually("that is reported", || {
        log(&gateways).contains("are in place").then_some(())
    });
}

#[test]
fn what_is_taken_from_a_tenant_is_put_back_and_reported() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, "table = 101\n"));
    let is_whole = || {
        let all = [
            ("route show table 101", "10.2.0.0/24 dev t-blue"),
            ("-6 route show table 101", "fd00:2::/64 dev t-blue"),
            ("address show dev t-blue", "10.1.0.1/32"),
            ("-6 address show dev t-blue", "fd00:1::1/128"),
            ("rule show", "iif t-blue lookup 101"),
        ];
        let missing = |(list, entry): &(&str, &str)| !gateways.ip(0, list).contains(entry);
        all.iter().all(|entry| !missing(entry)).then_some(())
    };
    eventually("it is there", is_whole);
    let taken: [&[&str]; 4] = [
        &["link set t-blue down", "link set t-blue up"],
        &["route delete 10.2.0.0/24 table 101"],
        &["address flush dev t-blue"],
        &["rule delete iif t-blue lookup 101"],
    ];
    for (number, commands) in taken.into_iter().enumerate() {
        for command in commands {
            gateways.ip(0, command);
        }
        eventually("it is there again", is_whole);
        eventually("that is reported", || {
            let reported = log(&gateways)
                .matches("had been taken away; put back")
                .count();
            (reported > number).then_some(())
        });
        gateways.ping(0, "fd00:2::1", Some("t-blue"));
        gateways.ping(0, "10.2.0.1", Some("t-blue"));
    }
}

/// Tables that rules and routes of Keiro's are of, beside the main one.
fn tables(gateways: &Gateways) -> BTreeSet<String> {
    let lists = [
        "rule show",
        "-6 rule show",
        "route show table all",
        "-6 route show table all",
    ];
    let mut tables = BTreeSet::new();
    for list in lists {
        let shown = gateways.ip(0, list);
        for line in shown.lines().filter(|line| line.contains("proto 75")) {
            let mut words = line.split_whitespace();
            words.find(|word| ["lookup", "table"].contains(word));
            tables.extend(words.next().map(str::to_owned));
        }
    }
    tables
}

#[test]
fn what_a_killed_gateway_left_in_tables_that_are_not_in_use_is_removed() {
    let mut gateways = Gateways::start(blue_and_red);
    let both = configuration(&gateways);
    let now = |gateways: &Gateways| tables(gateways).into_iter().collect::<Vec<_>>();
    assert_eq!(now(&gateways), ["101", "102"]);
    gateways.stop(0, SIGKILL);
    assert_eq!(now(&gateways), ["101", "102"]);
    let (blue, _) = both.split_once("[tenant.red]").expect("red");
    let elsewhere = blue.replacen("table = 101", "table = 103", 1);
    gateways.sites[0].write("gateway.toml", &elsewhere);
    gateways.restart(0);
    assert_eq!(now(&gateways), ["103"]);
    gateways.ping(0, "10.2.0.1", Some("t-blue"));
    gateways.ping(0, "fd00:2::1", Some("t-blue"));

    gateways.stop(0, SIGKILL);
    let (none, _) = both.split_once("[tenant").expect("a beginning");
    gateways.sites[0].write("gateway.toml", none);
    gateways.restart(0);
    assert_eq!(now(&gateways), [""; 0]);
}

#[test]
fn a_gateway_beside_keeps_its_own_when_another_starts() {
    let mut gateways = Gateways::start(blue_and_red);
    let both = configuration(&gateways);
    // One of the same host, without a peer that answers.
    let beside = both
        .replace("control.sock", "beside.sock")
        .replace("message.sock", "beside-message.sock")
        .replace("/state\"", "/beside\"")
        .replace("192.0.2.1:7600", "192.0.2.1:7700")
        .replace("192.0.2.2:7600", "192.0.2.2:7700")
        .replace("127.0.0.1:9477", "127.0.0.1:9478")
        .replace("table = 10", "table = 20")
        .replace("\"t-", "\"u-");
    let file = shown(&gateways.sites[0].write("beside.toml", &beside));
    let other = gateways.spawn_beside(0, &file);
    eventually("both have their tables", || {
        let tables: Vec<_> = tables(&gateways).into_iter().collect();
        (tables == ["101", "102", "201", "202"]).then_some(())
    });
    let rules = |gateways: &Gateways, table: &str| {
        let all = gateways.ip(0, "rule show") + &gateways.ip(0, "-6 rule show");
        let table = format!("lookup {table} ");
        all.lines().filter(|rule| rule.contains(&table)).count()
    };
    gateways.stop(0, SIGKILL);
    gateways.restart(0);
    gateways.ping(0, "fd00:2::1", Some("t-red"));
    for table in ["101", "102", "201", "202"] {
        assert_eq!(rules(&gateways, table), 6, "{table}");
    }
    let reported = std::fs::read_to_string(gateways.sites[0].path("beside.log")).expect("a log");
    assert!(!reported.contains("taken away"), "{reported}");
    other.signal(SIGTERM).expect("it runs");
    eventually("its devices go", || {
        (!gateways.ip(0, "link show").contains("u-")).then_some(())
    });
    // A reload of the one that runs leaves it blocked.
    reload(&gateways, &both);
    let four: Vec<_> = tables(&gateways).into_iter().collect();
    assert_eq!(four, ["101", "102", "201", "202"]);
    // What blocks its tenants is removed beside the one that runs, which keeps its own.
    eventually("the one that stopped is cleaned up", || {
        gateways.cleanup(0);
        let tables: Vec<_> = tables(&gateways).into_iter().collect();
        (tables == ["101", "102"]).then_some(())
    });
    for table in ["101", "102"] {
        assert_eq!(rules(&gateways, table), 6, "{table}");
    }
    let reported = log(&gateways);
    assert!(!reported.contains("taken away"), "{reported}");
}
