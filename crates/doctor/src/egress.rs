//! What keeps a border router (`keiro asbr`) or a content server (`keiro egress`) from its work.
//!
//! The facts come from the configuration file, the kernel and the running daemon. What the daemon itself
//! finds, its alarms, is passed on.

use std::net::{IpAddr, Ipv6Addr};

use crate::{Cause, Finding, Found, Subject};

/// What is known of a machine of the egress suite. What could not be found out is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressFacts {
    /// A content server; otherwise a border router.
    pub server: bool,
    pub file: String,
    /// Why the configuration cannot be used; `None`: it can.
    pub invalid: Option<String>,
    pub daemon: Daemon,
    /// The kernel forwards IPv6; `None`: unknown.
    pub forwarding: Option<bool>,
    /// The same for IPv4, where an egress peer has a segment for it.
    pub ipv4_forwarding: Option<bool>,
    /// Nftables is needed, for what, and this is why there is none.
    pub no_nftables: Option<(&'static str, String)>,
    /// Rules of other programs that match every packet before ours are looked at, in the syntax of `ip`.
    pub rules_before: Vec<String>,
    /// The kernel lacks segment routing over IPv6.
    pub no_segment_routing: bool,
    /// MPTCP is needed, and this is why the kernel has none.
    pub no_mptcp: Option<String>,
    pub neighbours: Vec<Neighbour>,
    /// The interface of segments at a server, with its MTU in bytes.
    pub segment_link: Option<(String, u32)>,
    /// EPE addresses that another host on the link has, with their egress peers.
    pub duplicates: Vec<(String, Ipv6Addr)>,
    pub alarms: Vec<Alarm>,
}

/// What the control socket says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Daemon {
    /// It answers.
    #[default]
    Answers,
    /// The configuration has no `control_socket`, so it cannot be asked.
    NoSocket,
    /// Why it does not answer.
    Silent(String),
}

/// A configured BGP neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub name: String,
    pub address: IpAddr,
    pub way: Way,
    /// It must be on the link (`ttl_security`).
    pub one_hop: bool,
    /// An egress peer whose IPv4 routes are used.
    pub has_ipv4: bool,
}

/// Where packets to a neighbour go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    Nowhere,
    /// It is an address of this machine.
    Local,
    Link(Link),
}

/// The link by which packets to a neighbour leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub interface: String,
    /// The router; `None`: the neighbour is on the link.
    pub gateway: Option<IpAddr>,
    pub running: bool,
    /// The interface has an address in the neighbour's address family.
    pub has_address: bool,
    /// Packets that come in by it must have a route back by it (`rp_filter` 1; IPv4 only).
    pub strict_filter: bool,
}

/// An alarm of the running daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub cause: String,
    pub subject: String,
    pub text: String,
}

type EgressCause = Cause<EgressFacts>;

/// All of them, in the order in which they are looked for.
pub static EGRESS_CAUSES: &[&EgressCause] = &[
    &INVALID_CONFIGURATION,
    &NO_SEGMENT_ROUTING,
    &NO_MPTCP,
    &NO_NFTABLES,
    &NOT_RUNNING,
    &FORWARDING_OFF,
    &RULES_BEFORE,
    &NO_ROUTE,
    &NEIGHBOUR_IS_THIS_MACHINE,
    &INTERFACE_DOWN,
    &NO_ADDRESS,
    &NOT_ON_LINK,
    &REVERSE_PATH_FILTER,
    &MTU_TOO_SMALL,
    &DUPLICATE_ADDRESS,
    &ALARM,
];

/// Everything that is wrong, the most basic first.
#[must_use]
pub fn diagnose_egress(facts: &EgressFacts) -> Vec<Finding> {
    let mut found = Found::default();
    for cause in EGRESS_CAUSES {
        let more = (cause.check)(facts, &found);
        debug_assert!(more.iter().all(|finding| finding.cause == cause.id));
        found.0.extend(more);
    }
    found.0
}

static INVALID_CONFIGURATION: EgressCause = Cause {
    id: "egress_invalid_configuration",
    what: "the file is missing or has errors, so that the daemon does not start or goes on with the one before",
    remedy: "`keiro init asbr` or `keiro init egress` writes one, `keiro config check FILE` lists errors",
    check: |facts, _| {
        let of = facts.invalid.iter();
        of.map(|why| {
            INVALID_CONFIGURATION.found(
                Subject::Configuration,
                format!("{} cannot be used: {why}", facts.file),
                format!("`keiro config check {}` lists all problems", facts.file),
            )
        })
        .collect()
    },
};

static NO_SEGMENT_ROUTING: EgressCause = Cause {
    id: "egress_no_segment_routing",
    what: "the kernel has no segment routing over IPv6",
    remedy: "a kernel with CONFIG_IPV6_SEG6_LWTUNNEL, as those of Debian and Ubuntu",
    check: |facts, _| {
        let missing = facts.no_segment_routing.then(|| {
            NO_SEGMENT_ROUTING.found(
                Subject::Machine,
                "the kernel has no segment routing over IPv6, so it can neither send to segments nor have any",
                "boot a kernel with CONFIG_IPV6_SEG6_LWTUNNEL",
            )
        });
        missing.into_iter().collect()
    },
};

static NO_MPTCP: EgressCause = Cause {
    id: "egress_no_mptcp",
    what: "`mptcp` is configured, and the kernel has MPTCP off or not at all",
    remedy: "`sysctl -w net.mptcp.enabled=1`, or `mptcp = \"off\"`",
    check: |facts, _| {
        let of = facts.no_mptcp.iter();
        of.map(|why| {
            NO_MPTCP.found(
                Subject::Machine,
                format!("EPE addresses are announced to no connection: {why}"),
                "`sysctl -w net.mptcp.enabled=1`, or mptcp = \"off\" in the configuration",
            )
        })
        .collect()
    },
};

static NO_NFTABLES: EgressCause = Cause {
    id: "egress_no_nftables",
    what: "segments for IPv4 or steering are configured, which mark packets by nftables, and there is no program nft, or the kernel lacks nf_tables",
    remedy: "`apt install nftables`, and a kernel with CONFIG_NF_TABLES",
    check: |facts, _| {
        let of = facts.no_nftables.iter();
        of.map(|(what, why)| {
            NO_NFTABLES.found(
                Subject::Machine,
                format!("{what}, because nftables marks no packets: {why}"),
                "`apt install nftables`, and a kernel with CONFIG_NF_TABLES",
            )
        })
        .collect()
    },
};

static NOT_RUNNING: EgressCause = Cause {
    id: "egress_not_running",
    what: "the daemon does not answer at its control socket",
    remedy: "`systemctl start keiro-asbr` or `keiro-egress`; its log says why it ended",
    check: |facts, found| {
        let Daemon::Silent(why) = &facts.daemon else {
            return Vec::new();
        };
        // Without a configuration it cannot run.
        if !found.0.is_empty() && facts.invalid.is_some() {
            return Vec::new();
        }
        let unit = if facts.server {
            "keiro-egress"
        } else {
            "keiro-asbr"
        };
        vec![NOT_RUNNING.found(
            Subject::Daemon,
            format!("it does not answer: {why}"),
            format!("`systemctl start {unit}`; `journalctl -u {unit}` says why it ended"),
        )]
    },
};

static FORWARDING_OFF: EgressCause = Cause {
    id: "egress_forwarding_off",
    what: "the kernel of a border router forwards no IPv6 packets, or no IPv4 packets where a peer has a segment for them",
    remedy: "`sysctl -w net.ipv6.conf.all.forwarding=1` or `net.ipv4.ip_forward=1`, and the same line in /etc/sysctl.d",
    check: |facts, _| {
        let families = [
            ("IPv6", facts.forwarding, "net.ipv6.conf.all.forwarding"),
            ("IPv4", facts.ipv4_forwarding, "net.ipv4.ip_forward"),
        ];
        let off = families
            .into_iter()
            .filter(|(_, forwards, _)| !facts.server && *forwards == Some(false));
        off.map(|(family, _, setting)| {
            FORWARDING_OFF.found(
                Subject::Machine,
                format!("{family} forwarding is off, so {family} packets to this router's segments are lost"),
                format!("`sysctl -w {setting}=1`, and the same line in /etc/sysctl.d"),
            )
        })
        .collect()
    },
};

static RULES_BEFORE: EgressCause = Cause {
    id: "egress_rules_before",
    what: "a rule of another program matches every packet and comes before those of the daemon, which are then not looked at where its table has a route",
    remedy: "`ip rule` lists them; a smaller `rule_priority`, or a larger priority of the other rule",
    check: |facts, _| {
        let all = facts.rules_before.iter();
        all.map(|rule| {
            RULES_BEFORE.found(
                Subject::Machine,
                format!(
                    "`{rule}` comes before the daemon's rules, so its table is looked up first"
                ),
                "a smaller `rule_priority`, or a larger priority of that rule",
            )
        })
        .collect()
    },
};

static NO_ROUTE: EgressCause = Cause {
    id: "egress_no_route",
    what: "no route leads to a neighbour",
    remedy: "an address of the neighbour's network on the interface to it, or a route",
    check: |facts, _| {
        let is = |one: &&Neighbour| one.way == Way::Nowhere;
        of_neighbours(&NO_ROUTE, facts, is, |one| {
            (
                format!(
                    "no route leads to {}, so its session cannot come up",
                    one.address
                ),
                format!(
                    "`ip route get {}` after giving the interface an address",
                    one.address
                ),
            )
        })
    },
};

static NEIGHBOUR_IS_THIS_MACHINE: EgressCause = Cause {
    id: "egress_neighbour_is_this_machine",
    what: "the address of a neighbour is this machine's own",
    remedy: "`address` is the neighbour's, `local_address` this side's",
    check: |facts, _| {
        let is = |one: &&Neighbour| one.way == Way::Local;
        of_neighbours(&NEIGHBOUR_IS_THIS_MACHINE, facts, is, |one| {
            (
                format!("its address {} is this machine's own", one.address),
                "write the neighbour's `address`; `local_address` is this side's".to_owned(),
            )
        })
    },
};

static INTERFACE_DOWN: EgressCause = Cause {
    id: "egress_interface_down",
    what: "the interface to a neighbour is down or has no carrier",
    remedy: "`ip link set INTERFACE up`; the cable or the other end",
    check: |facts, _| {
        let is = |one: &&Neighbour| link(one).is_some_and(|link| !link.running);
        of_neighbours(&INTERFACE_DOWN, facts, is, |one| {
            let interface = interface_of(one);
            (
                format!(
                    "interface {interface} to {} is down or has no carrier",
                    one.address
                ),
                format!("`ip link set {interface} up`, or its cable and the other end"),
            )
        })
    },
};

static NO_ADDRESS: EgressCause = Cause {
    id: "egress_no_address",
    what: "the interface to a neighbour has no address in the neighbour's address family",
    remedy: "`ip address add ADDRESS dev INTERFACE`; neighbours at link-local addresses are not supported",
    check: |facts, _| {
        let is = |one: &&Neighbour| {
            link(one).is_some_and(|link| !link.has_address && link.gateway.is_none())
        };
        of_neighbours(&NO_ADDRESS, facts, is, |one| {
            let interface = interface_of(one);
            (
                format!(
                    "interface {interface} has no address from which {} could answer",
                    one.address
                ),
                format!("`ip address add ADDRESS/PREFIX dev {interface}`"),
            )
        })
    },
};

static NOT_ON_LINK: EgressCause = Cause {
    id: "egress_not_on_link",
    what: "a neighbour with `ttl_security` is behind a router, so that its packets are dropped",
    remedy: "an address of its network on the interface to it, or `ttl_security = false`",
    check: |facts, _| {
        let is =
            |one: &&Neighbour| one.one_hop && link(one).is_some_and(|link| link.gateway.is_some());
        of_neighbours(&NOT_ON_LINK, facts, is, |one| {
            (
                format!(
                    "packets to {} take a router, and with `ttl_security` it must be on the link",
                    one.address
                ),
                "give the interface an address of its network, or write ttl_security = false"
                    .to_owned(),
            )
        })
    },
};

static REVERSE_PATH_FILTER: EgressCause = Cause {
    id: "egress_reverse_path_filter",
    what: "strict reverse path filtering on the interface of an egress peer drops IPv4 packets whose best path is another peer",
    remedy: "`sysctl -w net.ipv4.conf.INTERFACE.rp_filter=2`, also for `all`",
    check: |facts, _| {
        let is =
            |one: &&Neighbour| one.has_ipv4 && link(one).is_some_and(|link| link.strict_filter);
        of_neighbours(&REVERSE_PATH_FILTER, facts, is, |one| {
            let interface = interface_of(one);
            (
                format!(
                    "IPv4 packets that come in by {interface} and would be answered by another peer are dropped \
                     (strict reverse path filter)"
                ),
                format!(
                    "`sysctl -w net.ipv4.conf.{interface}.rp_filter=2 net.ipv4.conf.all.rp_filter=2`"
                ),
            )
        })
    },
};

/// The outer header of a segment without a segment routing header (RFC 8986 §5.2), in bytes.
const OUTER_HEADER_BYTES: u32 = 40;
/// What every link of IPv6 takes, in bytes (RFC 8200 §5).
const MTU_MIN_BYTES: u32 = 1280;

static MTU_TOO_SMALL: EgressCause = Cause {
    id: "egress_mtu_too_small",
    what: "with the outer header of a segment, 40 bytes, packets of 1,280 bytes do not fit the server's interface",
    remedy: "an MTU of at least 1320, better 1540, on the interface and on the way to the border routers",
    check: |facts, _| {
        let small = facts.segment_link.iter();
        let small = small.filter(|(_, mtu)| mtu.saturating_sub(OUTER_HEADER_BYTES) < MTU_MIN_BYTES);
        small
            .map(|(interface, mtu)| {
                MTU_TOO_SMALL.found(
                    Subject::Machine,
                    format!(
                        "interface {interface} takes packets of {mtu} bytes, of which the outer header of a segment is \
                         {OUTER_HEADER_BYTES}: IPv6 packets of {MTU_MIN_BYTES} bytes do not fit"
                    ),
                    format!("`ip link set {interface} mtu 1540`, and the same on the way to the border routers"),
                )
            })
            .collect()
    },
};

static DUPLICATE_ADDRESS: EgressCause = Cause {
    id: "egress_duplicate_address",
    what: "another host on the link has an EPE address of this server, so that answers of clients go to either",
    remedy: "a different EPE address in `[[peer]]` of each server",
    check: |facts, _| {
        let all = facts.duplicates.iter();
        all.map(|(peer, address)| {
            DUPLICATE_ADDRESS.found(
                Subject::Peer(peer.clone()),
                format!("another host on the link has its EPE address {address} too"),
                "give each server other EPE addresses: `address` of [[peer]]",
            )
        })
        .collect()
    },
};

static ALARM: EgressCause = Cause {
    id: "egress_alarm",
    what: "the daemon has raised an [alarm](egress.md#alarms)",
    remedy: "what the alarm says; the table of alarms has more",
    check: |facts, _| {
        let known = |alarm: &&Alarm| {
            // Found by itself above, with the same words.
            let off = [facts.forwarding, facts.ipv4_forwarding].contains(&Some(false));
            !(alarm.cause == "forwarding_off" && off)
        };
        let all = facts.alarms.iter().filter(known);
        all.map(|alarm| {
            let Alarm {
                cause,
                subject,
                text,
            } = alarm;
            ALARM.found(
                Subject::Daemon,
                format!("{cause} {subject}: {text}"),
                format!("`{cause}` in the table of alarms, docs/egress.md"),
            )
        })
        .collect()
    },
};

fn of_neighbours(
    cause: &EgressCause,
    facts: &EgressFacts,
    is: impl Fn(&&Neighbour) -> bool,
    say: impl Fn(&Neighbour) -> (String, String),
) -> Vec<Finding> {
    let all = facts.neighbours.iter().filter(|one| is(one));
    all.map(|one| {
        let (finding, remedy) = say(one);
        cause.found(Subject::Peer(one.name.clone()), finding, remedy)
    })
    .collect()
}

fn link(neighbour: &Neighbour) -> Option<&Link> {
    match &neighbour.way {
        Way::Link(link) => Some(link),
        Way::Nowhere | Way::Local => None,
    }
}

fn interface_of(neighbour: &Neighbour) -> &str {
    link(neighbour).map_or("", |link| &link.interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy(server: bool) -> EgressFacts {
        EgressFacts {
            server,
            file: "/etc/keiro/asbr.toml".to_owned(),
            forwarding: Some(!server),
            neighbours: vec![Neighbour {
                name: "transit-a".to_owned(),
                address: "2001:db8:f::1".parse().unwrap(),
                way: link_with(|_| ()),
                one_hop: true,
                has_ipv4: true,
            }],
            segment_link: server.then(|| ("eth0".to_owned(), 1500)),
            ..EgressFacts::default()
        }
    }

    fn link_with(change: impl FnOnce(&mut Link)) -> Way {
        let mut link = Link {
            interface: "eth0".to_owned(),
            gateway: None,
            running: true,
            has_address: true,
            strict_filter: false,
        };
        change(&mut link);
        Way::Link(link)
    }

    #[test]
    fn every_cause_is_found_alone_and_nothing_in_a_healthy_machine() {
        type Change = Box<dyn Fn(&mut EgressFacts)>;
        let way = |way: Way| -> Change { Box::new(move |it| it.neighbours[0].way = way.clone()) };
        let router = "2001:db8::1".parse().unwrap();
        let alarm = Alarm {
            cause: "no_segment".to_owned(),
            subject: "transit-a".to_owned(),
            text: "3 routes".to_owned(),
        };
        let changes: Vec<(&str, Change)> = vec![
            (
                "egress_invalid_configuration",
                Box::new(|it| {
                    it.invalid = Some("line 3".to_owned());
                    it.daemon = Daemon::Silent("no such file".to_owned());
                }),
            ),
            (
                "egress_no_segment_routing",
                Box::new(|it| it.no_segment_routing = true),
            ),
            (
                "egress_no_mptcp",
                Box::new(|it| it.no_mptcp = Some("it is off".to_owned())),
            ),
            (
                "egress_no_nftables",
                Box::new(|it| {
                    it.no_nftables = Some(("nothing is steered", "no nft".to_owned()));
                }),
            ),
            (
                "egress_not_running",
                Box::new(|it| {
                    it.daemon = Daemon::Silent("connection refused".to_owned());
                }),
            ),
            (
                "egress_forwarding_off",
                Box::new(|it| {
                    it.server = false;
                    it.forwarding = Some(false);
                }),
            ),
            (
                "egress_rules_before",
                Box::new(|it| it.rules_before = vec!["rule priority 10".to_owned()]),
            ),
            ("egress_no_route", way(Way::Nowhere)),
            ("egress_neighbour_is_this_machine", way(Way::Local)),
            (
                "egress_interface_down",
                way(link_with(|it| it.running = false)),
            ),
            (
                "egress_no_address",
                way(link_with(|it| it.has_address = false)),
            ),
            (
                "egress_not_on_link",
                way(link_with(|it| it.gateway = Some(router))),
            ),
            (
                "egress_reverse_path_filter",
                way(link_with(|it| it.strict_filter = true)),
            ),
            (
                "egress_mtu_too_small",
                Box::new(|it| {
                    it.segment_link = Some(("eth0".to_owned(), 1300));
                }),
            ),
            (
                "egress_duplicate_address",
                Box::new(|it| {
                    it.duplicates = vec![("transit-a".to_owned(), "2001:db8::a".parse().unwrap())];
                }),
            ),
            (
                "egress_alarm",
                Box::new(move |it| it.alarms = vec![alarm.clone()]),
            ),
        ];
        assert_eq!(diagnose_egress(&healthy(true)), []);
        assert_eq!(diagnose_egress(&healthy(false)), []);
        assert_eq!(changes.len(), EGRESS_CAUSES.len());
        for ((id, change), cause) in changes.iter().zip(EGRESS_CAUSES) {
            assert_eq!(*id, cause.id);
            let mut facts = healthy(true);
            change(&mut facts);
            let found: Vec<&str> = diagnose_egress(&facts).iter().map(|it| it.cause).collect();
            assert_eq!(found, [*id]);
        }
    }
}
