//! Studies of S, I and N in the laboratory: datagrams through two gateways under impairments.

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
use keiro_model::arrivals;
use keiro_units::{Bandwidth, ByteCount};

use super::{
    Laboratory, address, built_in_topology, emulator_report,
    gateways::{Gateway, Program, gateway_table, log_tail, start_pair, stop_all, wait_for_path},
    transactions::{compare, counters},
    usage::cpu_seconds,
};
use crate::{
    parameters::{
        Case, Controller, Datagram, Flow, Impairment, Sample, Study, StudyOutcome, StudyRequest,
        StudyRunner,
    },
    row::Source,
    runner::Progress,
};

const SOURCE: &str = "source";
const GATEWAY_A: &str = "gateway-a";
const ROUTER: &str = "router";
const GATEWAY_B: &str = "gateway-b";
const SINK: &str = "sink";
const LOAD: &str = "load";
const WAN: &str = "wan";
const UPLINK: &str = "uplink";

const OVERLAY_PORT: u16 = 7600;
const LISTENER_PORT: u16 = 7001;
const SINK_PORT: u16 = 7000;
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
    fn study_in(
        &self,
        lab: &Lab,
        request: &StudyRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<StudyOutcome> {
        let addresses = Addresses::of(lab)?;
        let (router, gateway) = (lab.host(ROUTER)?, lab.host(GATEWAY_B)?);
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let queue = ReceiveQueue::make(gateway, router, UPLINK, cpus - 1)?;
        let line = Line::new(lab, request.study)?;
        let hosts = [GATEWAY_A, GATEWAY_B];
        let (_directory, gateways) = start_pair(
            lab,
            hosts,
            Program::anywhere(&self.programs.keiro),
            |own, home, peer_key| {
                configuration(request.study, request.case, own, home, peer_key, &addresses)
            },
        )?;
        let studied = (|| {
            wait_for_path(&gateways)?;
            let flow = request.study.flow(request.case);
            let duration = request.warm_up + request.each * request.phases.len() as u32;
            let sender = bound(lab.host(SOURCE)?, "0.0.0.0:0")?;
            sender.connect(addresses.listener)?;
            let receiver = bound(lab.host(SINK)?, &addresses.sink.to_string())?;
            make_room(&receiver)?;
            receiver.set_read_timeout(Some(LOOK))?;
            let _sinks = [
                Sink::start(gateway, addresses.load)?,
                Sink::start(router, addresses.others)?,
            ];
            let impairments = Impairments {
                lab,
                line: &line,
                addresses: &addresses,
                receiver: &gateways[1],
                cpu: queue.cpu,
            };
            lab.measure_from_now()?;
            let before = counters(&[router, gateway])?;
            let stop = AtomicBool::new(false);
            let started = Instant::now();
            let (followed, made, arrived) = thread::scope(|scope| {
                let made = scope.spawn(|| send(&sender, flow, request.seed, duration, started));
                let arrived = scope.spawn(|| receive(&receiver, started, &stop));
                let followed = follow(request, &gateways, &impairments, started, progress);
                thread::sleep(request.drain);
                stop.store(true, Ordering::Relaxed);
                (followed, joined(made), joined(arrived))
            });
            let counters = compare(before, counters(&[router, gateway])?);
            let samples = followed?;
            anyhow::Ok(StudyOutcome {
                samples,
                datagrams: datagrams(&made?, &arrived?, request.warm_up),
                counters,
                emulator: Some(emulator_report(lab)?),
            })
        })();
        let outcome = studied.with_context(|| log_tail(&gateways));
        stop_all(&gateways);
        outcome
    }
}

/// Addresses of the topology that are used.
struct Addresses {
    overlay: [SocketAddr; 2],
    listener: SocketAddr,
    sink: SocketAddr,
    /// Destination of the load's packets.
    load: SocketAddr,
    /// Destination of cross traffic on the line.
    others: SocketAddr,
}

impl Addresses {
    fn of(lab: &Lab) -> anyhow::Result<Self> {
        Ok(Self {
            overlay: [
                address(lab, WAN, GATEWAY_A, OVERLAY_PORT)?,
                address(lab, UPLINK, GATEWAY_B, OVERLAY_PORT)?,
            ],
            listener: address(lab, "lan1", GATEWAY_A, LISTENER_PORT)?,
            sink: address(lab, "lan2", SINK, SINK_PORT)?,
            load: address(lab, UPLINK, GATEWAY_B, LOAD_PORT)?,
            others: address(lab, WAN, ROUTER, LOAD_PORT)?,
        })
    }
}

/// The line as configured in the plan.
struct Line {
    usual: LinkConfig,
}

impl Line {
    fn new(lab: &Lab, study: &Study) -> anyhow::Result<Self> {
        let usual = LinkConfig {
            rate: Some(study.line.rate.0),
            delay: study.line.delay.0,
            buffer: Buffer::Bytes(study.line.buffer.0),
            ..LinkConfig::default()
        };
        let wan = lab.link(WAN)?;
        wan.set(Direction::AToB, usual)?;
        wan.set(Direction::BToA, usual)?;
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
        self.lab.link(WAN)?.set(Direction::AToB, way)?;
        if let Some(slow) = slow {
            let socket = self.addresses.overlay[1];
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
            SOURCE,
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
    gateways: &[Gateway; 2],
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

fn sample(gateways: &[Gateway; 2], from: Instant) -> anyhow::Result<Sample> {
    let at_s = Instant::now().saturating_duration_since(from).as_secs_f64();
    let (sent, received) = (only_path(&gateways[0])?, only_path(&gateways[1])?);
    let aggregation = sent.aggregation.context("nothing is aggregated")?.stats;
    Ok(Sample {
        at_s,
        size_bytes: aggregation.size_bytes,
        interval_ms: aggregation.interval.as_secs_f64() * 1e3,
        copies: u8::try_from(aggregation.copies).unwrap_or(u8::MAX),
        bytes_sent: sent.stats.sent_bytes,
        packets_received: received.stats.received_packets,
        cpu_s: Some(cpu_seconds(gateways[1].process.id())?),
        aggregates: [aggregation.sent_aggregates, aggregation.lost_aggregates],
        copies_reported: [aggregation.sent_copies, aggregation.lost_copies],
        overflows: aggregation.peer_socket_dropped_packets
            + aggregation.peer_system_dropped_packets,
    })
}

fn only_path(gateway: &Gateway) -> anyhow::Result<PathSnapshot> {
    let paths = gateway.paths()?;
    paths.into_iter().next().context("a gateway has no path")
}

fn sleep_until(instant: Instant) {
    thread::sleep(instant.saturating_duration_since(Instant::now()));
}

/// Sends the flow's numbered datagrams at their times. Returns when each should have been sent.
fn send(
    socket: &UdpSocket,
    flow: Flow,
    seed: u64,
    duration: Duration,
    started: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let times = arrivals::schedule(seed, 0, flow.interval(), duration);
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

/// The configuration of gateway A (`own` = 0) or B (`own` = 1).
fn configuration(
    study: &Study,
    case: Case,
    own: usize,
    home: &Path,
    peer_key: &PublicKey,
    addresses: &Addresses,
) -> anyhow::Result<String> {
    let name = ["a", "b"];
    let mut text = gateway_table(name[own], home);
    writeln!(text, "{}", aggregation(study, case)?)?;
    writeln!(text, "[[path]]")?;
    writeln!(
        text,
        "name = \"wan\"\nlocal = \"{}\"",
        addresses.overlay[own]
    )?;
    writeln!(text, "rate = \"{}\"", study.line.rate)?;
    let mtu = ByteCount::new(study.mtu(case).into());
    writeln!(text, "mtu_max = \"{}B\"", mtu.get())?;
    writeln!(text, "[[peer]]\nname = \"{}\"", name[1 - own])?;
    writeln!(text, "public_key = \"{peer_key}\"")?;
    let endpoint = addresses.overlay[1 - own];
    writeln!(text, "endpoints = {{ wan = \"{endpoint}\" }}")?;
    writeln!(text, "[[app]]\nname = \"sensors\"\nclass = \"datagram\"")?;
    writeln!(text, "peer = \"{}\"", name[1 - own])?;
    if own == 0 {
        writeln!(
            text,
            "[[listener]]\napp = \"sensors\"\nudp = \"{}\"",
            addresses.listener
        )?;
    } else {
        writeln!(
            text,
            "[[forward]]\napp = \"sensors\"\nudp = \"{}\"",
            addresses.sink
        )?;
    }
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
    let controller = match controller {
        Controller::Eager => Controller::Adaptive,
        controller => controller,
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
