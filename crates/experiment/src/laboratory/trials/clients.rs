//! Idle, active and stalled clients through one pair of gateways.
//!
//! Idle clients use their connection once before the others begin and once after they have ended. A stalled
//! client keeps sending requests and never reads a response; the others begin when it can write no more. A
//! gateway's peak memory is the kernel's `VmHWM`.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use keiro_lab::{
    Host, Lab, Process,
    traffic::{
        TrafficError,
        transactions::{Carried, Clients as Connections, Stalled, Transactions},
    },
};
use keiro_linux::limit;

use super::{
    super::{
        Laboratory, emulator_report,
        transactions::{Addresses, CLIENTS, carry_plan, counted_ms, open_transport::OpenTransport},
        usage::memory_max,
    },
    set_rate,
};
use crate::{
    record::EmulatorReport,
    runner::Progress,
    stats,
    trials::{Clients, TrialOutcome, TrialRequest},
};

/// The first case with idle clients.
const IDLE: usize = 1;
/// The first case with a stalled client.
const STALLED: usize = 2;

/// File descriptors in addition to those of the clients.
const DESCRIPTORS_MORE: usize = 1000;

/// Time for the server to end.
const END_GRACE: Duration = Duration::from_secs(1);

/// Time until the stalled client can write no more, at most.
const STALL_WAIT: Duration = Duration::from_secs(30);

impl Laboratory {
    pub(super) fn clients(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        clients: &Clients,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let idle = idle_clients(request, clients);
        let active = clients.active.of(request.quick);
        // The limit is inherited by the gateways and the server, which are other processes.
        let descriptors = idle + active + DESCRIPTORS_MORE;
        limit::allow_open_files(descriptors as u64)
            .with_context(|| format!("cannot raise the limit of open files to {descriptors}"))?;
        let addresses = Addresses::of(lab)?;
        set_rate(lab, clients.rate.0)?;
        let server = self.echo(lab, &addresses, clients)?;
        let mut pair = self.pair(lab, &addresses, clients.rate.0)?;
        let measured = measure(lab, request, clients, pair.entry(), progress);
        let Measured {
            carried,
            broken,
            mut remarks,
            emulator,
        } = measured.with_context(|| pair.log_tail())?;
        let [a, b] = pair.gateways();
        let memory = [memory_max(a.process.id())?, memory_max(b.process.id())?];
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
            void: None,
            emulator,
        })
    }
}

/// What the clients of a run found.
struct Measured {
    carried: Carried,
    /// Connections that ended early or stalled for good.
    broken: usize,
    remarks: Vec<String>,
    emulator: EmulatorReport,
}

fn idle_clients(request: &TrialRequest<'_>, clients: &Clients) -> usize {
    match request.case >= IDLE {
        true => clients.idle.of(request.quick),
        false => 0,
    }
}

/// Half of the connections come from each of the two client hosts.
fn connect(
    hosts: [&Host; 2],
    count: usize,
    entry: SocketAddr,
) -> Result<Connections, TrafficError> {
    let [first, second] = hosts;
    let mut all = Connections::connect(&[first], count - count / 2, entry, None)?;
    all.append(Connections::connect(&[second], count / 2, entry, None)?);
    Ok(all)
}

fn measure(
    lab: &Lab,
    request: &TrialRequest<'_>,
    clients: &Clients,
    entry: SocketAddr,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<Measured> {
    let hosts = [lab.host(CLIENTS[0])?, lab.host(CLIENTS[1])?];
    let mut remarks = Vec::new();
    let idle = connect(hosts, idle_clients(request, clients), entry)?;
    let mut broken = idle.use_once(clients.message.0)?;
    let stalled = (request.case >= STALLED)
        .then(|| Stalled::start(hosts[0], entry, clients.message.0))
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
    let active = connect(hosts, clients.active.of(request.quick), entry)?;
    let begun = Instant::now();
    let carried = match carry_plan(lab, &plan, active, progress) {
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
    // The emulator's report ends here, because the burst that follows is not measured.
    let emulator = emulator_report(lab)?;
    broken += idle.use_once(clients.message.0)?;
    if let Some(stalled) = stalled {
        broken += usize::from(!stalled.stop()?);
    }
    Ok(Measured {
        carried,
        broken,
        remarks,
        emulator,
    })
}

impl Laboratory {
    /// A server process for the clients. With both ends of every connection in one process, it would need
    /// more descriptors than many systems allow.
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
        // It prints its address, or ends.
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.is_empty() {
            true => bail!("the server ended at once"),
            false => Ok(process),
        }
    }
}
