//! Runs transactions in the laboratory: clients, server and load around one of the [`transports`].

pub(super) mod keiro;
pub(super) mod open_transport;
mod relays;
pub(super) mod transports;

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_lab::{
    Host, Lab, emulator,
    host_noise::PauseMonitor,
    traffic::{
        TrafficError,
        load::{Load, ReceiveCounters, ReceiveQueue, RunningLoad, Sink},
        transactions::{Carried, Clients, Server, Transactions, carry},
    },
};

use super::{
    Laboratory, PROGRESS_STEP, address, built_in_topology, emulator_report,
    gateways::{self, Placement},
    micros,
};
use crate::{
    runner::Progress,
    transactions::{
        Counter, SlowTransaction, TransactionOutcome, TransactionRequest, TransactionRunner,
        TransactionTransport,
    },
};

/// The two hosts of clients.
pub(super) const CLIENTS: [&str; 2] = ["client1", "client2"];

/// The gateway on the clients' side.
pub(super) const GATEWAY_A: &str = "gateway-a";

/// The gateway on the server's side, whose receive path is loaded.
pub(super) const GATEWAY_B: &str = "gateway-b";

/// Sends load to [`GATEWAY_B`]'s [`UPLINK`].
const ROUTER: &str = "router";

/// The link over which [`GATEWAY_B`] receives.
const UPLINK: &str = "uplink";

/// The line between the sites.
pub(super) const WAN: &str = "wan";

/// Source of the load.
const LOAD: &str = "load";

/// The port of the server; its address is the topology's.
const SERVER_PORT: u16 = 7000;

/// The TCP port of gateways and relays for the clients' connections.
const LISTENER_PORT: u16 = 7001;

/// The UDP port between gateways and between relays.
const OVERLAY_PORT: u16 = 7600;

/// The UDP port of the load.
const LOAD_PORT: u16 = 7900;

/// CPU to which the line's emulator is bound.
const LINE_CPU: usize = 0;

/// Number of a run's slowest transactions that are reported. Ours.
const SLOWEST: usize = 20;

/// Addresses of the topology that are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) server: SocketAddr,
    /// Gateway A's address towards its clients, who reach it over either link.
    pub(super) listener: SocketAddr,
    pub(super) overlay_a: SocketAddr,
    pub(super) overlay_b: SocketAddr,
    load: SocketAddr,
}

impl Addresses {
    pub(super) fn of(lab: &Lab) -> anyhow::Result<Self> {
        Ok(Self {
            server: address(lab, "lan3", "server", SERVER_PORT)?,
            listener: address(lab, "lan1", GATEWAY_A, LISTENER_PORT)?,
            overlay_a: address(lab, WAN, GATEWAY_A, OVERLAY_PORT)?,
            overlay_b: address(lab, UPLINK, GATEWAY_B, OVERLAY_PORT)?,
            load: address(lab, UPLINK, GATEWAY_B, LOAD_PORT)?,
        })
    }
}

impl TransactionRunner for Laboratory {
    fn missing(&self, transport: TransactionTransport) -> Option<String> {
        transports::missing(transport, self.peers.as_deref())
    }

    fn run(
        &mut self,
        request: &TransactionRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TransactionOutcome> {
        let topology = built_in_topology(&request.transactions.topology)?;
        let lab = self.lab_with_line_on(Some(LINE_CPU), &topology, request.seed)?;
        if request.case.transport.is_lossless() {
            lab.link(WAN)?
                .change(|config| config.loss = Default::default())?;
        }
        let outcome = self.transact(&lab, request, progress)?;
        lab.down().context("the laboratory could not be removed")?;
        Ok(outcome)
    }
}

impl Laboratory {
    fn transact(
        &self,
        lab: &Lab,
        request: &TransactionRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TransactionOutcome> {
        let addresses = Addresses::of(lab)?;
        let traffic = &request.transactions.traffic;
        let congestion = transports::congestion(request.case.transport);
        let (router, gateway) = (lab.host(ROUTER)?, lab.host(GATEWAY_B)?);
        let placements = placements();
        // Measured in every run, so that runs with and without load differ by the load alone.
        let queue = ReceiveQueue::make(gateway, router, UPLINK, placements[1].cpu)?;
        let server = Server::start(
            lab.host("server")?,
            addresses.server,
            traffic.message.0,
            Some(congestion),
            Some(queue.cpu),
        )?;
        let mut transport =
            transports::open(request.case.transport, lab, &addresses, self, placements)?;
        let carried = (|| {
            let hosts = [lab.host(CLIENTS[0])?, lab.host(CLIENTS[1])?];
            let clients = Clients::connect(
                &hosts,
                traffic.clients_per_host,
                transport.entry(),
                Some(congestion),
            )?;
            let load = request.case.load.then_some(Load {
                target: addresses.load,
                burst: request.transactions.load.burst,
                every: request.transactions.load.every.0,
                datagram_bytes: usize::try_from(request.transactions.load.datagram.0.get())?,
                cpu: queue.cpu,
            });
            let _sink = Sink::start(gateway, addresses.load)?;
            let before = counters(&[router, gateway])?;
            let running = load
                .map(|load| RunningLoad::start(lab.host(LOAD)?, load))
                .transpose()?;
            let pauses = PauseMonitor::watch();
            let carried = carry_plan(lab, &plan(request, queue.cpu), clients, progress)?;
            let longest_pause = pauses.longest();
            running.map(RunningLoad::stop).transpose()?;
            let counters = compare(before, counters(&[router, gateway])?);
            anyhow::Ok((carried, counters, longest_pause))
        })();
        let (carried, counters, longest_pause) = carried.with_context(|| transport.log_tail())?;
        transport.close()?;
        server.stop()?;
        Ok(TransactionOutcome {
            slowest: slowest(&carried, request.extent.warm_up.0),
            durations_ms: counted_ms(&carried, request.extent.warm_up.0),
            waited: carried.waited,
            late_p99_us: micros(carried.lateness_p99),
            late_max_us: micros(carried.lateness_max),
            overflows: overflows(&counters),
            counters,
            emulator: emulator_report(lab)?,
            pause_ms: micros(longest_pause) / 1e3,
        })
    }
}

/// CPU and priority of what runs in gateways A and B: each on a CPU of its own, as on separate sites. With
/// only two CPUs, A shares one with the line, which they load alike.
fn placements() -> [Placement; 2] {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let (at_a, at_b) = (cpus.saturating_sub(2), cpus - 1);
    let priority = |cpu| match cpu {
        LINE_CPU => emulator::PRIORITY,
        _ => gateways::PRIORITY,
    };
    [at_a, at_b].map(|cpu| Placement {
        cpu,
        priority: priority(cpu),
    })
}

/// The transactions of a run; `cpu` is that of the clients' threads.
fn plan(request: &TransactionRequest<'_>, cpu: usize) -> Transactions {
    Transactions {
        per_second: request.transactions.traffic.per_second,
        round_trips: request.case.round_trips,
        message: request.transactions.traffic.message.0,
        seed: request.seed,
        duration: request.extent.duration.0,
        drain: request.extent.drain.0,
        cpu: Some(cpu),
    }
}

/// As [`carry`], with progress. The emulator is measured from the first transaction on.
pub(super) fn carry_plan(
    lab: &Lab,
    plan: &Transactions,
    clients: Clients,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<Carried> {
    let stop = AtomicBool::new(false);
    let ended = AtomicU64::new(0);
    let started = Instant::now();
    let carried = thread::scope(|scope| {
        let carrier = scope.spawn(|| {
            let mut begin = || {
                // If it fails, the report at the end fails for the same reason.
                let _ = lab.measure_from_now();
            };
            let on_ended = |_: &_| {
                ended.fetch_add(1, Ordering::Relaxed);
            };
            carry(plan, clients, &mut begin, &on_ended, &stop)
        });
        while !carrier.is_finished() {
            thread::sleep(PROGRESS_STEP);
            progress(&Progress {
                elapsed: started.elapsed().min(plan.duration),
                applications: Vec::new(),
            });
        }
        match carrier.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    Ok(carried?)
}

/// Durations of the counted transactions; infinite for one that never ended.
pub(super) fn counted_ms(carried: &Carried, warm_up: Duration) -> Vec<f64> {
    counted(carried, warm_up)
        .map(|counted| counted.took_ms)
        .collect()
}

fn slowest(carried: &Carried, warm_up: Duration) -> Vec<SlowTransaction> {
    let mut all: Vec<SlowTransaction> = counted(carried, warm_up).collect();
    all.sort_by(|a, b| b.took_ms.total_cmp(&a.took_ms));
    all.truncate(SLOWEST);
    all
}

fn counted(carried: &Carried, warm_up: Duration) -> impl Iterator<Item = SlowTransaction> {
    let counted = carried
        .records
        .iter()
        .filter(move |record| u128::from(record.scheduled_ns) >= warm_up.as_nanos());
    counted.map(|record| SlowTransaction {
        at_s: record.scheduled_ns as f64 / 1e9,
        took_ms: match record.duration() {
            Some(duration) => duration.as_nanos() as f64 / 1e6,
            None => f64::INFINITY,
        },
    })
}

pub(super) type Read = (String, Vec<(String, u64)>);

pub(super) fn counters(hosts: &[&Host]) -> Result<Vec<Read>, TrafficError> {
    let read = |host: &&Host| {
        let counters = ReceiveCounters::read(host)?;
        Ok((host.name().to_owned(), counters.named()))
    };
    hosts.iter().map(read).collect()
}

pub(super) fn compare(before: Vec<Read>, after: Vec<Read>) -> Vec<Counter> {
    let mut counters = Vec::new();
    for ((host, before), (_, after)) in before.into_iter().zip(after) {
        for ((name, before), (_, after)) in before.into_iter().zip(after) {
            counters.push(Counter {
                host: host.clone(),
                name,
                before,
                after,
            });
        }
    }
    counters
}

/// Packets dropped by the receive ring at the gateway's end of the uplink. A veth device counts them at the
/// sending end.
fn overflows(counters: &[Counter]) -> u64 {
    let name = format!("{UPLINK}_send_drops");
    let of_ring = counters
        .iter()
        .filter(|counter| counter.host == ROUTER && counter.name == name);
    of_ring
        .map(|counter| counter.after.saturating_sub(counter.before))
        .sum()
}
