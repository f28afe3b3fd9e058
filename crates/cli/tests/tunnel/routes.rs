//! What tenants have in the kernel when others were there first, change it, or come later.

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
    eventually("that is told", || {
        log(&gateways).contains("are in place").then_some(())
    });
}

#[test]
fn what_is_taken_from_a_tenant_is_put_back_and_told() {
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
        eventually("that is told", || {
            let told = log(&gateways)
                .matches("had been taken away; put back")
                .count();
            (told > number).then_some(())
        });
        gateways.ping(0, "fd00:2::1", Some("t-blue"));
        gateways.ping(0, "10.2.0.1", Some("t-blue"));
    }
}
