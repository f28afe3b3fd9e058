//! GRACEFUL_SHUTDOWN (RFC 8326) between FRR and the border router, in both directions.

use std::fs;

use ipnet::IpNet;
use keiro_egress::{
    asbr::Asbr,
    config::AsbrConfig,
    control::{self, Answer, Request},
    daemon::Daemon,
    forwarding::Memory,
};
use keiro_lab::{Lab, Topology, frr::Router};
use keiro_testing::{wait_for_value, wait_until};

use super::{BORDER, TOPOLOGY, announcer, support::Serving};

const PREFIX: &str = "2001:db8:c1::/48";

#[test]
fn a_transit_that_asks_for_it_is_drained_and_one_that_is_drained_is_asked() {
    let topology = Topology::parse(TOPOLOGY, "drain").unwrap();
    let name = format!("drain{}", std::process::id());
    let lab = Lab::builder(&topology).name(name).up().unwrap();
    let host = |name: &str| lab.host(name).unwrap();
    let near = " neighbor 2001:db8:f::2 ttl-security hops 1\n";
    let of_transit = announcer((65001, 1), "2001:db8:f::2", near, &[PREFIX]);
    let transit = Router::start(host("transit"), &of_transit).unwrap();
    let mut at_transit = transit.operator().unwrap();

    let files = tempfile::tempdir().unwrap();
    let (file, socket) = (files.path().join("asbr.toml"), files.path().join("socket"));
    let write = |keys: &str| {
        let in_asbr = format!("[asbr]\ncontrol_socket = \"{}\"", socket.display());
        let text = BORDER.replacen("[asbr]", &in_asbr, 1) + keys;
        fs::write(&file, text).unwrap();
    };
    write("");
    let of_border = file.clone();
    let border = Serving::start(host("border"), move || {
        let config = AsbrConfig::load(&of_border).unwrap();
        let speaker = config.speaker.clone();
        let forwarding = Box::new(Memory::default());
        let mut daemon = Daemon::start(Asbr::new(config), &speaker, forwarding).unwrap();
        daemon.reload_from(&of_border);
        daemon
    });
    let local_pref = || {
        let prefix: IpNet = PREFIX.parse().unwrap();
        match control::ask(&socket, Request::Explain(prefix)).unwrap() {
            Answer::Explanation(it) => it.paths.first().map(|path| path.local_pref),
            other => panic!("{other:?}"),
        }
    };
    let wait = |what: &str, expected: u32| {
        wait_for_value(what, local_pref, |it| *it == Some(expected));
    };
    wait("the route", 100);
    for (command, expected) in [("", 0), ("no ", 100)] {
        for line in ["configure terminal", "router bgp 65001"] {
            at_transit.command(line).unwrap();
        }
        at_transit
            .command(&format!("{command}bgp graceful-shutdown"))
            .unwrap();
        at_transit.command("end").unwrap();
        wait("as the transit asks", expected);
    }

    let reload = |keys: &str| {
        write(keys);
        let answer = control::ask(&socket, Request::Reload).unwrap();
        assert!(matches!(answer, Answer::Reloaded(_)), "{answer:?}");
    };
    let mut asks = |wanted: bool| {
        wait_until("what the transit is asked", || {
            let shown = at_transit.command("show bgp ipv6 unicast 2001:db8:a::/48");
            shown.unwrap().contains("graceful-shutdown") == wanted
        });
    };
    asks(false);
    reload("drain = true\n");
    wait("drained", 0);
    asks(true);
    reload("");
    wait("undone", 100);
    asks(false);
    drop((border, transit));
    lab.down().unwrap();
}
