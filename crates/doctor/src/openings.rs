//! What has to be changed in a machine's firewall so that a gateway's packets pass: by the program that owns the chain that drops
//! them.
//!
//! Pure: the firewall is an argument, and what is decided is data. An accept rule in a table of our own would open
//! nothing, since a packet must be accepted by every base chain of its hook.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::firewall::{ChainId, Firewall, Owner, Packet, Tool};

/// Packets that must pass.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// To a UDP port of this machine.
    Port { interface: String, port: u16 },
    /// From one interface to another.
    Forward { incoming: String, outgoing: String },
}

/// One packet of a need, by which the firewall is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub need: Need,
    pub source: Option<IpNet>,
    pub destination: Option<IpNet>,
    pub is_ipv6: bool,
    /// It answers a packet of this machine.
    pub is_reply: bool,
}

/// What firewalld says of its zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// Of the interfaces that have one.
    pub of_interface: BTreeMap<String, String>,
    /// Of all others.
    pub default: String,
    /// Those whose interfaces exchange packets with each other.
    pub forwarding: Vec<String>,
}

/// One change, made by the program that owns the chain. `Display` is its first command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Opening {
    UfwPort {
        port: u16,
    },
    UfwRoute {
        incoming: String,
        outgoing: String,
    },
    FirewalldPort {
        zone: String,
        port: u16,
    },
    /// The device is in the zone of the LAN.
    FirewalldInterface {
        zone: String,
        interface: String,
    },
    /// Interfaces of the zone exchange packets.
    FirewalldForward {
        zone: String,
    },
    /// At the head of a chain of iptables or ip6tables.
    Iptables {
        is_ipv6: bool,
        chain: String,
        need: Need,
    },
    /// At the head of a chain of nftables.
    Nft {
        family: String,
        table: String,
        chain: String,
        need: Need,
    },
}

/// Why a need stays unmet. `Display` says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    #[error(
        "the name of interface `{0}` cannot be written in a rule; rename it, or open the firewall by hand"
    )]
    Name(String),
    /// The change would let more pass than is needed.
    #[error(
        "firewalld has {lan} and uplink {uplink} in zone `{zone}`, which does not forward; move {lan} to a zone of its \
         own (`firewall-cmd --permanent --zone=internal --change-interface={lan}`), then add {device} to that zone"
    )]
    SharedZone {
        zone: String,
        lan: String,
        uplink: String,
        device: String,
    },
}

/// What is to be opened, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Openings {
    /// Chains that drop what is needed, for people.
    pub dropping: Vec<String>,
    pub all: Vec<Opening>,
    pub not_opened: Vec<NotOpened>,
}

/// The comment that marks firewall rules of Keiro.
pub const COMMENT: &str = "keiro";

/// Chains that drop what is needed, each with its owner.
pub fn dropping<'a>(
    firewall: &'a Firewall,
    samples: &'a [Sample],
) -> Vec<(&'a Sample, &'a ChainId)> {
    let mut all: Vec<(&Sample, &ChainId)> = Vec::new();
    for sample in samples {
        for chain_id in firewall.dropping(sample.packet()) {
            // The same chain, shown by both tools.
            let is_twin = |(of, other): &(&Sample, &ChainId)| {
                of.need == sample.need
                    && (&other.family, &other.table, &other.chain)
                        == (&chain_id.family, &chain_id.table, &chain_id.chain)
            };
            if !all.iter().any(is_twin) {
                all.push((sample, chain_id));
            }
        }
    }
    all
}

/// What is there beside the firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The tenant's device, which need not exist yet.
    pub device: String,
    /// Interfaces of paths.
    pub uplinks: Vec<String>,
    pub zones: Zones,
}

/// Decides what to open for packets that the firewall surely drops.
pub fn decide(firewall: &Firewall, samples: &[Sample], setting: &Setting) -> Openings {
    let mut openings = Openings::default();
    for (sample, chain_id) in dropping(firewall, samples) {
        let owner = firewall.owner(chain_id);
        let shown = match owner {
            Owner::Ufw => format!("{chain_id} (ufw)"),
            Owner::Firewalld => format!("{chain_id} (firewalld)"),
            Owner::Docker => format!("{chain_id} (Docker)"),
            Owner::Rules => chain_id.to_string(),
        };
        if !openings.dropping.contains(&shown) {
            openings.dropping.push(shown);
        }
        let decided = match sample.need.names().find(|name| !is_plain(name)) {
            Some(name) => Err(NotOpened::Name(name.to_owned())),
            None => opening(&sample.need, chain_id, owner, setting),
        };
        match decided {
            Ok(decided) => {
                for opening in decided {
                    if !openings.all.contains(&opening) {
                        openings.all.push(opening);
                    }
                }
            }
            Err(why) if openings.not_opened.contains(&why) => {}
            Err(why) => openings.not_opened.push(why),
        }
    }
    openings
}

fn opening(
    need: &Need,
    chain_id: &ChainId,
    owner: Owner,
    setting: &Setting,
) -> Result<Vec<Opening>, NotOpened> {
    let in_chain = |chain: &str| match chain_id.tool {
        Tool::Iptables => Opening::Iptables {
            is_ipv6: chain_id.family == "ip6",
            chain: chain.to_owned(),
            need: need.clone(),
        },
        Tool::Nft => Opening::Nft {
            family: chain_id.family.clone(),
            table: chain_id.table.clone(),
            chain: chain.to_owned(),
            need: need.clone(),
        },
    };
    Ok(match (owner, need) {
        (Owner::Ufw, Need::Port { port, .. }) => vec![Opening::UfwPort { port: *port }],
        (Owner::Ufw, Need::Forward { incoming, outgoing }) => vec![Opening::UfwRoute {
            incoming: incoming.clone(),
            outgoing: outgoing.clone(),
        }],
        (Owner::Firewalld, Need::Port { interface, port }) => vec![Opening::FirewalldPort {
            zone: setting.zones.of(interface).to_owned(),
            port: *port,
        }],
        (Owner::Firewalld, Need::Forward { incoming, outgoing }) => {
            let lan = if *incoming == setting.device {
                outgoing
            } else {
                incoming
            };
            return setting.join(lan);
        }
        // Docker leaves this chain to the administrator, and calls it before its own.
        (Owner::Docker, Need::Forward { .. }) => vec![in_chain("DOCKER-USER")],
        (Owner::Docker, Need::Port { .. }) | (Owner::Rules, _) => vec![in_chain(&chain_id.chain)],
    })
}

impl Zones {
    fn of(&self, interface: &str) -> &str {
        let named = self.of_interface.get(interface);
        named.unwrap_or(&self.default)
    }
}

impl Setting {
    /// The device comes to the zone of the LAN.
    fn join(&self, lan: &str) -> Result<Vec<Opening>, NotOpened> {
        let zone = self.zones.of(lan);
        let mut openings = vec![Opening::FirewalldInterface {
            zone: zone.to_owned(),
            interface: self.device.clone(),
        }];
        if !self.zones.forwarding.iter().any(|of| of == zone) {
            let mut uplinks = self.uplinks.iter();
            if let Some(uplink) = uplinks.find(|uplink| self.zones.of(uplink) == zone) {
                return Err(NotOpened::SharedZone {
                    zone: zone.to_owned(),
                    lan: lan.to_owned(),
                    uplink: uplink.clone(),
                    device: self.device.clone(),
                });
            }
            openings.push(Opening::FirewalldForward {
                zone: zone.to_owned(),
            });
        }
        Ok(openings)
    }
}

impl Sample {
    fn packet(&self) -> Packet<'_> {
        let (incoming, outgoing, udp_port) = match &self.need {
            Need::Port { interface, port } => (interface, None, Some(*port)),
            Need::Forward { incoming, outgoing } => (incoming, Some(outgoing.as_str()), None),
        };
        Packet {
            incoming,
            outgoing,
            source: self.source,
            destination: self.destination,
            is_ipv6: self.is_ipv6,
            udp_port,
            is_reply: self.is_reply,
        }
    }
}

impl Need {
    fn names(&self) -> impl Iterator<Item = &str> {
        let names = match self {
            Self::Port { interface, .. } => [Some(interface), None],
            Self::Forward { incoming, outgoing } => [Some(incoming), Some(outgoing)],
        };
        names.into_iter().flatten().map(String::as_str)
    }

    /// The conditions of a rule of iptables.
    fn iptables(&self) -> Vec<String> {
        match self {
            Self::Port { interface, port } => {
                words(["-i", interface, "-p", "udp", "--dport", &port.to_string()])
            }
            Self::Forward { incoming, outgoing } => words(["-i", incoming, "-o", outgoing]),
        }
    }

    /// The conditions of a rule of nftables.
    fn nft(&self) -> String {
        match self {
            Self::Port { interface, port } => format!("iifname \"{interface}\" udp dport {port}"),
            Self::Forward { incoming, outgoing } => {
                format!("iifname \"{incoming}\" oifname \"{outgoing}\"")
            }
        }
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// A name that needs no quotes in any of the programs.
fn is_plain(name: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_usual)
}

impl Opening {
    /// Whether all its words are such that no program takes them for something else. What is read from a file is
    /// asked this.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        match self {
            Self::UfwPort { .. } => true,
            Self::UfwRoute { incoming, outgoing } => is_plain(incoming) && is_plain(outgoing),
            Self::FirewalldPort { zone, .. } | Self::FirewalldForward { zone } => is_plain(zone),
            Self::FirewalldInterface { zone, interface } => is_plain(zone) && is_plain(interface),
            Self::Iptables { chain, need, .. } => is_plain(chain) && need.names().all(is_plain),
            Self::Nft {
                family,
                table,
                chain,
                need,
            } => {
                [family, table, chain].iter().all(|name| is_plain(name))
                    && need.names().all(is_plain)
            }
        }
    }

    /// The commands that make it, each as a program and its arguments.
    #[must_use]
    pub fn commands(&self) -> Vec<Vec<String>> {
        self.all_commands(true)
    }

    /// The commands that take it back. One rule of nftables is known by its handle alone, which
    /// [`Opening::nft_rule`] helps to find.
    #[must_use]
    pub fn undo_commands(&self) -> Vec<Vec<String>> {
        self.all_commands(false)
    }

    fn all_commands(&self, opens: bool) -> Vec<Vec<String>> {
        let firewalld = |zone: &str, what: &str| {
            let zone = format!("--zone={zone}");
            let change = match opens {
                true => format!("--add-{what}"),
                false => format!("--remove-{what}"),
            };
            // Now, and after each start of firewalld.
            vec![
                words(["firewall-cmd", &zone, &change]),
                words(["firewall-cmd", "--permanent", &zone, &change]),
            ]
        };
        match self {
            Self::UfwPort { port } => {
                let port = format!("{port}/udp");
                vec![match opens {
                    true => words(["ufw", "allow", &port, "comment", COMMENT]),
                    false => words(["ufw", "delete", "allow", &port]),
                }]
            }
            Self::UfwRoute { incoming, outgoing } => {
                let rule = ["allow", "in", "on", incoming, "out", "on", outgoing];
                let mut command = words(["ufw", "route"]);
                command.extend((!opens).then(|| "delete".to_owned()));
                command.extend(words(rule));
                if opens {
                    command.extend(words(["comment", COMMENT]));
                }
                vec![command]
            }
            Self::FirewalldPort { zone, port } => firewalld(zone, &format!("port={port}/udp")),
            Self::FirewalldInterface { zone, interface } => {
                firewalld(zone, &format!("interface={interface}"))
            }
            Self::FirewalldForward { zone } => firewalld(zone, "forward"),
            Self::Iptables {
                is_ipv6,
                chain,
                need,
            } => {
                let program = if *is_ipv6 { "ip6tables" } else { "iptables" };
                let action = if opens { "-I" } else { "-D" };
                let mut command = words([program, "-w", action, chain]);
                command.extend(need.iptables());
                command.extend(words([
                    "-m",
                    "comment",
                    "--comment",
                    COMMENT,
                    "-j",
                    "ACCEPT",
                ]));
                vec![command]
            }
            Self::Nft {
                family,
                table,
                chain,
                need,
            } if opens => {
                let rule = format!("{} accept comment \"{COMMENT}\"", need.nft());
                vec![words([
                    "nft", "insert", "rule", family, table, chain, &rule,
                ])]
            }
            Self::Nft { .. } => Vec::new(),
        }
    }

    /// The handles of its rules in what `nft -j -a list chain` prints. `None`: it is no rule of nftables.
    #[must_use]
    pub fn nft_handles(&self, listed: &str) -> Option<Vec<u64>> {
        let Self::Nft { need, .. } = self else {
            return None;
        };
        let document: serde_json::Value = serde_json::from_str(listed).unwrap_or_default();
        let items = document["nftables"].as_array();
        let rules = items
            .into_iter()
            .flatten()
            .filter_map(|item| item.get("rule"));
        let is_ours = |rule: &&serde_json::Value| {
            let text = rule["expr"].to_string();
            let has = |name: &str| text.contains(&format!("\"{name}\""));
            let has_port = match need {
                Need::Port { port, .. } => text.contains(&format!(":{port}}}")),
                Need::Forward { .. } => true,
            };
            rule["comment"].as_str() == Some(COMMENT)
                && need.names().all(has)
                && has_port
                && self.is_in_order(&text)
        };
        Some(
            rules
                .filter(is_ours)
                .filter_map(|rule| rule["handle"].as_u64())
                .collect(),
        )
    }

    /// The incoming interface is written first, by which the two directions differ.
    fn is_in_order(&self, text: &str) -> bool {
        let Self::Nft {
            need: Need::Forward { incoming, outgoing },
            ..
        } = self
        else {
            return true;
        };
        let chain_id = |name: &str| text.find(&format!("\"{name}\""));
        chain_id(incoming) <= chain_id(outgoing)
    }

    /// Whether it is still there after the machine has restarted, and what to do if not; `None`: it is.
    #[must_use]
    pub fn lasting(&self) -> Option<String> {
        match self {
            Self::Iptables { .. } => Some(
                "it is gone when the machine restarts: save it where the machine keeps its rules, with `netfilter-persistent save` \
                 for example"
                    .to_owned(),
            ),
            Self::Nft { chain, need, .. } => Some(format!(
                "it is gone when the rules are loaded again: add `{} accept` to chain {chain} in /etc/nftables.conf, or \
                 wherever the machine keeps its rules",
                need.nft()
            )),
            _ => None,
        }
    }
}

impl std::fmt::Display for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let commands = self.commands();
        let first = commands.last().map(|words| words.join(" "));
        f.write_str(&first.unwrap_or_default())
    }
}
