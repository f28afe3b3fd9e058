//! A link emulator in user space: carries whole Ethernet frames between pairs of interfaces, each
//! direction through one [`keiro_link::Link`].
//!
//! The interfaces are the outer ends of veth pairs, all in one namespace that nothing else uses;
//! the inner ends are in the hosts. ARP, neighbour discovery and everything else pass through the
//! link like any packet and are subject to its rate, delay and loss.
//!
//! One thread serves all links. The release time of a frame is computed from the **kernel's** receive time
//! stamp, so that lateness in reading does not add to the delay. Lateness in sending does; it is measured,
//! and voids a run if it is too great ([`Report::void`]).
//!
//! Frames longer than the MTU or without checksum come from offloads at the hosts' ends;
//! [`keiro_linux::offload::disable_offloads`] switches them off. [`crate::lab`] makes interfaces and
//! namespaces.

mod engine;
mod frames;
mod margin;
pub mod measure;
mod queueing;
mod report;

use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    thread::{self, JoinHandle},
};

use keiro_link::{LinkConfig, Trace};
use keiro_linux::{
    epoll::Waker,
    netns::{Netns, NetnsError},
    packet::{ETHERNET_HEADER_BYTES, PacketError},
    realtime::FifoPriority,
};
use keiro_units::Instant;

use engine::Engine;
pub use queueing::{QUEUEING_BIN, Queueing, QueueingBin};
pub use report::{DirectionReport, LATENESS_P99_MAX, Lateness, LinkReport, Report};

/// Maximum of links of one emulator; ours: one thread serves all of them.
pub const LINKS_MAX: usize = 128;

/// Priority of the thread: above other real-time threads of a laboratory, below the kernel's own (50). A
/// thread with the same priority on the same CPU runs only while it waits for a frame. Ours.
pub const PRIORITY: FifoPriority = FifoPriority::new(40).unwrap();

/// Configuration of an emulator.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatorConfig {
    /// The namespace of the interfaces; `None` for the caller's.
    pub netns: Option<String>,
    /// The links, each with a name of its own.
    pub links: Vec<LinkSpec>,
    /// Seed of loss, jitter and other randomness of all links.
    pub seed: u64,
    /// Length of the frame's head that does not count as packet and is never corrupted: 14 by default, which
    /// leaves the IP packet.
    pub header_bytes: usize,
    /// Keep the machine's CPUs from halting, if permitted; off by default.
    pub keep_cpus_awake: bool,
    /// The CPU of the emulator, counted from zero; `None` for any, the default.
    pub cpu: Option<usize>,
}

/// One link between two interfaces.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Its name in changes and reports.
    pub name: String,
    /// The interface at end a.
    pub a: String,
    /// The interface at end b.
    pub b: String,
    /// Emulation of frames from `a` to `b`.
    pub a_to_b: LinkConfig,
    /// Emulation of frames from `b` to `a`.
    pub b_to_a: LinkConfig,
    /// Recordings that frames from `a` to `b`, and back, are sent by instead of the configured rate. They
    /// begin with the emulator.
    pub recordings: [Option<Trace>; 2],
}

/// One of a link's two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received from interface `a`, sent to interface `b`.
    AToB,
    /// Received from interface `b`, sent to interface `a`.
    BToA,
}

/// A running emulator. Dropping it stops it; frames in its links are lost.
#[derive(Debug)]
pub struct EmulatorHandle {
    /// Names of the links in order.
    names: Vec<String>,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    /// `None` once joined.
    thread: Option<JoinHandle<Report>>,
}

/// Why an emulator does not start or does not answer.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// An interface's frames are not available.
    #[error("link `{link}`: {source}")]
    Interface {
        /// The link that uses the interface.
        link: String,
        /// What is wrong with it.
        source: PacketError,
    },
    /// Two links, or both ends of one, use the same interface.
    #[error("interface `{0}` is used twice; every end of a link needs its own")]
    InterfaceTwice(String),
    /// Two links have the same name.
    #[error("there are two links `{0}`")]
    LinkTwice(String),
    /// More than [`LINKS_MAX`].
    #[error("{0} links; one emulator carries at most {LINKS_MAX}")]
    TooManyLinks(usize),
    /// No link of that name.
    #[error("there is no link `{name}`; there are: {}", known.join(", "))]
    NoSuchLink {
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// The machine refused a thread or a descriptor.
    #[error("cannot start the link emulator: {0}")]
    System(io::Error),
    /// Its thread has ended, which is a bug.
    #[error("the link emulator has stopped by itself")]
    Stopped,
}

/// A request to the thread.
enum Command {
    Apply {
        direction: usize,
        config: LinkConfig,
        applied: SyncSender<Instant>,
    },
    Replay {
        direction: usize,
        trace: Option<Trace>,
        begun: SyncSender<Instant>,
    },
    /// Measures from now on, and answers with what was measured since the last such command.
    Queueing {
        direction: usize,
        measured: SyncSender<Option<Queueing>>,
    },
    Report(SyncSender<Report>),
    MeasureFromNow(SyncSender<()>),
    Stop,
}

impl Default for EmulatorConfig {
    fn default() -> Self {
        Self {
            netns: None,
            links: Vec::new(),
            seed: 0,
            header_bytes: ETHERNET_HEADER_BYTES,
            keep_cpus_awake: false,
            cpu: None,
        }
    }
}

impl EmulatorConfig {
    /// Starts to carry frames, in a thread of its own.
    ///
    /// The thread requests real-time scheduling and locked memory. If they are refused it runs without, and
    /// the report says so.
    ///
    /// # Errors
    /// See [`EmulatorError`]; nothing is left running then.
    pub fn start(self) -> Result<EmulatorHandle, EmulatorError> {
        self.check()?;
        let netns = self.netns.as_deref().map(Netns::open).transpose()?;
        let names = self.links.iter().map(|link| link.name.clone()).collect();
        let waker = Arc::new(Waker::new().map_err(EmulatorError::System)?);
        let (commands, received) = mpsc::channel();
        let (started, start) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("keiro-emulator".into())
            .spawn({
                let waker = Arc::clone(&waker);
                move || run(&self, netns.as_ref(), received, waker, &started)
            })
            .map_err(EmulatorError::System)?;
        let handle = EmulatorHandle {
            names,
            commands,
            waker,
            thread: Some(thread),
        };
        start.recv().map_err(|_| EmulatorError::Stopped)??;
        Ok(handle)
    }

    fn check(&self) -> Result<(), EmulatorError> {
        if self.links.len() > LINKS_MAX {
            return Err(EmulatorError::TooManyLinks(self.links.len()));
        }
        let mut names: Vec<_> = self.links.iter().map(|link| &link.name).collect();
        if let Some(name) = repeated(&mut names) {
            return Err(EmulatorError::LinkTwice(name));
        }
        let mut ends: Vec<_> = self
            .links
            .iter()
            .flat_map(|link| [&link.a, &link.b])
            .collect();
        match repeated(&mut ends) {
            Some(name) => Err(EmulatorError::InterfaceTwice(name)),
            None => Ok(()),
        }
    }
}

impl EmulatorHandle {
    /// Changes one direction of a link, and returns the time of the change on the clock of
    /// [`keiro_linux::clock::monotonic_nanos`]. [`keiro_link::Link::apply`] describes what happens to packets
    /// in transit.
    ///
    /// # Errors
    /// There is no such link, or the emulator has stopped.
    pub fn apply(
        &self,
        link: &str,
        direction: Direction,
        config: LinkConfig,
    ) -> Result<Instant, EmulatorError> {
        let direction = self.direction_index(link, direction)?;
        self.ask(|applied| Command::Apply {
            direction,
            config,
            applied,
        })
    }

    /// Lets one direction of a link replay a recording from its beginning; `None` returns to the configured
    /// rate. Returns the time of the beginning, as [`apply`](Self::apply) does.
    ///
    /// # Errors
    /// There is no such link, or the emulator has stopped.
    pub fn replay(
        &self,
        link: &str,
        direction: Direction,
        trace: Option<Trace>,
    ) -> Result<Instant, EmulatorError> {
        let direction = self.direction_index(link, direction)?;
        self.ask(|begun| Command::Replay {
            direction,
            trace,
            begun,
        })
    }

    /// Begins to measure how long packets of one direction wait for others. Returns what was measured since
    /// the last call; `None` for the first.
    ///
    /// # Errors
    /// There is no such link, or the emulator has stopped.
    pub fn measure_queueing(
        &self,
        link: &str,
        direction: Direction,
    ) -> Result<Option<Queueing>, EmulatorError> {
        let direction = self.direction_index(link, direction)?;
        self.ask(|measured| Command::Queueing {
            direction,
            measured,
        })
    }

    fn direction_index(&self, link: &str, direction: Direction) -> Result<usize, EmulatorError> {
        let index = self.names.iter().position(|name| name == link);
        let index = index.ok_or_else(|| EmulatorError::NoSuchLink {
            name: link.into(),
            known: self.names.clone(),
        })?;
        Ok(engine::direction_index(index, direction))
    }

    /// Counters of the links since the start, and lateness of the emulator since the start or the last
    /// [`measure_from_now`](Self::measure_from_now).
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn report(&self) -> Result<Report, EmulatorError> {
        self.ask(Command::Report)
    }

    /// Resets the recorded lateness, so that the set-up of an experiment does not count.
    ///
    /// # Errors
    /// The emulator has stopped.
    pub fn measure_from_now(&self) -> Result<(), EmulatorError> {
        self.ask(Command::MeasureFromNow)
    }

    /// Stops and returns the last report.
    ///
    /// # Errors
    /// The emulator had already stopped.
    pub fn stop(mut self) -> Result<Report, EmulatorError> {
        self.join().ok_or(EmulatorError::Stopped)
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, EmulatorError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.commands
            .send(command(answer))
            .map_err(|_| EmulatorError::Stopped)?;
        self.waker.wake();
        answered.recv().map_err(|_| EmulatorError::Stopped)
    }

    fn join(&mut self) -> Option<Report> {
        let thread = self.thread.take()?;
        // Fails only if the thread has ended already.
        let _ = self.commands.send(Command::Stop);
        self.waker.wake();
        thread.join().ok()
    }
}

impl Drop for EmulatorHandle {
    fn drop(&mut self) {
        self.join();
    }
}

fn run(
    config: &EmulatorConfig,
    netns: Option<&Netns>,
    commands: Receiver<Command>,
    waker: Arc<Waker>,
    started: &SyncSender<Result<(), EmulatorError>>,
) -> Report {
    let engine = netns
        .map_or(Ok(()), Netns::enter)
        .map_err(EmulatorError::Netns)
        .and_then(|()| Engine::new(config, commands, waker));
    match engine {
        Ok(mut engine) => {
            engine.take_real_time(PRIORITY);
            // The handle waits for this message.
            let _ = started.send(Ok(()));
            engine.run()
        }
        Err(error) => {
            let _ = started.send(Err(error));
            Report::default()
        }
    }
}

fn repeated(names: &mut [&String]) -> Option<String> {
    names.sort_unstable();
    let pair = names.windows(2).find(|pair| pair[0] == pair[1])?;
    Some(pair[0].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, a: &str, b: &str) -> LinkSpec {
        LinkSpec {
            name: name.into(),
            a: a.into(),
            b: b.into(),
            a_to_b: LinkConfig::default(),
            b_to_a: LinkConfig::default(),
            recordings: [None, None],
        }
    }

    fn refused(links: Vec<LinkSpec>) -> EmulatorError {
        EmulatorConfig {
            links,
            ..EmulatorConfig::default()
        }
        .start()
        .unwrap_err()
    }

    #[test]
    fn names_and_interfaces_must_be_unique() {
        let error = refused(vec![link("x", "a0", "b0"), link("x", "a1", "b1")]);
        assert!(matches!(error, EmulatorError::LinkTwice(name) if name == "x"));
        let error = refused(vec![link("x", "a0", "b0"), link("y", "a1", "a0")]);
        assert!(matches!(error, EmulatorError::InterfaceTwice(name) if name == "a0"));
        let error = refused(vec![link("x", "a0", "a0")]);
        assert!(matches!(error, EmulatorError::InterfaceTwice(name) if name == "a0"));
    }

    #[test]
    fn number_of_links_is_bounded() {
        let links =
            (0..=LINKS_MAX).map(|i| link(&i.to_string(), &format!("a{i}"), &format!("b{i}")));
        assert!(matches!(
            refused(links.collect()),
            EmulatorError::TooManyLinks(129)
        ));
    }

    #[test]
    fn missing_interface_and_namespace_are_named() {
        let error = refused(vec![link("x", "keiro-none", "b0")]);
        assert!(error.to_string().contains("keiro-none"), "{error}");
        let config = EmulatorConfig {
            netns: Some("keiro-there-is-none".into()),
            ..EmulatorConfig::default()
        };
        assert!(matches!(
            config.start(),
            Err(EmulatorError::Netns(NetnsError::Missing { .. }))
        ));
    }
}
