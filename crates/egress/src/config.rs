//! What the files of `keiro asbr` and `keiro egress` say.
//!
//! TOML with units; unknown keys are refused. A problem is told with its place and what to try. How
//! values become neighbours of the speaker is in [`Neighbour::speaker_config`].

mod comparison;
mod file;
mod read;
mod roas;
mod rules;
mod values;

use std::{
    collections::BTreeSet,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::Path,
    sync::Arc,
    time::Duration,
};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::{
    address::{Family, RouteDistinguisher, RouteTarget},
    policy::Policy,
    rpki::Vrps,
    speaker::NeighbourConfig,
};
use keiro_linux::{bgp_socket::Md5Key, rule::InterfaceName};
use serde::Deserialize;

use crate::comparison::Settings;

/// A border router.
#[derive(Clone, Debug)]
pub struct AsbrConfig {
    /// What both roles have.
    pub speaker: SpeakerConfig,
    /// From what segments of egress peers are made.
    pub locator: Ipv6Net,
    /// The provider's own prefixes, announced to peers whose `export` admits them.
    pub announce: Vec<IpNet>,
    /// Whether the locator is announced within the AS.
    pub announce_locator: bool,
    /// Numbers of nexthop objects that are ours.
    pub nexthop_ids: RangeInclusive<u32>,
    /// Priority of the rules that drop what peers send to the locator; nobody else's.
    pub rule_priority: u32,
    /// Egress peers.
    pub peers: Vec<EgressPeer>,
    /// Neighbours of this AS, reflectors most of all.
    pub reflectors: Vec<Neighbour>,
}

/// A content server's Endpoint Manager.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// What both roles have.
    pub speaker: SpeakerConfig,
    /// The interface of EPE addresses, with which segments come and go, too; `None`: the one by
    /// which the first reflector is reached.
    pub interface: Option<String>,
    /// Numbers of nexthop objects that are ours.
    pub nexthop_ids: RangeInclusive<u32>,
    /// Priority of the rules that lead from EPE addresses to tables; nobody else's.
    pub rule_priority: u32,
    /// Who tells MPTCP connections of EPE addresses.
    pub mptcp: Mptcp,
    /// Ports at EPE addresses where nobody else listens, so that we do, for joins.
    pub helper_ports: BTreeSet<u16>,
    /// Where what is known of client prefixes outlasts the daemon; `None`: nowhere.
    pub evidence_file: Option<std::path::PathBuf>,
    /// Reflectors, or border routers themselves.
    pub reflectors: Vec<Neighbour>,
    /// The egress peers that are used here.
    pub peers: Vec<EndpointPeer>,
    /// Kinds of traffic that prefer some of them; only where connections are looked after by us.
    pub classes: Vec<Class>,
    /// Multipath against single path; only where connections are looked after by us.
    pub comparison: Settings,
}

/// A kind of traffic: connections to some ports of the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// What it is called in messages.
    pub name: String,
    /// The server's ports.
    pub ports: BTreeSet<u16>,
    /// The egress peers that it prefers, by their places; all other paths are backups.
    pub prefer: BTreeSet<usize>,
}

/// Who tells MPTCP connections of EPE addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mptcp {
    /// Nobody.
    #[default]
    Off,
    /// The kernel tells every connection of all of them, as in the paper.
    Kernel,
    /// We tell a connection of those whose table leads to its client.
    Precise,
}

/// What both roles have.
#[derive(Clone, Debug)]
pub struct SpeakerConfig {
    /// Our AS.
    pub asn: u32,
    /// Our BGP identifier.
    pub router_id: Ipv4Addr,
    /// Where connections are taken.
    pub listen: Vec<SocketAddr>,
    /// The control socket; `None`: there is none.
    pub control_socket: Option<std::path::PathBuf>,
    /// Who may announce what, as the file said when it was read; `None`: there is none.
    pub vrps: Option<Arc<Vrps>>,
}

/// A neighbour, of whatever AS.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// What it is called in messages.
    pub name: String,
    /// Where it is.
    pub address: IpAddr,
    /// The port that it listens at.
    pub port: u16,
    /// Its AS.
    pub asn: u32,
    /// Of what routes are exchanged.
    pub families: Vec<Family>,
    /// What is taken from it.
    pub import: Policy,
    /// What it is told.
    pub export: Policy,
    /// Only wait for it to connect.
    pub passive: bool,
    /// After how long without a word it is gone.
    pub hold_time: Duration,
    /// Whether several paths per destination are taken.
    pub add_path: bool,
    /// How long its routes stay while it restarts; `None`: they go at once.
    pub graceful_restart: Option<Duration>,
    /// More routes of a family end the session.
    pub routes_max: Option<usize>,
    /// TCP-MD5.
    pub md5: Option<Md5Key>,
    /// It has to be one hop away.
    pub one_hop: bool,
    /// Our end of the connection.
    pub local: Option<IpAddr>,
    /// The next hop that it is told.
    pub next_hop: Option<IpAddr>,
}

/// An egress peer at the border router.
#[derive(Clone, Debug)]
pub struct EgressPeer {
    /// The neighbour.
    pub neighbour: Neighbour,
    /// Its segment.
    pub sid: Ipv6Addr,
    /// Where the segment leads.
    pub behaviour: Behaviour,
    /// Tells its routes apart.
    pub rd: RouteDistinguisher,
    /// Tells servers whose routes they are.
    pub rt: RouteTarget,
    /// The table of its routes.
    pub table: u32,
    /// Whether the file says which; otherwise it follows from the peer's place.
    pub table_said: bool,
    /// The interface that it is behind; `None`: the one by which the kernel reaches it.
    pub interface: Option<String>,
}

/// Where an egress peer's segment leads (RFC 8986 §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Behaviour {
    /// Into a table with what the peer announces, and nothing else.
    #[default]
    #[serde(rename = "end.dt6")]
    Table,
    /// To the peer, whatever it announces: the server alone knows that.
    #[serde(rename = "end.dx6")]
    Neighbour,
}

/// An egress peer as a server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPeer {
    /// What it is called in messages.
    pub name: String,
    /// Its routes' target.
    pub rt: RouteTarget,
    /// The table of its routes.
    pub table: u32,
    /// Whether the file says which; otherwise it follows from the peer's place.
    pub table_said: bool,
    /// This server's address whose connections leave by it.
    pub address: Ipv6Addr,
    /// A VRF device of its table; `None`: the table is without one.
    pub vrf: Option<InterfaceName>,
}

/// What is wrong with a configuration. `Display` names file, line, and what to try.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    /// Line and column from 1, and the line's text.
    place: Option<(usize, usize, String)>,
    message: String,
}

/// Whose configuration a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `keiro asbr`'s.
    Asbr,
    /// `keiro egress`'s.
    Endpoint,
}

impl Kind {
    /// By its first table, wherever else it is wrong; `None`: it is neither's.
    pub fn of(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim);
        let first = lines.find(|line| line.starts_with('['))?;
        let (name, _) = first.strip_prefix('[')?.split_once(']')?;
        match name.trim() {
            "asbr" => Some(Self::Asbr),
            "egress" => Some(Self::Endpoint),
            _ => None,
        }
    }
}

impl AsbrConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// The first problem.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (text, file) = text_of(path)?;
        Self::parse(&text, &file)
    }

    /// Reads a text; `file` is for messages.
    ///
    /// # Errors
    /// The first problem.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        read::asbr(text).map_err(|problem| problem.at(text, file))
    }
}

impl EndpointConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// The first problem.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (text, file) = text_of(path)?;
        Self::parse(&text, &file)
    }

    /// Reads a text; `file` is for messages.
    ///
    /// # Errors
    /// The first problem.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        read::endpoint(text).map_err(|problem| problem.at(text, file))
    }
}

impl Neighbour {
    /// The neighbour as the speaker wants it.
    pub fn speaker_config(&self) -> NeighbourConfig {
        let seconds = |time: Duration| u16::try_from(time.as_secs()).unwrap_or(u16::MAX);
        NeighbourConfig {
            address: self.address,
            asn: self.asn,
            families: self.families.clone(),
            import: self.import.clone(),
            export: self.export.clone(),
            passive: self.passive,
            hold_time: seconds(self.hold_time),
            add_path: self.add_path,
            // Twelve bits on the wire (RFC 4724 §3).
            graceful_restart: self.graceful_restart.map(|time| seconds(time).min(4095)),
            restarted: false,
            routes_max: self.routes_max,
            next_hop: self.next_hop,
            next_hop_self: true,
            track_routes: false,
        }
    }
}

fn text_of(path: &Path) -> Result<(String, String), ConfigError> {
    let file = path.display().to_string();
    let read = file::open(path, FILE_MEBIBYTES_MAX).and_then(io::read_to_string);
    match read {
        Ok(text) => Ok((text, file)),
        Err(error) => Err(ConfigError {
            message: format!("cannot read it: {error}; --config names the file"),
            file,
            place: None,
        }),
    }
}

impl ConfigError {
    /// Line and column, from 1, and the line's text; `None`: the file as a whole.
    pub fn place(&self) -> Option<(usize, usize, &str)> {
        let place = self.place.as_ref();
        place.map(|(line, column, source)| (*line, *column, source.as_str()))
    }

    /// What is wrong, without where, and what to try.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some((line, column, source)) => {
                write!(f, "{}:{line}:{column}: {}", self.file, self.message)?;
                let indent = " ".repeat(line.to_string().len());
                let before = " ".repeat(column - 1);
                write!(f, "\n  {line} | {source}\n  {indent} | {before}^")
            }
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// A file that is larger is no configuration. Ours.
const FILE_MEBIBYTES_MAX: u64 = 1;

#[cfg(test)]
mod tests {
    use std::fs;

    use keiro_bgp::rpki::Validity;

    use super::*;

    const ASBR: &str = r#"
[asbr]
asn = 65000
router_id = "192.0.2.1"
locator = "2001:db8:a:1::/64"
announce = ["2001:db8:a::/48"]

[[reflector]]
name = "rr"
address = "2001:db8:a:ff::1"

[[peer]]
name = "transit-a"
address = "2001:db8:f:a::1"
asn = 65001
function = 0x100
import = "all"
export = "own"

[[peer]]
name = "transit-b"
address = "2001:db8:f:b::1"
asn = 65002
import = [
  { prefixes = ["::/0 le 15", "::/0 ge 49"], action = "deny" },
  { through_as = [666], action = "deny" },
  { prefixes = ["2000::/3 le 48"], path_max = 50, local_pref = 90 },
]
"#;

    #[test]
    fn a_border_routers_peers_get_segments_of_its_locator() {
        let config = AsbrConfig::parse(ASBR, "asbr.toml").unwrap();
        let [a, b] = &config.peers[..] else {
            panic!("two peers");
        };
        assert_eq!(a.behaviour, Behaviour::Table);
        assert_eq!(a.sid.to_string(), "2001:db8:a:1:100::");
        assert_eq!(
            (a.rd.to_string(), a.rt.to_string()),
            ("65000:256".into(), "65000:256".into())
        );
        assert_eq!(b.sid.to_string(), "2001:db8:a:1:2::");
        assert_eq!((a.table, b.table), (7700, 7701));
        assert!(a.neighbour.one_hop && !config.reflectors[0].one_hop);
        assert_eq!(a.neighbour.export.rules.len(), 1);
        assert_eq!(
            b.neighbour.export,
            Policy::default(),
            "nothing is told by default"
        );
        // Before them what is nobody's to announce.
        assert_eq!(b.neighbour.import.rules.len(), 4);
        let guard = &b.neighbour.import.rules[0];
        assert_eq!(guard.action, keiro_bgp::policy::Action::Deny);
        let of = |text: &str| {
            let net: IpNet = text.parse().unwrap();
            let mut ranges = guard.prefixes.iter();
            ranges.any(|range| {
                let longer = (range.length_min..=range.length_max).contains(&net.prefix_len());
                range.within.contains(&net) && longer
            })
        };
        for denied in [
            "2001:db8:a:1::/64",
            "2001:db8:a:1:2::/128",
            "fe80::/64",
            "ff00::/8",
            "::1/128",
            "::ffff:192.0.2.0/120",
            "127.0.0.0/8",
            "224.0.0.5/32",
        ] {
            assert!(of(denied), "{denied}");
        }
        for left in [
            "::/0",
            "64:ff9b::/96",
            "2001:db8:a::/48",
            "2001:db8:b::/48",
            "0.0.0.0/0",
        ] {
            assert!(!of(left), "{left}");
        }
        assert_eq!(config.reflectors[0].asn, 65000);
        assert_eq!(config.reflectors[0].families, [Family::Ipv6, Family::Vpn6]);
    }

    /// `text` with the first of each, once, replaced by the second is refused with the third.
    fn assert_refused(text: &str, cases: &[(&str, &str, &str)]) {
        for (old, new, wanted) in cases {
            let error = EndpointConfig::parse(&text.replacen(old, new, 1), "e.toml");
            let error = error.unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn problems_are_told_with_their_place_and_what_to_try() {
        for (old, new, wanted) in [
            (
                "asn = 65001",
                "asm = 65001",
                "asbr.toml:15:1: unknown field `asm`",
            ),
            ("asn = 65001", "", "[[peer]] has no `asn`"),
            (
                "asn = 65001",
                "asn = 65000",
                "is our own AS; neighbours of this AS are a [[reflector]]",
            ),
            ("0x100", "2", "transit-b"),
            (
                "\"own\"",
                "\"everything\"",
                "write \"all\", \"own\", \"none\" or a list of rules",
            ),
            (
                "asn = 65001",
                "asn = 65001\ntable = 7701",
                "is the table of `transit-a`",
            ),
            (
                "asn = 65001",
                "asn = 65001\ninterface = \"lo\"",
                "segments do not work on the loopback interface",
            ),
            (
                "asn = 65001",
                "asn = 65001\ninterface = \"eth 0\"",
                "is no interface's name",
            ),
            (
                "asn = 65000",
                "asn = 65000\nnexthop_ids = [9, 8]",
                "nexthop_ids: [9, 8] has no numbers",
            ),
            ("::/0 le 15", "::/0 lt 15", "write a prefix"),
            (
                "{ through_as",
                "{ rpki = \"invalid\", through_as",
                "import: `rpki` needs `rpki_file` in [asbr]",
            ),
            (
                "{ through_as",
                "{ rpki = \"unknown\", through_as",
                "rpki: `unknown`: write \"valid\", \"invalid\", \"not-found\"",
            ),
            ("{ through_as", "{ rpki = [], through_as", "leave it out"),
            (
                "export = \"own\"",
                "export = [{ rpki = \"valid\" }]",
                "ask for it in `import`",
            ),
            (
                "asn = 65000",
                "asn = 65000\nrpki_file = \"/nowhere/at/all\"",
                "asbr.toml:4:13: rpki_file: /nowhere/at/all: No such file",
            ),
            (
                "asn = 65001",
                "asn = 65001\nbehaviour = \"end.dx4\"",
                "`end.dx6`",
            ),
            (
                "address = \"2001:db8:f:b::1\"",
                "address = \"192.0.2.7\"\nbehaviour = \"end.dx6\"",
                "leads to an IPv6 address",
            ),
            ("/64\"", "/121\"", "leaves no room"),
            (
                "2001:db8:a:1::/64",
                "ff05::/64",
                "`ff05::/64` is no locator",
            ),
            ("2001:db8:a:1::/64", "::/0", "at least /16"),
            (
                "\"192.0.2.1\"",
                "\"0.0.0.0\"",
                "asbr.toml:4:13: router_id: 0.0.0.0 is nobody's",
            ),
            (
                "asn = 65001",
                "asn = 65001\nroutes_max = 0",
                "use 1 or more",
            ),
            (
                "\"transit-b\"",
                "\"transit-a\"",
                "there are two `transit-a`",
            ),
            ("\"transit-b\"", "\"\"", "name: it is empty"),
            ("\"192.0.2.1\"", "\"192.0.2\"", "asbr.toml:4:"),
            (
                "address = \"2001:db8:f:b::1\"",
                "address = \"2001:db8:f:a::1\"",
                "is the address of",
            ),
        ] {
            let text = ASBR.replacen(old, new, 1);
            assert_ne!(text, ASBR, "{old}");
            let error = AsbrConfig::parse(&text, "asbr.toml")
                .unwrap_err()
                .to_string();
            assert!(error.contains(wanted), "{old} → {new}: {error}");
            assert!(error.starts_with("asbr.toml:"), "{error}");
        }
    }

    #[test]
    fn rules_ask_the_rpki_for_one_word_or_several() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("json");
        fs::write(&file, "{\"roas\": [{\"asn\": 1, \"prefix\": \"::/0\"}]}").unwrap();
        let text = ASBR
            .replacen(
                "asn = 65000",
                &format!("asn = 65000\nrpki_file = {file:?}"),
                1,
            )
            .replacen("{ through_as", "{ rpki = \"invalid\", through_as", 1)
            .replacen("path_max", "rpki = [\"valid\", \"not-found\"], path_max", 1);
        let config = AsbrConfig::parse(&text, "asbr.toml").unwrap();
        assert_eq!(config.speaker.vrps.unwrap().len(), 1);
        let rules = &config.peers[1].neighbour.import.rules;
        assert_eq!(rules[1].validity, []);
        assert_eq!(rules[2].validity, [Validity::Invalid]);
        assert_eq!(rules[3].validity, [Validity::Valid, Validity::NotFound]);
    }

    #[test]
    fn an_endpoints_peers_need_tables_and_addresses_of_their_own() {
        let text = r#"
[egress]
asn = 65000
router_id = "192.0.2.9"
[[reflector]]
name = "rr"
address = "2001:db8:a:ff::1"
add_path = true
[[peer]]
name = "transit-a"
rt = "65000:256"
address = "2001:db8:a:e::a"
[[peer]]
name = "transit-b"
rt = "65000:2"
address = "2001:db8:a:e::b"
table = 7000
"#;
        let config = EndpointConfig::parse(text, "e.toml").unwrap();
        assert_eq!(config.classes, []);
        assert_eq!((config.peers[0].table, config.peers[1].table), (7600, 7000));
        assert!(config.reflectors[0].add_path);
        assert_eq!(
            config.reflectors[0].graceful_restart,
            Some(Duration::from_secs(120))
        );
        assert_refused(
            text,
            &[
                (
                    "\"65000:2\"",
                    "\"65000:256\"",
                    "is the target of `transit-a`",
                ),
                ("7000", "7600", "is the table of `transit-a`"),
                ("::b\"", "::a\"", "is the address of `transit-a`"),
                (
                    "2001:db8:a:e::b",
                    "ff02::b",
                    "e.toml:16:11: address: clients reach nobody",
                ),
                ("2001:db8:a:e::b", "fe80::b", "clients reach nobody"),
                ("2001:db8:a:e::b", "::1", "clients reach nobody"),
                (
                    "2001:db8:a:e::b",
                    "::ffff:192.0.2.1",
                    "clients reach nobody",
                ),
                ("\"transit-b\"", "\"rr\"", "there are two `rr`"),
                (
                    "::b\"",
                    "::b\"\nvrf = \"lo\"",
                    "`lo` is no name for a VRF device",
                ),
                (
                    "::b\"",
                    "::b\"\nvrf = \"a-very-long-name\"",
                    "at most 15 octets",
                ),
                ("7000", "254", "between 1000"),
                (
                    "asn = 65000",
                    "asn = 65000\nrule_priority = 32766",
                    "use 1 to 32765",
                ),
                (
                    "asn = 65000",
                    "asn = 65000\ninterface = \"\"",
                    "an interface has a name",
                ),
                ("\"65000:2\"", "\"65000\"", "ASN:NUMBER"),
                (
                    "asn = 65000",
                    "asn = 65000\nhelper_ports = [443]",
                    "mptcp = \"precise\"",
                ),
                (
                    "asn = 65000",
                    "asn = 65000\nmptcp = \"kernel\"\nhelper_ports = [0]",
                    "0 is no port",
                ),
            ],
        );
    }

    #[test]
    fn classes_name_ports_and_peers() {
        let text = r#"
[egress]
asn = 65000
router_id = "192.0.2.9"
mptcp = "precise"
[[peer]]
name = "transit-a"
rt = "65000:1"
address = "2001:db8:a:e::a"
[[peer]]
name = "transit-b"
rt = "65000:2"
address = "2001:db8:a:e::b"
[[class]]
name = "video"
ports = [443, 8443]
prefer = ["transit-b"]
[[class]]
name = "mail"
ports = [25]
prefer = ["transit-a", "transit-b"]
"#;
        let config = EndpointConfig::parse(text, "e.toml").unwrap();
        let video = Class {
            name: "video".to_owned(),
            ports: BTreeSet::from([443, 8443]),
            prefer: BTreeSet::from([1]),
        };
        assert_eq!(config.classes[0], video);
        assert_eq!(config.classes[1].prefer, BTreeSet::from([0, 1]));
        assert_refused(
            text,
            &[
                ("\"precise\"", "\"kernel\"", "mptcp = \"precise\""),
                ("[25]", "[25, 443]", "port 443 is one of `video`"),
                ("[25]", "[]", "ports"),
                ("[25]", "[0]", "0 is no port"),
                (
                    "[\"transit-b\"]",
                    "[\"transit-c\"]",
                    "`transit-a`, `transit-b`",
                ),
                ("[\"transit-b\"]", "[]", "prefer"),
            ],
        );
    }

    #[test]
    fn what_is_compared_is_said_in_shares_and_bounds() {
        let text = r#"
[egress]
asn = 65000
router_id = "192.0.2.9"
mptcp = "precise"
[[peer]]
name = "transit-a"
rt = "65000:1"
address = "2001:db8:a:e::a"
"#;
        let config = EndpointConfig::parse(text, "e.toml").unwrap();
        assert_eq!(config.comparison, Settings::DEFAULT);
        let section = r#"[comparison]
held_out = "10%"
prefix_bits = 40
prefixes_max = 7
bytes_min = "2MiB"
loss_max = "3%"
confidence = "95%"
again_after = "30min"
"#;
        let text = text.to_owned() + section;
        let config = EndpointConfig::parse(&text, "e.toml").unwrap();
        let wanted = Settings {
            held_out: 0.1,
            prefix_bits: 40,
            prefixes_max: 7,
            bytes_min: 2 << 20,
            loss_max: 0.03,
            confidence: 0.95,
            again_after: Duration::from_secs(1800),
        };
        assert_eq!(config.comparison, wanted);
        assert_refused(
            &text,
            &[
                (
                    "\"precise\"",
                    "\"kernel\"",
                    "[comparison] needs mptcp = \"precise\"",
                ),
                ("\"10%\"", "\"60%\"", "at most \"50%\""),
                ("\"10%\"", "0.1", "held_out = 0.1"),
                ("= 40", "= 129", "prefix_bits: write 1 to 128"),
                ("= 7", "= 0", "prefixes_max: write 1 to 1000000"),
                ("\"3%\"", "\"91%\"", "loss_max"),
                ("\"95%\"", "\"100%\"", "confidence: write"),
                ("\"30min\"", "\"0s\"", "again_after: at least"),
                ("loss_max", "loss_least", "unknown field `loss_least`"),
            ],
        );
    }
}
