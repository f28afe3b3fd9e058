//! Rules of the machine's firewalls, and whether they surely drop a packet.
//!
//! A condition that is not understood may be fulfilled or not. A packet counts as dropped only where no rule and no
//! policy can accept it, so that what is not understood is no false alarm.

mod iptables;
mod nftables;

use std::{collections::BTreeMap, fmt, ops::RangeInclusive};

use ipnet::IpNet;

/// Base chains and the chains that they call, of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    chains: Vec<Chain>,
    /// Where each chain is among them.
    by_id: BTreeMap<ChainId, usize>,
    /// Rules of all chains.
    rules: usize,
    /// Some were left out, so that nothing is known of what is dropped.
    is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    chain_id: ChainId,
    /// `None`: only other chains lead to it.
    base: Option<Base>,
    rules: Vec<Rule>,
}

/// Where a chain is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainId {
    /// Who has shown it.
    pub tool: Tool,
    /// As nftables calls it: `ip`, `ip6` or `inet`.
    pub family: String,
    pub table: String,
    pub chain: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    Nft,
    Iptables,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Base {
    hook: Hook,
    /// What becomes of packets for which no rule decides.
    accepts: bool,
}

/// Where in the kernel packets are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// To this machine.
    Input,
    /// Through it.
    Forward,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    conditions: Vec<Condition>,
    verdict: Verdict,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Verdict {
    Accept,
    Drop,
    Jump(String),
    Goto(String),
    Return,
    /// The next rule decides.
    #[default]
    None,
    /// It is not understood.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    /// It is fulfilled where `is` is not.
    negated: bool,
    is: Is,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Is {
    /// Interfaces, with `*` at the end for any that begin so.
    Incoming(Vec<String>),
    Outgoing(Vec<String>),
    Source(Vec<IpNet>),
    Destination(Vec<IpNet>),
    /// States of connections.
    State(Vec<String>),
    Protocol(Vec<String>),
    DestinationPort(Vec<RangeInclusive<u16>>),
    /// `true`: IPv6.
    Version(bool),
    /// Not understood.
    Unknown,
}

/// The first packet of a connection, or an answer to one.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    pub incoming: &'a str,
    /// `None`: it is for this machine.
    pub outgoing: Option<&'a str>,
    /// Networks of which its addresses are; `None`: any.
    pub source: Option<IpNet>,
    pub destination: Option<IpNet>,
    pub is_ipv6: bool,
    /// The port, if it is a UDP packet; `None`: it may be of any protocol.
    pub udp_port: Option<u16>,
    /// A packet in the other direction has gone before.
    pub is_reply: bool,
}

/// Programs that own a firewall, by what leaves traces in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Ufw,
    Firewalld,
    Docker,
    /// The administrator's own rules.
    Rules,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    Maybe,
}

/// What may become of a packet in a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcomes {
    accepted: bool,
    /// It may leave the chain at its end.
    undecided: bool,
}

/// Looks at the rules of one chain after the other.
struct Walk<'a> {
    firewall: &'a Firewall,
    packet: Packet<'a>,
    steps: usize,
}

/// Chains that call each other; the kernel refuses more (`NFT_JUMP_STACK_SIZE`).
const DEPTH_MAX: usize = 16;
/// Rules that are looked at for one packet. Ours: beyond, it counts as accepted.
const STEPS_MAX: usize = 200_000;
/// Chains and rules that are kept. Ours.
const CHAINS_MAX: usize = 10_000;
const RULES_MAX: usize = 200_000;

impl Firewall {
    /// Adds what `nft -j list ruleset` prints; what is not understood is left out.
    pub fn add_nft(&mut self, json: &str) {
        nftables::read(json, self);
    }

    /// Adds what `iptables-save` or `ip6tables-save` prints.
    pub fn add_iptables(&mut self, text: &str, is_ipv6: bool) {
        iptables::read(text, is_ipv6, self);
    }

    /// The first base chain that surely drops the packet; `None`: none does.
    #[must_use]
    pub fn dropped_by(&self, packet: Packet<'_>) -> Option<&ChainId> {
        self.dropping(packet).next()
    }

    /// The base chains that surely drop the packet.
    pub fn dropping<'a, 'p>(&'a self, packet: Packet<'p>) -> impl Iterator<Item = &'a ChainId> {
        let hook = match packet.outgoing {
            Some(_) => Hook::Forward,
            None => Hook::Input,
        };
        let chains = self.chains.iter().filter(|_| !self.is_cut);
        let dropping = chains.filter(move |chain| {
            let Some(base) = chain.base.filter(|base| base.hook == hook) else {
                return false;
            };
            if !chain.chain_id.sees(packet.is_ipv6) {
                return false;
            }
            let mut walk = Walk {
                firewall: self,
                packet,
                steps: 0,
            };
            let outcomes = walk.chain(chain, 0);
            let may_pass = outcomes.accepted || outcomes.undecided && base.accepts;
            !may_pass
        });
        dropping.map(|chain| &chain.chain_id)
    }

    /// Who owns the chain, as its neighbours show.
    #[must_use]
    pub fn owner(&self, chain_id: &ChainId) -> Owner {
        let of_table = |chain: &&Chain| {
            (&chain.chain_id.table, &chain.chain_id.family) == (&chain_id.table, &chain_id.family)
        };
        let begins = |start: &str| {
            let mut chains = self.chains.iter().filter(of_table);
            chains.any(|chain| chain.chain_id.chain.starts_with(start))
        };
        match () {
            () if chain_id.table == "firewalld" => Owner::Firewalld,
            () if begins("ufw") => Owner::Ufw,
            () if begins("DOCKER-USER") => Owner::Docker,
            () => Owner::Rules,
        }
    }

    fn add(&mut self, chain_id: ChainId, base: Option<Base>) {
        if self.by_id.contains_key(&chain_id) {
            return;
        }
        if self.chains.len() >= CHAINS_MAX {
            self.is_cut = true;
            return;
        }
        self.by_id.insert(chain_id.clone(), self.chains.len());
        self.chains.push(Chain {
            chain_id,
            base,
            rules: Vec::new(),
        });
    }

    fn add_rule(&mut self, chain_id: &ChainId, rule: Rule) {
        let Some(at) = self.by_id.get(chain_id) else {
            return;
        };
        if self.rules >= RULES_MAX {
            self.is_cut = true;
            return;
        }
        self.chains[*at].rules.push(rule);
        self.rules += 1;
    }

    fn chain(&self, chain_id: &ChainId) -> Option<&Chain> {
        self.by_id.get(chain_id).map(|at| &self.chains[*at])
    }
}

impl ChainId {
    /// As nft names a chain: `inet filter forward`.
    #[must_use]
    pub fn nft(&self) -> String {
        format!("{} {} {}", self.family, self.table, self.chain)
    }

    /// The command that changes it.
    #[must_use]
    pub fn iptables(&self) -> &'static str {
        match self.family.as_str() {
            "ip6" => "ip6tables",
            _ => "iptables",
        }
    }

    fn sees(&self, is_ipv6: bool) -> bool {
        match self.family.as_str() {
            "ip" => !is_ipv6,
            "ip6" => is_ipv6,
            family => family == "inet",
        }
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tool {
            Tool::Nft => write!(f, "chain {}", self.nft()),
            Tool::Iptables => write!(f, "chain {} of {}", self.chain, self.iptables()),
        }
    }
}

impl Walk<'_> {
    fn chain(&mut self, chain: &Chain, depth: usize) -> Outcomes {
        let mut outcomes = Outcomes::default();
        for rule in &chain.rules {
            self.steps += 1;
            if self.steps > STEPS_MAX || depth > DEPTH_MAX {
                return Outcomes {
                    accepted: true,
                    undecided: true,
                };
            }
            let matches = rule.holds(&self.packet);
            if matches == Holds::No {
                continue;
            }
            let of_rule = self.verdict(chain, rule, depth);
            outcomes.accepted |= of_rule.accepted;
            if let Verdict::Goto(_) | Verdict::Return = rule.verdict {
                outcomes.undecided |= of_rule.undecided;
            }
            let goes_on = match rule.verdict {
                Verdict::Goto(_) | Verdict::Return => false,
                _ => of_rule.undecided,
            };
            if matches == Holds::Yes && !goes_on {
                return outcomes;
            }
        }
        outcomes.undecided = true;
        outcomes
    }

    fn verdict(&mut self, chain: &Chain, rule: &Rule, depth: usize) -> Outcomes {
        let decided = |accepted, undecided| Outcomes {
            accepted,
            undecided,
        };
        match &rule.verdict {
            Verdict::Accept => decided(true, false),
            Verdict::Drop => decided(false, false),
            Verdict::Return | Verdict::None => decided(false, true),
            Verdict::Unknown => decided(true, true),
            Verdict::Jump(name) | Verdict::Goto(name) => {
                let firewall = self.firewall;
                let chain_id = ChainId {
                    chain: name.clone(),
                    ..chain.chain_id.clone()
                };
                match firewall.chain(&chain_id) {
                    Some(called) => self.chain(called, depth + 1),
                    None => decided(true, true),
                }
            }
        }
    }
}

impl Rule {
    fn holds(&self, packet: &Packet<'_>) -> Holds {
        let mut all = Holds::Yes;
        for condition in &self.conditions {
            match condition.holds(packet) {
                Holds::No => return Holds::No,
                Holds::Maybe => all = Holds::Maybe,
                Holds::Yes => {}
            }
        }
        all
    }
}

impl Condition {
    fn new(negated: bool, is: Is) -> Self {
        Self { negated, is }
    }

    fn holds(&self, packet: &Packet<'_>) -> Holds {
        match (self.is.holds(packet), self.negated) {
            (Holds::Yes, true) => Holds::No,
            (Holds::No, true) => Holds::Yes,
            (holds, _) => holds,
        }
    }
}

impl Is {
    fn holds(&self, packet: &Packet<'_>) -> Holds {
        match self {
            Self::Incoming(names) => Holds::of(is_named(names, packet.incoming)),
            Self::Outgoing(names) => {
                let named = |name| is_named(names, name);
                Holds::of(packet.outgoing.is_some_and(named))
            }
            Self::Source(prefixes) => within(prefixes, packet.source),
            Self::Destination(prefixes) => within(prefixes, packet.destination),
            Self::State(states) => {
                let state = if packet.is_reply {
                    "established"
                } else {
                    "new"
                };
                Holds::of(states.iter().any(|of| of == state))
            }
            Self::Protocol(protocols) => match packet.udp_port {
                Some(_) => Holds::of(protocols.iter().any(|name| name == "udp" || name == "17")),
                None => Holds::Maybe,
            },
            Self::DestinationPort(ports) => match packet.udp_port {
                Some(port) => Holds::of(ports.iter().any(|range| range.contains(&port))),
                None => Holds::Maybe,
            },
            Self::Version(is_ipv6) => Holds::of(*is_ipv6 == packet.is_ipv6),
            Self::Unknown => Holds::Maybe,
        }
    }
}

impl Holds {
    fn of(holds: bool) -> Self {
        match holds {
            true => Self::Yes,
            false => Self::No,
        }
    }
}

fn is_named(patterns: &[String], name: &str) -> bool {
    let fits = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    };
    patterns.iter().any(fits)
}

fn within(prefixes: &[IpNet], network: Option<IpNet>) -> Holds {
    let Some(network) = network else {
        return Holds::Maybe;
    };
    let has_all = |prefix: &IpNet| prefix.contains(&network);
    let has_some = |prefix: &IpNet| network.contains(prefix);
    match () {
        () if prefixes.iter().any(has_all) => Holds::Yes,
        () if prefixes.iter().any(has_some) => Holds::Maybe,
        () => Holds::No,
    }
}
