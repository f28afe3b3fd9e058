//! Idle, active and stalled clients through one pair of gateways.
//!
//! Idle ones use their connection once before the others begin, and once after they have ended.
//! A stalled one asks all the time and never reads an answer; the others begin when it can write no
//! more. What memory a gateway had at most is the kernel's `VmHWM`.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use keiro_lab::{
    Lab, Process,
    traffic::{
        TrafficError,
        transactions::{Carried, Clients as Connections, Stalled, Transactions},
    },
};
use keiro_linux::limit;

use super::{
    super::{
        Laboratory, emulator_report,
        transactions::{Addresses, CLIENTS, carry_plan, counted_ms, ways::OpenWay},
    },
    set_rate,
};
use crate::{
    runner::Progress,
    stats,
    trials::{Clients, TrialOutcome, TrialRequest},
};

/// The first case with idle clients.
const IDLE: usize = 1;
/// The first case with a stalled client.
const STALLED: usize = 2;

/// Descriptors beside the clients'.
const DESCRIPTORS_MORE: usize = 1000;

/// How long the server may take to end.
const END_GRACE: Duration = Duration::from_secs(1);

/// How long the stalled client may take until it can write no more.
const STALL_WAIT: Duration = Duration::from_secs(30);

impl Laboratory {
    pub(super) fn clients(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        clients: &Clients,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let idle = match request.case >= IDLE {
            true => clients.idle.of(request.quick),
            false => 0,
        };
        let active = clients.active.of(request.quick);
        // The gateways and the server, which are other processes, have the same limit.
        let descriptors = idle + active + DESCRIPTORS_MORE;
        limit::allow_open_files(descriptors as u64)
            .with_context(|| format!("{descriptors} descriptors cannot be had"))?;
        let addresses = Addresses::of(lab)?;
        set_rate(lab, clients.rate.0)?;
        let server = self.echo(lab, &addresses, clients)?;
        let mut pair = self.pair(lab, &addresses, clients.rate.0)?;
        let hosts = [lab.host(CLIENTS[0])?, lab.host(CLIENTS[1])?];
        let mut remarks = Vec::new();
        let carried = (|| {
            let connect = |count: usize| {
                let mut all =
                    Connections::connect(&hosts[..1], count - count / 2, pair.entry(), None)?;
                all.append(Connections::connect(
                    &hosts[1..],
                    count / 2,
                    pair.entry(),
                    None,
                )?);
                Ok::<_, TrafficError>(all)
            };
            let idle = connect(idle)?;
            let mut broken = idle.use_once(clients.message.0)?;
            let stalled = (request.case >= STALLED)
                .then(|| Stalled::start(hosts[0], pair.entry(), clients.message.0))
                .transpose()?;
            if let Some(stalled) = &stalled {
                let bytes = stalled.wait_until_stuck(STALL_WAIT)?;
                remarks.push(format!("the stalled client could write {bytes} bytes"));
            }
            let plan = Transactions {
                per_second: clients.per_second.of(request.quick),
                round_trips: 1,
                message: clients.message.0,
                seed: request.seed,
                duration: request.extent.duration.0,
                drain: request.extent.drain.0,
                cpu: None,
            };
            let begun = Instant::now();
            let carried = match carry_plan(lab, &plan, connect(active)?, progress) {
                Ok(carried) => carried,
                Err(error) => match error.downcast::<TrafficError>() {
                    Ok(error @ TrafficError::Client { .. }) => {
                        broken += 1;
                        remarks.push(format!("{error}, after {:?}", begun.elapsed()));
                        Carried::default()
                    }
                    Ok(error) => return Err(error.into()),
                    Err(error) => return Err(error),
                },
            };
            // The emulator's part ends here: what follows is a burst that is not measured.
            let emulator = emulator_report(lab)?;
            broken += idle.use_once(clients.message.0)?;
            if let Some(stalled) = stalled {
                broken += usize::from(!stalled.stop()?);
            }
            anyhow::Ok((carried, broken, emulator))
        })();
        let (carried, broken, emulator) = carried.with_context(|| pair.last_words())?;
        let [a, b] = pair.gateways();
        let memory = [memory_max(&a.process)?, memory_max(&b.process)?];
        pair.close()?;
        if let Some(status) = server.wait(Duration::ZERO)? {
            bail!("the server ended with {status}");
        }
        server.end(END_GRACE)?;
        remarks.push(format!(
            "{} requests found no client free; the others were sent at most {} µs late at the 99th \
             percentile",
            carried.waited,
            carried.lateness_p99.as_micros()
        ));
        let all = counted_ms(&carried, request.extent.warm_up.0);
        let sorted = stats::sorted(all.iter().copied().filter(|ms| ms.is_finite()));
        Ok(TrialOutcome {
            values: vec![
                stats::mean(&sorted),
                stats::percentile(&sorted, 0.99),
                sorted.last().copied(),
                Some(broken as f64),
                Some((all.len() - sorted.len()) as f64),
                Some(memory[0]),
                Some(memory[1]),
            ],
            durations_ms: all,
            traces: Vec::new(),
            samples: Vec::new(),
            remarks,
            emulator,
        })
    }
}

impl Laboratory {
    /// A server that answers the clients, as a process of its own: with both ends of every
    /// connection one would need more descriptors than many systems let it have.
    fn echo(&self, lab: &Lab, addresses: &Addresses, clients: &Clients) -> anyhow::Result<Process> {
        let host = lab.host("server")?;
        let mut command = host.command(&self.programs.keiro_lab);
        command
            .args(["echo", "--listen", &addresses.server.to_string()])
            .args(["--message", &clients.message.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let process = host.spawn(command)?;
        let output = process
            .take_stdout()
            .context("the server's output is piped")?;
        // It says where it listens, or ends.
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.is_empty() {
            true => bail!("the server ended at once"),
            false => Ok(process),
        }
    }
}

/// The most that a process has had in memory, in MB.
pub(super) fn memory_max(process: &Process) -> anyhow::Result<f64> {
    let file = format!("/proc/{}/status", process.id());
    let status = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    match kibibytes {
        Some(kibibytes) => Ok(kibibytes * 1024.0 / 1e6),
        None => bail!("{file} has no VmHWM"),
    }
}
