//! The commented configuration that `keiro init` writes.
//!
//! `packaging/examples/gateway.toml` is this text for an example's values; a test holds the two
//! together, and that every key of the schema occurs in it. `keiro init` finds the uplinks.

use std::{fmt::Write, net::SocketAddr, path::PathBuf};

use keiro_units::Bandwidth;

use super::{DEFAULT_PATH_PORT, DEFAULT_PRIVATE_KEY_FILE, Local, Name};
use crate::units::Text;

/// Values of this machine for the template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    pub name: Name,
    /// File of its private key, which need not exist yet.
    pub private_key_file: PathBuf,
    /// Its uplinks; without `auto` a configuration needs at least one.
    pub uplinks: Vec<Uplink>,
    /// Paths follow the machine's interfaces, and those of `uplinks` are comments.
    pub auto: bool,
    /// `uplinks_port`.
    pub auto_port: u16,
}

/// An uplink that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    pub name: Name,
    /// Where the gateway sends and listens on it.
    pub local: Local,
    /// `None`: what it carries.
    pub rate: Option<Bandwidth>,
    /// A remark for the user, one line: for example its address and route.
    pub remark: Option<String>,
}

impl Template {
    /// The values of `packaging/examples/gateway.toml`, with documentation addresses (RFC 5737).
    pub fn example() -> Self {
        let uplink = |name: &str, local: Local, mbit, remark: &str| Uplink {
            name: Name(name.to_owned()),
            local,
            rate: Some(Bandwidth::from_mbit_per_second(mbit)),
            remark: Some(remark.to_owned()),
        };
        let fixed = Local::Address(SocketAddr::from(([198, 51, 100, 1], DEFAULT_PATH_PORT)));
        Self {
            name: Name("tokyo".to_owned()),
            private_key_file: PathBuf::from(DEFAULT_PRIVATE_KEY_FILE),
            uplinks: vec![
                uplink("path1", Local::of_interface("eth0"), 100, "the leased line"),
                uplink("path2", fixed, 50, "the second provider"),
            ],
            auto: false,
            auto_port: DEFAULT_PATH_PORT,
        }
    }

    /// The file's text. It is a valid configuration; peers and applications are in it as comments.
    pub fn render(&self) -> String {
        let mut text = HEAD.to_owned();
        let key_file = self.private_key_file.display().to_string();
        // Writing to a String cannot fail.
        let _ = write!(text, "name = \"{}\"\n{BEFORE_KEY}", self.name);
        let _ = write!(
            text,
            "private_key_file = {}\n{AFTER_KEY}",
            quoted(&key_file)
        );
        self.write_auto(&mut text);
        let paths = self.paths();
        match self.auto {
            // An entry that has no `#` yet gets one.
            true => text.extend(paths.lines().map(|line| match line {
                "" => "\n".to_owned(),
                comment if comment.starts_with('#') => format!("{comment}\n"),
                entry => format!("#{entry}\n"),
            })),
            false => text.push_str(&paths),
        }
        text.push_str(&REST.replace("ENDPOINTS", &self.endpoints()));
        text
    }

    /// The text of a file without comments on every key: a gateway of a network with `uplinks = "auto"`, whose
    /// further tables follow.
    pub fn render_short(&self) -> String {
        let mut text = SHORT.to_owned();
        let key_file = quoted(&self.private_key_file.display().to_string());
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "name = \"{}\"\nprivate_key_file = {key_file}\nmessage_socket = \"/run/keiro/message.sock\"\n\
             # Every interface with a default route, also those that come later.\nuplinks = \"auto\"\n",
            self.name
        );
        if self.auto_port != DEFAULT_PATH_PORT {
            let _ = writeln!(text, "uplinks_port = {}", self.auto_port);
        }
        text
    }

    /// The keys of `uplinks = "auto"`.
    fn write_auto(&self, text: &mut String) {
        let on = |is_there: bool| if is_there { "" } else { "#" };
        let port = self.auto_port;
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{AUTO}{}uplinks = \"auto\"\n{AUTO_OPTIONS}{}uplinks_port = {port}\n",
            on(self.auto),
            on(self.auto && port != DEFAULT_PATH_PORT),
        );
        text.push_str(if self.auto { AUTO_PATHS } else { PATHS });
    }

    /// One table for each uplink.
    fn paths(&self) -> String {
        let mut text = String::new();
        for (i, uplink) in self.uplinks.iter().enumerate() {
            text.push_str("\n[[path]]");
            if let Some(remark) = &uplink.remark {
                let _ = write!(text, " # {}", remark.replace(char::is_control, " "));
            }
            let _ = write!(text, "\nname = \"{}\"\n", uplink.name);
            write_local(&mut text, &uplink.local, i == 0);
            text.push_str(if i == 0 { RATE } else { "" });
            let _ = match uplink.rate {
                Some(rate) => writeln!(text, "rate = \"{}\"", Text(rate)),
                None if i == 0 => writeln!(text, "#rate = \"100Mbit\""),
                None => Ok(()),
            };
            text.push_str(if i == 0 { PATH_OPTIONS } else { "" });
        }
        text
    }

    /// An address of the peer on each of the first paths (RFC 5737).
    fn endpoints(&self) -> String {
        let uplinks = self.uplinks.iter().zip([1, 129, 65, 193]);
        let endpoints = uplinks.map(|(uplink, host)| {
            let name = match uplink.name.as_str() {
                dotted if dotted.contains('.') => quoted(dotted),
                name => name.to_owned(),
            };
            format!("{name} = \"203.0.113.{host}:7600\"")
        });
        let endpoints: Vec<String> = endpoints.collect();
        format!("{{ {} }}", endpoints.join(", "))
    }
}

const SHORT: &str = "# Configuration of a Keiro gateway. `man keiro-gateway.toml`, which is docs/configuration.md, has every key,
# for example `rate` and `metered` of single uplinks, applications, and rules that give packets to them.
# `keiro config check` checks this file, and `systemctl reload keiro-gateway` loads it without losing a message.

[gateway]
";

/// Where an uplink leaves; with what else may be written there if it is the `first`.
fn write_local(text: &mut String, local: &Local, first: bool) {
    // Writing to a String cannot fail.
    let _ = match local {
        Local::Address(address) => {
            let comment = if first { ADDRESS } else { FIXED };
            writeln!(text, "{comment}local = \"{address}\"")
        }
        Local::Interface(local) => {
            let comment = if first { INTERFACE } else { "" };
            let _ = writeln!(text, "{comment}interface = \"{}\"", local.interface);
            match (local.port, first) {
                (DEFAULT_PATH_PORT, true) => writeln!(text, "{PORT}#port = {DEFAULT_PATH_PORT}"),
                (DEFAULT_PATH_PORT, false) => Ok(()),
                (port, _) => writeln!(text, "port = {port}"),
            }
            .and_then(|()| match (local.family, first) {
                (None, true) => writeln!(text, "{FAMILY}#family = \"ipv4\""),
                (None, false) => Ok(()),
                (Some(family), _) => {
                    writeln!(text, "family = \"{}\"", family.as_str().to_lowercase())
                }
            })
        }
    };
}

/// A TOML basic string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

const HEAD: &str = "\
# Configuration of a Keiro gateway. docs/configuration.md has every key.
#
# Quantities are written with their unit, in quotes: \"20ms\", \"100Mbit\", \"64KiB\", \"2%\".
# `keiro config check` checks this file. `systemctl reload keiro-gateway` loads it into the running
# gateway without losing a message.

[gateway]
# Shown in status, logs and metrics.
";

const BEFORE_KEY: &str = "\
# `keiro genkey` makes the key, `keiro pubkey` prints its public half for the peer. Only keiro's
# user may read the file (chmod 600).
";

const AFTER_KEY: &str = "\
# Socket of `keiro status` and the other tools (mode 0660).
#control_socket = \"/run/keiro/control.sock\"
# The same for programs that may only look, and the group that may use it. Default: beside the one above, and
# group keiro-view where there is one.
#readonly_socket = \"/run/keiro/control-readonly.sock\"
#readonly_group = \"keiro-view\"
# Socket where applications send and receive messages (mode 0660). Default: off.
message_socket = \"/run/keiro/message.sock\"
# The same over TCP, for applications that cannot use Unix sockets. Loopback only. Default: off.
#message_tcp = \"127.0.0.1:7601\"
# Prometheus reads http://ADDRESS/metrics. Loopback only, unless metrics_public. Default: off.
#metrics = \"127.0.0.1:9477\"
#metrics_public = false
# Directory of the state that outlives a restart.
#state_directory = \"/var/lib/keiro\"
# Group that may use the sockets. Default: keiro's own.
#socket_group = \"keiro\"
# Order of packets that wait for a path: \"deadline\" (most urgent first) or \"fifo\".
#scheduler = \"deadline\"
# Choice of paths: \"frugal\" (the slowest path that meets the latency target, the quickest without a
# target), \"exact\" (the least summed delay), or \"off\" (only `path = ...` of the applications).
#planner = \"frugal\"
# How far a predicted delay may exceed the latency target and still meet it, relative to the target.
#tolerance = \"0%\"
# Part of each path's rate for packets that only measure; \"0%\" for none.
#probe_share = \"0.5%\"
";

const AUTO: &str = "\
# Every interface with a default route is a path, named after it, also those that come later.
";

const AUTO_OPTIONS: &str = "\
# Interfaces that never are; `*` stands for any letters. Default: those of containers and tunnels.
#uplinks_exclude = [\"docker*\", \"veth*\"]
#uplinks_metered = [\"wwan*\", \"eth2\"]   # charged by volume
# What the gateway sends on each of them at most; what each carries is measured. Write a [[path]] for one with
# another bound.
#uplinks_rate = \"100Mbit\"
# The UDP port that peers send to.
";

const PATHS: &str = "
# Uplinks of this gateway, one [[path]] each.
";

const AUTO_PATHS: &str = "
# Uplinks that need other values than the others, one [[path]] each.
";

const INTERFACE: &str = "\
# The interface. Its address is followed when it changes, and waited for while there is none.
";

const PORT: &str = "\
# The UDP port that peers send to; another one for a second path of the same interface.
";

const FAMILY: &str = "\
# \"ipv4\" or \"ipv6\". Default: as the peers' endpoints on this path.
";

const ADDRESS: &str = "\
# The uplink's own address and the UDP port that peers send to.
";

const FIXED: &str = "\
# Instead of an interface: a fixed address of this machine, and the UDP port.
";

const RATE: &str = "\
# What the gateway sends on it at most, as whole IP packets. Write a little less than the provider
# sells: the queue then forms here, where urgent messages can overtake. Without it, the gateway finds
# what the line carries.
";

const PATH_OPTIONS: &str = "\
# One-way propagation delay, for predictions. Default: measured.
#delay = \"10ms\"
# Upper bound of the search for the path MTU, as a whole IP packet. Default: the interface's.
#mtu_max = \"1500B\"
# \"backup\": only for what the other paths cannot serve in time, and while they are down.
#role = \"primary\"
# What its bytes cost; a path that costs more is used only for a latency target that the others miss.
#cost_per_gb = 3.5
# A line that is paid by volume: while it carries nothing, keepalives only (2 MB a day).
#metered = false
# What it may carry in a month, both directions; then keepalives only, and essential applications that have no other
# path. The day on which that begins anew.
#monthly_budget = \"10GB\"
#budget_day = 1
";

const REST: &str = "
# Measurements kept for `keiro show --history` and over a restart.
#[history]
#enabled = true
# How far back there is one row per minute, and how far one row per hour.
#minutes_for = \"24h\"
#hours_for = \"720h\"
# Upper bound of the file in state_directory.
#size_max = \"128MiB\"

# Small datagrams and data of streams are packed into aggregates and sent several times if the line
# loses packets. docs/configuration.md has the meaning of each key.
#[aggregation]
#mode = \"eager\"
#controller = \"adaptive\"
#size = \"2048B\"
#size_min = \"512B\"
#size_max = \"8192B\"
#interval = \"1ms\"
#intervals = [\"500us\", \"750us\", \"1ms\", \"2ms\", \"4ms\"]
#copies = 2
#copies_values = [1, 2, 3]
#spread = \"back-to-back\"
# \"fec\": parity of groups of aggregates instead of copies. Default: \"copies\".
#redundancy = \"fec\"
#fec_group = 4
#fec_parity = 2
#fec_wait = \"1500us\"
# Thresholds of receive-buffer overflows (per second) and of loss, and the loss to aim for.
#overflow_high = 40
#overflow_low = 4
#loss_high = \"0.5%\"
#loss_low = \"0.01%\"
#loss_target = \"0.1%\"

# The gateways to talk to, one [[peer]] each. Remove the # and fill in.
#[[peer]]
#name = \"osaka\"
# What `keiro pubkey` prints there.
#public_key = \"...\"
# Optional second secret that both gateways hold.
#preshared_key_file = \"/etc/keiro/osaka.psk\"
# Its address, or a name that has addresses, on all paths; or a list of them.
#endpoint = \"osaka.example.net:7600\"
# Its addresses on single paths. On a path without any the peer has to connect to this gateway.
#endpoints = ENDPOINTS
# Memory for what this peer sends: messages and streams that are not taken yet.
#reassembly_max = \"48MiB\"

# Applications, one [[app]] each, with the same names at both gateways.
#[[app]]
#name = \"orders\"
# \"message\": whole messages, retransmitted until they arrive. \"datagram\": sent once. \"stream\": TCP
# connections.
#class = \"message\"
#peer = \"osaka\"
# Delay to aim for, from sending a message until its last byte has arrived.
#latency_target = \"20ms\"
# Older messages and datagrams are dropped. Default: never, and 2s for datagrams.
#lifetime = \"2s\"
# The part of its packets that may be lost where nothing repairs it: a path that loses more is left.
# Default: 1% for datagrams and IP packets.
#loss = \"1%\"
# Mean length and mean interval of messages, for predictions. Default: measured.
#length = \"100kB\"
#interval = \"100ms\"
# \"spread\": each part of its data takes the path by which it arrives first, so that it gets the rate of all paths.
#paths = \"one\"
# Whether it may use a path whose budget is used up if there is no other. Default: with a latency target of up to 150ms.
#essential = true
# Pins the application to this path.
#path = \"path2\"

# Local addresses whose traffic enters as an application's: datagrams at a UDP address,
#[[listener]]
#app = \"sensors\"
#udp = \"127.0.0.1:5005\"
# connections to a TCP address (class \"stream\"),
#[[listener]]
#app = \"plc\"
#tcp = \"127.0.0.1:5020\"
# or connections to other addresses that a TPROXY rule of the firewall redirects here.
#[[listener]]
#app = \"web\"
#tproxy = \"127.0.0.1:5080\"
# With `tenant`, sockets use the routing table of [tenant.NAME] and one of its interfaces. All listeners
# and the forward of an application have the same tenant, or none.
#[[listener]]
#app = \"scada\"
#udp = \"10.1.0.1:5006\"
#tenant = \"blue\"
#interface = \"eth1\"

# Destinations of what the peer's listener receives, one [[forward]] per application.
#[[forward]]
#app = \"sensors\"
#udp = \"10.0.0.9:5005\"
# Permits loopback, link-local and multicast destinations and this machine's own addresses.
#allow_local = false
#[[forward]]
#app = \"plc\"
#tcp = \"10.0.0.10:502\"
# Networks that clients of the peer's tproxy listener may connect to.
#[[forward]]
#app = \"web\"
#tcp_networks = [\"10.1.0.0/16:443\"]
# A destination in a tenant's networks.
#[[forward]]
#app = \"scada\"
#udp = \"10.1.0.9:5006\"
#tenant = \"blue\"
#interface = \"eth1\"

# Tenants whose IP packets are carried through a TUN device, one [tenant.NAME] each, with the same id at
# both gateways (docs/ip-tunnel.md). Tenants share every bottleneck by weight.
#[tenant.blue]
#id = 1
# Twice the weight gets twice the share.
#weight = 1.0
# Window control: \"keiro\", \"i2vfc\" (the paper's) or \"open\" (none).
#controller = \"keiro\"
# The device's name, addresses and longest packet.
#device = \"keiro1\"
#device_queues = 1
#addresses = [\"10.1.0.1/32\"]
#mtu = \"1400B\"
# A routing table of its own, so that addresses may overlap those of other tenants. Default: the main
# table. With it, packets of these interfaces are the tenant's.
#table = 101
#interfaces = [\"eth1\"]
# Networks behind this gateway: permitted sources, and destinations of peers' packets.
#prefixes = [\"10.1.0.0/16\"]
# A network behind this gateway that others reach by other addresses, which are in `prefixes`.
#map = [{ local = \"192.168.1.0/24\", network = \"10.1.9.0/24\" }]
# Destinations that are routed into the device. Default: all prefixes of its peers.
#routes = [\"10.2.0.0/16\"]
# While the gateway is stopped: \"block\" drops the tenant's packets, \"bypass\" sends them unencrypted by
# the machine's other routes.
#when_stopped = \"block\"
# What no rule matches is sorted into built-in classes (docs/ip-tunnel.md): \"auto\", or \"off\".
#classes = \"off\"
# \"split\" ends TCP connections at both gateways and carries them as streams, over all paths at once.
#tcp = \"packets\"
# Hosts that resolve names for others: their DNS answers count for `domains` of rules of every host.
#resolvers = [\"10.1.0.53\"]
# What may wait for each peer.
#queue = \"1MiB\"
# Networks behind each peer, and the application of class \"datagram\" that carries packets to them.
#[tenant.blue.peer.osaka]
#prefixes = [\"10.2.0.0/16\"]
#app = \"ip\"
# Gives packets to another application. The first rule that matches decides.
#[[tenant.blue.rule]]
#app = \"voice\"
#source = \"10.1.0.0/16\"
#destination = \"10.2.5.0/24\"
#protocol = \"udp\"
#source_ports = \"1024-65535\"
#destination_ports = \"5004-5010\"
#dscp = 46
#domains = [\"*.zoom.us\"]

# A tenant whose other sites reach the Internet by this gateway (docs/exit.md). IPv6 sources are replaced by
# this machine's (\"nat\") or stay (\"routed\").
#[tenant.green]
#id = 2
#addresses = [\"10.5.0.1/32\"]
#prefixes = [\"10.5.0.0/16\"]
#exit = true
#exit_ipv6 = \"nat\"
#[tenant.green.peer.osaka]
#prefixes = [\"10.6.0.0/16\"]
#app = \"ip\"
# A port of the exit that leads to a host of another site.
#[tenant.green.port_forward.web]
#protocol = \"tcp\"
#port = 8443
#to = \"10.6.0.10:443\"
#keep_source = false
# A tenant of which packets reach the Internet by another gateway, which has `exit`. Without `from` and `to`
# all do. Where that gateway is not reached they are dropped (\"block\"), or leave by this machine's own
# default route (\"local\").
#[tenant.red]
#id = 3
#prefixes = [\"10.7.0.0/16\"]
#[tenant.red.peer.osaka]
#prefixes = [\"10.8.0.0/16\"]
#app = \"ip\"
#[tenant.red.internet]
#via = \"osaka\"
#from = [\"10.7.0.0/24\"]
#to = [\"0.0.0.0/0\"]
#when_down = \"block\"

# Settings for all tenants, the same at every gateway.
#[fairness]
#tenants_max = 1024
# Controllers \"keiro\", which finds it, and \"i2vfc\": about what a weight of 1 gets on a full line.
#unit = \"4Mbit\"
# Controller \"i2vfc\": a and b for a weight of 1, and the round trip at which they hold.
#increase = 0.1
#decrease = 0.1
#round_trip = \"100ms\"

# The message socket for programs on other hosts, over TCP with TLS. Default: off. `keiro gencert` makes
# certificate and key.
#[message_tls]
#listen = [\"192.0.2.1:7602\"]
#cert = \"/etc/keiro/message-cert.pem\"
#key = \"/etc/keiro/message-key.pem\"

# Those programs, one [[message_client]] each. `keiro gentoken` makes a token.
#[[message_client]]
#name = \"sensor\"
#token_file = \"/etc/keiro/sensor.token\"
# Applications that it may send to, and receive from.
#send = [\"orders\"]
#receive = [\"orders\"]
# Connections at once, and messages without an outcome.
#connections_max = 16
#messages_max = 1024
#bytes_max = \"32MiB\"
";
