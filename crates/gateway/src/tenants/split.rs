//! What split TCP connections need of this machine: listeners to which rules of nftables lead clients, and a routing
//! table by which packets of others' addresses reach it.
//!
//! A client's first packet comes to the gateway by the device as every packet does, is written back to it when the
//! server is there, and meets a rule that gives it to a listener. All further packets of the connection, and those of
//! servers to connections that the gateway made with a client's address, are found by their socket. A mark leads both
//! to this machine. Without the gateway there is neither device nor socket, so rules that a killed one left match
//! nothing.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use keiro_control::config::{Config, SPLIT_TABLE, TcpCarriage, Tenant};
use keiro_linux::{
    nft,
    route::{Entry, Mark, Route, Rule, RuleVersion, TABLE_MAIN, Via},
    tcp::{Listener, Mode},
};

use crate::data::{
    command::{Command, DataHandle, DataThreadGone},
    split::TransparentSockets,
};

/// Listeners, by which clients of all tenants come in.
#[derive(Default)]
pub(super) struct SplitGround {
    /// Their ports in IPv4 and IPv6; `None`: not opened yet.
    ports: Option<[Option<u16>; 2]>,
    /// Why there is none.
    problem: Option<String>,
}

/// Names of tables begin so, and the tenant's number follows.
pub(super) const TABLE: &str = "keiro-split-";

/// The mark of packets for this machine: `KTCP`. Ours, and the whole of it: they are not forwarded, so no mark of
/// another program is of use to them.
pub(in crate::tenants) const MARK: u32 = 0x4b54_4350;
/// Before the rules of uplinks (7599) and of tenants. The first keeps the kernel's check of source addresses, which
/// looks for the way back with the packet's mark where `src_valid_mark` is set, with the main table.
const CHECK_RULE_PRIORITY: u32 = 7597;
const RULE_PRIORITY: u32 = CHECK_RULE_PRIORITY + 1;
/// After chains that mark packets for policy routing, which are at -150 in most cases, and before those that translate
/// addresses.
const CHAIN_PRIORITY: &str = "mangle + 40";

impl SplitGround {
    /// Opens the listeners if a tenant of `config` needs them.
    pub(super) fn open(
        &mut self,
        config: &Config,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        if self.ports.is_some() || !config.tenants.iter().any(Tenant::splits_tcp) {
            return Ok(());
        }
        let open = |address: IpAddr| Listener::bind(SocketAddr::new(address, 0), Mode::Transparent);
        let v4 = open(Ipv4Addr::LOCALHOST.into());
        let v6 = open(Ipv6Addr::LOCALHOST.into());
        self.problem = v4.as_ref().err().map(ToString::to_string);
        let listeners = [v4, v6].map(Result::ok);
        self.ports = Some(
            listeners
                .each_ref()
                .map(|of| Some(of.as_ref()?.local().port())),
        );
        data.send(Command::OpenSplit {
            listeners: listeners.into_iter().flatten().collect(),
            sockets: TransparentSockets::start(),
        })
    }

    /// The script that puts the table of a tenant in the place of an older one; `None`: it is not split.
    pub(super) fn rules(&self, tenant: &Tenant) -> Option<String> {
        let ports = self.ports.filter(|_| tenant.splits_tcp())?;
        Some(rules(tenant, ports))
    }

    /// Why the connections of a tenant are packets that are to be split; `None`: they are split, or not to be.
    pub(super) fn problem(
        &self,
        tenant: &Tenant,
        rules: Result<(), Option<&str>>,
    ) -> Option<String> {
        if tenant.tcp != TcpCarriage::Split {
            return None;
        }
        if let Some(obstacle) = tenant.split_obstacle() {
            return Some(obstacle.to_string());
        }
        if let Some(problem) = &self.problem {
            return Some(problem.clone());
        }
        if let Err(why) = rules {
            return Some(
                why.unwrap_or("the rules of nftables are not in place")
                    .to_owned(),
            );
        }
        let is_filtered = tenant.uses(false) && is_filtered(tenant);
        is_filtered.then(|| {
            let device = &tenant.device;
            format!(
                "the kernel's reverse path filter would drop clients: `sysctl -w net.ipv4.conf.{device}.rp_filter=2`, \
                 with an IPv4 address in `addresses`, or 0 for `all` and {device}"
            )
        })
    }
}

pub(super) fn table(tenant: &Tenant) -> String {
    format!("{TABLE}{}", tenant.id)
}

/// Whether the kernel drops a packet from the device with the address of a host on another interface. A device without
/// an address has no way back, which the loose filter wants too.
fn is_filtered(tenant: &Tenant) -> bool {
    let setting = |interface: &str| {
        let file = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        let text = fs::read_to_string(file).unwrap_or_default();
        text.trim().parse::<u8>().unwrap_or(0)
    };
    // The greater one counts (`Documentation/networking/ip-sysctl.rst`); 1 is strict, 2 is loose.
    match setting("all").max(setting(&tenant.device)) {
        0 => false,
        1 => true,
        _ => !tenant.addresses.iter().any(|of| of.addr().is_ipv4()),
    }
}

/// Routes and rules by which marked packets reach this machine, in the IP versions of the tenants that are split.
pub(super) fn entries(config: &Config) -> Vec<Entry> {
    let mut entries = Vec::new();
    for is_v6 in [false, true] {
        let mut split = config.tenants.iter().filter(|of| of.splits_tcp());
        if !split.any(|tenant| tenant.uses(is_v6)) {
            continue;
        }
        let everything: IpAddr = match is_v6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let Ok(destination) = IpNet::new(everything, 0) else {
            continue;
        };
        entries.push(Entry::Route(Route {
            destination,
            table: SPLIT_TABLE,
            via: Via::Local,
            metric: 0,
        }));
        let marked = Rule {
            version: if is_v6 {
                RuleVersion::V6
            } else {
                RuleVersion::V4
            },
            priority: RULE_PRIORITY,
            table: SPLIT_TABLE,
            incoming: None,
            outgoing: None,
            mark: Some(marked_exactly()),
            source: None,
            udp_source_port: None,
            suppressed_prefix_length: None,
        };
        let check = Rule {
            priority: CHECK_RULE_PRIORITY,
            table: TABLE_MAIN,
            incoming: Some("lo".to_owned()),
            ..marked.clone()
        };
        entries.extend([check, marked].map(Entry::Rule));
    }
    entries
}

fn marked_exactly() -> Mark {
    Mark {
        value: MARK,
        mask: u32::MAX,
    }
}

/// Whether an entry is one of [`entries`], of this gateway or another one.
pub(super) fn is_entry(entry: &Entry) -> bool {
    match entry {
        Entry::Route(route) => route.table == SPLIT_TABLE && route.via == Via::Local,
        Entry::Rule(rule) => {
            [CHECK_RULE_PRIORITY, RULE_PRIORITY].contains(&rule.priority)
                && rule.mark == Some(marked_exactly())
        }
        Entry::Address(_) => false,
    }
}

fn rules(tenant: &Tenant, ports: [Option<u16>; 2]) -> String {
    let (name, device) = (table(tenant), &tenant.device);
    let mut script = nft::removal(&name);
    let here = [
        Ipv4Addr::LOCALHOST.to_string(),
        format!("[{}]", Ipv6Addr::LOCALHOST),
    ];
    let families = nft::IP_FAMILIES.into_iter().zip(ports).zip(here);
    for ((family, port), here) in families {
        let is_v4 = family == "ip";
        let own = tenant.prefixes.iter();
        let own: Vec<IpNet> = own
            .filter(|of| of.addr().is_ipv4() == is_v4)
            .copied()
            .collect();
        let own: BTreeSet<IpNet> = IpNet::aggregate(&own).into_iter().collect();
        let own: Vec<String> = own.iter().map(ToString::to_string).collect();
        let (Some(port), false) = (port, own.is_empty()) else {
            script.push_str(&format!("table {family} {name} {{ }}\n"));
            continue;
        };
        let (own, mark) = (own.join(", "), MARK);
        let errors = match is_v4 {
            true => "icmp type { destination-unreachable, time-exceeded, parameter-problem }",
            false => {
                "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }"
            }
        };
        // What listens at all addresses is another program's, and is found for packets that are not for it.
        script.push_str(&format!(
            "table {family} {name} {{\n  chain found {{\n    \
             socket wildcard 1 return\n    socket transparent 1 meta mark set {mark:#x}\n  }}\n  \
             chain divert {{\n    \
             type filter hook prerouting priority {CHAIN_PRIORITY}; policy accept;\n    \
             {errors} jump found\n    \
             meta l4proto != tcp accept\n    {family} saddr != {{ {own} }} accept\n    \
             iifname \"{device}\" tcp flags & (fin | syn | rst | ack) == syn \
             tproxy to {here}:{port} meta mark set {mark:#x} accept\n    \
             iifname \"{device}\" accept\n    jump found\n  }}\n}}\n"
        ));
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "[gateway]\nname = \"a\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n[network]\n\
                          registry = \"/r\"\n[tenant.office]\nid = 7\ndevice = \"t-office\"\ntcp = \"split\"\n\
                          prefixes = [\"10.1.0.0/17\", \"10.1.128.0/17\"]\n";

    #[test]
    fn rules_name_networks_of_the_tenant_once_and_only_versions_that_it_has() {
        let config = Config::parse(TENANT, "f").unwrap_or_else(|error| panic!("{error}"));
        let rules = rules(&config.tenants[0], [Some(40_001), Some(40_002)]);
        for line in [
            "ip saddr != { 10.1.0.0/16 } accept",
            "tproxy to 127.0.0.1:40001 meta mark set 0x4b544350",
            "table ip6 keiro-split-7 { }",
        ] {
            assert_eq!(rules.matches(line).count(), 1, "{line}:\n{rules}");
        }
        assert!(!rules.contains("40002"), "{rules}");
        let entries = entries(&config);
        assert_eq!(entries.len(), 3, "{entries:?}");
        assert!(entries.iter().all(is_entry));
    }

    #[test]
    fn tenant_with_a_table_or_mapped_networks_stays_packets_and_says_why() {
        let ground = SplitGround::default();
        for (more, why) in [
            ("table = 101\n", "(`table`)"),
            (
                "map = [{ local = \"192.168.1.0/24\", network = \"10.1.2.0/24\" }]\n",
                "(`map`)",
            ),
        ] {
            let text = TENANT.replace("device", &format!("{more}device"));
            let config = Config::parse(&text, "f").unwrap_or_else(|error| panic!("{error}"));
            let tenant = &config.tenants[0];
            assert!(!tenant.splits_tcp() && entries(&config).is_empty());
            let problem = ground.problem(tenant, Err(None)).unwrap();
            assert!(problem.ends_with(why), "{problem}");
        }
    }
}
