//! `keiro flowstats`: what leaves interfaces, per inner flow and segment, until interrupted.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufWriter, IsTerminal, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    time::Duration,
};

use keiro_flowstats::{
    Attached, Change, Counter, CounterError, Peers, Tracker,
    ipfix::{Exporter, Interface},
    line::Lines,
    metrics,
    view::View,
};
use keiro_linux::{
    clock,
    epoll::{Epoll, Interest, ReadyList},
    interface, kernel,
    metrics_server::MetricsServer,
    privilege::Capability,
    signal::Signals,
};

use super::run_as;
use crate::{
    args,
    failure::Failure,
    output::{self, message},
};

/// How often the view and the metrics are written.
const SHOW: Duration = Duration::from_secs(1);

/// A flow that has been silent this long is let go, so that there is room for others.
const IDLE: Duration = Duration::from_secs(60);

/// How often silent flows are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// Interval of exports to a collector.
const EXPORT: Duration = Duration::from_secs(10);

/// How long one message may wait to be sent.
const SEND_WAIT: Duration = Duration::from_millis(100);

/// Reading more often than this costs more than it is worth.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// What is waited for; scrapers have the tokens behind.
const SIGNALS: u64 = 0;
const METRICS: u64 = 1;
/// Looked at in one turn; others in the next.
const READY_MAX: usize = 16;

/// Clears the terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) fn flowstats(args: &args::Flowstats) -> Result<(), Failure> {
    let interval = args.interval.0;
    if interval < INTERVAL_MIN {
        return Err(Failure::usage(
            "--interval: less than 10ms costs too much processor time",
            "write 10ms or more",
        ));
    }
    let mut named = BTreeSet::new();
    if let Some(twice) = args.interfaces.iter().find(|name| !named.insert(*name)) {
        return Err(Failure::usage(
            format!("`{twice}` is named twice, and would be counted twice"),
            "name each interface once",
        ));
    }
    let mut signals = Signals::block().map_err(unexpected)?;
    let epoll = Epoll::new().map_err(unexpected)?;
    epoll
        .add(&signals, SIGNALS, Interest::Read)
        .map_err(unexpected)?;
    let mut server = match args.metrics_listen {
        Some(address) => Some(listen(&epoll, address, args.metrics_public)?),
        None => None,
    };
    let mut session = Session::begin(args)?;
    give_up_privileges(&args.user)?;
    let mut ready = ReadyList::new(READY_MAX);
    let begin = clock::monotonic();
    let end = args.time.as_ref().map(|time| begin + time.0);
    let mut next = begin + interval;
    let mut last = begin;
    loop {
        let now = clock::monotonic();
        let wait = next.min(end.unwrap_or(next)).saturating_sub(now);
        if !wait.is_zero() {
            epoll.wait(&mut ready, Some(wait)).map_err(unexpected)?;
            if let Some(server) = &mut server {
                answer(server, &epoll, &ready, &session);
            }
        }
        let stop = signals.take().map_err(unexpected)?.is_some();
        let now = clock::monotonic();
        let over = stop || end.is_some_and(|end| now >= end);
        if over || now >= next {
            session.tick(now, now - last, over)?;
            if let Some(server) = &mut server {
                server.sweep();
                server.rearm(&epoll);
            }
            last = now;
            // Readings that were missed are not made up for.
            next = (next + interval).max(now);
        }
        if over {
            return session.end();
        }
    }
}

/// Becomes another user as soon as everything is opened.
fn give_up_privileges(user: &args::User) -> Result<(), Failure> {
    let (run_as, warning) = run_as::choose(user)?;
    if let Some(warning) = warning {
        message!("keiro: {warning}");
    }
    let version = kernel::version().unwrap_or_default();
    let mut keep = Vec::new();
    // From there on a map's descriptor is enough to read it.
    if version < (5, 19) {
        keep.push(Capability::Bpf);
    }
    // From there on the program is detached when its descriptor is closed.
    if version < (6, 6) {
        keep.push(Capability::NetAdmin);
    }
    run_as.give_up(&keep).map_err(run_as::refused)?;
    Ok(())
}

/// Takes the port before anything is counted.
fn listen(epoll: &Epoll, address: SocketAddr, public: bool) -> Result<MetricsServer, Failure> {
    if !address.ip().is_loopback() && !public {
        return Err(Failure::usage(
            format!("--metrics-listen: {address} is not a loopback address"),
            "write 127.0.0.1, or add --metrics-public if others shall read the metrics",
        ));
    }
    MetricsServer::bind(address)
        .and_then(|listener| MetricsServer::new(epoll, listener, METRICS))
        .map_err(|error| {
            Failure::new(format!("cannot listen on {address} for metrics"))
                .because(error)
                .hint("is the port in use? (`ss -tlnp`)")
        })
}

/// Serves the scrapers that are ready, with the figures of the last reading.
fn answer(server: &mut MetricsServer, epoll: &Epoll, ready: &ReadyList, session: &Session) {
    for event in ready.iter() {
        match event.token {
            SIGNALS => {}
            METRICS => server.accept(epoll, |number| METRICS + 1 + number),
            token => {
                let number = token - METRICS - 1;
                server.serve(epoll, number, event.readable, || session.metrics_page());
            }
        }
    }
}

/// The counters, and what is done with their counts.
struct Session {
    counters: Vec<(Counter, Tracker)>,
    peers: Peers,
    output: Output,
    metrics: Option<PathBuf>,
    collector: Option<Collector>,
    shown: Duration,
    swept: Duration,
    /// The kernel cannot let go of flows.
    keeps: bool,
}

enum Output {
    /// By the counters' places.
    Lines(Vec<Lines>),
    View {
        view: View,
        clear: &'static str,
    },
}

impl Session {
    fn begin(args: &args::Flowstats) -> Result<Self, Failure> {
        let mut counters = Vec::new();
        for interface in &args.interfaces {
            let counter = Counter::attach(interface).map_err(|error| not_counting(&error))?;
            if let Attached::WithoutTokens(reason) = counter.attached() {
                message!("keiro: {interface}: without MPTCP tokens: {reason}");
            }
            counters.push((counter, Tracker::default()));
        }
        let clear = if io::stdout().is_terminal() {
            CLEAR
        } else {
            ""
        };
        let now = clock::monotonic();
        Ok(Self {
            counters,
            peers: args.peers.iter().cloned().collect(),
            output: match args.json {
                true => Output::Lines(
                    args.interfaces
                        .iter()
                        .map(|name| Lines::new(name))
                        .collect(),
                ),
                false => Output::View {
                    view: View::default(),
                    clear,
                },
            },
            metrics: args.metrics.clone(),
            collector: match args.ipfix {
                Some(at) => Some(Collector::open(at, &args.interfaces, now)?),
                None => None,
            },
            shown: now,
            swept: now,
            keeps: false,
        })
    }

    /// Reads the counts, `interval` after the last time, and shows what is due; with `all`,
    /// everything is.
    fn tick(&mut self, now: Duration, interval: Duration, all: bool) -> Result<(), Failure> {
        self.read(interval)?;
        if all || now >= self.shown + SHOW {
            if let Output::View { view, clear } = &mut self.output {
                let text = view.take(now - self.shown, &self.peers);
                output::text(format_args!("{clear}{text}"))?;
            }
            self.write_metrics()?;
            self.shown = now;
        }
        if now >= self.swept + SWEEP {
            self.sweep();
            self.swept = now;
        }
        if let Some(collector) = &mut self.collector {
            collector.export_due(now, all);
        }
        Ok(())
    }

    fn read(&mut self, interval: Duration) -> Result<(), Failure> {
        let unix = clock::unix_time();
        let mut out = BufWriter::new(io::stdout().lock());
        let mut written = Ok(());
        for (place, (counter, tracker)) in self.counters.iter_mut().enumerate() {
            let result = counter.read(|key, counts| {
                let Some(change) = tracker.update(key, counts) else {
                    return;
                };
                if let Some(collector) = &mut self.collector {
                    collector.add(place, &change, unix.saturating_sub(interval), unix);
                }
                match &mut self.output {
                    Output::Lines(lines) if written.is_ok() => {
                        let lines = &mut lines[place];
                        written = lines.write(&mut out, unix, interval, &change, &self.peers);
                    }
                    Output::Lines(_) => {}
                    Output::View { view, .. } => view.add(&change),
                }
            });
            result.map_err(|error| not_counting(&error))?;
        }
        written.and_then(|()| out.flush()).map_err(Failure::Output)
    }

    fn write_metrics(&self) -> Result<(), Failure> {
        let Some(path) = &self.metrics else {
            return Ok(());
        };
        replace(path, &self.metrics_page()).map_err(|error| {
            Failure::new(format!("cannot write the metrics to {}", path.display())).because(error)
        })
    }

    fn metrics_page(&self) -> String {
        let all = self.counters.iter();
        let all = all.map(|(counter, tracker)| (counter.interface(), tracker));
        metrics::render(all, &self.peers)
    }

    fn sweep(&mut self) {
        if self.keeps {
            return;
        }
        let now = clock::monotonic_nanos();
        let unix = clock::unix_time();
        for (place, (counter, tracker)) in self.counters.iter_mut().enumerate() {
            for key in tracker.idle(now, IDLE) {
                match counter.forget(&key) {
                    Ok(counts) => {
                        let last = tracker.forget(key, counts);
                        if let Output::Lines(lines) = &mut self.output {
                            lines[place].forget(&key);
                        }
                        if let (Some(collector), Some(change)) = (&mut self.collector, last) {
                            collector.add(place, &change, unix, unix);
                        }
                    }
                    Err(error) => {
                        message!("keiro: silent flows are kept: {error}");
                        self.keeps = true;
                        return;
                    }
                }
            }
        }
    }

    /// The totals, as the last words.
    fn end(&self) -> Result<(), Failure> {
        for (counter, tracker) in &self.counters {
            for (sid, total) in tracker.totals() {
                message!(
                    "keiro: {}: {}: {} bytes, {} packets, {} of {} TCP segments retransmitted",
                    counter.interface(),
                    self.peers.name(*sid),
                    total.bytes,
                    total.packets,
                    total.tcp_retransmits,
                    total.tcp_segments
                );
            }
        }
        Ok(())
    }
}

/// The collector that gets flows as IPFIX.
struct Collector {
    socket: UdpSocket,
    exporter: Exporter,
    /// By their places among those that are counted.
    interfaces: Vec<Interface>,
    sent_at: Duration,
    /// The last message could not be sent.
    failed: bool,
}

impl Collector {
    fn open(at: SocketAddr, interfaces: &[String], now: Duration) -> Result<Self, Failure> {
        let any = match at {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let opened = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(at)?;
            socket.set_write_timeout(Some(SEND_WAIT))?;
            Ok(socket)
        });
        let socket = opened.map_err(|error| {
            Failure::new(format!("cannot send to the collector at {at}")).because(error)
        })?;
        let of_name = |name: &String| Interface {
            index: interface::index(name).unwrap_or_default(),
            header_bytes: header_bytes(name),
        };
        Ok(Self {
            socket,
            exporter: Exporter::default(),
            interfaces: interfaces.iter().map(of_name).collect(),
            sent_at: now,
            failed: false,
        })
    }

    fn add(&mut self, place: usize, change: &Change, from: Duration, until: Duration) {
        self.exporter
            .add(self.interfaces[place], change, from, until);
    }

    /// Exports what is due, with `all` everything.
    fn export_due(&mut self, now: Duration, all: bool) {
        if !all && now < self.sent_at + EXPORT && !self.exporter.is_full() {
            return;
        }
        self.sent_at = now;
        for message in self.exporter.export(clock::unix_time()) {
            let sent = self.socket.send(&message);
            if let Err(error) = &sent
                && !self.failed
            {
                message!("keiro: cannot send to the collector: {error}");
            }
            self.failed = sent.is_err();
            // Reading the counts does not wait for a line that is full; by the numbers of what
            // follows the collector notices.
            if sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
        }
    }
}

/// Octets of an interface's link-layer header: 14 of Ethernet's (and of `lo`, which has one, too), none
/// of those that carry IP alone.
fn header_bytes(interface: &str) -> u8 {
    let kind = fs::read_to_string(format!("/sys/class/net/{interface}/type"));
    match kind.as_deref().map(str::trim) {
        // ARPHRD_ETHER, ARPHRD_LOOPBACK (linux/if_arp.h).
        Ok("1" | "772") => 14,
        _ => 0,
    }
}

/// Replaces a file at once, so that no reader sees half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, text)?;
    fs::rename(&beside, path)
}

fn not_counting(error: &CounterError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        CounterError::NotPermitted => failure.hint("run it as root"),
        CounterError::Interface { .. } => failure.hint("`ip link` lists the interfaces"),
        _ => failure,
    }
}

fn unexpected(error: io::Error) -> Failure {
    Failure::new("cannot wait for time to pass").because(error)
}
