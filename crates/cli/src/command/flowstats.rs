//! `keiro flowstats`: what leaves interfaces, per inner flow and segment, until interrupted.

use std::{
    fs,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use keiro_flowstats::{
    Attached, Counter, CounterError, Peers, Tracker, line::Line, metrics, view::View,
};
use keiro_linux::{
    clock,
    epoll::{Epoll, Interest, ReadyList},
    signal::Signals,
};

use crate::{
    args,
    failure::Failure,
    output::{self, tell},
};

/// How often the view and the metrics are written.
const SHOW: Duration = Duration::from_secs(1);

/// A flow that has been silent this long is let go, so that there is room for others.
const IDLE: Duration = Duration::from_secs(60);

/// How often silent flows are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// Reading more often than this costs more than it tells.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Clears the terminal and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) fn flowstats(args: &args::Flowstats) -> Result<(), Failure> {
    let interval = args.interval.0.max(INTERVAL_MIN);
    let mut signals = Signals::block().map_err(unexpected)?;
    let mut session = Session::begin(args)?;
    let epoll = Epoll::new().map_err(unexpected)?;
    epoll.add(&signals, 0, Interest::Read).map_err(unexpected)?;
    let mut ready = ReadyList::new(1);
    let begin = clock::monotonic();
    let end = args.time.as_ref().map(|time| begin + time.0);
    let mut next = begin + interval;
    let mut last = begin;
    loop {
        let now = clock::monotonic();
        let wait = next.min(end.unwrap_or(next)).saturating_sub(now);
        if !wait.is_zero() {
            epoll.wait(&mut ready, Some(wait)).map_err(unexpected)?;
        }
        let stop = signals.take().map_err(unexpected)?.is_some();
        let now = clock::monotonic();
        let over = stop || end.is_some_and(|end| now >= end);
        if over || now >= next {
            session.tick(now, now - last, over)?;
            last = now;
            // Readings that were missed are not made up for.
            next = (next + interval).max(now);
        }
        if over {
            return session.end();
        }
    }
}

/// The counters, and what is done with their counts.
struct Session {
    counters: Vec<(Counter, Tracker)>,
    peers: Peers,
    output: Output,
    metrics: Option<PathBuf>,
    shown: Duration,
    swept: Duration,
    /// The kernel cannot let go of flows.
    keeps: bool,
}

enum Output {
    Lines,
    View { view: View, clear: &'static str },
}

impl Session {
    fn begin(args: &args::Flowstats) -> Result<Self, Failure> {
        let mut counters = Vec::new();
        for interface in &args.interfaces {
            let counter = Counter::attach(interface).map_err(|error| not_counting(&error))?;
            if let Attached::WithoutTokens(reason) = counter.attached() {
                tell!("keiro: {interface}: without MPTCP tokens: {reason}");
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
                true => Output::Lines,
                false => Output::View {
                    view: View::default(),
                    clear,
                },
            },
            metrics: args.metrics.clone(),
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
        Ok(())
    }

    fn read(&mut self, interval: Duration) -> Result<(), Failure> {
        let unix = clock::unix_time();
        let mut out = BufWriter::new(io::stdout().lock());
        let mut written = Ok(());
        for (counter, tracker) in &mut self.counters {
            let name = counter.interface().to_owned();
            let result = counter.read(|key, counts| {
                let Some(change) = tracker.update(key, counts) else {
                    return;
                };
                match &mut self.output {
                    Output::Lines if written.is_ok() => {
                        let line = Line::new(&name, unix, interval, &change, &self.peers);
                        written = serde_json::to_writer(&mut out, &line)
                            .map_err(io::Error::from)
                            .and_then(|()| out.write_all(b"\n"));
                    }
                    Output::Lines => {}
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
        let all = self.counters.iter();
        let all = all.map(|(counter, tracker)| (counter.interface(), tracker));
        replace(path, &metrics::render(all, &self.peers)).map_err(|error| {
            Failure::new(format!("cannot write the metrics to {}", path.display())).because(error)
        })
    }

    fn sweep(&mut self) {
        if self.keeps {
            return;
        }
        let now = clock::monotonic_nanos();
        for (counter, tracker) in &mut self.counters {
            for key in tracker.idle(now, IDLE) {
                match counter.forget(&key) {
                    Ok(counts) => drop(tracker.forget(key, counts)),
                    Err(error) => {
                        tell!("keiro: silent flows are kept: {error}");
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
                tell!(
                    "keiro: {}: {}: {} bytes, {} packets, {} of {} TCP segments retransmitted",
                    counter.interface(),
                    self.peers.name(*sid),
                    total.bytes,
                    total.packets,
                    total.retransmits,
                    total.segments
                );
            }
        }
        Ok(())
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
