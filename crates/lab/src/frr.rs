//! FRR routers in hosts of a laboratory: zebra, bgpd and bfdd of Debian's package.
//!
//! The caller provides the configuration.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{Host, LabError, Process};

/// A running router. Dropping it stops it.
#[derive(Debug)]
pub struct Router {
    host: String,
    directory: TempDir,
    /// Daemons by name, in the order of their start.
    processes: Vec<(&'static str, Process)>,
}

/// Sends commands to a router's daemon over one connection; a command takes effect at once.
#[derive(Debug)]
pub struct Operator {
    stream: UnixStream,
}

/// Another host's network namespace as a VRF of a router (zebra's `-n`), for kernels without VRF devices.
/// zebra installs no segments there, so that only BGP's state can be examined.
#[derive(Clone, Copy, Debug)]
pub struct Vrf<'a> {
    /// Name in the router.
    pub name: &'a str,
    /// Host that has the namespace.
    pub host: &'a Host,
}

/// Errors of a router.
#[derive(Debug, thiserror::Error)]
pub enum FrrError {
    /// FRR is not installed.
    #[error("FRR is missing: run `make setup`, or install Debian's package `frr`")]
    Missing,
    /// A file, directory or socket of it failed.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// It cannot be started.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// It was started, but does not answer.
    #[error("{daemon} of {host} does not start: {log}")]
    Start {
        /// `zebra`, `bgpd` or `bfdd`.
        daemon: &'static str,
        host: String,
        log: String,
    },
    /// It refuses a command.
    #[error("`{command}`: {said}")]
    Command { command: String, said: String },
}

impl Router {
    /// Starts both daemons in a host and waits until they accept commands; `config` is bgpd's.
    ///
    /// # Errors
    /// See [`FrrError`].
    pub fn start(host: &Host, config: &str) -> Result<Self, FrrError> {
        Self::start_with_vrfs(host, "", config, &[])
    }

    /// Starts a route reflector for clients of its own AS: IPv6 unicast and VPNv6.
    ///
    /// # Errors
    /// See [`FrrError`].
    pub fn reflector(
        host: &Host,
        asn: u32,
        router_id: Ipv4Addr,
        clients: &[Ipv6Addr],
    ) -> Result<Self, FrrError> {
        let members = clients
            .iter()
            .map(|client| format!(" neighbor {client} peer-group CLIENTS\n"));
        let members: String = members.collect();
        let families = ["unicast", "vpn"].map(|kind| {
            format!(
                " address-family ipv6 {kind}\n  neighbor CLIENTS activate\n  \
                 neighbor CLIENTS route-reflector-client\n exit-address-family\n"
            )
        });
        let config = format!(
            "router bgp {asn}\n bgp router-id {router_id}\n no bgp default ipv4-unicast\n \
             neighbor CLIENTS peer-group\n neighbor CLIENTS remote-as {asn}\n \
             neighbor CLIENTS timers connect 1\n{members}{}",
            families.concat()
        );
        Self::start(host, &config)
    }

    /// Starts both daemons with a configuration for zebra, too, and with namespaces as VRFs.
    ///
    /// # Errors
    /// See [`FrrError`].
    pub fn start_with_vrfs(
        host: &Host,
        zebra: &str,
        bgpd: &str,
        vrfs: &[Vrf<'_>],
    ) -> Result<Self, FrrError> {
        Self::start_daemons(host, &[("zebra", zebra), ("bgpd", bgpd)], vrfs)
    }

    /// Starts the daemons and bfdd with its configuration.
    ///
    /// # Errors
    /// See [`FrrError`].
    pub fn start_with_bfd(host: &Host, bgpd: &str, bfdd: &str) -> Result<Self, FrrError> {
        let daemons = [("zebra", ""), ("bfdd", bfdd), ("bgpd", bgpd)];
        Self::start_daemons(host, &daemons, &[])
    }

    fn start_daemons(
        host: &Host,
        daemons: &[(&'static str, &str)],
        vrfs: &[Vrf<'_>],
    ) -> Result<Self, FrrError> {
        let missing = |daemon: &str| !Path::new(DAEMONS).join(daemon).exists();
        if daemons.iter().any(|(daemon, _)| missing(daemon)) {
            return Err(FrrError::Missing);
        }
        let directory = tempfile::Builder::new().prefix("keiro-frr-").tempdir();
        let directory = directory.map_err(at(Path::new("a temporary directory")))?;
        // They run as the package's user.
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), all).map_err(at(directory.path()))?;
        let mut router = Self {
            host: host.name().to_owned(),
            directory,
            processes: Vec::new(),
        };
        for &(daemon, config) in daemons {
            let file = router.path(&format!("{daemon}.conf"));
            // An empty file would be refused.
            let config = format!("hostname {daemon}\n{config}");
            fs::write(&file, config).map_err(at(&file))?;
            router.spawn(host, daemon, vrfs)?;
        }
        Ok(router)
    }

    fn spawn(
        &mut self,
        host: &Host,
        daemon: &'static str,
        vrfs: &[Vrf<'_>],
    ) -> Result<(), FrrError> {
        let out = self.path(&format!("{daemon}.out"));
        let process = host.spawn(self.command(host, daemon, vrfs, &out)?)?;
        let end = Instant::now() + START_WAIT;
        let vty = self.path(&format!("{daemon}.vty"));
        // The socket's file exists a moment before the daemon listens.
        while UnixStream::connect(&vty).is_err() {
            let ended = !matches!(process.wait(Duration::ZERO), Ok(None));
            if ended || Instant::now() >= end {
                return Err(FrrError::Start {
                    daemon,
                    host: self.host.clone(),
                    log: fs::read_to_string(&out).unwrap_or_default(),
                });
            }
            thread::sleep(START_STEP);
        }
        self.processes.push((daemon, process));
        Ok(())
    }

    fn command(
        &self,
        host: &Host,
        daemon: &str,
        vrfs: &[Vrf<'_>],
        out: &Path,
    ) -> Result<Command, FrrError> {
        // A mount namespace of its own, because zebra looks at every named network namespace.
        let mut command = host.command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
        command.arg(format!(
            "{} exec {DAEMONS}/{daemon} \"$@\"",
            self.namespaces(vrfs)
        ));
        command.arg(daemon);
        if !vrfs.is_empty() && daemon == "zebra" {
            command.arg("-n");
        }
        let of = |kind: &str| self.path(&format!("{daemon}.{kind}"));
        command.arg("-f").arg(of("conf"));
        command.arg("-i").arg(of("pid"));
        command.arg("-z").arg(self.path("zserv.api"));
        if daemon == "bfdd" {
            command.arg("--bfdctl").arg(self.path("bfdd.sock"));
        }
        command.arg("--vty_socket").arg(self.directory.path());
        // No TCP port for operators; the Unix socket is enough.
        command.args(["-P", "0", "-A", "127.0.0.1"]);
        let file = fs::File::create(out).map_err(at(out))?;
        command.stdin(Stdio::null());
        command.stdout(file.try_clone().map_err(at(out))?);
        command.stderr(file);
        Ok(command)
    }

    /// Commands that leave only the namespaces of `vrfs` in the directory of named network namespaces.
    fn namespaces(&self, vrfs: &[Vrf<'_>]) -> String {
        let kept = |vrf: &Vrf<'_>| {
            self.path(&format!("vrf-{}", vrf.name))
                .display()
                .to_string()
        };
        let keep = vrfs.iter().map(|vrf| {
            let (kept, from) = (kept(vrf), vrf.host.namespace());
            format!("touch {kept}; mount --bind {NAMESPACES}/{from} {kept}; ")
        });
        let show = vrfs.iter().map(|vrf| {
            let (kept, name) = (kept(vrf), vrf.name);
            format!("touch {NAMESPACES}/{name}; mount --bind {kept} {NAMESPACES}/{name}; ")
        });
        // If it is not a mount yet there is nothing to unmount; the new mount hides the rest.
        let alone = format!(
            "umount -l {NAMESPACES} 2>/dev/null || true; mount -t tmpfs tmpfs {NAMESPACES}; "
        );
        keep.chain([alone]).chain(show).collect()
    }

    /// Connects to bgpd as its operator, with all rights.
    ///
    /// # Errors
    /// It does not answer.
    pub fn operator(&self) -> Result<Operator, FrrError> {
        self.operator_of("bgpd")
    }

    /// Connects to a daemon of it in the same way.
    ///
    /// # Errors
    /// It does not answer, or was not started.
    pub fn operator_of(&self, daemon: &str) -> Result<Operator, FrrError> {
        let path = self.path(&format!("{daemon}.vty"));
        let stream = UnixStream::connect(&path).map_err(at(&path))?;
        let patient = stream.set_read_timeout(Some(ANSWER_WAIT));
        patient.map_err(at(&path))?;
        let mut operator = Operator { stream };
        operator.command("enable")?;
        Ok(operator)
    }

    /// The process numbers of the daemons, zebra's first.
    pub fn process_ids(&self) -> Vec<i32> {
        self.processes.iter().map(|(_, it)| it.id()).collect()
    }

    /// Sends a signal to daemons by name; others are not affected.
    ///
    /// # Errors
    /// One of them has ended.
    pub fn signal(&self, daemons: &[&str], number: i32) -> io::Result<()> {
        let named = self.processes.iter();
        for (_, process) in named.filter(|(name, _)| daemons.contains(name)) {
            process.signal(number)?;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        for (_, process) in self.processes.iter().rev() {
            // A process that does not end is killed with the laboratory.
            let _ = process.end(END_GRACE);
        }
    }
}

impl Operator {
    /// Sends one command and returns its output. Commands that enter a section of the configuration affect
    /// the following ones.
    ///
    /// # Errors
    /// The command is refused, or bgpd has ended.
    pub fn command(&mut self, command: &str) -> Result<String, FrrError> {
        let refused = |said: String| FrrError::Command {
            command: command.to_owned(),
            said,
        };
        let said = self.exchange(command);
        let (said, status) = said.map_err(|error| refused(error.to_string()))?;
        let said = String::from_utf8_lossy(&said).into_owned();
        match status {
            0 => Ok(said),
            _ => Err(refused(said.trim_end().to_owned())),
        }
    }

    /// As vtysh does: the command and a zero; then the text, three zeros and the status.
    fn exchange(&mut self, command: &str) -> io::Result<(Vec<u8>, u8)> {
        self.stream.write_all(command.as_bytes())?;
        self.stream.write_all(&[0])?;
        let mut said = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = self.stream.read(&mut buffer)?;
            said.extend(&buffer[..count]);
            if let Some((text, &[0, 0, 0, status])) = said.split_last_chunk::<4>() {
                let length = text.len();
                said.truncate(length);
                return Ok((said, status));
            }
            if count == 0 || said.len() > ANSWER_BYTES_MAX {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FrrError {
    let path = path.to_owned();
    move |source| FrrError::File { path, source }
}

/// Directory of the daemons in Debian's package.
const DAEMONS: &str = "/usr/lib/frr";
/// Directory of named network namespaces (ip-netns(8)).
const NAMESPACES: &str = "/run/netns";
/// Time for a daemon to start; ours, for a busy machine.
const START_WAIT: Duration = Duration::from_secs(20);
const START_STEP: Duration = Duration::from_millis(5);
/// Time for an answer. Ours.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Maximum length of an answer. Ours.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Time for a daemon to end. Ours.
const END_GRACE: Duration = Duration::from_secs(2);
