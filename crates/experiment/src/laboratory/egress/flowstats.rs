//! The content server's outgoing traffic by path over time, as `keiro flowstats` reports it.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    process::Stdio,
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use keiro_lab::{Lab, Process};
use serde::Deserialize;

use super::{BY_A, CONTENT_ADDRESS, EPE_ADDRESSES};
use crate::trials::Trace;

/// A running `keiro flowstats`, ended when dropped.
pub(in crate::laboratory) struct FlowStats {
    process: Process,
    reader: Option<JoinHandle<Vec<Line>>>,
}

/// The fields of its lines that are used here.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    unix_ms: u64,
    source: Option<SocketAddr>,
    bytes: u64,
}

impl FlowStats {
    /// Starts counting what leaves the server by these interfaces.
    pub(in crate::laboratory) fn start(
        lab: &Lab,
        interfaces: &[&str],
        keiro: &Path,
    ) -> anyhow::Result<Self> {
        let host = lab.host("server")?;
        let mut command = host.command(keiro);
        command.arg("flowstats").args(interfaces);
        command.args(["--user", "root", "--json", "--interval", "100ms"]);
        // The totals that it prints at its end are not used here.
        command.stderr(Stdio::null());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let process = host.spawn(command)?;
        let out = process.take_stdout().context("its output is piped")?;
        let (begun, begins) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // After the first line no other is waited for.
                let _ = begun.send(());
                all.extend(serde_json::from_str(&line));
            }
            all
        });
        let started = Self {
            process,
            reader: Some(reader),
        };
        started.wait_until_it_counts(lab, &begins)?;
        Ok(started)
    }

    /// Sends small datagrams until `keiro flowstats` reports them.
    fn wait_until_it_counts(&self, lab: &Lab, begins: &Receiver<()>) -> anyhow::Result<()> {
        let socket = lab.host("server")?.run(|| UdpSocket::bind("[::]:0"))??;
        let end = Instant::now() + BEGIN_WAIT;
        while begins.recv_timeout(BEGIN_STEP).is_err() {
            if let Some(status) = self.process.wait(Duration::ZERO)? {
                bail!("`keiro flowstats` ended with {status}");
            }
            ensure!(Instant::now() < end, "`keiro flowstats` reports nothing");
            // The port is closed, so the ICMP answer makes the next send fail.
            let _ = socket.send_to(&[0], (BY_A, DISCARD));
        }
        Ok(())
    }

    /// Ends it. Returns Mbit/s on the wire since `unix_begun` (time since the Unix epoch): by the best path,
    /// by each transit, and in total.
    pub(in crate::laboratory) fn stop(
        mut self,
        unix_begun: Duration,
    ) -> anyhow::Result<Vec<Trace>> {
        self.process.end(END_GRACE)?;
        let reader = self.reader.take().context("it is stopped once")?;
        let lines = reader
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let traces = traces(&lines, unix_begun.as_millis() as u64);
        let by_path = traces
            .iter()
            .any(|trace| trace.steps.iter().any(|(_, rate)| *rate > 0.0));
        ensure!(
            by_path,
            "`keiro flowstats` has reported nothing about the flow"
        );
        Ok(traces)
    }
}

impl Drop for FlowStats {
    fn drop(&mut self) {
        // A process that does not end is killed with the laboratory.
        let _ = self.process.end(END_GRACE);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// In steps of [`STEP_MS`].
fn traces(lines: &[Line], begun_ms: u64) -> Vec<Trace> {
    let addresses = [CONTENT_ADDRESS, EPE_ADDRESSES[0], EPE_ADDRESSES[1]].map(IpAddr::from);
    let mut bytes: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
    for line in lines {
        let source = line.source.map(|source| source.ip());
        let path = addresses.iter().position(|own| source == Some(*own));
        // A reading is reported at the end of its period.
        let step = line.unix_ms.checked_sub(begun_ms + STEP_MS / 2);
        if let (Some(path), Some(step)) = (path, step) {
            bytes.entry(step / STEP_MS).or_default()[path] += line.bytes;
        }
    }
    let last = bytes.keys().next_back().copied();
    // The paths that each trace sums.
    let all = [
        ("best path", 0..1),
        ("transit A", 1..2),
        ("transit B", 2..3),
        ("together", 0..3),
    ];
    let traces = all.into_iter().map(|(name, paths)| {
        let step = |step: u64| {
            let sent = bytes
                .get(&step)
                .map_or(&[][..], |sent| &sent[paths.clone()]);
            (
                (step * STEP_MS) as f64 / 1e3,
                sent.iter().sum::<u64>() as f64 * 8.0 / (STEP_MS * 1000) as f64,
            )
        };
        Trace {
            name: name.to_owned(),
            steps: last.map_or(Vec::new(), |last| (0..=last).map(step).collect()),
        }
    });
    traces.collect()
}

/// Period of its readings, and the step of a trace.
const STEP_MS: u64 = 100;
/// The port of the discard protocol (RFC 863).
const DISCARD: u16 = 9;
/// Time until it counts, at most. Ours, for a busy machine.
const BEGIN_WAIT: Duration = Duration::from_secs(20);
const BEGIN_STEP: Duration = Duration::from_millis(20);
/// Time for it to end. Ours.
const END_GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_summed_by_path_and_step() {
        let line = |unix_ms, source: IpAddr, bytes| Line {
            unix_ms,
            source: Some(SocketAddr::new(source, 80)),
            bytes,
        };
        let lines = [
            line(900, CONTENT_ADDRESS.into(), 7),
            line(1100, CONTENT_ADDRESS.into(), 125_000),
            line(1100, EPE_ADDRESSES[1].into(), 250_000),
            line(1310, EPE_ADDRESSES[1].into(), 12_500),
            line(1310, BY_A.parse().unwrap(), 1_000_000),
        ];
        let by_path = traces(&lines, 1000);
        let names: Vec<&str> = by_path.iter().map(|trace| trace.name.as_str()).collect();
        assert_eq!(names, ["best path", "transit A", "transit B", "together"]);
        assert_eq!(by_path[0].steps, [(0.0, 10.0), (0.1, 0.0), (0.2, 0.0)]);
        assert_eq!(by_path[1].steps, [(0.0, 0.0), (0.1, 0.0), (0.2, 0.0)]);
        assert_eq!(by_path[3].steps, [(0.0, 30.0), (0.1, 0.0), (0.2, 1.0)]);
    }
}
