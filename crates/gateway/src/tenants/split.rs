//! What split TCP connections need of this machine: listeners to which rules of nftables lead clients, and a routing
//! table by which packets of others' addresses reach it.
//!
//! A client's first packet comes to the gateway by the device as every packet does, is written back to it when the
//! server is there, and meets a rule that gives it to a listener. All further packets of the connection, and those of
//! servers to connections that the gateway made with a client's address, are found by their socket. A mark leads both
//! to this machine. Without the gateway there is neither device nor socket, so rules that a killed one left match
//! nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use keiro_control::config::{Config, SPLIT_TABLE, TcpCarriage, Tenant};
use keiro_core::TenantId;
use keiro_linux::{
    interface, nft,
    route::{Entry, Mark, Route, Rule, RuleVersion, TABLE_MAIN, Via},
    tcp::{self, Listener, Mode},
};

use crate::data::{
    command::{Command, DataHandle, DataThreadGone},
    split::TransparentSockets,
    tunnels::SplitListeners,
};

/// What is there for the tenants that are split.
#[derive(Default)]
pub(super) struct SplitGround {
    /// Of each tenant, so that its clients use up no handshakes but its own.
    listeners: BTreeMap<TenantId, Opened>,
    /// The data thread has its sockets towards servers.
    has_sockets: bool,
}

/// Listeners that the data thread has.
struct Opened {
    /// In IPv4 and IPv6.
    ports: [Option<u16>; 2],
    /// Why one is missing.
    problem: Option<String>,
}

/// Names of tables begin so, and the tenant's number follows.
pub(super) const TABLE: &str = "keiro-split-";

/// The mark of packets for this machine: `KTCP`. Ours, and the whole of it: they are not forwarded, so no mark of
/// another program is of use to them.
pub(in crate::tenants) const MARK: u32 = 0x4b54_4350;
/// How long a set keeps a handshake, whose client is accepted within [`tcp::HANDSHAKE_MAX`].
const HANDSHAKE_SECONDS: u64 = tcp::HANDSHAKE_MAX.as_secs() + 1;
/// As long as the kernel waits for late packets of a connection (`TCP_TIMEWAIT_LEN`), and a little.
const ENDED_SECONDS: u64 = 61;
/// Flows in a set; more than begin within its time. Ours.
const FLOWS_MAX: u32 = 65_536;
/// Before the rules of uplinks (7599) and of tenants. The first keeps the kernel's check of source addresses, which
/// looks for the way back with the packet's mark where `src_valid_mark` is set, with the main table.
const CHECK_RULE_PRIORITY: u32 = 7597;
const RULE_PRIORITY: u32 = CHECK_RULE_PRIORITY + 1;
/// After chains that mark packets for policy routing, which are at -150 in most cases, and before those that translate
/// addresses.
const CHAIN_PRIORITY: &str = "mangle + 40";

impl SplitGround {
    /// Opens the listeners that tenants of `config` need, and closes others.
    pub(super) fn open(
        &mut self,
        config: &Config,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        let split = config.tenants.iter().filter(|of| of.splits_tcp());
        let wanted: BTreeSet<TenantId> = split.map(|of| TenantId(of.id)).collect();
        let is_over = |id: &TenantId, _: &mut Opened| !wanted.contains(id);
        for (tenant, _) in self.listeners.extract_if(.., is_over) {
            data.send(Command::RemoveSplitListeners { tenant })?;
        }
        for tenant in wanted {
            if self.listeners.contains_key(&tenant) {
                continue;
            }
            if !self.has_sockets {
                let sockets = TransparentSockets::start();
                data.send(Command::SetSplitSockets { sockets })?;
                self.has_sockets = true;
            }
            let (of_tenant, opened) = Opened::open(tenant);
            self.listeners.insert(tenant, of_tenant);
            data.send(Command::AddSplitListeners { opened })?;
        }
        Ok(())
    }

    /// The script that puts the table of a tenant in the place of an older one; `None`: it is not split.
    pub(super) fn rules(&self, config: &Config, tenant: &Tenant) -> Option<String> {
        let opened = self.listeners.get(&TenantId(tenant.id));
        let opened = opened.filter(|_| tenant.splits_tcp())?;
        let device = interface::index(&tenant.device);
        Some(rules(config, tenant, opened.ports, device))
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
        let opened = self.listeners.get(&TenantId(tenant.id));
        if let Some(problem) = opened.and_then(|of| of.problem.clone()) {
            return Some(problem);
        }
        if let Err(problem) = tcp::handshakes_max() {
            return Some(format!("{problem}; `sysctl -w net.ipv4.tcp_syncookies=1`"));
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

impl Opened {
    fn open(tenant: TenantId) -> (Self, SplitListeners) {
        let open = |address: IpAddr| {
            let listener = Listener::bind(SocketAddr::new(address, 0), Mode::Transparent);
            let listener = listener.map_err(|error| error.to_string())?;
            let limited = listener.limit_handshakes();
            limited.map_err(|error| format!("TCP_SYNCNT: {error}"))?;
            Ok::<_, String>(listener)
        };
        let v4 = open(Ipv4Addr::LOCALHOST.into());
        let v6 = open(Ipv6Addr::LOCALHOST.into());
        let problem = v4.as_ref().err().cloned();
        let listeners = [v4, v6].map(Result::ok);
        let port = |of: &Option<Listener>| Some(of.as_ref()?.local().port());
        let ports = listeners.each_ref().map(port);
        let opened = SplitListeners {
            tenant,
            listeners: listeners.into_iter().flatten().collect(),
            handshakes_max: tcp::handshakes_max().unwrap_or(0),
        };
        (Self { ports, problem }, opened)
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

/// Where packets of other tenants come in, which may have the addresses of this one's: as nft writes a set.
fn interfaces_of_others(config: &Config, tenant: &Tenant) -> Option<String> {
    let others = config.tenants.iter().filter(|of| of.id != tenant.id);
    let names = others.flat_map(|of| of.interfaces.iter().chain([&of.device]));
    let names: BTreeSet<String> = names.map(|name| format!("\"{name}\"")).collect();
    let names: Vec<String> = names.into_iter().collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// `index`: of the tenant's device, which nft takes for its name; `None`: it is not there.
fn rules(config: &Config, tenant: &Tenant, ports: [Option<u16>; 2], index: Option<u32>) -> String {
    let (name, device) = (table(tenant), &tenant.device);
    let others = interfaces_of_others(config, tenant);
    let others = others.map(|names| format!("    iifname {{ {names} }} accept\n"));
    let others = others.unwrap_or_default();
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
        let address = if is_v4 { "ipv4_addr" } else { "ipv6_addr" };
        let set = |name: &str, seconds: u64| {
            format!(
                "  set {name} {{\n    type {address} . inet_service . {address} . inet_service\n    \
                 flags dynamic, timeout\n    timeout {seconds}s\n    size {FLOWS_MAX}\n  }}\n"
            )
        };
        let copy = index.map(|index| format!("dup to {family} daddr device {index} "));
        let copy = copy.unwrap_or_default();
        let (begun, later) = (set("begun", HANDSHAKE_SECONDS), set("later", ENDED_SECONDS));
        let flow = format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
        let is_syn = "tcp flags & (fin | syn | rst | ack) == syn";
        // `socket wildcard` matches only sockets of connections and those that connect. What listens at all addresses is
        // another program's. What is left are handshakes, whose flows a set has, and sockets in TIME_WAIT. The latter must
        // not take the packets of a later connection that is not split. Nor are these forwarded, since the kernel has
        // looked for their socket before (`tcp_early_demux`, `ip_forward`), so they get to the device as copies.
        script.push_str(&format!(
            "table {family} {name} {{\n{begun}{later}  \
             chain found {{\n    delete @begun {{ {flow} }}\n    meta mark set {mark:#x} accept\n  }}\n  \
             chain ended {{\n    tcp flags & syn == syn update @later {{ {flow} }}\n    \
             {flow} @later {copy}drop\n    \
             tcp flags & syn == 0 meta mark set {mark:#x} accept\n  }}\n  \
             chain divert {{\n    \
             type filter hook prerouting priority {CHAIN_PRIORITY}; policy accept;\n{others}    \
             {errors} socket wildcard 0 socket transparent 1 meta mark set {mark:#x} accept\n    \
             meta l4proto != tcp accept\n    {family} saddr != {{ {own} }} accept\n    \
             iifname \"{device}\" {is_syn} update @begun {{ {flow} }}\n    \
             iifname \"{device}\" {is_syn} tproxy to {here}:{port} meta mark set {mark:#x} accept\n    \
             iifname \"{device}\" accept\n    \
             socket wildcard 0 socket transparent 1 goto found\n    \
             {flow} @begun socket transparent 1 meta mark set {mark:#x} accept\n    \
             socket transparent 1 goto ended\n  }}\n}}\n"
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
        let rules = rules(
            &config,
            &config.tenants[0],
            [Some(40_001), Some(40_002)],
            Some(9),
        );
        for line in [
            "ip saddr != { 10.1.0.0/16 } accept",
            "tproxy to 127.0.0.1:40001 meta mark set 0x4b544350",
            "@later dup to ip daddr device 9 drop",
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
    fn packets_by_interfaces_of_other_tenants_are_not_taken_whatever_their_addresses() {
        let red = "[tenant.red]\nid = 8\ntable = 101\ninterfaces = [\"vlan20\"]\ndevice = \"t-red\"\n\
                   prefixes = [\"10.1.0.0/16\"]\n";
        let text = format!("{TENANT}{red}");
        let config = Config::parse(&text, "f").unwrap_or_else(|error| panic!("{error}"));
        let rules = rules(
            &config,
            &config.tenants[0],
            [Some(40_001), Some(40_002)],
            Some(9),
        );
        let others = "iifname { \"t-red\", \"vlan20\" } accept\n";
        let (before, after) = rules.split_once(others).expect("they are left out");
        assert!(!before.contains("socket"), "{before}");
        assert!(after.contains("socket wildcard 0 socket transparent 1 goto found"));
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
