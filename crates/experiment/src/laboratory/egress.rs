//! The provider of `egress/topology` [egress fig. 7]: its daemons, the FRR routers around it, and the reports
//! of its kernels about their routes.

mod flow;
mod flowstats;
mod monitor;

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use keiro_bgp::{record, speaker::Input};
use keiro_lab::{
    Lab, Process,
    frr::{Operator, Router},
    gobgp,
};

pub(super) use flow::{Arrival, Content, Flow, longest_gap, longest_gap_of};
pub(super) use flowstats::FlowStats;
pub(super) use monitor::{Monitor, RouteChange};

use crate::trials::Reflector;

/// The prefix whose announcement changes, and one that stays so that no table becomes empty.
pub(super) const CHANGES: &str = "2001:db8:c1::/48";
const STAYS: &str = "2001:db8:c2::/48";
/// The server's table of transit A, and the table of the same peer on the border routers.
pub(super) const TABLE_OF_A: u32 = 7600;
pub(super) const TABLE_AT_BORDER: u32 = 7700;
/// Next hops of best paths: the border routers' addresses towards the server.
pub(super) const BY_A: &str = "2001:db8:a:1::1";
pub(super) const BY_B: &str = "2001:db8:a:2::2";

/// The server's service address, and a client's.
const CONTENT_ADDRESS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0xe, 0, 0, 0, 1);
const CLIENT_ADDRESS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xc1, 0, 0, 0, 0, 1);

/// The server's EPE addresses of transit A and transit B.
const EPE_ADDRESSES: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0xe, 0, 0, 0, 0xa),
    Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0xe, 0, 0, 0, 0xb),
];

/// The provider with its daemons and neighbours, ended when dropped.
pub(super) struct Provider {
    client: Operator,
    daemons: Vec<Daemon>,
    _routers: Vec<Router>,
    _gobgpd: Option<gobgp::Reflector>,
    directory: tempfile::TempDir,
}

struct Daemon {
    host: &'static str,
    process: Process,
}

/// When a daemon received bytes from a neighbour, by CLOCK_MONOTONIC in ns; keepalives are left out.
pub(super) struct DaemonRecords {
    at_ns: Vec<u64>,
}

impl Provider {
    /// Starts everything and waits until the server's kernel has the routes of both transits.
    pub(super) fn start(lab: &Lab, reflector: Reflector, keiro: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("keiro-experiment-")
            .tempdir()
            .context("cannot create a directory for configurations")?;
        let mut routers = Vec::new();
        let mut gobgpd = None;
        let (host, own) = (lab.host("rr")?, ROUTER_ID_OF_REFLECTOR);
        match reflector {
            Reflector::Frr => routers.push(Router::reflector(host, 65000, own, &CLIENTS)?),
            Reflector::Gobgp => {
                gobgpd = Some(gobgp::Reflector::start(host, 65000, own, &CLIENTS)?);
            }
            Reflector::None => {}
        }
        for (host, config) in [
            ("transit-a", transit(65001, 1, 'a')),
            ("transit-b", transit(65002, 2, 'b')),
            ("client", CLIENT.to_owned()),
        ] {
            routers.push(Router::start(lab.host(host)?, &config)?);
        }
        let mut client = routers.last().context("a client")?.operator()?;
        for command in [
            "configure terminal",
            "router bgp 65009",
            "address-family ipv6 unicast",
        ] {
            client.command(command)?;
        }
        add_addresses(lab)?;
        let mut daemons = Vec::new();
        for (host, config) in [
            ("asbr1", border(reflector, 'a')),
            ("asbr2", border(reflector, 'b')),
            ("server", server(reflector)),
        ] {
            daemons.push(start(lab, host, &config, directory.path(), keiro)?);
        }
        let provider = Self {
            client,
            daemons,
            _routers: routers,
            _gobgpd: gobgpd,
            directory,
        };
        let ready = provider.wait_until_ready(lab);
        ready.with_context(|| provider.log_tail())?;
        Ok(provider)
    }

    /// Makes the clients' provider announce the prefix to transit A, or withdraw it. It always announces it
    /// to transit B.
    pub(super) fn announce_to_a(&mut self, announced: bool) -> anyhow::Result<()> {
        let to = if announced { "BOTH" } else { "B-ONLY" };
        let command = format!("network {CHANGES} route-map {to}");
        self.client.command(&command)?;
        Ok(())
    }

    /// What a daemon has received so far.
    pub(super) fn records(&self, host: &str) -> anyhow::Result<DaemonRecords> {
        let file = recording(self.directory.path(), host);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let mut at_ns = Vec::new();
        for line in text.lines() {
            // The last line may be incomplete.
            let Ok((at, Input::Received(_, octets))) = record::read(line) else {
                continue;
            };
            if octets.len() > KEEPALIVE_BYTES {
                at_ns.push(at.as_nanos());
            }
        }
        Ok(DaemonRecords { at_ns })
    }

    /// The tail of the daemons' logs, for an error.
    pub(super) fn log_tail(&self) -> String {
        let mut words = String::from("the daemons' last log lines:");
        for daemon in &self.daemons {
            let log = fs::read_to_string(log(self.directory.path(), daemon.host));
            let log = log.unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
                words.push_str(&format!("\n  {}: {line}", daemon.host));
            }
        }
        words
    }

    fn wait_until_ready(&self, lab: &Lab) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WAIT;
        let main = format!("{CHANGES} main {BY_A}");
        loop {
            let in_tables = [TABLE_OF_A, TABLE_OF_A + 1].iter().all(|table| {
                let shown = routes(lab, "server", &format!("table {table}"));
                shown.is_ok_and(|shown| shown.contains(CHANGES) && shown.contains(STAYS))
            });
            let best = routes(lab, "server", CHANGES)?;
            if in_tables && best.contains(BY_A) {
                return Ok(());
            }
            for daemon in &self.daemons {
                if let Some(status) = daemon.process.wait(Duration::ZERO)? {
                    bail!("the daemon of {} ended with {status}", daemon.host);
                }
            }
            ensure!(
                Instant::now() < deadline,
                "after {READY_WAIT:?} the server has not all routes ({main}): {best}"
            );
            thread::sleep(READY_STEP);
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        for daemon in &self.daemons {
            let _ = daemon.process.signal(keiro_linux::process::SIGTERM);
        }
        for daemon in &self.daemons {
            // A process that does not end is killed with the laboratory.
            let _ = daemon.process.end(END_GRACE);
        }
    }
}

impl DaemonRecords {
    /// The first time at or after `from_ns`.
    pub(super) fn first_from(&self, from_ns: u64) -> Option<u64> {
        self.at_ns.iter().copied().find(|at| *at >= from_ns)
    }

    /// The last time before or at `until_ns`.
    pub(super) fn last_until(&self, until_ns: u64) -> Option<u64> {
        let mut all = self.at_ns.iter().rev().copied();
        all.find(|at| *at <= until_ns)
    }
}

/// Adds the addresses of content and client, and the client's route to the provider. Joins must use that
/// source address, too.
fn add_addresses(lab: &Lab) -> anyhow::Result<()> {
    for (host, arguments) in [
        (
            "server",
            format!("addr add {CONTENT_ADDRESS}/128 dev lo nodad"),
        ),
        (
            "client",
            format!("addr add {CLIENT_ADDRESS}/128 dev lo nodad"),
        ),
        (
            "client",
            format!("route add 2001:db8:a:e::/64 via 2001:db8:ca::1 src {CLIENT_ADDRESS}"),
        ),
    ] {
        let mut command = lab.host(host)?.command("ip");
        command.arg("-6").args(arguments.split_whitespace());
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ip -6 {arguments}`: {said}");
    }
    Ok(())
}

fn start(
    lab: &Lab,
    host: &'static str,
    config: &str,
    directory: &Path,
    keiro: &Path,
) -> anyhow::Result<Daemon> {
    let file = directory.join(format!("{host}.toml"));
    fs::write(&file, config)?;
    let of_host = lab.host(host)?;
    let mut command = of_host.command(keiro);
    command.arg(if host == "server" { "egress" } else { "asbr" });
    command.args(["--user", "root", "--config"]).arg(&file);
    command.arg("--record").arg(recording(directory, host));
    let out = fs::File::create(log(directory, host))?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(out);
    let process = of_host.spawn(command)?;
    Ok(Daemon { host, process })
}

fn recording(directory: &Path, host: &str) -> PathBuf {
    directory.join(format!("{host}.record"))
}

fn log(directory: &Path, host: &str) -> PathBuf {
    directory.join(format!("{host}.log"))
}

fn routes(lab: &Lab, host: &str, which: &str) -> anyhow::Result<String> {
    let mut command = lab.host(host)?.command("ip");
    command.args(["-6", "route", "show"]);
    let output = command.args(which.split_whitespace()).output()?;
    // The kernel has no table without routes, and `ip` reports that as an error.
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn border(reflector: Reflector, letter: char) -> String {
    let (number, preference) = if letter == 'a' { (1, 200) } else { (2, 100) };
    let (reflector, via) = match reflector {
        Reflector::Frr | Reflector::Gobgp => (format!("2001:db8:a:{}::30", number + 3), "rr"),
        Reflector::None => (format!("2001:db8:a:{number}::20"), "server"),
    };
    format!(
        "[asbr]\nasn = 65000\nrouter_id = \"10.0.1.{number}\"\n\
         locator = \"2001:db8:a:f{number}::/64\"\nannounce = [\"2001:db8:a::/48\"]\n\
         [[reflector]]\nname = \"{via}\"\naddress = \"{reflector}\"\n\
         next_hop = \"2001:db8:a:{number}::{number}\"\n\
         [[peer]]\nname = \"transit-{letter}\"\naddress = \"2001:db8:f{letter}::2\"\n\
         asn = {}\nfunction = 0x{letter}\nexport = \"own\"\n\
         import = [{{ local_pref = {preference} }}]\n",
        65000 + number
    )
}

fn server(reflector: Reflector) -> String {
    let neighbours = match reflector {
        Reflector::Frr | Reflector::Gobgp => vec![("rr", "2001:db8:a:3::30")],
        Reflector::None => vec![("asbr1", BY_A), ("asbr2", BY_B)],
    };
    let neighbours = neighbours
        .iter()
        .map(|(name, at)| format!("[[reflector]]\nname = \"{name}\"\naddress = \"{at}\"\n"));
    let peers = [('a', 10), ('b', 11)].into_iter().zip(EPE_ADDRESSES);
    let peers = peers.map(|((letter, number), own)| {
        format!(
            "[[peer]]\nname = \"transit-{letter}\"\nrt = \"65000:{number}\"\n\
             address = \"{own}\"\n"
        )
    });
    let head = "[egress]\nasn = 65000\nrouter_id = \"10.0.1.20\"\ninterface = \"s1\"\n\
                mptcp = \"precise\"\n";
    // Every connection belongs to the experiment.
    let tail = "[comparison]\nheld_out = \"0%\"\n";
    head.to_owned() + &neighbours.chain(peers).collect::<String>() + tail
}

fn transit(asn: u32, number: u8, letter: char) -> String {
    format!(
        "router bgp {asn}
 bgp router-id 10.0.0.{number}
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 neighbor 2001:db8:f{letter}::1 remote-as 65000
 neighbor 2001:db8:f{letter}::1 timers connect 1
 neighbor 2001:db8:f{letter}::1 ttl-security hops 1
 neighbor 2001:db8:c{letter}::2 remote-as 65009
 neighbor 2001:db8:c{letter}::2 timers connect 1
 address-family ipv6 unicast
  neighbor 2001:db8:f{letter}::1 activate
  neighbor 2001:db8:c{letter}::2 activate
 exit-address-family
"
    )
}

/// Announcements for transit B alone carry a community.
const CLIENT: &str = "router bgp 65009
 bgp router-id 10.0.0.9
 no bgp default ipv4-unicast
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor 2001:db8:ca::1 remote-as 65001
 neighbor 2001:db8:ca::1 timers connect 1
 neighbor 2001:db8:cb::1 remote-as 65002
 neighbor 2001:db8:cb::1 timers connect 1
 address-family ipv6 unicast
  network 2001:db8:c1::/48 route-map BOTH
  network 2001:db8:c2::/48
  neighbor 2001:db8:ca::1 activate
  neighbor 2001:db8:ca::1 route-map TO-A out
  neighbor 2001:db8:cb::1 activate
  neighbor 2001:db8:cb::1 route-map TO-B out
 exit-address-family
bgp community-list standard FOR-B permit 65009:1
route-map BOTH permit 10
route-map B-ONLY permit 10
 set community 65009:1
route-map TO-A deny 10
 match community FOR-B
route-map TO-A permit 20
route-map TO-B permit 10
 set comm-list FOR-B delete
";

/// The server and both border routers, as configured at the reflector.
const CLIENTS: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0xa, 3, 0, 0, 0, 0x20),
    Ipv6Addr::new(0x2001, 0xdb8, 0xa, 4, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0xa, 5, 0, 0, 0, 2),
];
const ROUTER_ID_OF_REFLECTOR: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 30);

/// A KEEPALIVE is a header (RFC 4271 §4.1).
const KEEPALIVE_BYTES: usize = 19;
/// Time for sessions and routes to come up; ours, for a busy machine.
const READY_WAIT: Duration = Duration::from_secs(60);
const READY_STEP: Duration = Duration::from_millis(50);
/// Time for a daemon to end. Ours.
const END_GRACE: Duration = Duration::from_secs(2);
/// Lines of a daemon's log that an error quotes.
const LOG_LINES_SHOWN: usize = 12;
