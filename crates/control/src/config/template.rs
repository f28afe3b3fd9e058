//! The commented configuration that `keiro init` writes.
//!
//! `packaging/examples/gateway.toml` is this text for an example's values; a test holds the two
//! together, and that every key of the schema occurs in it. Finding the uplinks is the command's.

use std::{fmt::Write, net::SocketAddr, path::PathBuf};

use keiro_units::Bandwidth;

use super::{DEFAULT_PRIVATE_KEY_FILE, Name};
use crate::units::Text;

/// What is known about this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The gateway's name.
    pub name: Name,
    /// Where its private key is or will be.
    pub private_key_file: PathBuf,
    /// Its uplinks; a configuration needs at least one.
    pub uplinks: Vec<Uplink>,
}

/// An uplink that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Uplink {
    /// The path's name.
    pub name: Name,
    /// Where the gateway listens on it.
    pub local: SocketAddr,
    /// Its rate, or a guess.
    pub rate: Bandwidth,
    /// What the user should know about it, one line; `None`: nothing. For example which
    /// interface it is, and that the rate is the link's and not the provider's.
    pub remark: Option<String>,
}

impl Template {
    /// The values of `packaging/examples/gateway.toml`, with documentation addresses (RFC 5737).
    pub fn example() -> Self {
        let uplink = |name: &str, local: [u8; 4], mbit, remark: &str| Uplink {
            name: Name(name.to_owned()),
            local: SocketAddr::from((local, 7600)),
            rate: Bandwidth::from_mbit_per_second(mbit),
            remark: Some(remark.to_owned()),
        };
        Self {
            name: Name("tokyo".to_owned()),
            private_key_file: PathBuf::from(DEFAULT_PRIVATE_KEY_FILE),
            uplinks: vec![
                uplink("path1", [192, 0, 2, 1], 100, "the leased line"),
                uplink("path2", [198, 51, 100, 1], 50, "the second provider"),
            ],
        }
    }

    /// The file's text. Valid as it is; a peer and applications are there as comments.
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
        for (i, uplink) in self.uplinks.iter().enumerate() {
            text.push_str("\n[[path]]");
            if let Some(remark) = &uplink.remark {
                let _ = write!(text, " # {}", remark.replace(char::is_control, " "));
            }
            let _ = write!(text, "\nname = \"{}\"\n", uplink.name);
            let comment = if i == 0 { LOCAL } else { "" };
            let _ = writeln!(text, "{comment}local = \"{}\"", uplink.local);
            let comment = if i == 0 { RATE } else { "" };
            let _ = writeln!(text, "{comment}rate = \"{}\"", Text(uplink.rate));
            text.push_str(if i == 0 { PATH_OPTIONS } else { "" });
        }
        text.push_str(REST);
        text
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

const HEAD: &str = "\
# Configuration of a Keiro gateway. docs/configuration.md has every key.
#
# Quantities are written with their unit, in quotes: \"20ms\", \"100Mbit\", \"64KiB\", \"2%\".
# `keiro config check` reads this file and says what is wrong with it; `systemctl reload keiro-gateway`
# makes the running gateway take it over without losing a message.

[gateway]
# For people: status, logs, metrics.
";

const BEFORE_KEY: &str = "\
# `keiro genkey` makes a key, `keiro pubkey` prints its public half for the peer. Only keiro's
# user may read the file (chmod 600).
";

const AFTER_KEY: &str = "\
# `keiro status` and the other tools talk to the gateway here (mode 0660).
#control_socket = \"/run/keiro/control.sock\"
# Applications send and receive messages here (mode 0660). Off unless written.
message_socket = \"/run/keiro/message.sock\"
# The same over TCP, for applications that cannot use Unix sockets; loopback only. Off unless written.
#message_tcp = \"127.0.0.1:7601\"
# Prometheus reads http://ADDRESS/metrics. Off unless written; loopback unless metrics_public.
#metrics = \"127.0.0.1:9477\"
#metrics_public = false
# What must outlive a restart.
#state_directory = \"/var/lib/keiro\"
# Who may use the sockets besides keiro's own user and group.
#socket_group = \"keiro\"
# What waits for a path leaves in this order: \"deadline\" (most urgent first) or \"fifo\".
#scheduler = \"deadline\"
# Who chooses paths: \"frugal\" (the slowest path that meets the latency target, so that quick ones stay
# free), \"exact\" (the least summed delay), \"greedy\" (the paper's algorithm alone) or \"off\" (only
# `path = ...` of the applications).
#planner = \"frugal\"
# How far a predicted delay may exceed its latency target and still pass, relative to the latency target.
#tolerance = \"0%\"
# How much of each path packets may take that measure what it carries; \"0%\" for none.
#probe_share = \"0.5%\"

# Uplinks of this gateway, one [[path]] each.
";

const LOCAL: &str = "\
# The uplink's own address and the UDP port that peers send to.
";

const RATE: &str = "\
# What this gateway may send on it, per second, whole IP packets. A little less than the provider
# sells keeps the queue here, where urgent messages can overtake.
";

const PATH_OPTIONS: &str = "\
# One-way delay without any queue, for predictions. Measured unless written.
#delay = \"10ms\"
# No IP packet is larger than this, whatever the search for the path's MTU finds.
#mtu_max = \"1500B\"
";

const REST: &str = "
# What is measured is kept over a restart, and for `keiro show --history`.
#[history]
#enabled = true
# How far back there is a row per minute, and how far a row per hour.
#minutes_for = \"24h\"
#hours_for = \"720h\"
# The file in state_directory never grows beyond.
#size_max = \"128MiB\"

# Small datagrams and what streams have to send are gathered into aggregates, sent several times over
# where the line loses. docs/aggregation.md has the keys behind these.
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
# Parity of groups of aggregates in the place of copies (\"copies\", unless written).
#redundancy = \"fec\"
#fec_group = 4
#fec_parity = 2
#fec_wait = \"1500us\"
# What counts as overflow and as loss, and how much of that may remain.
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
# A second secret that both gateways hold, if wanted.
#preshared_key_file = \"/etc/keiro/osaka.psk\"
# Its address on each path; over a path that is not here the peer has to come to us.
#endpoints = { path1 = \"203.0.113.1:7600\", path2 = \"203.0.113.129:7600\" }
# Memory for messages of this peer that are still incomplete.
#reassembly_max = \"64MiB\"

# What the applications want, one [[app]] each, with the same names at both gateways.
#[[app]]
#name = \"orders\"
# \"message\": whole messages, repaired until they arrive. \"datagram\": what is lost is lost.
# \"stream\": TCP connections.
#class = \"message\"
#peer = \"osaka\"
# The delay to aim for, from sending a message until its last byte is there.
#latency_target = \"20ms\"
# Messages older than this are given up. Never unless written.
#lifetime = \"2s\"
# What is known about the traffic, for predictions. Measured unless written.
#length = \"100kB\"
#interval = \"100ms\"
# Always this path, whatever the planner finds.
#path = \"path2\"

# What arrives here enters as an application's: datagrams at a UDP address,
#[[listener]]
#app = \"sensors\"
#udp = \"127.0.0.1:5005\"
# connections to a TCP address (class \"stream\"),
#[[listener]]
#app = \"plc\"
#tcp = \"127.0.0.1:5020\"
# or connections to anywhere that a TPROXY rule of the firewall gives to this address.
#[[listener]]
#app = \"web\"
#tproxy = \"127.0.0.1:5080\"
# Clients and destinations of a tenant ([tenant.NAME]) are reached by its routing table and this one of
# its interfaces; without, by any. An application's listeners and forward are all of one tenant.
#[[listener]]
#app = \"scada\"
#udp = \"10.1.0.1:5006\"
#tenant = \"blue\"
#interface = \"eth1\"

# What the peer's listener of an application sends comes out to this destination and no other.
#[[forward]]
#app = \"sensors\"
#udp = \"10.0.0.9:5005\"
# Needed for loopback, link-local and multicast destinations and for this machine's own addresses.
#allow_local = false
#[[forward]]
#app = \"plc\"
#tcp = \"10.0.0.10:502\"
# Where the peer's tproxy listener may lead.
#[[forward]]
#app = \"web\"
#tcp_networks = [\"10.1.0.0/16:443\"]
# Into a tenant's networks, by its table.
#[[forward]]
#app = \"scada\"
#udp = \"10.1.0.9:5006\"
#tenant = \"blue\"
#interface = \"eth1\"

# Whose IP packets are carried through a TUN device, one [tenant.NAME] each, with the same id at both
# gateways. docs/ip-tunnel.md says how. Tenants share every bottleneck by weight.
#[tenant.blue]
#id = 1
# Twice the weight is twice the share.
#weight = 1.0
# What decides its windows: \"keiro\", \"i2vfc\" (the paper's) or \"open\" (none).
#controller = \"keiro\"
# The device's name, addresses and longest packet.
#device = \"keiro1\"
#device_queues = 1
#addresses = [\"10.1.0.1/32\"]
#mtu = \"1400B\"
# A routing table of its own lets addresses overlap those of other tenants; the main one unless
# written. With it the tenant's other interfaces here can be named.
#table = 101
#interfaces = [\"eth1\"]
# The networks behind this gateway: what may enter, and what may be reached.
#prefixes = [\"10.1.0.0/16\"]
# What is led into the device; all that is behind the peers unless written.
#routes = [\"10.2.0.0/16\"]
# What waits at most towards each peer.
#queue = \"1MiB\"
# The networks behind each peer, and the application of class \"datagram\" that takes their packets.
#[tenant.blue.peer.osaka]
#prefixes = [\"10.2.0.0/16\"]
#app = \"ip\"
# Packets that are another application's: the first rule that matches decides.
#[[tenant.blue.rule]]
#app = \"voice\"
#source = \"10.1.0.0/16\"
#destination = \"10.2.5.0/24\"
#protocol = \"udp\"
#source_ports = \"1024-65535\"
#destination_ports = \"5004-5010\"
#dscp = 46

# What holds for all tenants, the same at every gateway.
#[fairness]
#tenants_max = 1024
# Controller \"keiro\": what a weight of 1 may expect, roughly.
#unit = \"4Mbit\"
# Controller \"i2vfc\": a, b and the round trip at which they hold for a weight of 1.
#increase = 0.1
#decrease = 0.1
#round_trip = \"100ms\"
";
