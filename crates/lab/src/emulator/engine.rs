//! The emulator's thread: reads rings, passes frames to links, releases them on time.

use std::{
    fs,
    io::IoSlice,
    sync::{Arc, mpsc::Receiver},
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use keiro_link::{Arrival, Link};
use keiro_linux::{
    clock::{self, ClockPair},
    epoll::{Alarm, Epoll, Interest, ReadyList, Waker},
    packet::{PacketOptions, PacketSocket, SEND_BATCH_MAX},
    realtime::{self, CpusAwake, FifoPriority},
};
use keiro_units::{ByteCount, Instant};

use super::{
    Command, Direction, DirectionReport, EmulatorConfig, EmulatorError, LinkReport, LinkSpec,
    Queueing, Report,
    frames::{Pool, Store},
    margin::Margin,
    report::Lateness,
};

/// Frames read from one interface before due ones are released; ours.
const READ_BATCH_MAX: usize = 64;

/// Capacity of all rings together, in frames; ours: 128 MiB.
const RING_FRAMES_TOTAL: usize = 1 << 16;

/// Greater lateness is recorded as this; ours.
const LATENESS_MAX: Duration = Duration::from_secs(60);

/// A pair of clock readings further apart than this was interrupted and is discarded; ours.
const CLOCK_PAIR_SPREAD_MAX: Duration = Duration::from_micros(2);

/// Events that end a wait: a frame at a port, a command, or the time.
const FRAME: u64 = 0;
const COMMAND: u64 = 1;
const ALARM: u64 = 2;

/// See the module's documentation.
pub(super) struct Engine {
    /// Ends a and b of link 0, of link 1, and so on. A frame received at port `i` goes through `directions[i]` and
    /// leaves by port `i ^ 1`.
    ports: Vec<PacketSocket>,
    directions: Vec<LinkDirection>,
    names: Vec<String>,
    header_bytes: usize,
    pool: Pool,
    stamps: StampClock,
    lateness: Histogram<u64>,
    margin: Margin,
    started: Instant,
    measured_from: Instant,
    real_time: bool,
    memory_locked: bool,
    wants_cpus_awake: bool,
    cpu: Option<usize>,
    cpus_awake: Option<CpusAwake>,
    epoll: Epoll,
    alarm: Alarm,
    ready: ReadyList,
    waker: Arc<Waker>,
    commands: Receiver<Command>,
}

struct LinkDirection {
    link: Link,
    frames: Store,
    /// `None` until it is asked for.
    queueing: Option<Queueing>,
    /// `link` and `queue` are filled in when a report is made.
    report: DirectionReport,
}

/// Converts the kernel's time stamps from the realtime clock to the monotonic clock.
struct StampClock {
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
    offset: i128,
}

/// Whether to continue.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

/// The index in `directions` of link number `link` in this direction.
pub(super) fn direction_index(link: usize, direction: Direction) -> usize {
    2 * link + usize::from(direction == Direction::BToA)
}

impl Engine {
    /// Opens all interfaces, in the calling thread's namespace.
    pub(super) fn new(
        config: &EmulatorConfig,
        commands: Receiver<Command>,
        waker: Arc<Waker>,
    ) -> Result<Self, EmulatorError> {
        let ring_frames = (RING_FRAMES_TOTAL / (2 * config.links.len().max(1))).min(2048);
        let epoll = Epoll::new().map_err(EmulatorError::System)?;
        let add = |fd: &dyn std::os::fd::AsFd, token| {
            epoll
                .add(&fd.as_fd(), token, Interest::Read)
                .map_err(EmulatorError::System)
        };
        add(&*waker, COMMAND)?;
        let alarm = Alarm::new(&epoll, ALARM).map_err(EmulatorError::System)?;
        let mut ports = Vec::new();
        for link in &config.links {
            for interface in [&link.a, &link.b] {
                let port = open(link, interface, ring_frames)?;
                add(&port, FRAME)?;
                ports.push(port);
            }
        }
        let now = now();
        let configs = config.links.iter().flat_map(|link| {
            let [there, back] = &link.recordings;
            [(link.a_to_b, there), (link.b_to_a, back)]
        });
        let seeds = (0..).map(|number: u64| config.seed.wrapping_add(number));
        let directions = configs.zip(seeds).map(|((config, recording), seed)| {
            let mut link = Link::new(config, seed);
            if let Some(trace) = recording {
                link.replay(now, Some(trace.clone()));
            }
            LinkDirection {
                link,
                frames: Store::default(),
                queueing: None,
                report: DirectionReport::default(),
            }
        });
        Ok(Self {
            ports,
            directions: directions.collect(),
            names: config.links.iter().map(|link| link.name.clone()).collect(),
            header_bytes: config.header_bytes,
            pool: Pool::default(),
            stamps: StampClock::new(),
            lateness: lateness_histogram(),
            margin: Margin::new(),
            started: now,
            measured_from: now,
            real_time: false,
            memory_locked: false,
            wants_cpus_awake: config.keep_cpus_awake,
            cpu: config.cpu,
            cpus_awake: None,
            epoll,
            alarm,
            ready: ReadyList::new(8),
            waker,
            commands,
        })
    }

    /// Requests real-time scheduling, locked memory, and awake CPUs for the calling thread.
    pub(super) fn take_real_time(&mut self, priority: FifoPriority) {
        fn warn_on_error<T>(what: &str, result: std::io::Result<T>) -> Option<T> {
            let warn = |error: &_| tracing::warn!("link emulator runs without {what}: {error}");
            result.inspect_err(warn).ok()
        }
        self.memory_locked = warn_on_error("locked memory", realtime::lock_memory()).is_some();
        warn_on_error(
            "timers without slack",
            realtime::set_timer_slack(Duration::from_nanos(1)),
        );
        if let Some(cpu) = self.cpu {
            let _ = warn_on_error("the CPU that it is to keep to", realtime::pin_to_cpu(cpu));
        }
        if self.wants_cpus_awake {
            self.cpus_awake = warn_on_error("CPUs that stay awake", CpusAwake::hold());
        }
        self.real_time =
            warn_on_error("real-time scheduling", realtime::schedule_fifo(priority)).is_some();
    }

    /// Carries frames until it is stopped.
    pub(super) fn run(&mut self) -> Report {
        let mut now = now();
        loop {
            if self.obey(now) == Next::Stop {
                return self.report();
            }
            self.stamps.refresh();
            let more = self.read_rings();
            now = self.release();
            if !more {
                now = self.sleep(now);
            }
        }
    }

    /// Reads at most a batch from each ring; returns whether one may hold more.
    fn read_rings(&mut self) -> bool {
        let mut more = false;
        for index in 0..self.ports.len() {
            more |= self.read_ring(index) == READ_BATCH_MAX;
        }
        more
    }

    /// Returns the number of frames read.
    fn read_ring(&mut self, index: usize) -> usize {
        let LinkDirection {
            link,
            frames,
            report,
            ..
        } = &mut self.directions[index];
        for count in 0..READ_BATCH_MAX {
            let Some(frame) = self.ports[index].next_frame() else {
                return count;
            };
            report.checksum_missing += u64::from(frame.checksum_missing());
            if frame.original_len() > frame.bytes().len() {
                report.oversized += 1;
                continue;
            }
            if !self.pool.has_room() {
                report.no_room += 1;
                continue;
            }
            let tag = if frame.vlan().is_some() { 4 } else { 0 };
            let length = (frame.bytes().len() + tag).saturating_sub(self.header_bytes);
            // The realtime clock may have been set since the offset was computed.
            let arrived = self.stamps.instant_of(frame.stamp()).min(now());
            match link.arrive(arrived, ByteCount::new(length as u64)) {
                Arrival::Accepted(ticket) => frames.put(ticket, self.pool.copy(&frame)),
                Arrival::Dropped(_) => {}
            }
        }
        READ_BATCH_MAX
    }

    /// Sends due frames; returns the time afterwards.
    fn release(&mut self) -> Instant {
        let mut time = now();
        for index in 0..self.directions.len() {
            while self.directions[index]
                .link
                .poll_timeout()
                .is_some_and(|due| due <= time)
            {
                time = self.release_batch(index, time);
            }
        }
        time
    }

    /// Sends at most a batch from one direction; returns the time afterwards.
    fn release_batch(&mut self, index: usize, before: Instant) -> Instant {
        let LinkDirection {
            link,
            frames,
            queueing,
            report,
        } = &mut self.directions[index];
        let mut dues = [Instant::ZERO; SEND_BATCH_MAX];
        let mut batch: [Vec<u8>; SEND_BATCH_MAX] = std::array::from_fn(|_| Vec::new());
        let mut slices = [IoSlice::new(&[]); 2 * SEND_BATCH_MAX];
        let mut count = 0;
        let mut copies = [false; SEND_BATCH_MAX];
        while count < SEND_BATCH_MAX {
            let Some(departure) = link.poll_departure(before) else {
                break;
            };
            let Some(mut frame) = frames.take(departure.ticket) else {
                continue;
            };
            if let Some(queueing) = queueing {
                let bytes = frame.len().saturating_sub(self.header_bytes);
                queueing.add(&departure, bytes as u64);
            }
            if let Some(corruption) = departure.corruption {
                let header_bytes = self.header_bytes.min(frame.len());
                corruption.apply(&mut frame[header_bytes..]);
            }
            dues[count] = departure.at;
            copies[count] = departure.duplicated;
            batch[count] = frame;
            count += 1;
        }
        let mut sending = 0;
        for (frame, copy) in batch[..count].iter().zip(copies) {
            for _ in 0..=usize::from(copy) {
                slices[sending] = IoSlice::new(frame);
                sending += 1;
            }
        }
        let sent = self.ports[index ^ 1].send(&slices[..sending]);
        let after = now();
        report.send_failures += sent.failed as u64;
        for due in &dues[..count] {
            self.lateness
                .saturating_record((after - *due).as_nanos() as u64);
        }
        for frame in batch.into_iter().take(count) {
            self.pool.give_back(frame);
        }
        after
    }

    /// Waits for a frame, a command, or until shortly before a frame is due; returns the time afterwards.
    fn sleep(&mut self, before: Instant) -> Instant {
        let timeouts = self
            .directions
            .iter()
            .filter_map(|direction| direction.link.poll_timeout());
        let asked = match timeouts
            .min()
            .map(|due| self.margin.sleep_for(due - before))
        {
            // Too close to sleep.
            Some(None) => {
                thread::yield_now();
                return now();
            }
            Some(asked) => asked,
            None => None,
        };
        let until = asked.map(|asked| before + asked);
        let until_nanos = until.map_or(u64::MAX, Instant::as_nanos);
        if let Err(error) = self.alarm.wait(&self.epoll, &mut self.ready, until_nanos) {
            // Without waiting it works as well, at the cost of a CPU.
            tracing::error!("link emulator cannot wait: {error}");
        }
        let after = now();
        // The alarm may have been set for a frame that has been sent meanwhile.
        if let (Some(asked), Some(until)) = (asked, until)
            && self.ready.is_empty()
            && after >= until
        {
            self.margin.learn(asked, after - until);
        }
        if self.ready.iter().any(|ready| ready.token == COMMAND) {
            // Reset here only, before looking for commands: a command may be received before its sender wakes
            // the thread, and a wake-up that was never reset would end every wait at once.
            self.waker.reset();
        }
        if self.ready.iter().any(|ready| ready.hangup) {
            for port in &self.ports {
                if let Some(error) = port.take_error() {
                    tracing::warn!("interface `{}`: {error}", port.interface());
                }
            }
        }
        after
    }

    fn obey(&mut self, now: Instant) -> Next {
        while let Ok(command) = self.commands.try_recv() {
            // The requesting thread may have ended; then the answer is not needed.
            match command {
                Command::Apply {
                    direction,
                    config,
                    applied,
                } => {
                    let LinkDirection { link, frames, .. } = &mut self.directions[direction];
                    for ticket in link.apply(now, config) {
                        if let Some(frame) = frames.take(ticket) {
                            self.pool.give_back(frame);
                        }
                    }
                    let _ = applied.send(now);
                }
                Command::Replay {
                    direction,
                    trace,
                    begun,
                } => {
                    self.directions[direction].link.replay(now, trace);
                    let _ = begun.send(now);
                }
                Command::Queueing {
                    direction,
                    measured,
                } => {
                    let queueing = &mut self.directions[direction].queueing;
                    let _ = measured.send(queueing.replace(Queueing::new(now)));
                }
                Command::Report(answer) => {
                    let _ = answer.send(self.report());
                }
                Command::MeasureFromNow(answer) => {
                    self.lateness.reset();
                    self.measured_from = now;
                    let _ = answer.send(());
                }
                Command::Stop => return Next::Stop,
            }
        }
        Next::Continue
    }

    fn report(&mut self) -> Report {
        let now = now();
        for (direction, port) in self.directions.iter_mut().zip(&self.ports) {
            // An open socket always answers; otherwise the count is merely outdated.
            direction.report.ring_drops += port.take_ring_drops().unwrap_or_default();
            direction.report.link = *direction.link.counters();
            direction.report.queue = direction.link.queue(now);
        }
        let links =
            self.names
                .iter()
                .zip(self.directions.chunks_exact(2))
                .map(|(name, directions)| LinkReport {
                    name: name.clone(),
                    a_to_b: directions[0].report,
                    b_to_a: directions[1].report,
                });
        Report {
            lateness: Lateness::of(&self.lateness),
            measured: now - self.measured_from,
            cpu_time: realtime::thread_cpu_time(),
            running: now - self.started,
            real_time: self.real_time,
            memory_locked: self.memory_locked,
            cpus_awake: self.cpus_awake.is_some(),
            links: links.collect(),
        }
    }
}

impl StampClock {
    fn new() -> Self {
        let mut clock = Self { offset: 0 };
        let pair = ClockPair::now();
        clock.take(pair);
        clock.refresh();
        clock
    }

    /// Follows changes of the realtime clock.
    fn refresh(&mut self) {
        let pair = ClockPair::now();
        let spread = clock::monotonic_nanos().saturating_sub(pair.monotonic_nanos);
        if Duration::from_nanos(spread) <= CLOCK_PAIR_SPREAD_MAX {
            self.take(pair);
        }
    }

    fn take(&mut self, pair: ClockPair) {
        self.offset = i128::from(pair.realtime_nanos) - i128::from(pair.monotonic_nanos);
    }

    fn instant_of(&self, stamp: Duration) -> Instant {
        let nanos = i128::try_from(stamp.as_nanos()).unwrap_or(i128::MAX) - self.offset;
        Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

/// Opens an interface and keeps the kernel from sending packets of its own on it.
fn open(
    link: &LinkSpec,
    interface: &str,
    ring_frames: usize,
) -> Result<PacketSocket, EmulatorError> {
    // The namespace has no addresses, but an interface with IPv6 would assign itself one and send neighbour
    // discovery past the link. Without IPv6 there is no such file.
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    if let Err(error) = fs::write(path, "1") {
        tracing::debug!("interface `{interface}` keeps IPv6: {error}");
    }
    let options = PacketOptions {
        ring_frames,
        outgoing: false,
    };
    PacketSocket::open(interface, options).map_err(|source| EmulatorError::Interface {
        link: link.name.clone(),
        source,
    })
}

fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_nanos())
}

fn lateness_histogram() -> Histogram<u64> {
    let max = LATENESS_MAX.as_nanos() as u64;
    Histogram::new_with_bounds(1, max, 3).expect("bounds and digits are constants that fit")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_command_seen_before_its_wake_leaves_nothing_ready() {
        let waker = Arc::new(Waker::new().unwrap());
        let (commands, received) = mpsc::channel();
        let config = EmulatorConfig::default();
        let mut engine = Engine::new(&config, received, Arc::clone(&waker)).unwrap();
        let (answer, answered) = mpsc::sync_channel(1);
        commands.send(Command::MeasureFromNow(answer)).unwrap();
        assert!(engine.obey(now()) == Next::Continue);
        answered.recv().unwrap();
        waker.wake();
        engine.sleep(now());
        let look = Some(Duration::ZERO);
        engine.epoll.wait(&mut engine.ready, look).unwrap();
        assert!(engine.ready.is_empty(), "every wait would end at once");
    }
}
