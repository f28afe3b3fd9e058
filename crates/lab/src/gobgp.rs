//! gobgpd of Debian's package as a route reflector in a host of a laboratory.

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, TcpStream},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{Host, LabError, Process};

/// A running reflector of IPv6 unicast and VPNv6 routes. Dropping it stops it.
#[derive(Debug)]
pub struct Reflector {
    process: Process,
    _directory: TempDir,
}

/// Errors of a reflector.
#[derive(Debug, thiserror::Error)]
pub enum GobgpError {
    /// gobgpd is not installed.
    #[error("gobgpd is missing: run `make setup`, or install Debian's package `gobgpd`")]
    Missing,
    /// A file of it failed.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// It cannot be started.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// It was started, but accepts no connections.
    #[error("gobgpd of {host} does not start: {log}")]
    Start { host: String, log: String },
}

impl Reflector {
    /// Whether gobgpd is installed.
    pub fn is_possible() -> bool {
        program().is_some()
    }

    /// Starts it in a host, for clients of its own AS, and waits until it accepts connections.
    ///
    /// # Errors
    /// See [`GobgpError`].
    pub fn start(
        host: &Host,
        asn: u32,
        router_id: Ipv4Addr,
        clients: &[Ipv6Addr],
    ) -> Result<Self, GobgpError> {
        let program = program().ok_or(GobgpError::Missing)?;
        let directory = tempfile::Builder::new().prefix("keiro-gobgp-").tempdir();
        let directory = directory.map_err(at(Path::new("a temporary directory")))?;
        let file = directory.path().join("gobgpd.toml");
        fs::write(&file, config(asn, router_id, clients)).map_err(at(&file))?;
        let log = directory.path().join("log");
        let out = fs::File::create(&log).map_err(at(&log))?;
        let mut command = host.command(program);
        command.arg("--config-file").arg(&file);
        command.args(["--log-plain", "--pprof-disable", "--api-hosts"]);
        // Its port is free, because the namespace is its own.
        command.arg("[::1]:50051");
        command.stdin(Stdio::null());
        command.stdout(out.try_clone().map_err(at(&log))?);
        command.stderr(out);
        let process = host.spawn(command)?;
        let end = Instant::now() + START_WAIT;
        while !takes_connections(host) {
            let ended = !matches!(process.wait(Duration::ZERO), Ok(None));
            if ended || Instant::now() >= end {
                return Err(GobgpError::Start {
                    host: host.name().to_owned(),
                    log: fs::read_to_string(&log).unwrap_or_default(),
                });
            }
            thread::sleep(START_STEP);
        }
        Ok(Self {
            process,
            _directory: directory,
        })
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        // A process that does not end is killed with the laboratory.
        let _ = self.process.end(END_GRACE);
    }
}

/// A connection from an unknown address is accepted and closed again.
fn takes_connections(host: &Host) -> bool {
    let connected = host.run(|| TcpStream::connect((Ipv6Addr::LOCALHOST, PORT)).is_ok());
    connected.unwrap_or(false)
}

fn config(asn: u32, router_id: Ipv4Addr, clients: &[Ipv6Addr]) -> String {
    let mut text = format!("[global.config]\nas = {asn}\nrouter-id = \"{router_id}\"\n");
    for client in clients {
        text.push_str(&format!(
            "[[neighbors]]
[neighbors.config]
neighbor-address = \"{client}\"
peer-as = {asn}
[neighbors.timers.config]
connect-retry = 1
[neighbors.route-reflector.config]
route-reflector-client = true
route-reflector-cluster-id = \"{router_id}\"
[[neighbors.afi-safis]]
[neighbors.afi-safis.config]
afi-safi-name = \"ipv6-unicast\"
[[neighbors.afi-safis]]
[neighbors.afi-safis.config]
afi-safi-name = \"l3vpn-ipv6-unicast\"
"
        ));
    }
    text
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).map(|directory| directory.join("gobgpd"));
    all.find(|file| file.is_file())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> GobgpError {
    let path = path.to_owned();
    move |source| GobgpError::File { path, source }
}

/// The BGP port (RFC 4271 §8.2.1).
const PORT: u16 = 179;
/// Time to start; ours, for a busy machine.
const START_WAIT: Duration = Duration::from_secs(20);
const START_STEP: Duration = Duration::from_millis(5);
/// Time to end. Ours.
const END_GRACE: Duration = Duration::from_secs(2);
