//! `keiro doctor` beside real gateways whose machines are set up wrongly, and beside two that are well. Needs root,
//! iproute2, nft and cc, and fails without.

#[path = "../harness/mod.rs"]
mod harness;
mod sites;

use harness::{finish, run, shown};
use sites::{CLOCK_DAYS_BEHIND, OSAKA, Setup, Sites, TOKYO};

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");

/// Runs of a peer whose last handshakes a gateway remembers, in
/// `crates/core/src/session/incarnations.rs`.
const RUNS_REMEMBERED: usize = 16;

#[test]
fn two_uplinks_with_a_tenant_are_well() {
    let sites = Sites::start(&Setup::default());
    sites.await_up();
    sites.ping();
    for own in [TOKYO, OSAKA] {
        let ran = sites.doctor(own, &[]);
        assert!(
            ran.stdout.starts_with("nothing found: gateway "),
            "{ran:#?}"
        );
        assert_eq!(ran.stdout.lines().count(), 1);
        ran.expect_code(0);
    }
}

#[test]
fn one_uplink_without_a_tenant_is_well_behind_closed_firewalls() {
    let setup = Setup {
        without: &["[[path]]\nname = \"wan1\"\ninterface = \"wan1\"\n"],
        tenants: false,
        ..Setup::default()
    };
    let sites = Sites::prepare(&setup, |sites| {
        sites.nft(
            TOKYO,
            &[
                "add table inet f",
                "add chain inet f in { type filter hook input priority 0; policy drop; }",
            ],
        );
        sites.nft(TOKYO, &["add rule inet f in ct state established accept"]);
        sites.nft(
            OSAKA,
            &[
                "add table inet f",
                "add chain inet f forwarded { type filter hook forward priority 0; policy drop; }",
            ],
        );
    });
    sites.await_up();
    for own in [TOKYO, OSAKA] {
        sites.doctor(own, &["--json"]).expect_code(0);
    }
}

#[test]
fn an_uplink_without_a_default_route_is_named() {
    let sites = Sites::prepare(&Setup::default(), |sites| {
        sites.ip(TOKYO, "route del default dev wan1");
    });
    sites.expect(TOKYO, "no_default_route", "path", Some("wan1"));
}

#[test]
fn an_address_that_no_interface_has_is_named() {
    let setup = Setup {
        replace: &[("interface = \"wan1\"", "local = \"198.51.100.9:7600\"")],
        ..Setup::default()
    };
    let sites = Sites::start(&setup);
    let found = sites.expect(TOKYO, "address_not_here", "path", Some("wan1"));
    let remedy = found["remedy"].as_str().expect("a text");
    assert!(remedy.contains("interface = \"wan1\""), "{remedy}");
}

#[test]
fn a_strict_reverse_path_filter_without_a_rule_is_named() {
    let setup = Setup {
        // It cannot make the rule itself.
        without_net_admin: true,
        tenants: false,
        ..Setup::default()
    };
    let sites = Sites::prepare(&setup, |sites| {
        sites.sysctl(TOKYO, "net.ipv4.conf.wan1.rp_filter=1");
    });
    let found = sites.expect(TOKYO, "reverse_path_filter", "path", Some("wan1"));
    // What it says is right.
    sites.sysctl(TOKYO, "net.ipv4.conf.wan1.rp_filter=2");
    assert_eq!(
        found["remedy"],
        "`sysctl -w net.ipv4.conf.wan1.rp_filter=2`"
    );
    sites.await_up();
    sites.doctor(TOKYO, &[]).expect_code(0);
}

#[test]
fn a_lan_that_is_not_forwarded_is_named() {
    let sites = Sites::prepare(&Setup::default(), |sites| {
        sites.sysctl(TOKYO, "net.ipv4.conf.lan.forwarding=0");
    });
    sites.await_up();
    sites.expect(TOKYO, "forwarding_off", "tenant", Some("blue"));
    sites.sysctl(TOKYO, "net.ipv4.conf.lan.forwarding=1");
    sites.doctor(TOKYO, &[]).expect_code(0);
}

#[test]
fn a_forward_chain_that_drops_is_named_with_the_command_that_opens_it() {
    let sites = Sites::prepare(&Setup::default(), |sites| {
        sites.nft(
            TOKYO,
            &[
                "add table inet f",
                "add chain inet f forwarded { type filter hook forward priority 0; policy drop; }",
            ],
        );
    });
    sites.await_up();
    let found = sites.expect(TOKYO, "forward_blocked", "tenant", Some("blue"));
    let remedy = found["remedy"].as_str().expect("a text");
    let command = remedy.split('`').nth(1).expect("a command");
    sites.shell(TOKYO, command);
    sites.ping();
    sites.doctor(TOKYO, &[]).expect_code(0);
}

#[test]
fn a_port_that_is_closed_at_the_hub_is_named_there() {
    let sites = Sites::prepare(&Setup::default(), |sites| {
        sites.nft(
            OSAKA,
            &[
                "add table inet f",
                "add chain inet f in { type filter hook input priority 0; policy drop; }",
            ],
        );
    });
    sites.expect(TOKYO, "peer_silent", "peer", Some("osaka"));
    let found = sites.expect(OSAKA, "input_blocked", "path", Some("core"));
    let remedy = found["remedy"].as_str().expect("a text");
    let command = remedy.split('`').nth(1).expect("a command");
    sites.shell(OSAKA, command);
    sites.await_up();
}

#[test]
fn a_wrong_key_is_named_with_the_right_one() {
    let setup = Setup {
        wrong_key_at_tokyo: true,
        ..Setup::default()
    };
    let sites = Sites::start(&setup);
    sites.expect(TOKYO, "peer_silent", "peer", Some("osaka"));
    let found = sites.expect(OSAKA, "wrong_key", "peer", Some("tokyo"));
    let remedy = found["remedy"].as_str().expect("a text");
    assert!(remedy.contains(&sites.public_key(OSAKA)), "{remedy}");
}

#[test]
fn an_application_of_another_class_is_named_at_both_ends() {
    let setup = Setup {
        class_at_osaka: "datagram",
        ..Setup::default()
    };
    let sites = Sites::start(&setup);
    sites.await_up();
    sites.send("orders");
    sites.expect(TOKYO, "app_mismatch", "app", Some("orders"));
    sites.expect(OSAKA, "app_mismatch", "app", Some("orders"));
}

#[test]
fn a_network_that_is_missing_at_the_hub_is_named_at_both_ends() {
    let setup = Setup {
        prefix_of_tokyo_at_osaka: "10.8.0.0/16",
        ..Setup::default()
    };
    let sites = Sites::start(&setup);
    sites.await_up();
    sites.send_from_lan();
    for own in [OSAKA, TOKYO] {
        let found = sites.expect(own, "prefix_mismatch", "tenant", Some("blue"));
        assert!(
            found["finding"]
                .as_str()
                .expect("a text")
                .contains("10.1.0.5")
        );
    }
}

#[test]
fn a_tenant_that_the_hub_does_not_have_is_named_at_both_ends() {
    let setup = Setup {
        id_at_osaka: 9,
        ..Setup::default()
    };
    let sites = Sites::start(&setup);
    sites.await_up();
    sites.send_from_lan();
    sites.expect(TOKYO, "tenant_refused", "tenant", Some("blue"));
    sites.expect(OSAKA, "tenant_unknown", "peer", Some("tokyo"));
}

#[test]
fn a_narrow_line_whose_router_says_nothing_is_named() {
    let sites = Sites::prepare(&Setup::default(), |sites| {
        sites.ip_of("isp", "link set core mtu 1200");
        sites.nft_of(
            "isp",
            &[
                "add table inet f",
                "add chain inet f out { type filter hook output priority 0; policy accept; }",
                "add rule inet f out meta l4proto icmp drop",
            ],
        );
    });
    sites.await_up();
    sites.expect(TOKYO, "path_mtu", "path", Some("wan0"));
}

#[test]
fn a_line_that_passes_one_direction_only_is_named() {
    let sites = Sites::start(&Setup::default());
    sites.await_up();
    sites.nft_of(
        "isp",
        &[
            "add table inet f",
            "add chain inet f forwarded { type filter hook forward priority 0; policy accept; }",
            "add rule inet f forwarded oifname core drop",
        ],
    );
    sites.expect(TOKYO, "one_way", "peer", Some("osaka"));
}

#[test]
fn a_clock_that_has_gone_back_is_named_at_both_ends() {
    let mut sites = Sites::start(&Setup::default());
    sites.await_up();
    // Each run has a clock of its own, until the peer has seen more of them than it remembers.
    for _ in 0..RUNS_REMEMBERED {
        sites.stop(TOKYO);
        sites.restart(TOKYO);
        sites.await_up();
    }
    sites.stop(TOKYO);
    // At the old addresses the hub itself would begin.
    for (wan, old, new) in [
        ("wan0", "192.0.2.2", "192.0.2.3"),
        ("wan1", "198.51.100.2", "198.51.100.3"),
    ] {
        sites.ip(TOKYO, &format!("address del {old}/28 dev {wan}"));
        sites.ip(TOKYO, &format!("address add {new}/28 dev {wan}"));
    }
    sites.add_default_routes();
    sites.turn_clock_back(TOKYO);
    let found = sites.expect(OSAKA, "peer_clock_behind", "peer", Some("tokyo"));
    assert!(
        found["finding"]
            .as_str()
            .expect("a text")
            .contains("gone back")
    );
    let found = sites.expect(TOKYO, "clock_behind", "machine", None);
    let days = format!("{CLOCK_DAYS_BEHIND} days");
    assert!(
        found["finding"].as_str().expect("a text").contains(&days),
        "{found}"
    );
}

#[test]
fn a_network_of_another_vpn_is_named_with_its_rule() {
    let sites = Sites::prepare(&Setup::default(), |sites| {
        sites.ip(TOKYO, "link add vpn0 type veth peer name vpn1");
        sites.ip(TOKYO, "link set vpn1 up");
        sites.ip(TOKYO, "link set vpn0 up");
        sites.ip(TOKYO, "route add 10.0.0.0/8 dev vpn0 table 52");
        sites.ip(TOKYO, "rule add priority 5270 lookup 52");
    });
    sites.await_up();
    let found = sites.expect(TOKYO, "routed_elsewhere", "tenant", Some("blue"));
    let text = found["finding"].as_str().expect("a text");
    assert!(
        text.contains("leave by vpn0") && text.contains("priority 5270"),
        "{text}"
    );
}

#[test]
fn without_a_gateway_configuration_and_kernel_are_looked_at() {
    let mut sites = Sites::prepare(&Setup::default(), |sites| {
        sites.ip(TOKYO, "link set wan1 down");
    });
    sites.stop(TOKYO);
    let ran = sites.doctor(TOKYO, &["--json"]).expect_code(1);
    let report = ran.json();
    let causes: Vec<&str> = report["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .map(|found| found["cause"].as_str().expect("a cause"))
        .collect();
    assert_eq!(causes, ["not_running", "interface_down"], "{report:#}");
    assert_eq!(report["gateway_asked"], false);
}

#[test]
fn a_file_that_is_missing_or_wrong_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("gateway.toml");
    let cause = || {
        let ran = run(["doctor", "--json", "--config", &shown(&file)]).expect_code(1);
        ran.json()["findings"][0]["cause"].clone()
    };
    assert_eq!(cause(), "no_configuration");
    std::fs::write(&file, "[gateway]\nname = 7\n").expect("written");
    assert_eq!(cause(), "invalid_configuration");
}

#[test]
fn a_user_who_may_not_look_gets_no_clean_bill() {
    let sites = Sites::start(&Setup::default());
    sites.await_up();
    let file = shown(&sites.file(TOKYO));
    let host = sites.lab.host("tokyo").expect("a host");
    let mut command = host.command("setpriv");
    command
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            PROGRAM,
        ])
        .args(["doctor", "--config", &file]);
    let ran = finish(&mut command, b"").expect_code(2);
    ran.says(&["not checked", "run it as root"]);
}
