//! Runs variants in the laboratory: real processes in network namespaces over emulated links.
//!
//! Every run has its own laboratory, so that no run inherits state from another.

mod egress;
mod gateways;
mod messages;
mod parameters;
mod recorded;
mod transactions;
mod transfers;
mod trials;
mod usage;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use keiro_lab::{
    Interrupts, Lab, Topology,
    lab::Leftovers,
    traffic::{self, AppTraffic, Baseline, Exchange, exchange, run_baseline},
};

use crate::{
    predict,
    record::{EmulatorReport, MessageRecord},
    row::Source,
    runner::{Arrived, MessageRunner, Outcome, Progress, Request},
    setup::{Assignment, GENERATED_TOPOLOGY, Setup, Transport},
};
use gateways::Gateways;

/// Programs that run in a laboratory's hosts.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `keiro`: gateways, the egress daemons, `keiro flowstats`.
    pub keiro: PathBuf,
    /// `keiro-lab`, for `keiro-lab gateway`: gateways with controllers that `keiro` does not know; and for
    /// `keiro-lab echo`: a server process of its own, for clients that would need too many descriptors together
    /// with it.
    pub keiro_lab: PathBuf,
}

/// Runs variants in the laboratory.
#[derive(Clone, Debug)]
pub struct Laboratory {
    programs: Programs,
    /// The program that relays transactions over KCP and QUIC; `None` if not given.
    peers: Option<PathBuf>,
    interrupts: Option<Interrupts>,
    name: String,
}

/// Linux's default, set explicitly so that all machines measure the same.
const CONGESTION_CONTROL: &str = "cubic";

/// Number of runners that this process has created.
static LABORATORIES: AtomicU32 = AtomicU32::new(0);

/// Period of progress reports.
const PROGRESS_STEP: Duration = Duration::from_millis(100);

impl Laboratory {
    /// With `interrupts`, laboratories are also removed on SIGINT and SIGTERM.
    pub fn new(programs: Programs, interrupts: Option<Interrupts>) -> Self {
        // No other process, and no other runner of this process, uses these names.
        let count = LABORATORIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("exp-{}-{count}", std::process::id());
        Self {
            programs,
            peers: None,
            interrupts,
            name,
        }
    }

    /// Sets the program of `benches/transaction-peers`, which carries transactions over KCP and QUIC.
    pub fn with_peers(mut self, program: Option<PathBuf>) -> Self {
        self.peers = program;
        self
    }

    /// Whether laboratories can be made here; requires root.
    pub fn is_possible() -> bool {
        nix::unistd::geteuid().is_root()
    }

    fn lab(&self, topology: &Topology, seed: u64) -> anyhow::Result<Lab> {
        self.lab_with_line_on(None, topology, seed)
    }

    /// Binds the emulator to one CPU, counted from zero, so that processes on other CPUs do not delay it.
    fn lab_with_line_on(
        &self,
        cpu: Option<usize>,
        topology: &Topology,
        seed: u64,
    ) -> anyhow::Result<Lab> {
        let mut builder = Lab::builder(topology)
            .name(&self.name)
            .leftovers(Leftovers::Remove)
            .seed(seed)
            .keep_cpus_awake();
        if let Some(cpu) = cpu {
            builder = builder.emulator_cpu(cpu);
        }
        if let Some(interrupts) = &self.interrupts {
            builder = builder.interrupts(interrupts);
        }
        builder.up().context("the laboratory could not be made")
    }
}

impl MessageRunner for Laboratory {
    fn source(&self) -> Source {
        Source::Lab
    }

    fn can_run(&self, _: &Setup, _: usize) -> bool {
        true
    }

    fn run(
        &mut self,
        request: &Request<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Outcome> {
        let sites = Sites::of(request.setup)?;
        let lab = self.lab(&sites.topology, request.schedule.seed)?;
        let plan = traffic_plan(request);
        let watch = Watch::new(request);
        let carried = thread::scope(|scope| {
            let carrier = scope.spawn(|| self.carry(&lab, &sites, request, &plan, &watch));
            while !carrier.is_finished() {
                thread::sleep(PROGRESS_STEP);
                if let Some(now) = watch.progress() {
                    progress(&now);
                }
            }
            match carrier.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        let exchange = carried?;
        let emulator = emulator_report(&lab)?;
        lab.down().context("the laboratory could not be removed")?;
        ensure!(
            exchange.strangers == 0 && exchange.duplicates == 0,
            "{} messages arrived damaged or from elsewhere, and {} twice",
            exchange.strangers,
            exchange.duplicates
        );
        Ok(Outcome {
            records: records(&exchange, request)?,
            emulator: Some(emulator),
        })
    }
}

impl Laboratory {
    fn carry(
        &self,
        lab: &Lab,
        sites: &Sites,
        request: &Request<'_>,
        plan: &traffic::Plan,
        watch: &Watch<'_>,
    ) -> anyhow::Result<Exchange> {
        let on_received = |record: &traffic::MessageRecord| watch.add(record);
        let stop = AtomicBool::new(false);
        let variant = &request.setup.variants[request.variant];
        let transport = match variant.transport {
            Transport::Gateway => {
                let mut gateways = Gateways::start(lab, sites, request, &self.programs.keiro)?;
                let carried = (|| {
                    let (senders, receivers) = gateways.connect(request.setup)?;
                    lab.measure_from_now()?;
                    watch.begin();
                    let carried = exchange(plan, senders, receivers, &on_received, &stop)?;
                    gateways.check_assignment(request)?;
                    anyhow::Ok(carried)
                })();
                return carried.with_context(|| gateways.log_tail());
            }
            Transport::Tcp => match &variant.assignment {
                Some(Assignment::OnePath(link)) => traffic::Transport::Tcp { link: link.clone() },
                _ => bail!(
                    "variant {}: plain TCP needs one path for everything",
                    variant.name
                ),
            },
            Transport::Mptcp => {
                let mut paths: Vec<_> = request.setup.paths.iter().collect();
                paths.sort_by_key(|path| path.delay);
                let mut names = paths.into_iter().map(|path| path.name.clone());
                // Connections begin on the path with the lowest delay, as a user's would.
                let first = names.next().context("the setup has no path")?;
                traffic::Transport::Mptcp {
                    first,
                    also: names.collect(),
                }
            }
        };
        watch.begin();
        let baseline = Baseline {
            from: sites.from.clone(),
            to: sites.to.clone(),
            transport,
            congestion: Some(CONGESTION_CONTROL.to_owned()),
        };
        Ok(run_baseline(lab, &baseline, plan, &on_received, &stop)?)
    }
}

fn emulator_report(lab: &Lab) -> anyhow::Result<EmulatorReport> {
    let report = lab
        .emulator_report()?
        .context("the topology has no emulated link")?;
    Ok(EmulatorReport {
        packets: report.lateness.count,
        lateness_p50_us: micros(report.lateness.p50),
        lateness_p99_us: micros(report.lateness.p99),
        lateness_max_us: micros(report.lateness.max),
        cpus_awake: report.cpus_awake,
    })
}

fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

/// The topology of a setup, and the hosts between which messages travel.
#[derive(Debug)]
struct Sites {
    topology: Topology,
    from: String,
    to: String,
}

impl Sites {
    /// Reads the setup's topology and checks it against the setup's paths.
    fn of(setup: &Setup) -> anyhow::Result<Self> {
        let file = format!("experiments/{}.toml", setup.topology);
        let topology = match setup.topology == GENERATED_TOPOLOGY {
            true => Topology::parse(&generated_topology(setup), &file)?,
            false => built_in_topology(&setup.topology)?,
        };
        let mut ends = None;
        for path in &setup.paths {
            let link = topology
                .links
                .get(&path.name)
                .with_context(|| format!("{file} has no link `{}`", path.name))?;
            let emulation = link
                .emulation
                .as_ref()
                .with_context(|| format!("{file}: link `{}` is not emulated", path.name))?;
            let config = emulation.a_to_b;
            ensure!(
                config.rate == Some(path.bandwidth.0) && config.delay == path.delay.0,
                "{file}: link `{}` is not as setup {} says: {}, {}",
                path.name,
                setup.id,
                path.bandwidth,
                path.delay
            );
            let these = (link.a.host.clone(), link.b.host.clone());
            ensure!(
                ends.get_or_insert_with(|| these.clone()) == &these,
                "{file}: the paths do not all lead from {} to {}",
                these.0,
                these.1
            );
        }
        let (from, to) = ends.context("the setup has no path")?;
        Ok(Self { topology, from, to })
    }
}

/// The first address of a host's end of a link, with this port.
fn address(lab: &Lab, link: &str, host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    let link_of_lab = lab.link(link)?;
    let end = link_of_lab.plan().end(host);
    let first = end.and_then(|end| end.addresses.first());
    let first = first.with_context(|| format!("{host} has no address on link {link}"))?;
    Ok(SocketAddr::new(first.address(), port))
}

/// The topology with this name below `experiments/`.
fn built_in_topology(id: &str) -> anyhow::Result<Topology> {
    let file = format!("experiments/{id}.toml");
    let found = TOPOLOGIES.iter().find(|(known, _)| *known == id);
    let (_, text) = found.with_context(|| format!("there is no topology {file}"))?;
    Ok(Topology::parse(text, &file)?)
}

/// A topology of two hosts with the setup's paths between them. A sender that keeps to a path's rate never
/// fills its buffer.
fn generated_topology(setup: &Setup) -> String {
    let mut text = "name = \"generated\"\n\n[host.tokyo]\n\n[host.osaka]\n".to_owned();
    for (number, path) in (1..).zip(&setup.paths) {
        text.push_str(&format!(
            "\n[link.{}]\n\
             a = {{ host = \"tokyo\", addresses = [\"198.51.100.{}/30\"] }}\n\
             b = {{ host = \"osaka\", addresses = [\"198.51.100.{}/30\"] }}\n\
             each_way = {{ rate = \"{}\", delay = \"{}\", buffer = \"1MB\" }}\n",
            path.name,
            number * 4 + 1,
            number * 4 + 2,
            path.bandwidth,
            path.delay,
        ));
    }
    text
}

pub(crate) const TOPOLOGIES: &[(&str, &str)] = &[
    (
        "aggregation/topology",
        include_str!("../../../experiments/aggregation/topology.toml"),
    ),
    (
        "aggregation/two-gateways",
        include_str!("../../../experiments/aggregation/two-gateways.toml"),
    ),
    (
        "aggregation/two-sites",
        include_str!("../../../experiments/aggregation/two-sites.toml"),
    ),
    (
        "egress/topology",
        include_str!("../../../experiments/egress/topology.toml"),
    ),
    (
        "fairness/pair",
        include_str!("../../../experiments/fairness/pair.toml"),
    ),
    (
        "fairness/sites",
        include_str!("../../../experiments/fairness/sites.toml"),
    ),
    (
        "path-selection/topology",
        include_str!("../../../experiments/path-selection/topology.toml"),
    ),
];

/// An application's number in the laboratory's traffic is its index in the setup.
fn traffic_plan(request: &Request<'_>) -> traffic::Plan {
    let apps = (0..)
        .zip(&request.setup.applications)
        .map(|(number, a)| AppTraffic {
            number,
            name: a.name.clone(),
            length: a.length.0,
            mean_interval: a.interval.0,
        });
    traffic::Plan {
        apps: apps.collect(),
        seed: request.schedule.seed,
        duration: request.extent.duration.0,
        drain: request.extent.drain.0,
    }
}

/// The exchange's records, with instants relative to the beginning of the schedule.
fn records(exchange: &Exchange, request: &Request<'_>) -> anyhow::Result<Vec<MessageRecord>> {
    let offset = |record: &traffic::MessageRecord| {
        let application = usize::try_from(record.app).ok()?;
        let sequence = usize::try_from(record.seq).ok()?;
        let made = request.schedule.made.get(application)?.get(sequence)?;
        Some((application, made.as_nanos()))
    };
    let mut records = Vec::with_capacity(exchange.records.len());
    for record in &exchange.records {
        let (application, made_ns) =
            offset(record).context("a message is in the log that the schedule does not have")?;
        let delay = |received: u64| received.saturating_sub(record.made_ns);
        records.push(MessageRecord {
            application,
            sequence: record.seq,
            made_ns,
            received_ns: record.received_ns.map(|received| made_ns + delay(received)),
            length: record.length,
        });
    }
    Ok(records)
}

/// What has arrived so far, for progress reports.
#[derive(Debug)]
struct Watch<'a> {
    request: Request<'a>,
    latency_targets_ms: Vec<f64>,
    begun: Mutex<Option<Instant>>,
    arrived: Mutex<Vec<Arrived>>,
}

impl<'a> Watch<'a> {
    fn new(request: &Request<'a>) -> Self {
        let applications = &request.setup.applications;
        Self {
            request: *request,
            latency_targets_ms: applications
                .iter()
                .map(|a| a.latency_target.0.as_secs_f64() * 1e3)
                .collect(),
            begun: Mutex::new(None),
            arrived: Mutex::new(vec![Arrived::default(); applications.len()]),
        }
    }

    fn begin(&self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn add(&self, record: &traffic::MessageRecord) {
        let application = record.app as usize;
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(delay), Some(counted)) = (record.delay(), arrived.get_mut(application)) {
            counted.add(
                delay.as_secs_f64() * 1e3,
                self.latency_targets_ms[application],
            );
        }
    }

    /// `None` before the run has begun.
    fn progress(&self) -> Option<Progress> {
        let begun = (*self.begun.lock().unwrap_or_else(PoisonError::into_inner))?;
        let elapsed = begun.elapsed().min(self.request.extent.duration.0);
        let mut applications = self
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for (counted, schedule) in applications.iter_mut().zip(&self.request.schedule.made) {
            let due =
                schedule.partition_point(|made| u128::from(made.as_nanos()) <= elapsed.as_nanos());
            counted.made = counted.received.max(due as u64);
        }
        Some(Progress {
            elapsed,
            applications,
        })
    }
}

/// The path of every application by the setup's own plan; `None` if gateways plan themselves.
fn assignment(request: &Request<'_>) -> anyhow::Result<Vec<usize>> {
    let variant = &request.setup.variants[request.variant];
    predict::assignment(request.setup, variant)
        .with_context(|| format!("variant {} has no assignment", variant.name))
}
