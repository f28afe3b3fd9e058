//! Two relay processes, one in each gateway: the programs of `benches/transaction-peers`.
//!
//! `PROGRAM relay-server --protocol P --listen UDP --connect TCP --certificate FILE` runs on the
//! server's side, `PROGRAM relay-client --protocol P --listen TCP --connect UDP --certificate FILE`
//! on the clients'. Each prints a line when it is ready. The server writes the certificate.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use keiro_lab::{Lab, Process};

use super::{Addresses, GATEWAY_A, GATEWAY_B, open_transport::OpenTransport};
use crate::laboratory::gateways::Placement;

/// A pair of relays, ended and reaped when dropped.
#[derive(Debug)]
pub(super) struct Relays {
    entry: SocketAddr,
    /// The client first, so that it ends first.
    running: Vec<Relay>,
    /// Certificate and logs; removed with this value.
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
struct Relay {
    role: &'static str,
    log: PathBuf,
    process: Process,
}

/// Time for a relay to become ready. Ours: a handshake with losses on the path.
const READY_WAIT: Duration = Duration::from_secs(20);

/// Time for a relay to end.
const END_GRACE: Duration = Duration::from_secs(1);

/// Lines of a relay's log that an error quotes.
const LOG_LINES_SHOWN: usize = 12;

impl Relays {
    /// `placements` are those of Keiro's data threads, so that neither side has an advantage.
    pub(super) fn start(
        protocol: &str,
        lab: &Lab,
        addresses: &Addresses,
        program: Option<&Path>,
        [at_a, at_b]: [Placement; 2],
    ) -> anyhow::Result<Self> {
        let program = program.context("the program of benches/transaction-peers was not given")?;
        let directory = tempfile::Builder::new()
            .prefix("keiro-relays-")
            .tempdir()
            .context("no directory for the relays' certificate and logs can be made")?;
        let mut relays = Self {
            entry: addresses.listener,
            running: Vec::new(),
            _directory: directory,
        };
        let directory = relays._directory.path().to_owned();
        let start =
            |role, (host, placement): (_, Placement), listen: SocketAddr, connect: SocketAddr| {
                let log = directory.join(format!("{role}.log"));
                let mut command = lab.host(host)?.command("taskset");
                command
                    .args(["--cpu-list", &placement.cpu.to_string()])
                    .args(["chrt", "--fifo", &placement.priority.get().to_string()])
                    .arg(program)
                    .args([role, "--protocol", protocol])
                    .args(["--listen", &listen.to_string()])
                    .args(["--connect", &connect.to_string()])
                    .arg("--certificate")
                    .arg(directory.join("certificate.der"))
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(fs::File::create(&log)?);
                let process = lab.host(host)?.spawn(command)?;
                anyhow::Ok(Relay { role, log, process })
            };
        let server = start(
            "relay-server",
            (GATEWAY_B, at_b),
            addresses.overlay_b,
            addresses.server,
        )?;
        relays.running.push(server);
        relays.wait_until_ready(0)?;
        // On all addresses, because clients come over two links.
        let any = SocketAddr::new([0, 0, 0, 0].into(), addresses.listener.port());
        let client = start("relay-client", (GATEWAY_A, at_a), any, addresses.overlay_b)?;
        relays.running.insert(0, client);
        relays.wait_until_ready(0)?;
        Ok(relays)
    }

    fn wait_until_ready(&self, index: usize) -> anyhow::Result<()> {
        let relay = &self.running[index];
        let output = relay.process.take_stdout();
        let output = output.context("a relay's output is piped")?;
        let (send, line) = mpsc::channel();
        // Ends with the relay's output, at the latest when the relay ends.
        thread::Builder::new()
            .name("relay-output".into())
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            })?;
        match line.recv_timeout(READY_WAIT) {
            Ok(_) => Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!(
                    "{} is not ready after {READY_WAIT:?}\n{}",
                    relay.role,
                    self.log_tail()
                )
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("{} ended at once\n{}", relay.role, self.log_tail())
            }
        }
    }
}

impl OpenTransport for Relays {
    fn entry(&self) -> SocketAddr {
        self.entry
    }

    fn log_tail(&self) -> String {
        let mut words = "the relays' last log lines:".to_owned();
        for relay in &self.running {
            let log = fs::read_to_string(&relay.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
                words.push_str(&format!("\n  {}: {line}", relay.role));
            }
        }
        words
    }

    fn close(&mut self) -> anyhow::Result<()> {
        for relay in &self.running {
            if let Some(status) = relay.process.wait(Duration::ZERO)? {
                bail!("{} ended with {status}\n{}", relay.role, self.log_tail());
            }
        }
        Ok(())
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        for relay in &self.running {
            // A process that does not end is killed with the laboratory.
            let _ = relay.process.end(END_GRACE);
        }
    }
}
