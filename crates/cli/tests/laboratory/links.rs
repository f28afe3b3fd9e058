//! Links between tokyo and osaka, and the topology that has them.

use std::fmt::Write as _;

pub(crate) const HOSTS: [&str; 2] = ["tokyo", "osaka"];

/// A link and the path over it.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) name: &'static str,
    pub(crate) delay_ms: u32,
    /// Of the devices at tokyo and osaka.
    pub(crate) mtu: u32,
    /// Of a wire between two routers halfway, which hosts cannot know of.
    pub(crate) mtu_halfway: Option<u32>,
}

pub(crate) const NEAR: Link = Link {
    name: "near",
    delay_ms: 5,
    mtu: 1500,
    mtu_halfway: None,
};

pub(crate) const FAR: Link = Link {
    name: "far",
    delay_ms: 20,
    mtu: 1500,
    mtu_halfway: None,
};

pub(crate) fn topology(links: &[Link]) -> String {
    let mut text = String::new();
    let mut routes = [String::new(), String::new()];
    for (number, link) in links.iter().enumerate() {
        let end = |host: &str, address: String| {
            format!("{{ host = \"{host}\", addresses = [\"{address}/28\"] }}")
        };
        let wire = |text: &mut String, name: &str, ends: [String; 2], mtu: u32, more: &str| {
            let [a, b] = ends;
            let _ = writeln!(text, "[link.{name}]\na = {a}\nb = {b}\nmtu = {mtu}\n{more}");
        };
        let Link { name, mtu, .. } = *link;
        let emulated = format!(
            "each_way = {{ rate = \"50Mbit\", delay = \"{}ms\", buffer = \"128KiB\" }}",
            link.delay_ms
        );
        let [tokyo, osaka] = [0, 1].map(|host| end(HOSTS[host], address(link, number, host)));
        let Some(halfway) = link.mtu_halfway else {
            wire(&mut text, name, [tokyo, osaka], mtu, &emulated);
            continue;
        };
        let [east, west] = [router(number, 0), router(number, 1)];
        for (own, router) in ["east", "west"].into_iter().enumerate() {
            let _ = writeln!(
                text,
                "[host.{router}]\nsysctl = {{ \"net.ipv4.ip_forward\" = 1 }}\n\
                 routes = [{{ to = \"{}/28\", via = \"{}\" }}]",
                network(number, 2 * (1 - own)),
                halfway_address(number, 1 - own),
            );
        }
        for (own, router) in [&east, &west].into_iter().enumerate() {
            let to = network(number, 2 * (1 - own));
            routes[own] = format!("routes = [{{ to = \"{to}/28\", via = \"{router}\" }}]\n");
        }
        let inner = [0, 1].map(|own| end(["east", "west"][own], halfway_address(number, own)));
        wire(&mut text, "east", [tokyo, end("east", east)], mtu, "");
        wire(&mut text, name, inner, halfway, &emulated);
        wire(&mut text, "west", [end("west", west), osaka], mtu, "");
    }
    let [tokyo, osaka] = routes;
    format!("[host.tokyo]\n{tokyo}[host.osaka]\n{osaka}{text}")
}

/// The networks for documentation (RFC 5737), one for each link, in three parts: at tokyo, between
/// the routers, at osaka. Without routers only the first is used.
fn in_network(link: usize, part: usize, number: usize) -> String {
    let network = ["192.0.2", "198.51.100", "203.0.113"][link];
    format!("{network}.{}", 16 * part + number)
}

fn network(link: usize, part: usize) -> String {
    in_network(link, part, 0)
}

/// Tokyo's (0) or osaka's (1) address on a link.
pub(crate) fn address(link: &Link, number: usize, host: usize) -> String {
    match (link.mtu_halfway, host) {
        (Some(_), 1) => in_network(number, 2, 2),
        _ => in_network(number, 0, host + 1),
    }
}

/// The router's address towards tokyo (0) or osaka (1).
fn router(link: usize, host: usize) -> String {
    in_network(link, 2 * host, 14)
}

/// The address of tokyo's (0) or osaka's (1) router towards the other.
fn halfway_address(link: usize, host: usize) -> String {
    in_network(link, 1, host + 1)
}
