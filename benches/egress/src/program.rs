//! The programs that are measured: how each is set, started and asked.

use std::{
    fmt, fs,
    io::{BufRead, BufReader, Read, Write},
    net::Ipv6Addr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use keiro_lab::{
    Host, Process,
    frr::{Operator, Router},
};
use serde_json::Value;

use crate::stream::{ASN, Family};

/// Whose tables are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// `keiro egress`
    Keiro,
    /// BIRD 2
    Bird,
    /// FRR: bgpd, and zebra for the kernel
    Frr,
}

/// What a program is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) family: Family,
    /// Into the kernel as well.
    pub(crate) kernel: bool,
    /// Its address, and those of the neighbours that connect to it.
    pub(crate) own: Ipv6Addr,
    pub(crate) neighbours: &'a [Ipv6Addr],
}

/// One that runs; it ends when dropped.
pub(crate) struct Program {
    processes: Vec<Process>,
    /// Whose memory counts.
    ids: Vec<i32>,
    asked: Asked,
    /// FRR's own.
    _router: Option<Router>,
}

/// How it is asked for the number of its routes.
enum Asked {
    /// It reports every change.
    Reported(Arc<[AtomicU64]>),
    /// Not polled: it reports VPN routes only.
    Silent,
    Bird(PathBuf),
    Frr(Operator, Family),
}

/// Of the processes together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) resident_kib: u64,
    pub(crate) peak_kib: u64,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Keiro, Self::Bird, Self::Frr];

    pub(crate) fn start(
        self,
        setup: &Setup<'_>,
        host: &Host,
        keiro: &Path,
        files: &Path,
    ) -> anyhow::Result<Program> {
        match self {
            Self::Keiro => start_keiro(setup, host, keiro, files),
            Self::Bird => start_bird(setup, host, files),
            Self::Frr => start_frr(setup, host),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Keiro => "keiro",
            Self::Bird => "bird",
            Self::Frr => "frr",
        })
    }
}

impl Program {
    /// How many routes it says that it has; `None`: it does not say.
    pub(crate) fn routes(&mut self) -> anyhow::Result<Option<u64>> {
        match &mut self.asked {
            Asked::Reported(peers) => {
                let all = peers.iter().map(|one| one.load(Ordering::Acquire));
                Ok(Some(all.sum()))
            }
            Asked::Silent => Ok(None),
            Asked::Bird(socket) => Ok(Some(imported(&bird(socket, "show protocols all")?))),
            Asked::Frr(operator, family) => {
                let family = match family {
                    Family::Vpn => "vpn",
                    Family::Unicast => "unicast",
                };
                let said = operator.command(&format!("show bgp ipv6 {family} summary json"))?;
                Ok(Some(received(&serde_json::from_str(&said)?)))
            }
        }
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let mut all = Memory::default();
        for id in &self.ids {
            let status = fs::read_to_string(format!("/proc/{id}/status"))?;
            all.resident_kib += kib(&status, "VmRSS:")?;
            all.peak_kib += kib(&status, "VmHWM:")?;
        }
        Ok(all)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for process in &self.processes {
            // Whatever stays is ended with the laboratory.
            let _ = process.end(GRACE);
        }
    }
}

fn start_keiro(
    setup: &Setup<'_>,
    host: &Host,
    keiro: &Path,
    files: &Path,
) -> anyhow::Result<Program> {
    let socket = files.join("egress.sock");
    let mut config = format!(
        "[egress]\nasn = {ASN}\nrouter_id = \"10.0.1.20\"\ninterface = \"wan\"\nmptcp = \"precise\"\n\
         control_socket = \"{}\"\n",
        socket.display()
    );
    for (number, at) in (1..).zip(setup.neighbours) {
        config += &format!(
            "[[reflector]]\nname = \"b{number}\"\naddress = \"{at}\"\npassive = true\n\
             hold_time = \"600s\"\n"
        );
    }
    for number in 1..=setup.neighbours.len() {
        config += &format!(
            "[[peer]]\nname = \"p{number}\"\nrt = \"{ASN}:{number}\"\n\
             address = \"2001:db8:a:e::{number}\"\n"
        );
    }
    let file = files.join("egress.toml");
    fs::write(&file, config)?;
    let mut command = host.command(keiro);
    command.args(["egress", "--config"]).arg(&file);
    if !setup.kernel {
        command.arg("--dry-run");
    }
    let out = fs::File::create(files.join("log"))?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let process = host.spawn({
        command.stderr(out);
        command
    })?;
    let asked = match setup.family {
        Family::Vpn => Asked::Reported(monitor(&socket, setup.neighbours.len())?),
        Family::Unicast => Asked::Silent,
    };
    Ok(Program {
        ids: vec![process.id()],
        processes: vec![process],
        asked,
        _router: None,
    })
}

/// How many routes each of its egress peers has, as `keiro monitor --egress` reports it.
fn monitor(socket: &Path, peers: usize) -> anyhow::Result<Arc<[AtomicU64]>> {
    let mut stream = connect(socket)?;
    stream.write_all(b"\"monitor\"\n")?;
    let counts: Arc<[AtomicU64]> = (0..peers).map(|_| AtomicU64::new(0)).collect();
    let noted = Arc::clone(&counts);
    let mut lines = BufReader::new(stream).lines();
    // It listens from here on.
    lines.next().context("the daemon does not answer")??;
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let report: Value = serde_json::from_str(&line).unwrap_or_default();
            let name = report["peer"]
                .as_str()
                .and_then(|name| name.strip_prefix('p'));
            let place = name.and_then(|number| number.parse::<usize>().ok());
            let count = place.and_then(|number| noted.get(number.checked_sub(1)?));
            if let (Some(count), Some(routes)) = (count, report["routes"].as_u64()) {
                count.store(routes, Ordering::Release);
            }
        }
    });
    Ok(counts)
}

fn start_bird(setup: &Setup<'_>, host: &Host, files: &Path) -> anyhow::Result<Program> {
    ensure!(
        Path::new(BIRD).exists(),
        "BIRD is missing: run `scripts/setup routers`, or install Debian's package `bird2`"
    );
    let mut config =
        "router id 10.0.1.20;\nprotocol device {}\nprotocol direct { ipv6; }\n".to_owned();
    let channel = match setup.family {
        Family::Vpn => {
            config += "vpn6 table vpn_routes;\n";
            "vpn6 mpls { table vpn_routes; igp table master6; import all; export none; }"
        }
        Family::Unicast => "ipv6 { import all; export none; }",
    };
    if setup.kernel {
        config += "protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; }\n";
    }
    for (number, at) in (1..).zip(setup.neighbours) {
        config += &format!(
            "protocol bgp b{number} {{ local {} as {ASN}; neighbor {at} as {ASN}; passive yes; \
             hold time 600; {channel}; }}\n",
            setup.own
        );
    }
    let (file, socket) = (files.join("bird.conf"), files.join("bird.sock"));
    fs::write(&file, config)?;
    let mut command = host.command(BIRD);
    command
        .arg("-f")
        .arg("-c")
        .arg(&file)
        .arg("-s")
        .arg(&socket);
    command.arg("-P").arg(files.join("bird.pid"));
    let out = fs::File::create(files.join("log"))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(out);
    let process = host.spawn(command)?;
    connect(&socket)?;
    Ok(Program {
        ids: vec![process.id()],
        processes: vec![process],
        asked: Asked::Bird(socket),
        _router: None,
    })
}

/// What BIRD answers; a code and a blank end the last line (its doc/reply_codes).
fn bird(socket: &Path, question: &str) -> anyhow::Result<String> {
    let mut stream = connect(socket)?;
    stream.write_all(format!("{question}\n").as_bytes())?;
    let mut said = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let (code, rest) = line.split_at_checked(4).unwrap_or_default();
        let ends = code.parse::<u16>().is_ok() && rest.starts_with(' ');
        said += &line;
        said.push('\n');
        // The first is its greeting.
        if ends && code != "0001" {
            let code: u16 = code.parse()?;
            ensure!(code < 8000, "BIRD refuses `{question}`: {said}");
            return Ok(said);
        }
    }
    bail!("BIRD does not answer")
}

/// `Routes: 20 imported, …` of every channel.
fn imported(said: &str) -> u64 {
    let lines = said.lines().filter(|line| line.contains("Routes:"));
    let counts = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        words.by_ref().find(|word| word.ends_with("Routes:"))?;
        words.next()?.parse::<u64>().ok()
    });
    // Those of interfaces are no neighbour's; there is one for the link.
    counts.filter(|count| *count > CONNECTED_MAX).sum()
}

fn start_frr(setup: &Setup<'_>, host: &Host) -> anyhow::Result<Program> {
    let family = match setup.family {
        Family::Vpn => "vpn",
        Family::Unicast => "unicast",
    };
    let mut config =
        format!("router bgp {ASN}\n bgp router-id 10.0.1.20\n no bgp default ipv4-unicast\n");
    for at in setup.neighbours {
        config += &format!(" neighbor {at} remote-as {ASN}\n neighbor {at} passive\n");
    }
    config += &format!(" address-family ipv6 {family}\n");
    for at in setup.neighbours {
        config += &format!("  neighbor {at} activate\n");
    }
    config += " exit-address-family\n";
    let router = Router::start(host, &config)?;
    let mut ids = router.process_ids();
    if !setup.kernel {
        // zebra has nothing to do then.
        ids.remove(0);
    }
    Ok(Program {
        processes: Vec::new(),
        ids,
        asked: Asked::Frr(router.operator()?, setup.family),
        _router: Some(router),
    })
}

/// All numbers of received prefixes.
fn received(said: &Value) -> u64 {
    match said {
        Value::Object(all) => {
            let own = all.get("pfxRcd").and_then(Value::as_u64).unwrap_or(0);
            own + all.values().map(received).sum::<u64>()
        }
        _ => 0,
    }
}

fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    let end = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                stream.set_read_timeout(None)?;
                return Ok(stream);
            }
            Err(error) if Instant::now() >= end => {
                return Err(error).with_context(|| socket.display().to_string());
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn kib(status: &str, name: &str) -> anyhow::Result<u64> {
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.with_context(|| format!("no {name}"))
}

/// What a program has said, for an error.
pub(crate) fn log(files: &Path) -> String {
    let mut all = String::new();
    if let Ok(mut file) = fs::File::open(files.join("log")) {
        // What cannot be read is not there.
        let _ = file.read_to_string(&mut all);
    }
    let lines: Vec<&str> = all.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

const BIRD: &str = "/usr/sbin/bird";
const CONNECTED_MAX: u64 = 9;
const PATIENCE: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(5);
