//! Studies of S, I and N in the laboratory: datagrams of one or two gateways to another, under impairments.

use std::{
    fmt::Write as _,
    net::{SocketAddr, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_control::{PublicKey, protocol::PathSnapshot, units::Text};
use keiro_lab::{
    Host, Lab,
    emulator::Direction,
    traffic::load::{Load, ReceiveQueue, RunningLoad, Sink, SlowReceiver, Slowness},
};
use keiro_link::{Buffer, LinkConfig, Loss};
use keiro_model::{aggregation::ControllerKind, arrivals};
use keiro_units::{Bandwidth, ByteCount};

use super::{
    Laboratory, address, built_in_topology, emulator_report,
    gateways::{Gateway, Program, gateway_table, log_tail, start_all, stop_all, wait_for_path},
    transactions::{compare, counters},
    usage::cpu_seconds,
};
use crate::{
    parameters::{
        self, Case, Controller, Datagram, Flow, Impairment, Sample, Study, StudyOutcome,
        StudyRequest, StudyRunner,
    },
    row::Source,
    runner::Progress,
};

/// A site that sends.
#[derive(Clone, Copy)]
struct Site {
    /// Name of its gateway, and of its application.
    name: &'static str,
    source: &'static str,
    gateway: &'static str,
    /// The link of the source.
    lan: &'static str,
    /// The line to the router.
    wan: &'static str,
    /// The port of the sink for its datagrams.
    sink_port: u16,
}

/// The sites that send, in topologies with as many.
const SITES: [Site; parameters::SENDERS_MAX] = [
    Site {
        name: "a",
        source: "source",
        gateway: "gateway-a",
        lan: "lan1",
        wan: "wan",
        sink_port: 7000,
    },
    Site {
        name: "a2",
        source: "source2",
        gateway: "gateway-a2",
        lan: "lan3",
        wan: "wan2",
        sink_port: 7002,
    },
];

const ROUTER: &str = "router";
const GATEWAY_B: &str = "gateway-b";
const SINK: &str = "sink";
const LOAD: &str = "load";
const UPLINK: &str = "uplink";

const OVERLAY_PORT: u16 = 7600;
const LISTENER_PORT: u16 = 7001;
const LOAD_PORT: u16 = 7900;

/// Period of sampling counters.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Timeout of the receiver's reads, after which it checks whether to end.
const LOOK: Duration = Duration::from_millis(50);

/// Payload of cross traffic on the line, and packets per burst. Ours: full packets, and bursts that the
/// smallest buffer holds.
const CROSS_BYTES: usize = 1172;
const CROSS_BURST: u32 = 2;

/// The IP and UDP headers of such a packet.
const CROSS_HEADERS: u64 = 28;

impl StudyRunner for Laboratory {
    fn source(&self) -> Source {
        Source::Lab
    }

    fn run(
        &mut self,
        request: &StudyRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<StudyOutcome> {
        let topology = built_in_topology(&request.study.topology)?;
        let lab = self.lab(&topology, request.seed)?;
        let outcome = self.study_in(&lab, request, progress)?;
        lab.down().context("the laboratory could not be removed")?;
        Ok(outcome)
    }
}

impl Laboratory {
    fn program(&self, request: &StudyRequest<'_>) -> Program<'_> {
        match request.study.controller(request.case).kind() {
            ControllerKind::Custom(controller) => {
                Program::with_controller(&self.programs.keiro_lab, controller)
            }
            _ => Program::anywhere(&self.programs.keiro),
        }
    }

    fn study_in(
        &self,
        lab: &Lab,
        request: &StudyRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<StudyOutcome> {
        let sites = &SITES[..request.study.senders];
        let addresses = Addresses::of(lab, sites)?;
        let (router, gateway) = (lab.host(ROUTER)?, lab.host(GATEWAY_B)?);
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let queue = ReceiveQueue::make(gateway, router, UPLINK, cpus - 1)?;
        let line = Line::new(lab, request.study, sites)?;
        let hosts: Vec<&str> = sites.iter().map(|site| site.gateway).collect();
        let hosts = [hosts, vec![GATEWAY_B]].concat();
        let (_directory, gateways) = start_all(
            lab,
            &hosts,
            self.program(request),
            |own, home, keys| match addresses.sites.get(own) {
                Some(site) => of_sender(request, site, home, &keys[sites.len()], &addresses),
                None => of_receiver(request, home, keys, &addresses),
            },
        )?;
        let studied = wait_for_path(&gateways).and_then(|()| {
            let impairments = Impairments {
                lab,
                line: &line,
                addresses: &addresses,
                receiver: &gateways[sites.len()],
                cpu: queue.cpu,
            };
            carry(lab, request, &gateways, &impairments, progress)
        });
        let outcome = studied.with_context(|| log_tail(&gateways));
        stop_all(&gateways);
        outcome
    }
}

/// Carries the datagrams of all sites, while the phases pass.
fn carry(
    lab: &Lab,
    request: &StudyRequest<'_>,
    gateways: &[Gateway],
    impairments: &Impairments<'_>,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<StudyOutcome> {
    let (router, gateway) = (lab.host(ROUTER)?, lab.host(GATEWAY_B)?);
    let addresses = impairments.addresses;
    let flow = request.study.flow(request.case);
    let duration = request.warm_up + request.each * request.phases.len() as u32;
    let ends = addresses.sites.iter().map(|site| Ends::bind(lab, site));
    let ends: Vec<Ends> = ends.collect::<Result<_, _>>()?;
    let _sinks = [
        Sink::start(gateway, addresses.load)?,
        Sink::start(router, addresses.others)?,
    ];
    lab.measure_from_now()?;
    let before = counters(&[router, gateway])?;
    let stop = AtomicBool::new(false);
    let started = Instant::now();
    let (followed, carried) = thread::scope(|scope| {
        let mut carrying = Vec::new();
        for (sender, Ends { from, to }) in (0..).zip(&ends) {
            let source = FlowSource {
                flow,
                seed: request.seed,
                sender,
            };
            let made = scope.spawn(move || send(from, source, duration, started));
            let arrived = scope.spawn(|| receive(to, started, &stop));
            carrying.push((made, arrived));
        }
        let followed = follow(request, gateways, impairments, started, progress);
        thread::sleep(request.drain);
        stop.store(true, Ordering::Relaxed);
        let carried = carrying.into_iter();
        let carried = carried.map(|(made, arrived)| (joined(made), joined(arrived)));
        (followed, carried.collect::<Vec<_>>())
    });
    let counters = compare(before, counters(&[router, gateway])?);
    let samples = followed?;
    let mut fates = Vec::new();
    for (made, arrived) in carried {
        fates.extend(datagrams(&made?, &arrived?, request.warm_up));
    }
    fates.sort_by(|a, b| a.made_s.total_cmp(&b.made_s));
    Ok(StudyOutcome {
        samples,
        datagrams: fates,
        counters,
        emulator: Some(emulator_report(lab)?),
    })
}

/// Sockets of a site's source, and of the sink for its datagrams.
struct Ends {
    from: UdpSocket,
    to: UdpSocket,
}

impl Ends {
    fn bind(lab: &Lab, site: &SiteAddresses) -> anyhow::Result<Self> {
        let from = bound(lab.host(site.site.source)?, "0.0.0.0:0")?;
        from.connect(site.listener)?;
        let to = bound(lab.host(SINK)?, &site.sink.to_string())?;
        make_room(&to)?;
        to.set_read_timeout(Some(LOOK))?;
        Ok(Self { from, to })
    }
}

/// Addresses of the topology that are used.
struct Addresses {
    sites: Vec<SiteAddresses>,
    /// Of gateway B.
    overlay: SocketAddr,
    /// Destination of the load's packets.
    load: SocketAddr,
    /// Destination of cross traffic on the line.
    others: SocketAddr,
}

/// Addresses of a site that sends.
struct SiteAddresses {
    site: Site,
    overlay: SocketAddr,
    listener: SocketAddr,
    sink: SocketAddr,
}

impl Addresses {
    fn of(lab: &Lab, sites: &[Site]) -> anyhow::Result<Self> {
        let of_site = |&site: &Site| {
            anyhow::Ok(SiteAddresses {
                site,
                overlay: address(lab, site.wan, site.gateway, OVERLAY_PORT)?,
                listener: address(lab, site.lan, site.gateway, LISTENER_PORT)?,
                sink: address(lab, "lan2", SINK, site.sink_port)?,
            })
        };
        Ok(Self {
            sites: sites.iter().map(of_site).collect::<Result<_, _>>()?,
            overlay: address(lab, UPLINK, GATEWAY_B, OVERLAY_PORT)?,
            load: address(lab, UPLINK, GATEWAY_B, LOAD_PORT)?,
            others: address(lab, SITES[0].wan, ROUTER, LOAD_PORT)?,
        })
    }
}

/// The lines as configured in the plan.
struct Line {
    usual: LinkConfig,
}

impl Line {
    fn new(lab: &Lab, study: &Study, sites: &[Site]) -> anyhow::Result<Self> {
        let usual = LinkConfig {
            rate: Some(study.line.rate.0),
            delay: study.line.delay.0,
            buffer: Buffer::Bytes(study.line.buffer.0),
            ..LinkConfig::default()
        };
        for site in sites {
            let wan = lab.link(site.wan)?;
            wan.set(Direction::AToB, usual)?;
            wan.set(Direction::BToA, usual)?;
        }
        Ok(Self { usual })
    }
}

struct Impairments<'a> {
    lab: &'a Lab,
    line: &'a Line,
    addresses: &'a Addresses,
    receiver: &'a Gateway,
    cpu: usize,
}

/// Applies impairments; each ends when its guard is dropped.
enum Running {
    Load { _load: RunningLoad },
    Receiver { _receiver: SlowReceiver },
}

impl Impairments<'_> {
    /// Begins an impairment, or ends that of the line. Dropping the returned guard ends the others.
    fn begin(&self, impairment: Option<Impairment>) -> anyhow::Result<Option<Running>> {
        let mut way = self.line.usual;
        let mut load = None;
        let mut slow = None;
        match impairment {
            None => {}
            Some(Impairment::Loss(loss)) => way.loss = Loss::Bernoulli(loss.0),
            Some(Impairment::Rate(rate)) => way.rate = Some(rate.0),
            Some(Impairment::Bursts { packets, every, .. }) => {
                load = Some((LOAD, self.addresses.load, packets, every.0, SMALL_BYTES));
            }
            Some(Impairment::Others(rate)) => load = Some(self.others(rate.0)),
            Some(Impairment::Crowded { loss, others }) => {
                way.loss = Loss::Bernoulli(loss.0);
                load = Some(self.others(others.0));
            }
            Some(Impairment::Shallow { buffer, others }) => {
                way.buffer = Buffer::Bytes(buffer.0);
                load = Some(self.others(others.0));
            }
            Some(Impairment::Receiver { each, room }) => {
                let each = each.0;
                slow = Some(Slowness { each, room });
            }
        }
        // Plans with several senders impair the receiver only.
        self.lab.link(SITES[0].wan)?.set(Direction::AToB, way)?;
        if let Some(slow) = slow {
            let socket = self.addresses.overlay;
            let receiver = SlowReceiver::start(&self.receiver.process, socket, slow);
            let receiver = receiver.context("the receiving gateway cannot be slowed down")?;
            return Ok(Some(Running::Receiver {
                _receiver: receiver,
            }));
        }
        let Some((from, target, burst, every, datagram_bytes)) = load else {
            return Ok(None);
        };
        let load = Load {
            target,
            burst,
            every,
            datagram_bytes,
            cpu: self.cpu,
        };
        let load = RunningLoad::start(self.lab.host(from)?, load)?;
        Ok(Some(Running::Load { _load: load }))
    }

    /// Sender, receiver, packets per burst, interval of bursts, and length of packets.
    fn others(&self, rate: Bandwidth) -> (&'static str, SocketAddr, u32, Duration, usize) {
        let every = cross_burst_interval(rate);
        (
            SITES[0].source,
            self.addresses.others,
            CROSS_BURST,
            every,
            CROSS_BYTES,
        )
    }
}

/// Payload of the packets that overflow a receiver's ring, as in aggregation/table5.
const SMALL_BYTES: usize = 64;

/// Mean interval of the bursts of cross traffic on the line.
fn cross_burst_interval(rate: Bandwidth) -> Duration {
    let bytes = u64::from(CROSS_BURST) * (CROSS_BYTES as u64 + CROSS_HEADERS);
    rate.transmission_time_nearest(ByteCount::new(bytes))
}

/// Goes through the phases and samples the counters.
fn follow(
    request: &StudyRequest<'_>,
    gateways: &[Gateway],
    impairments: &Impairments<'_>,
    started: Instant,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<Vec<Sample>> {
    let from = started + request.warm_up;
    let mut samples = Vec::new();
    sleep_until(from);
    samples.push(sample(gateways, from)?);
    for (index, phase) in (0..).zip(request.phases) {
        let _running = impairments.begin(phase.impairment)?;
        let end = from + request.each * (index + 1);
        let begun = from + request.each * index;
        let mut tick = 1;
        loop {
            let next = (begun + SAMPLE_EVERY * tick).min(end);
            sleep_until(next);
            samples.push(sample(gateways, from)?);
            progress(&Progress {
                elapsed: started.elapsed(),
                applications: Vec::new(),
            });
            if next == end {
                break;
            }
            tick += 1;
        }
    }
    impairments.begin(None)?;
    Ok(samples)
}

/// S, I and N are those of the first sender, and counts those of all together.
fn sample(gateways: &[Gateway], from: Instant) -> anyhow::Result<Sample> {
    let at_s = Instant::now().saturating_duration_since(from).as_secs_f64();
    let (receiver, senders) = gateways.split_last().context("there are gateways")?;
    let mut sample: Option<Sample> = None;
    for sender in senders {
        let sent = only_path(sender)?;
        let aggregation = sent.aggregation.context("nothing is aggregated")?.stats;
        let sample = sample.get_or_insert(Sample {
            at_s,
            size_bytes: aggregation.size_bytes,
            interval_ms: aggregation.interval.as_secs_f64() * 1e3,
            copies: u8::try_from(aggregation.copies).unwrap_or(u8::MAX),
            ..Sample::default()
        });
        sample.bytes_sent += sent.stats.sent_bytes;
        sample.aggregates[0] += aggregation.sent_aggregates;
        sample.aggregates[1] += aggregation.lost_aggregates;
        sample.copies_reported[0] += aggregation.sent_copies;
        sample.copies_reported[1] += aggregation.lost_copies;
        sample.overflows +=
            aggregation.peer_socket_dropped_packets + aggregation.peer_system_dropped_packets;
    }
    let received = receiver.paths()?;
    let received = received.iter().map(|path| path.stats.received_packets);
    Ok(Sample {
        packets_received: received.sum(),
        cpu_s: Some(cpu_seconds(receiver.process.id())?),
        ..sample.context("there is a sender")?
    })
}

fn only_path(gateway: &Gateway) -> anyhow::Result<PathSnapshot> {
    let paths = gateway.paths()?;
    paths.into_iter().next().context("a gateway has no path")
}

fn sleep_until(instant: Instant) {
    thread::sleep(instant.saturating_duration_since(Instant::now()));
}

/// What decides when the datagrams of a flow are sent.
#[derive(Clone, Copy)]
struct FlowSource {
    flow: Flow,
    seed: u64,
    sender: u32,
}

/// Sends the numbered datagrams of a flow at their times. Returns when each should have been sent.
fn send(
    socket: &UdpSocket,
    source: FlowSource,
    duration: Duration,
    started: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let FlowSource { flow, seed, sender } = source;
    let times = arrivals::schedule(seed, sender, flow.interval(), duration);
    let mut datagram = vec![0; usize::try_from(flow.datagram.0.get())?];
    let mut made = Vec::with_capacity(times.len());
    for (number, at) in (0_u64..).zip(times) {
        let offset = at - keiro_units::Instant::ZERO;
        sleep_until(started + offset);
        datagram[..8].copy_from_slice(&number.to_le_bytes());
        // A datagram that the kernel refuses counts as lost.
        let _ = socket.send(&datagram);
        made.push(offset);
    }
    Ok(made)
}

/// Numbers and arrival times of the received datagrams.
fn receive(
    socket: &UdpSocket,
    started: Instant,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<(u64, Duration)>> {
    let mut arrived = Vec::new();
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        // A timeout only makes the loop check the flag.
        let Ok(len) = socket.recv(&mut buffer) else {
            continue;
        };
        if let Some(number) = buffer[..len].first_chunk::<8>() {
            arrived.push((u64::from_le_bytes(*number), started.elapsed()));
        }
    }
    Ok(arrived)
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The fate of every counted datagram; of a duplicate, the first arrival counts.
fn datagrams(made: &[Duration], arrived: &[(u64, Duration)], warm_up: Duration) -> Vec<Datagram> {
    let mut at: Vec<Option<Duration>> = vec![None; made.len()];
    for (number, arrival) in arrived {
        let slot = usize::try_from(*number).ok().and_then(|n| at.get_mut(n));
        if let Some(slot) = slot {
            slot.get_or_insert(*arrival);
        }
    }
    let all = made.iter().zip(at).filter(|(made, _)| **made >= warm_up);
    all.map(|(made, at)| Datagram {
        made_s: (*made - warm_up).as_secs_f64(),
        delay_ms: at.map(|at| at.saturating_sub(*made).as_secs_f64() * 1e3),
    })
    .collect()
}

fn bound(host: &Host, address: &str) -> anyhow::Result<UdpSocket> {
    let socket = host.run(|| UdpSocket::bind(address))?;
    socket.with_context(|| format!("{} cannot bind {address}", host.name()))
}

/// Room for 0.1 s of the fastest flow, so that the receiver itself loses nothing.
fn make_room(socket: &UdpSocket) -> anyhow::Result<()> {
    nix::sys::socket::setsockopt(
        socket,
        nix::sys::socket::sockopt::RcvBufForce,
        &RECEIVE_BUFFER_BYTES,
    )
    .context("cannot enlarge the receive buffer")
}

const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// The configuration of a gateway that sends.
fn of_sender(
    request: &StudyRequest<'_>,
    of: &SiteAddresses,
    home: &Path,
    receiver: &PublicKey,
    addresses: &Addresses,
) -> anyhow::Result<String> {
    let app = of.site.name;
    let mut text = common(request, app, of.overlay, home)?;
    text.push_str(&peer("b", receiver, addresses.overlay)?);
    writeln!(text, "[[app]]\nname = \"{app}\"\nclass = \"datagram\"")?;
    writeln!(text, "peer = \"b\"")?;
    writeln!(
        text,
        "[[listener]]\napp = \"{app}\"\nudp = \"{}\"",
        of.listener
    )?;
    Ok(text)
}

/// The configuration of the gateway that receives.
fn of_receiver(
    request: &StudyRequest<'_>,
    home: &Path,
    keys: &[PublicKey],
    addresses: &Addresses,
) -> anyhow::Result<String> {
    let mut text = common(request, "b", addresses.overlay, home)?;
    for (site, key) in addresses.sites.iter().zip(keys) {
        let app = site.site.name;
        text.push_str(&peer(app, key, site.overlay)?);
        writeln!(text, "[[app]]\nname = \"{app}\"\nclass = \"datagram\"")?;
        writeln!(text, "peer = \"{app}\"")?;
        writeln!(
            text,
            "[[forward]]\napp = \"{app}\"\nudp = \"{}\"",
            site.sink
        )?;
    }
    Ok(text)
}

/// What both configurations have: the gateway `name`, and its path from `local`.
fn common(
    request: &StudyRequest<'_>,
    name: &str,
    local: SocketAddr,
    home: &Path,
) -> anyhow::Result<String> {
    let (study, case) = (request.study, request.case);
    let mut text = gateway_table(name, home);
    writeln!(text, "{}", aggregation(study, case)?)?;
    writeln!(text, "[[path]]\nname = \"wan\"\nlocal = \"{local}\"")?;
    writeln!(text, "rate = \"{}\"", study.line.rate)?;
    let mtu = ByteCount::new(study.mtu(case).into());
    writeln!(text, "mtu_max = \"{}B\"", mtu.get())?;
    Ok(text)
}

fn peer(name: &str, key: &PublicKey, endpoint: SocketAddr) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "[[peer]]\nname = \"{name}\"\npublic_key = \"{key}\"")?;
    writeln!(text, "endpoints = {{ wan = \"{endpoint}\" }}")?;
    Ok(text)
}

fn aggregation(study: &Study, case: Case) -> anyhow::Result<String> {
    let mut text = "[aggregation]\n".to_owned();
    let controller = study.controller(case);
    let mode = if controller == Controller::Eager {
        "eager"
    } else {
        "fixed"
    };
    // A configuration names none that is not built in; the program's arguments do.
    let controller = match controller.kind() {
        ControllerKind::Custom(_) => ControllerKind::None,
        built_in => built_in,
    };
    writeln!(text, "mode = \"{mode}\"\ncontroller = \"{controller}\"")?;
    if let Some(combination) = study.combination(case) {
        writeln!(text, "size = \"{}B\"", combination.size.0.get())?;
        writeln!(text, "interval = \"{}\"", Text(combination.interval.0))?;
        writeln!(text, "copies = {}", combination.copies)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_count_from_the_end_of_the_warm_up() {
        let ms = Duration::from_millis;
        let made = [ms(5), ms(20), ms(30)];
        let arrived = [(1, ms(22)), (1, ms(29)), (9, ms(30))];
        let counted = datagrams(&made, &arrived, ms(10));
        let of = |made_s, delay_ms| Datagram { made_s, delay_ms };
        assert_eq!(counted, vec![of(0.01, Some(2.0)), of(0.02, None)]);
    }
}
