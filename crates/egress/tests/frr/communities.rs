//! Large communities with FRR: matched here, and sent to it in a message that is longer than 4,096 octets
//! (RFC 8654).

use std::fmt::Write;

use ipnet::IpNet;
use keiro_egress::{
    asbr::Asbr,
    config::AsbrConfig,
    control::{self, Answer, Request},
    daemon::Daemon,
    forwarding::Memory,
    status::PathStatus,
};
use keiro_lab::{Lab, Topology, frr::Router};
use keiro_testing::{wait_for_value, wait_until};

use super::{BORDER, TOPOLOGY, announcer, support::Serving};

const PREFIX: &str = "2001:db8:c1::/48";
/// 7,200 octets.
const ADDED: usize = 600;

#[test]
fn large_communities_of_frr_match_and_more_than_a_short_message_holds_reach_it() {
    let topology = Topology::parse(TOPOLOGY, "communities").unwrap();
    let name = format!("communities{}", std::process::id());
    let lab = Lab::builder(&topology).name(name).up().unwrap();
    let host = |name: &str| lab.host(name).unwrap();
    let near = " neighbor 2001:db8:f::2 ttl-security hops 1\n";
    let marked = format!("{PREFIX} route-map mark");
    let prefixes = [marked.as_str(), "2001:db8:c2::/48"];
    let of_transit = announcer((65001, 1), "2001:db8:f::2", near, &prefixes)
        + "route-map mark permit 10\n set large-community 65001:1:7\n";
    let transit = Router::start(host("transit"), &of_transit).unwrap();
    let mut at_transit = transit.operator().unwrap();

    let files = tempfile::tempdir().unwrap();
    let socket = files.path().join("socket");
    let mut all = String::new();
    for number in 1..=ADDED {
        write!(all, "\"65000:1:{number}\", ").unwrap();
    }
    let import = "import = [{ communities = [\"65001:1:*\"], local_pref = 150, \
                  remove_communities = [\"65001:*:*\"] }, {}]";
    let export = format!("export = [{{ add_communities = [{all}] }}]");
    let text = BORDER
        .replacen(
            "[asbr]",
            &format!("[asbr]\ncontrol_socket = \"{}\"", socket.display()),
            1,
        )
        .replacen("import = \"all\"", import, 1)
        .replacen("export = \"own\"", &export, 1);
    let border = Serving::start(host("border"), move || {
        let config = AsbrConfig::parse(&text, "asbr.toml").unwrap();
        let speaker = config.speaker.clone();
        Daemon::start(Asbr::new(config), &speaker, Box::new(Memory::default())).unwrap()
    });
    let preference = |prefix: &str| {
        let asked: IpNet = prefix.parse().unwrap();
        match control::ask(&socket, Request::Explain(asked)).unwrap() {
            Answer::Explanation(it) => {
                let preference = |path: &PathStatus| path.local_pref;
                it.paths.first().map(preference)
            }
            other => panic!("{other:?}"),
        }
    };
    for (prefix, expected) in [(PREFIX, 150), ("2001:db8:c2::/48", 100)] {
        wait_for_value(prefix, || preference(prefix), |it| *it == Some(expected));
    }
    let last = format!("65000:1:{ADDED}");
    wait_until("the transit has all communities", || {
        let shown = at_transit.command("show bgp ipv6 unicast 2001:db8:a::/48");
        let shown = shown.unwrap();
        shown.contains(&last) && shown.matches("65000:1:").count() == ADDED
    });
    drop((border, transit));
    lab.down().unwrap();
}
