//! Runs transactions in the laboratory: clients, server and load around one of the [`ways`].

pub(super) mod keiro;
mod relays;
pub(super) mod ways;

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
    Laboratory, PROGRESS_STEP, built_in_topology, emulator_report,
    gateways::{self, Place},
    micros,
};
use crate::{
    runner::Progress,
    transactions::{Counter, Slow, TransactionOutcome, TransactionRequest, TransactionRunner, Way},
};

/// The two hosts of clients.
pub(super) const CLIENTS: [&str; 2] = ["client1", "client2"];

/// The gateway on the clients' side.
pub(super) const GATEWAY_A: &str = "gateway-a";

/// The gateway on the server's side, whose receive path is loaded.
pub(super) const GATEWAY_B: &str = "gateway-b";

/// What sends to [`GATEWAY_B`]'s [`UPLINK`].
const ROUTER: &str = "router";

/// The link over which [`GATEWAY_B`] receives.
const UPLINK: &str = "uplink";

/// The line between the sites.
pub(super) const WAN: &str = "wan";

/// Where the load comes from.
const LOAD: &str = "load";

/// The port of the server; its address is the topology's.
const SERVER_PORT: u16 = 7000;

/// The port at which gateways and relays take the clients' connections.
const LISTENER_PORT: u16 = 7001;

/// The port between gateways and between relays.
const OVERLAY_PORT: u16 = 7600;

/// Where the load's datagrams go.
const LOAD_PORT: u16 = 7900;

/// The processor to which the line's emulator keeps.
const LINE_CPU: usize = 0;

/// So many of a run's slowest transactions are reported. Ours.
const SLOWEST: usize = 20;

/// The addresses that matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) server: SocketAddr,
    /// Of gateway A towards its clients; they reach it over whichever link is theirs.
    pub(super) listener: SocketAddr,
    pub(super) overlay_a: SocketAddr,
    pub(super) overlay_b: SocketAddr,
    load: SocketAddr,
}

impl Addresses {
    pub(super) fn of(lab: &Lab) -> anyhow::Result<Self> {
        let address = |link: &str, host: &str, port| {
            let link_of_lab = lab.link(link)?;
            let first = link_of_lab
                .plan()
                .end(host)
                .and_then(|end| end.addresses.first());
            let first = first.with_context(|| format!("{host} has no address on link {link}"))?;
            anyhow::Ok(SocketAddr::new(first.address(), port))
        };
        Ok(Self {
            server: address("lan3", "server", SERVER_PORT)?,
            listener: address("lan1", GATEWAY_A, LISTENER_PORT)?,
            overlay_a: address(WAN, GATEWAY_A, OVERLAY_PORT)?,
            overlay_b: address(UPLINK, GATEWAY_B, OVERLAY_PORT)?,
            load: address(UPLINK, GATEWAY_B, LOAD_PORT)?,
        })
    }
}

impl TransactionRunner for Laboratory {
    fn missing(&self, way: Way) -> Option<String> {
        ways::missing(way, self.peers.as_deref())
    }

    fn run(
        &mut self,
        request: &TransactionRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TransactionOutcome> {
        let topology = built_in_topology(&request.transactions.topology)?;
        let lab = self.lab_with_line_on(Some(LINE_CPU), &topology, request.seed)?;
        if request.case.way.is_lossless() {
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
        let congestion = ways::congestion(request.case.way);
        let (router, gateway) = (lab.host(ROUTER)?, lab.host(GATEWAY_B)?);
        let places = places();
        // In every run, so that those with load differ by the load alone.
        let queue = ReceiveQueue::make(gateway, router, UPLINK, places[1].cpu)?;
        let server = Server::start(
            lab.host("server")?,
            addresses.server,
            traffic.message.0,
            Some(congestion),
            Some(queue.cpu),
        )?;
        let mut way = ways::open(request.case.way, lab, &addresses, self, places)?;
        let carried = (|| {
            let hosts = [lab.host(CLIENTS[0])?, lab.host(CLIENTS[1])?];
            let clients = Clients::connect(
                &hosts,
                traffic.clients_per_host,
                way.entry(),
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
            let standstill = PauseMonitor::watch();
            let carried = carry_with_progress(lab, request, (clients, queue.cpu), progress)?;
            let stood_still = standstill.longest();
            running.map(RunningLoad::stop).transpose()?;
            let counters = compare(before, counters(&[router, gateway])?);
            anyhow::Ok((carried, counters, stood_still))
        })();
        let (carried, counters, stood_still) = carried.with_context(|| way.last_words())?;
        way.close()?;
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
            stood_still_ms: micros(stood_still) / 1e3,
        })
    }
}

/// Where what is in gateway A and B runs: each on a processor of its own, as sites have. Where there are only
/// two, that of A is the line's, of which it has as much as the line.
fn places() -> [Place; 2] {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let (at_a, at_b) = (cpus.saturating_sub(2), cpus - 1);
    let priority = |cpu| match cpu {
        LINE_CPU => emulator::PRIORITY,
        _ => gateways::PRIORITY,
    };
    [at_a, at_b].map(|cpu| Place {
        cpu,
        priority: priority(cpu),
    })
}

/// Carries the transactions and reports progress.
fn carry_with_progress(
    lab: &Lab,
    request: &TransactionRequest<'_>,
    (clients, cpu): (Clients, usize),
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<Carried> {
    let plan = Transactions {
        per_second: request.transactions.traffic.per_second,
        round_trips: request.case.round_trips,
        message: request.transactions.traffic.message.0,
        seed: request.seed,
        duration: request.extent.duration.0,
        drain: request.extent.drain.0,
        cpu: Some(cpu),
    };
    carry_plan(lab, &plan, clients, progress)
}

/// As [`carry`], and reports progress; the emulator is measured from the first one on.
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
                // Where it fails, so does the report at the end, for the same reason.
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

/// How long the counted transactions took; infinite where one never ended.
pub(super) fn counted_ms(carried: &Carried, warm_up: Duration) -> Vec<f64> {
    counted(carried, warm_up)
        .map(|counted| counted.took_ms)
        .collect()
}

fn slowest(carried: &Carried, warm_up: Duration) -> Vec<Slow> {
    let mut all: Vec<Slow> = counted(carried, warm_up).collect();
    all.sort_by(|a, b| b.took_ms.total_cmp(&a.took_ms));
    all.truncate(SLOWEST);
    all
}

fn counted(carried: &Carried, warm_up: Duration) -> impl Iterator<Item = Slow> {
    let counted = carried
        .records
        .iter()
        .filter(move |record| u128::from(record.scheduled_ns) >= warm_up.as_nanos());
    counted.map(|record| Slow {
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

/// What the ring at the gateway's end of the uplink had no room for, which a veth device counts at
/// the sending end.
fn overflows(counters: &[Counter]) -> u64 {
    let name = format!("{UPLINK}_send_drops");
    let of_ring = counters
        .iter()
        .filter(|counter| counter.host == ROUTER && counter.name == name);
    of_ring
        .map(|counter| counter.after.saturating_sub(counter.before))
        .sum()
}
