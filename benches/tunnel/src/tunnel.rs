//! The tunnels that are measured: how each is set and started.

use std::{
    fmt, fs,
    io::{Read, Write},
    net::Ipv4Addr,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use base64::prelude::{BASE64_STANDARD, Engine};
use clap::ValueEnum;
use keiro_lab::{Lab, Process};

use crate::Args;

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Nothing: the veth pair itself
    Veth,
    /// Keiro, controller `keiro`, as it is set by default
    Keiro,
    /// Keiro without windows
    KeiroOpen,
    /// Keiro, controller `keiro`, with four queues of the device
    KeiroQueues,
    /// wireguard-go
    WireguardGo,
    /// Nebula, with its offloads
    Nebula,
}

/// A tunnel between the hosts a and b; its programs end when it is dropped.
pub(crate) struct Tunnel {
    pub(crate) addresses: [Ipv4Addr; 2],
    pub(crate) processes: Vec<Process>,
}

const HOSTS: [&str; 2] = ["a", "b"];
const OUTER: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const INNER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 1)];
const PATIENCE: Duration = Duration::from_secs(20);

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Veth,
        Self::Keiro,
        Self::KeiroOpen,
        Self::KeiroQueues,
        Self::WireguardGo,
        Self::Nebula,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl Tunnel {
    pub(crate) fn start(kind: Kind, args: &Args, lab: &Lab, files: &Path) -> anyhow::Result<Self> {
        match kind {
            Kind::Veth => Ok(Self {
                addresses: [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)],
                processes: Vec::new(),
            }),
            Kind::Keiro => keiro(args, lab, files, ("keiro", 1)),
            Kind::KeiroOpen => keiro(args, lab, files, ("open", 1)),
            Kind::KeiroQueues => keiro(args, lab, files, ("keiro", 4)),
            Kind::WireguardGo => wireguard_go(args, lab, files),
            Kind::Nebula => nebula(args, lab, files),
        }
    }
}

fn keiro(
    args: &Args,
    lab: &Lab,
    files: &Path,
    (controller, queues): (&str, usize),
) -> anyhow::Result<Tunnel> {
    let keys = key_pairs(&args.keiro)?;
    let mut processes = Vec::new();
    for own in 0..2 {
        let site = files.join(HOSTS[own]);
        fs::create_dir(&site)?;
        let key = site.join("private.key");
        write_private(&key, &keys[own].0)?;
        let (here, there, peer) = (own + 1, 2 - own, HOSTS[1 - own]);
        let directory = site.display();
        let text = format!(
            r#"[gateway]
name = "{name}"
private_key_file = "{directory}/private.key"
control_socket = "{directory}/control.sock"
state_directory = "{directory}/state"

[[path]]
name = "wan"
local = "{local}:7600"
rate = "10Gbit"

[[peer]]
name = "{peer}"
public_key = "{public}"
endpoints = {{ wan = "{remote}:7600" }}

[[app]]
name = "ip"
class = "datagram"
peer = "{peer}"

[fairness]
unit = "10Gbit"

[tenant.blue]
id = 1
device = "t-blue"
device_queues = {queues}
controller = "{controller}"
addresses = ["10.{here}.0.1/32"]
prefixes = ["10.{here}.0.0/24"]

[tenant.blue.peer.{peer}]
prefixes = ["10.{there}.0.0/24"]
app = "ip"
"#,
            name = HOSTS[own],
            local = OUTER[own],
            remote = OUTER[1 - own],
            public = keys[1 - own].1,
        );
        let file = site.join("gateway.toml");
        fs::write(&file, text)?;
        let mut command = lab.host(HOSTS[own])?.command(&args.keiro);
        command
            .args(["gateway", "--user", "root", "--config"])
            .arg(&file);
        processes.push(spawn(lab, own, command, files)?);
    }
    Ok(Tunnel {
        addresses: INNER,
        processes,
    })
}

fn wireguard_go(args: &Args, lab: &Lab, files: &Path) -> anyhow::Result<Tunnel> {
    let keys = key_pairs(&args.keiro)?;
    let hexadecimal = |text: &str| -> anyhow::Result<String> {
        let bytes = BASE64_STANDARD.decode(text.trim())?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    };
    let mut processes = Vec::new();
    for own in 0..2 {
        // Its control socket is named after the device, for all namespaces together.
        let device = format!("kb{}{}", std::process::id() % 1_000_000, HOSTS[own]);
        let mut command = lab
            .host(HOSTS[own])?
            .command(args.peers.join("wireguard-go"));
        command.args(["-f", &device]).env("LOG_LEVEL", "error");
        processes.push(spawn(lab, own, command, files)?);
        let socket = format!("/var/run/wireguard/{device}.sock");
        let began = Instant::now();
        let mut control = loop {
            match UnixStream::connect(&socket) {
                Ok(found) => break found,
                Err(error) if began.elapsed() > PATIENCE => bail!("{socket}: {error}"),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        write!(
            control,
            "set=1\nprivate_key={}\nlisten_port=51820\npublic_key={}\nendpoint={}:51820\n\
             allowed_ip=10.{}.0.0/24\n\n",
            hexadecimal(&keys[own].0)?,
            hexadecimal(&keys[1 - own].1)?,
            OUTER[1 - own],
            2 - own,
        )?;
        let mut answer = [0; 64];
        let length = control.read(&mut answer)?;
        if !answer[..length].starts_with(b"errno=0\n") {
            bail!("wireguard-go refused its settings");
        }
        ip(
            lab,
            own,
            &["addr", "add", &format!("{}/32", INNER[own]), "dev", &device],
        )?;
        ip(lab, own, &["link", "set", &device, "up"])?;
        let there = format!("10.{}.0.0/24", 2 - own);
        ip(lab, own, &["route", "add", &there, "dev", &device])?;
    }
    Ok(Tunnel {
        addresses: INNER,
        processes,
    })
}

fn nebula(args: &Args, lab: &Lab, files: &Path) -> anyhow::Result<Tunnel> {
    const INSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
    let certify = |arguments: &[&str]| -> anyhow::Result<()> {
        let mut command = Command::new(args.peers.join("nebula-cert").canonicalize()?);
        let done = command.current_dir(files).args(arguments).output()?;
        if !done.status.success() {
            bail!("nebula-cert: {}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(())
    };
    certify(&["ca", "-name", "bench"])?;
    let mut processes = Vec::new();
    for own in 0..2 {
        let (name, address) = (HOSTS[own], format!("{}/24", INSIDE[own]));
        certify(&["sign", "-name", name, "-networks", &address])?;
        let directory = files.display();
        // 1,440 bytes are what is left of 1,500. The rest is its example, with all offloads.
        let text = format!(
            r#"pki: {{ca: {directory}/ca.crt, cert: {directory}/{name}.crt, key: {directory}/{name}.key}}
static_host_map: {{"{there}": ["{remote}:4242"]}}
lighthouse: {{am_lighthouse: false}}
listen: {{host: 0.0.0.0, port: 4242, udp_offloads: true}}
tun: {{dev: neb-{name}, mtu: 1440, use_offloads: true}}
logging: {{level: error, format: text}}
firewall:
  outbound: [{{port: any, proto: any, host: any}}]
  inbound: [{{port: any, proto: any, host: any}}]
"#,
            there = INSIDE[1 - own],
            remote = OUTER[1 - own],
        );
        let file = files.join(format!("{name}.yml"));
        fs::write(&file, text)?;
        let mut command = lab.host(name)?.command(args.peers.join("nebula"));
        command.arg("-config").arg(&file);
        processes.push(spawn(lab, own, command, files)?);
    }
    Ok(Tunnel {
        addresses: INSIDE,
        processes,
    })
}

/// Starts a program in a host; what it says goes to a file beside its configuration.
fn spawn(lab: &Lab, own: usize, mut command: Command, files: &Path) -> anyhow::Result<Process> {
    let log = fs::File::create(files.join(format!("{}.log", HOSTS[own])))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Ok(lab.host(HOSTS[own])?.spawn(command)?)
}

/// What the programs said.
pub(crate) fn logs(files: &Path) -> String {
    let log = |host: &str| fs::read_to_string(files.join(format!("{host}.log")));
    let said = HOSTS.map(|host| format!("{host} said:\n{}", log(host).unwrap_or_default()));
    said.join("")
}

fn ip(lab: &Lab, own: usize, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = lab.host(HOSTS[own])?.command("ip");
    let status = command.args(arguments).status()?;
    match status.success() {
        true => Ok(()),
        false => bail!("`ip {}` failed", arguments.join(" ")),
    }
}

/// Two private keys with their public ones. Both programs use those of X25519.
fn key_pairs(keiro: &Path) -> anyhow::Result<[(String, String); 2]> {
    let pair = || -> anyhow::Result<(String, String)> {
        let private = Command::new(keiro).arg("genkey").output();
        let private = private
            .with_context(|| format!("{}", keiro.display()))?
            .stdout;
        let mut child = Command::new(keiro)
            .arg("pubkey")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        child.stdin.take().context("a pipe")?.write_all(&private)?;
        let public = child.wait_with_output()?.stdout;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map(|text| text.trim().to_owned());
        Ok((text(private)?, text(public)?))
    };
    Ok([pair()?, pair()?])
}

fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
    Ok(())
}
