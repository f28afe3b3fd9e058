//! Two paths behind one uplink, by SRv6 segments that the kernel chooses by source port, set up as
//! `docs/operations.md` says.

use std::fmt::Write as _;

use keiro_lab::Lab;

use crate::{
    harness::{Site, eventually, finish},
    pair::{Gateway, lab_of},
};

const OPERATIONS: &str = include_str!("../../../../docs/operations.md");
const HEADING: &str = "### Several paths behind one uplink";

/// Tokyo has one line, to `edge`. A packet with a segment of `core-a` or `core-b` goes there and is unpacked.
const TOPOLOGY: &str = r#"
[host.tokyo]
routes = [{ to = "2001:db8:51d::/48", via = "2001:db8:1::1" }]

[host.edge]
routes = [
    { to = "2001:db8:51d:a::/64", via = "2001:db8:a::2" },
    { to = "2001:db8:51d:b::/64", via = "2001:db8:b::2" },
]
sysctl = { "net.ipv6.conf.all.forwarding" = 1 }

[host.core-a]
routes = [
    { to = "2001:db8:1::/64", via = "2001:db8:a::1" },
    { to = "2001:db8:2::/64", via = "2001:db8:c::2" },
]
sysctl = { "net.ipv6.conf.all.forwarding" = 1, "net.ipv6.conf.all.seg6_enabled" = 1, "net.ipv6.conf.default.seg6_enabled" = 1 }

[host.core-b]
routes = [
    { to = "2001:db8:1::/64", via = "2001:db8:b::1" },
    { to = "2001:db8:2::/64", via = "2001:db8:d::2" },
]
sysctl = { "net.ipv6.conf.all.forwarding" = 1, "net.ipv6.conf.all.seg6_enabled" = 1, "net.ipv6.conf.default.seg6_enabled" = 1 }

[host.exit]
routes = [{ to = "2001:db8:1::/64", via = "2001:db8:c::1" }]
sysctl = { "net.ipv6.conf.all.forwarding" = 1 }

[host.osaka]
routes = [{ to = "2001:db8:1::/64", via = "2001:db8:2::1" }]

[link.wan1]
a = { host = "tokyo", addresses = ["2001:db8:1::2/64"] }
b = { host = "edge", addresses = ["2001:db8:1::1/64"] }

[link.a]
a = { host = "edge", addresses = ["2001:db8:a::1/64"] }
b = { host = "core-a", addresses = ["2001:db8:a::2/64"] }
a_to_b = { delay = "20ms" }

[link.b]
a = { host = "edge", addresses = ["2001:db8:b::1/64"] }
b = { host = "core-b", addresses = ["2001:db8:b::2/64"] }
a_to_b = { delay = "2ms" }

[link.c]
a = { host = "core-a", addresses = ["2001:db8:c::1/64"] }
b = { host = "exit", addresses = ["2001:db8:c::2/64"] }

[link.d]
a = { host = "core-b", addresses = ["2001:db8:d::1/64"] }
b = { host = "exit", addresses = ["2001:db8:d::2/64"] }

[link.lan]
a = { host = "exit", addresses = ["2001:db8:2::1/64"] }
b = { host = "osaka", addresses = ["2001:db8:2::2/64"] }
"#;

fn ip(lab: &Lab, host: &str, arguments: &str) {
    let mut command = lab.host(host).expect("a host").command("ip");
    command.args(arguments.split_whitespace());
    finish(&mut command, b"").expect_code(0);
}

fn configuration(
    site: &Site,
    [name, peer]: [&str; 2],
    [own, other]: [&str; 2],
    key: &str,
) -> String {
    let mut text = site.gateway(name);
    for (path, port) in [("by-a", 7601), ("by-b", 7602)] {
        let _ = write!(
            text,
            "[[path]]\nname = \"{path}\"\nlocal = \"[{own}]:{port}\"\nrate = \"40Mbit\"\n"
        );
    }
    let _ = write!(
        text,
        "[[peer]]\nname = \"{peer}\"\npublic_key = \"{key}\"\n\
         endpoints = {{ by-a = \"[{other}]:7601\", by-b = \"[{other}]:7602\" }}\n"
    );
    text
}

#[test]
fn paths_behind_one_uplink_take_segments_by_source_port() {
    let lab = lab_of(TOPOLOGY);
    let recipe = OPERATIONS
        .split(HEADING)
        .nth(1)
        .expect("the heading is there");
    let recipe = recipe.split("\n#").next().expect("a section");
    let commands: Vec<&str> = recipe
        .lines()
        .filter_map(|line| line.strip_prefix("ip "))
        .collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    for command in commands {
        let command = command.split('#').next().expect("a command");
        ip(&lab, "tokyo", command);
    }
    for (core, sid, to) in [("core-a", "a", "c"), ("core-b", "b", "d")] {
        let sid = format!("2001:db8:51d:{sid}::1");
        let local = "encap seg6local action End.DT6 table main";
        ip(
            &lab,
            core,
            &format!("-6 route add {sid}/128 {local} dev {to}"),
        );
    }
    let [tokyo, osaka] = [Site::new(), Site::new()];
    let keys = [tokyo.public_key(), osaka.public_key()];
    let addresses = ["2001:db8:1::2", "2001:db8:2::2"];
    let [near, far] = addresses;
    let of_tokyo = configuration(&tokyo, ["tokyo", "osaka"], [near, far], &keys[1]);
    let of_osaka = configuration(&osaka, ["osaka", "tokyo"], [far, near], &keys[0]);
    let tokyo = Gateway::start(&lab, "tokyo", tokyo, &of_tokyo, &[]);
    let _osaka = Gateway::start(&lab, "osaka", osaka, &of_osaka, &[]);
    // Both paths have the same two addresses: without segments both would go by core-a.
    eventually("each path has the delay of its segment", || {
        (tokyo.status()?["paths_up"] == 2).then_some(())?;
        let srtt = |path: &str| tokyo.path(path)["srtt_seconds"].as_f64();
        (srtt("by-a")? >= 0.02 && srtt("by-b")? < 0.02).then_some(())
    });
    let link = lab.link("b").expect("a link");
    link.change(|config| config.down = true).expect("it is cut");
    eventually("only the path of the cut line is down", || {
        let state = |path: &str| tokyo.path(path)["state"].clone();
        (state("by-b") == "down" && state("by-a") == "up").then_some(())
    });
}
