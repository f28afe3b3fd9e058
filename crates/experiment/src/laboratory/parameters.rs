//! Studies of S, I and N in the laboratory: datagrams through two gateways, and what troubles them.

use std::{
    fmt::Write as _,
    fs,
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
    Laboratory, built_in_topology, emulator_report,
    gateways::{
        Gateway, Program, end_all, gateway_table, last_words, start_pair, until_a_path_is_up,
    },
    transactions::{compare, counters},
};
use crate::{
    parameters::{
        Case, Controller, Datagram, Flow, Sample, Study, StudyOutcome, StudyRequest, StudyRunner,
        Trouble,
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

/// How often counters are looked at.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// How long the receiver waits for a datagram before it looks whether to end.
const LOOK: Duration = Duration::from_millis(50);

/// The kernel's clock ticks in a second, in which it counts CPU time (proc(5), `USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// The payload of others' packets on the line, and how many come at once. Ours: full packets, and bursts that
/// the smallest buffer holds.
const OTHERS_BYTES: usize = 1172;
const OTHERS_BURST: u32 = 2;

/// The IP and UDP headers of such a packet.
const OTHERS_HEADERS: u64 = 28;

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
            until_a_path_is_up(&gateways)?;
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
            let troubles = Troubles {
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
                let followed = follow(request, &gateways, &troubles, started, progress);
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
        let outcome = studied.with_context(|| last_words(&gateways));
        end_all(&gateways);
        outcome
    }
}

/// The addresses that matter.
struct Addresses {
    overlay: [SocketAddr; 2],
    listener: SocketAddr,
    sink: SocketAddr,
    /// Where the load's packets go.
    load: SocketAddr,
    /// Where those go that others send over the line.
    others: SocketAddr,
}

impl Addresses {
    fn of(lab: &Lab) -> anyhow::Result<Self> {
        let address = |link: &str, host: &str, port| {
            let link_of_lab = lab.link(link)?;
            let end = link_of_lab.plan().end(host);
            let first = end.and_then(|end| end.addresses.first());
            let first = first.with_context(|| format!("{host} has no address on link {link}"))?;
            anyhow::Ok(SocketAddr::new(first.address(), port))
        };
        Ok(Self {
            overlay: [
                address(WAN, GATEWAY_A, OVERLAY_PORT)?,
                address(UPLINK, GATEWAY_B, OVERLAY_PORT)?,
            ],
            listener: address("lan1", GATEWAY_A, LISTENER_PORT)?,
            sink: address("lan2", SINK, SINK_PORT)?,
            load: address(UPLINK, GATEWAY_B, LOAD_PORT)?,
            others: address(WAN, ROUTER, LOAD_PORT)?,
        })
    }
}

/// The line as the plan has it.
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

/// What makes troubles.
struct Troubles<'a> {
    lab: &'a Lab,
    line: &'a Line,
    addresses: &'a Addresses,
    receiver: &'a Gateway,
    cpu: usize,
}

/// What makes a trouble, until it is dropped.
enum Running {
    Load { _load: RunningLoad },
    Receiver { _receiver: SlowReceiver },
}

impl Troubles<'_> {
    /// Begins a trouble, or ends that of the line; what is given back ends with its value.
    fn begin(&self, trouble: Option<Trouble>) -> anyhow::Result<Option<Running>> {
        let mut way = self.line.usual;
        let mut load = None;
        let mut slow = None;
        match trouble {
            None => {}
            Some(Trouble::Loss(loss)) => way.loss = Loss::Bernoulli(loss.0),
            Some(Trouble::Rate(rate)) => way.rate = Some(rate.0),
            Some(Trouble::Bursts { packets, every, .. }) => {
                load = Some((LOAD, self.addresses.load, packets, every.0, SMALL_BYTES));
            }
            Some(Trouble::Others(rate)) => load = Some(self.others(rate.0)),
            Some(Trouble::Crowded { loss, others }) => {
                way.loss = Loss::Bernoulli(loss.0);
                load = Some(self.others(others.0));
            }
            Some(Trouble::Shallow { buffer, others }) => {
                way.buffer = Buffer::Bytes(buffer.0);
                load = Some(self.others(others.0));
            }
            Some(Trouble::Receiver { each, room }) => {
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

    /// Sender, receiver, packets in a burst, interval of bursts, and length of packets.
    fn others(&self, rate: Bandwidth) -> (&'static str, SocketAddr, u32, Duration, usize) {
        let every = others_every(rate);
        (
            SOURCE,
            self.addresses.others,
            OTHERS_BURST,
            every,
            OTHERS_BYTES,
        )
    }
}

/// The payload of the packets that overflow a receiver's ring, as in aggregation/table5.
const SMALL_BYTES: usize = 64;

/// From one burst of others' on the line to the next, on average.
fn others_every(rate: Bandwidth) -> Duration {
    let bytes = u64::from(OTHERS_BURST) * (OTHERS_BYTES as u64 + OTHERS_HEADERS);
    rate.transmission_time_nearest(ByteCount::new(bytes))
}

/// Goes through the phases and looks at the counters.
fn follow(
    request: &StudyRequest<'_>,
    gateways: &[Gateway; 2],
    troubles: &Troubles<'_>,
    started: Instant,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<Vec<Sample>> {
    let from = started + request.warm_up;
    let mut samples = Vec::new();
    sleep_until(from);
    samples.push(sample(gateways, from)?);
    for (index, phase) in (0..).zip(request.phases) {
        let _running = troubles.begin(phase.trouble)?;
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
    troubles.begin(None)?;
    Ok(samples)
}

fn sample(gateways: &[Gateway; 2], from: Instant) -> anyhow::Result<Sample> {
    let at_s = Instant::now().saturating_duration_since(from).as_secs_f64();
    let only = |gateway: &Gateway| -> anyhow::Result<PathSnapshot> {
        let paths = gateway.paths()?;
        paths.into_iter().next().context("a gateway has no path")
    };
    let (sent, received) = (only(&gateways[0])?, only(&gateways[1])?);
    let aggregation = sent.aggregation.context("nothing is aggregated")?.stats;
    Ok(Sample {
        at_s,
        size_bytes: aggregation.size_bytes,
        interval_ms: aggregation.interval.as_secs_f64() * 1e3,
        copies: u8::try_from(aggregation.copies).unwrap_or(u8::MAX),
        bytes_sent: sent.stats.sent_bytes,
        packets_received: received.stats.received_packets,
        cpu_s: Some(cpu_s(gateways[1].process.id())?),
        aggregates: [aggregation.sent_aggregates, aggregation.lost_aggregates],
        copies_told: [aggregation.sent_copies, aggregation.lost_copies],
        overflows: aggregation.peer_socket_dropped_packets
            + aggregation.peer_system_dropped_packets,
    })
}

/// CPU time of a process, user's and system's (proc(5), fields 14 and 15 of `stat`).
fn cpu_s(process: i32) -> anyhow::Result<f64> {
    let file = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&file).with_context(|| format!("{file} cannot be read"))?;
    // The second field is a name in brackets, which may have spaces.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |index: usize| -> Option<f64> {
        let field = rest.split_ascii_whitespace().nth(index - 3)?;
        field.parse().ok()
    };
    let ticks = field(14).zip(field(15)).map(|(user, system)| user + system);
    let ticks = ticks.with_context(|| format!("{file} is not as proc(5) says"))?;
    Ok(ticks / TICKS_PER_SECOND)
}

fn sleep_until(instant: Instant) {
    thread::sleep(instant.saturating_duration_since(Instant::now()));
}

/// Sends the flow's datagrams at their times, each with its number; when each should have been made.
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
        // What the kernel refuses is lost.
        let _ = socket.send(&datagram);
        made.push(offset);
    }
    Ok(made)
}

/// The numbers of the datagrams that came, and when.
fn receive(
    socket: &UdpSocket,
    started: Instant,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<(u64, Duration)>> {
    let mut arrived = Vec::new();
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        // An error is a look at the flag.
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

/// What became of every counted datagram; one that came twice came the first time.
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

/// Room for a tenth of a second of the fastest flow, so that the receiver itself loses nothing.
fn make_room(socket: &UdpSocket) -> anyhow::Result<()> {
    nix::sys::socket::setsockopt(
        socket,
        nix::sys::socket::sockopt::RcvBufForce,
        &RECEIVE_BUFFER_BYTES,
    )
    .context("the receiver gets no buffer")
}

const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// The configuration of gateway A (`own` 0) or B.
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
    let controller = match case {
        Case::Controller(controller) => controller,
        Case::Cell(..) => Controller::None,
    };
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
    fn a_process_has_used_cpu_time() {
        let own = cpu_s(std::process::id() as i32).unwrap();
        assert!((0.0..3600.0).contains(&own), "{own} s");
    }

    #[test]
    fn datagrams_count_from_the_end_of_the_warm_up() {
        let ms = Duration::from_millis;
        let made = [ms(5), ms(20), ms(30)];
        let arrived = [(1, ms(22)), (1, ms(29)), (9, ms(30))];
        let told = datagrams(&made, &arrived, ms(10));
        let of = |made_s, delay_ms| Datagram { made_s, delay_ms };
        assert_eq!(told, vec![of(0.01, Some(2.0)), of(0.02, None)]);
    }
}
