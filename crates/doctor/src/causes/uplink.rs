//! Uplinks at this machine.

use std::net::IpAddr;

use super::Cause;
use crate::{
    Facts, Finding, Subject,
    facts::{Remote, RouteLookup, Uplink, UplinkProblem},
};

pub(super) static NO_INTERFACE: Cause = Cause {
    id: "no_interface",
    what: "the interface of a path does not exist",
    remedy: "another `interface` in the [[path]]; `ip link` lists them",
    check: |facts, _| {
        of_problem(facts, |uplink, interface, problem| {
            (*problem == UplinkProblem::NoInterface).then(|| {
                NO_INTERFACE.found(
                    subject(uplink),
                    format!("interface {interface} does not exist"),
                    "write the name of another one in the [[path]]; `ip link` lists them",
                )
            })
        })
    },
};

pub(super) static INTERFACE_DOWN: Cause = Cause {
    id: "interface_down",
    what: "the interface of a path is set down",
    remedy: "`ip link set INTERFACE up`",
    check: |facts, _| {
        of_problem(facts, |uplink, interface, problem| {
            (*problem == UplinkProblem::Down).then(|| {
                INTERFACE_DOWN.found(
                    subject(uplink),
                    format!("interface {interface} is down"),
                    format!("`ip link set {interface} up`"),
                )
            })
        })
    },
};

pub(super) static NO_CARRIER: Cause = Cause {
    id: "no_carrier",
    what: "the interface of a path has no carrier",
    remedy: "the cable, the modem or its signal",
    check: |facts, _| {
        of_problem(facts, |uplink, interface, problem| {
            (*problem == UplinkProblem::NoCarrier).then(|| {
                NO_CARRIER.found(
                    subject(uplink),
                    format!("interface {interface} has no carrier"),
                    "check its cable, modem or signal",
                )
            })
        })
    },
};

pub(super) static PORT_OF_BRIDGE: Cause = Cause {
    id: "port_of_bridge",
    what: "the interface of a path is a port of a bridge or an aggregate of links, which receives its packets",
    remedy: "`interface` of the [[path]]: the bridge",
    check: |facts, _| {
        of_problem(facts, |uplink, interface, problem| {
            let UplinkProblem::PortOf(controller) = problem else {
                return None;
            };
            Some(PORT_OF_BRIDGE.found(
                subject(uplink),
                format!(
                    "interface {interface} is a port of {controller}, which receives its packets"
                ),
                format!("write `interface = \"{controller}\"` in the [[path]]"),
            ))
        })
    },
};

pub(super) static NO_ADDRESS: Cause = Cause {
    id: "no_address",
    what: "the interface of a path has no address",
    remedy: "its DHCP client, PPP daemon or modem manager",
    check: |facts, _| {
        of_problem(facts, |uplink, interface, problem| {
            let UplinkProblem::NoAddress(version) = problem else {
                return None;
            };
            let space = if version.is_empty() { "" } else { " " };
            Some(NO_ADDRESS.found(
                subject(uplink),
                format!("interface {interface} has no {version}{space}address"),
                format!("start its DHCP client, PPP daemon or modem manager, or `ip address add ADDRESS dev {interface}`"),
            ))
        })
    },
};

pub(super) static ADDRESS_NOT_HERE: Cause = Cause {
    id: "address_not_here",
    what: "no interface has the address of a path, since the provider has given another one for example",
    remedy: "`interface` instead of `local` in the [[path]]",
    check: |facts, _| {
        of_problem(facts, |uplink, _, problem| {
            let UplinkProblem::AddressNotHere { address, instead } = problem else {
                return None;
            };
            let (has, remedy) = match instead {
                Some((interface, other)) => (
                    format!("; {interface} has {other}"),
                    format!(
                        "write `interface = \"{interface}\"` instead of `local` in the [[path]]"
                    ),
                ),
                None => (
                    String::new(),
                    "write `interface = \"NAME\"` instead of `local` in the [[path]]".to_owned(),
                ),
            };
            Some(ADDRESS_NOT_HERE.found(
                subject(uplink),
                format!("no interface has the address {address}{has}"),
                remedy,
            ))
        })
    },
};

pub(super) static NO_DEFAULT_ROUTE: Cause = Cause {
    id: "no_default_route",
    what: "the interface of a path has no default route, so that only hosts on its link are reached",
    remedy: "`ip route add default via ROUTER dev INTERFACE metric 200`",
    check: |facts, _| {
        let without = usable(facts).filter(|uplink| {
            let waits = uplink.remotes.is_empty() && uplink.follows_interface;
            !uplink.has_default_route && (waits || uplink.remotes.iter().any(is_unreachable))
        });
        let of = |uplink: &Uplink| {
            let interface = uplink.interface.as_deref().unwrap_or("its interface");
            let v6 = uplink.local.is_some_and(|local| local.is_ipv6());
            let ip = if v6 { "ip -6" } else { "ip" };
            NO_DEFAULT_ROUTE.found(
                subject(uplink),
                format!("interface {interface} has no default route, so that only hosts on its link are reached"),
                format!(
                    "give it one with a metric of its own: `{ip} route add default via ROUTER dev {interface} metric 200`"
                ),
            )
        };
        without.map(of).collect()
    },
};

pub(super) static NO_ROUTE_TO_PEER: Cause = Cause {
    id: "no_route_to_peer",
    what: "a route or a rule of another program refuses packets to a peer, though the uplink has a default route",
    remedy: "remove the rule; `ip rule` and `ip route get PEER oif INTERFACE` show it",
    check: |facts, _| {
        let mut found = Vec::new();
        for uplink in usable(facts).filter(|uplink| uplink.has_default_route) {
            let Some(remote) = uplink.remotes.iter().find(|remote| is_unreachable(remote)) else {
                continue;
            };
            let (interface, address) = (
                uplink.interface.as_deref().unwrap_or_default(),
                remote.address.ip(),
            );
            found.push(NO_ROUTE_TO_PEER.found(
                subject(uplink),
                format!(
                    "the kernel has no route to {address} of peer {} by {interface}, though that has a default route: a \
                     rule or a route of another program comes first",
                    remote.peer
                ),
                format!("remove what `ip rule` shows before it; `ip route get {address} oif {interface}` must name a router"),
            ));
        }
        found
    },
};

pub(super) static REVERSE_PATH_FILTER: Cause = Cause {
    id: "reverse_path_filter",
    what: "the kernel drops what comes in by an uplink, since it would answer by another interface",
    remedy: "`sysctl -w net.ipv4.conf.INTERFACE.rp_filter=2`",
    check: |facts, _| {
        if facts.gateway.is_none() {
            // It makes the rule that lets them pass.
            return Vec::new();
        }
        let filtered = usable(facts).filter(|uplink| uplink.strict_reverse_path);
        let of = |uplink: &Uplink| {
            let interface = uplink.interface.as_deref()?;
            let leaves = |remote: &&Remote| {
                let is_v4 = remote.address.is_ipv4();
                let by = match &remote.reverse {
                    Some(RouteLookup::Interface(by)) => by != interface,
                    Some(RouteLookup::Nowhere) => true,
                    Some(RouteLookup::Local) | None => false,
                };
                is_v4 && !remote.on_link && by
            };
            let remote = uplink.remotes.iter().find(leaves)?;
            let by = match &remote.reverse {
                Some(RouteLookup::Interface(by)) => format!("by {by}"),
                _ => "by none".to_owned(),
            };
            Some(REVERSE_PATH_FILTER.found(
                subject(uplink),
                format!(
                    "the kernel drops what comes in by {interface} from {}, since it would answer {by} \
                     (rp_filter is 1)",
                    remote.address.ip()
                ),
                format!("`sysctl -w net.ipv4.conf.{interface}.rp_filter=2`"),
            ))
        };
        filtered.filter_map(of).collect()
    },
};

pub(super) static ROUTER_ADVERTISEMENTS_IGNORED: Cause = Cause {
    id: "router_advertisements_ignored",
    what: "the machine forwards IPv6, so that it ignores the router advertisements that an uplink's default route is from",
    remedy: "`sysctl -w net.ipv6.conf.INTERFACE.accept_ra=2`",
    check: |facts, _| {
        let ignoring = facts.uplinks.iter();
        let ignoring = ignoring.filter(|uplink| uplink.ignores_router_advertisements);
        let of = |uplink: &Uplink| {
            let interface = uplink.interface.as_deref()?;
            Some(ROUTER_ADVERTISEMENTS_IGNORED.found(
                subject(uplink),
                format!(
                    "{interface} ignores router advertisements, since the machine forwards IPv6: its default route ends \
                     with its lifetime or is missing"
                ),
                format!("`sysctl -w net.ipv6.conf.{interface}.accept_ra=2`"),
            ))
        };
        ignoring.filter_map(of).collect()
    },
};

fn subject(uplink: &Uplink) -> Subject {
    Subject::Path(uplink.path.clone())
}

/// Uplinks that nothing keeps from use, and whose paths are not all up.
fn usable(facts: &Facts) -> impl Iterator<Item = &Uplink> {
    let uplinks = facts.uplinks.iter();
    uplinks.filter(move |uplink| uplink.problem.is_none() && !facts.is_in_use(&uplink.path))
}

fn of_problem(
    facts: &Facts,
    find: impl Fn(&Uplink, &str, &UplinkProblem) -> Option<Finding>,
) -> Vec<Finding> {
    let uplinks = facts.uplinks.iter();
    let found = uplinks.filter_map(|uplink| {
        let interface = uplink.interface.as_deref().unwrap_or_default();
        find(uplink, interface, uplink.problem.as_ref()?)
    });
    found.collect()
}

fn is_unreachable(remote: &Remote) -> bool {
    let is_special = |ip: IpAddr| ip.is_unspecified() || ip.is_multicast();
    !remote.on_link
        && remote.outgoing == Some(RouteLookup::Nowhere)
        && !is_special(remote.address.ip())
}
