//! Branches behind address translators: two reach each other without the hub where both translators let them, and
//! through the hub otherwise.
//!
//! ```text
//!  desk  --- tokyo --- nat1 ===
//!  shelf --- kobe  --- nat2 === isp === hub
//!  rack  --- nara  --- nat3 ===
//!  bench --- oita  --- nat4 ===
//! ```

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use keiro_linux::process::SIGKILL;
use serde_json::Value;

use crate::{
    harness::{Site, eventually, run, shown},
    hubs::{gaps_during, joined},
    join::{World, ask},
};

/// Gateway, host behind it, and what its translator does.
const SITES: [(&str, &str, Translator); 4] = [
    ("tokyo", "desk", Translator::PortRestricted),
    ("kobe", "shelf", Translator::AddressRestricted),
    ("nara", "rack", Translator::Symmetric),
    ("oita", "bench", Translator::FullCone),
];
/// From a host to another one through the hub and back: 10 ms for each way over its line.
const ROUND_TRIP: Duration = Duration::from_millis(40);
/// When a direct session is to be in use after the first packet.
const DIRECT_WITHIN: Duration = Duration::from_secs(2);
/// Packets that are under way when a count ends.
const UNDER_WAY_MAX: u64 = 5;

/// What an address translator gives a host's port, and what it lets in (RFC 4787).
#[derive(Clone, Copy, Debug)]
enum Translator {
    /// One port for all destinations; anybody comes in.
    FullCone,
    /// One port for all destinations; addresses come in to which the host has sent.
    AddressRestricted,
    /// One port for all destinations; only answers come in.
    PortRestricted,
    /// Another port for each destination; only answers come in.
    Symmetric,
}

impl Translator {
    /// The rules on the host `natN`.
    fn rules(self, number: usize) -> String {
        let out = format!("out{number}");
        let post = match self {
            Self::FullCone | Self::AddressRestricted => "masquerade",
            Self::PortRestricted => "meta l4proto udp masquerade to :20000-20999",
            Self::Symmetric => "masquerade random",
        };
        let (learned, admitted) = match self {
            Self::FullCone => ("", "meta l4proto udp"),
            Self::AddressRestricted => (
                "update @ok { udp sport . ip daddr }",
                "udp dport . ip saddr @ok",
            ),
            Self::PortRestricted | Self::Symmetric => ("", "udp dport 0"),
        };
        format!(
            "table ip nat {{
               map inner {{ type inet_service : ipv4_addr . inet_service; flags dynamic,timeout; size 65535;
                 timeout 5m; }}
               set ok {{ type inet_service . ipv4_addr; flags dynamic,timeout; size 65535; timeout 5m; }}
               chain post {{
                 type nat hook postrouting priority srcnat;
                 oifname \"{out}\" {post}
                 oifname \"{out}\" masquerade
               }}
               chain learn {{
                 type filter hook postrouting priority 150;
                 oifname \"{out}\" meta l4proto udp update @inner {{ udp sport : ct original ip saddr . ct original proto-src }} {learned}
               }}
               chain pre {{
                 type nat hook prerouting priority dstnat;
                 iifname \"{out}\" {admitted} dnat ip to udp dport map @inner
               }}
             }}
             table ip filter {{
               chain in {{
                 type filter hook input priority filter;
                 iifname \"{out}\" meta l4proto udp drop
               }}
             }}"
        )
    }
}

fn topology() -> String {
    let mut text = "[host.isp]\nsysctl = { \"net.ipv4.ip_forward\" = 1 }\n\
         [host.hub]\nroutes = [{ to = \"default\", via = \"203.0.113.1\" }]\n\
         sysctl = { \"net.ipv4.ip_forward\" = 1 }\n\
         [link.core]\na = { host = \"isp\", addresses = [\"203.0.113.1/28\"] }\n\
         b = { host = \"hub\", addresses = [\"203.0.113.2/28\"] }\n\
         each_way = { rate = \"50Mbit\", delay = \"10ms\", buffer = \"128KiB\" }\n"
        .to_owned();
    for (place, (gateway, host, _)) in SITES.iter().enumerate() {
        let n = place + 1;
        let (isp, nat) = (16 * n + 1, 16 * n + 2);
        let _ = write!(
            text,
            "[host.nat{n}]\nroutes = [{{ to = \"default\", via = \"198.51.100.{isp}\" }}]\n\
             sysctl = {{ \"net.ipv4.ip_forward\" = 1 }}\n\
             [host.{gateway}]\nroutes = [{{ to = \"default\", via = \"192.168.{n}.1\" }}]\n\
             [host.{host}]\nroutes = [{{ to = \"default\", via = \"10.{n}.0.1\" }}]\n\
             [link.out{n}]\na = {{ host = \"isp\", addresses = [\"198.51.100.{isp}/28\"] }}\n\
             b = {{ host = \"nat{n}\", addresses = [\"198.51.100.{nat}/28\"] }}\n\
             [link.wan{n}]\na = {{ host = \"nat{n}\", addresses = [\"192.168.{n}.1/24\"] }}\n\
             b = {{ host = \"{gateway}\", addresses = [\"192.168.{n}.2/24\"] }}\n\
             [link.lan{n}]\na = {{ host = \"{gateway}\", addresses = [\"10.{n}.0.1/24\"] }}\n\
             b = {{ host = \"{host}\", addresses = [\"10.{n}.0.10/24\"] }}\n"
        );
    }
    text
}

/// A hub and four branches that know each other, and have sent each other nothing.
pub(crate) fn start() -> (World, [Site; 4]) {
    let mut world = World::new(&topology());
    for (place, (_, _, translator)) in SITES.iter().enumerate() {
        let number = place + 1;
        let rules = translator.rules(number);
        let script = format!("nft -f - <<'END'\n{rules}\nEND\n");
        world.sh(&format!("nat{number}"), &script);
    }
    world.start_hub();
    let branches = SITES.map(|(name, _, _)| joined(&mut world, &[name]));
    for branch in &branches {
        eventually("a branch knows the others", || {
            let network = ask(branch, &["show", "network"])?;
            (network["sites"].as_array()?.len() == SITES.len() - 1).then_some(())
        });
        eventually("it has a session with the hub", || {
            is_up(branch, "hub")?.then_some(())
        });
    }
    (world, branches)
}

/// Which way packets for a site take, and why.
fn route(at: &Site, site: &str) -> Option<(String, String)> {
    let network = ask(at, &["show", "network"])?;
    let mut sites = network["sites"].as_array()?.iter();
    let site = sites.find(|of| of["name"] == site)?;
    let text = |key: &str| Some(site[key].as_str()?.to_owned());
    Some((text("route")?, text("why")?))
}

#[track_caller]
pub(crate) fn await_direct(ends: [(&Site, &str); 2]) {
    for (at, site) in ends {
        eventually("packets take a direct session", || {
            (route(at, site)?.0 == "direct").then_some(())
        });
    }
}

/// Whether a gateway has a peer of this name that is up.
pub(crate) fn is_up(site: &Site, name: &str) -> Option<bool> {
    let peers = ask(site, &["show", "peer"])?;
    let mut peers = peers.as_array()?.iter();
    Some(peers.any(|peer| peer["name"] == name && peer["state"] == "up"))
}

/// Packets that the hub has passed on from one site to another.
fn passed_on(world: &World) -> u64 {
    let tenant = |value: Value| value[0]["transit_packets"].as_u64();
    eventually("the hub answers", || {
        tenant(world.ask(&["show", "tenant", "office"])?)
    })
}

#[test]
fn branches_reach_each_other_directly_where_translators_let_them() {
    let (world, [tokyo, kobe, nara, oita]) = start();
    for (site, other) in [(&tokyo, "kobe"), (&nara, "oita")] {
        let (route, why) = route(site, other).expect("it answers");
        assert_eq!(route, "relayed", "{why}");
    }
    for (from, to, ends) in [
        ("desk", "10.2.0.10", [(&tokyo, "kobe"), (&kobe, "tokyo")]),
        ("rack", "10.2.0.10", [(&nara, "kobe"), (&kobe, "nara")]),
        ("rack", "10.4.0.10", [(&nara, "oita"), (&oita, "nara")]),
        ("bench", "10.1.0.10", [(&oita, "tokyo"), (&tokyo, "oita")]),
    ] {
        let begun = Instant::now();
        world.ping(from, to);
        let first = begun.elapsed();
        await_direct(ends);
        let direct = begun.elapsed();
        eprintln!("{from} to {to}: first answer after {first:?}, direct after {direct:?}");
        assert!(first < ROUND_TRIP * 3 / 2 + Duration::from_millis(50));
        assert!(direct < DIRECT_WITHIN);
        let before = passed_on(&world);
        for _ in 0..5 {
            world.ping(from, to);
        }
        assert_eq!(passed_on(&world), before, "none passes the hub");
    }

    // A translator that gives every destination another port does not reach one that lets in only answers.
    world.ping("desk", "10.3.0.10");
    let why = eventually("it is given up", || {
        let (route, why) = route(&tokyo, "nara")?;
        assert_eq!(route, "relayed", "{why}");
        why.starts_with("no answer from").then_some(why)
    });
    eprintln!("desk to rack: {why}");
    let before = passed_on(&world);
    world.ping("desk", "10.3.0.10");
    assert!(passed_on(&world) > before);
    let peer = ask(&tokyo, &["show", "peer", "kobe"]).expect("it answers");
    assert_eq!(peer[0]["direct"], true, "{peer}");
    let text_at = |site: &Site, args: &[&str]| {
        let socket = shown(&site.path("control.sock"));
        run(args.iter().copied().chain(["--socket", &socket]))
    };
    let text = text_at(&tokyo, &["show", "network"]).expect_code(0).stdout;
    eprintln!("{text}");
    let is_shown = |words: [&str; 2]| {
        let mut lines = text.lines();
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(is_shown(["kobe", "direct"]) && is_shown(["nara", "relayed"]));
    let at_hub = text_at(&world.hub, &["show", "network"]).expect_code(1);
    let _ = at_hub.says(&["this gateway is a hub", "`keiro sites`"]);
}

#[test]
fn packets_move_to_a_direct_session_and_back_to_the_hub_without_loss() {
    let (mut world, [tokyo, kobe, _nara, _oita]) = start();
    let both = [(&tokyo, "kobe"), (&kobe, "tokyo")];
    let opened = gaps_during(&world, || {
        await_direct(both);
    });
    opened.print("a direct session begins");
    assert!(opened.lost <= UNDER_WAY_MAX, "{opened:?}");

    let cut = gaps_during(&world, || {
        let before = passed_on(&world);
        world.sh("isp", "nft 'table ip cut { chain f { type filter hook forward priority 0; \
             ip saddr 198.51.100.18 ip daddr 198.51.100.34 drop; ip saddr 198.51.100.34 ip daddr 198.51.100.18 drop; }; }'");
        eventually("the hub passes them on", || {
            (passed_on(&world) > before + 40).then_some(())
        });
    });
    cut.print("the direct way is cut");
    assert!(cut.longest < Duration::from_secs(1), "{cut:?}");

    let restored = gaps_during(&world, || {
        world.sh("isp", "nft delete table ip cut");
        await_direct(both);
    });
    restored.print("the direct way is back");
    assert!(restored.lost <= UNDER_WAY_MAX, "{restored:?}");

    // Sites that have a session need no hub.
    let without_hub = gaps_during(&world, || {
        world.processes[0].signal(SIGKILL).expect("it runs");
        eventually("the hub is missed", || {
            (!is_up(&tokyo, "hub")?).then_some(())
        });
    });
    without_hub.print("the hub dies");
    assert!(without_hub.lost <= UNDER_WAY_MAX, "{without_hub:?}");
    let file = world.hub.path("gateway.toml");
    world.restart(0, "hub", &file);
    eventually("the hub is back", || is_up(&tokyo, "hub")?.then_some(()));

    // A site that is revoked loses its direct sessions too.
    let begun = Instant::now();
    world.at_hub(&["revoke", "kobe"]).expect_code(0);
    eventually("the other site has no session with it", || {
        let peers = ask(&tokyo, &["show", "peer"])?;
        let mut peers = peers.as_array()?.iter();
        (!peers.any(|peer| peer["name"] == "kobe")).then_some(())
    });
    let took = begun.elapsed();
    eprintln!("revoked after {took:?}");
    assert!(took < Duration::from_secs(2));
}
