//! What the control thread asks of the data thread, and what that one tells.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use keiro_core::{
    AggregationConfig, AppConfig, AppId, EndpointSnapshot, Event, Instant, PathConfig,
    PathSnapshot, PeerConfig, PeerId, SchedulerKind, SessionSnapshot, SocketId, TenantId,
};
use keiro_linux::{
    epoll::Waker,
    tcp::{Listener, Mode},
    tun::{Offloads, TunQueue},
    udp::BatchSocket,
};
use keiro_units::{Bandwidth, Probability};

use super::{
    destination::{TcpDestination, UdpDestination},
    measure::{DelayFigures, DelayQuantiles, LatenessFigures},
    messages,
    tunnels::{TenantFigures, TenantSetup},
};

/// One change or question. They are done in order.
pub(crate) enum Command {
    /// A WAN socket to use.
    AddSocket {
        id: SocketId,
        socket: Box<BatchSocket>,
    },
    /// What may leave a WAN socket to all peers together.
    SetUplink { id: SocketId, rate: Bandwidth },
    /// A WAN socket that no path uses any more.
    RemoveSocket { id: SocketId },
    /// A peer to talk to, and its applications: what it sends may be there already.
    AddPeer {
        config: Box<PeerConfig>,
        apps: Vec<NewApp>,
        reply: SyncSender<PeerId>,
    },
    /// A peer to forget, its sessions included.
    RemovePeer { peer: PeerId },
    /// A peer's paths from now on.
    SetPaths {
        peer: PeerId,
        paths: Vec<PathConfig>,
    },
    /// An application that is new or changed.
    SetApp { name: String, route: AppRoute },
    /// An application to forget.
    RemoveApp { name: String },
    /// How much of each path's rate trains may take.
    SetProbeShare(Probability),
    /// How thin traffic is gathered.
    SetAggregation(Box<AggregationConfig>),
    /// The order in which what waits is served.
    SetScheduler(SchedulerKind),
    /// A UDP address where datagrams enter.
    AddListener {
        app: String,
        socket: Box<BatchSocket>,
    },
    /// A listener that belongs to another application from now on.
    MoveListener { address: SocketAddr, app: String },
    /// A listener to close.
    RemoveListener { address: SocketAddr },
    /// A TCP address where connections enter.
    AddTcpListener {
        app: String,
        listener: Listener,
        mode: Mode,
    },
    /// A TCP listener that belongs to another application from now on.
    MoveTcpListener { address: SocketAddr, app: String },
    /// A TCP listener to close; its connections stay.
    RemoveTcpListener { address: SocketAddr },
    /// Where an application's streams leave; `interface`: by which alone, a tenant's.
    SetTcpForward {
        app: String,
        destination: TcpDestination,
        interface: Option<String>,
    },
    /// A TCP forward to close; its connections stay.
    RemoveTcpForward { app: String },
    /// Where an application's datagrams leave.
    SetForward {
        app: String,
        destination: UdpDestination,
    },
    /// A forward to close.
    RemoveForward { app: String },
    /// A socket where local applications attach.
    AddMessageListener(messages::Listener),
    /// A TUN device, new or brought back.
    AddDevice {
        number: u64,
        queues: Vec<TunQueue>,
        offloads: Offloads,
    },
    /// A TUN device that no tenant has any more.
    RemoveDevice { number: u64 },
    /// A tenant that is new or changed.
    SetTenant { setup: Box<TenantSetup> },
    /// A tenant to forget.
    RemoveTenant { id: TenantId },
    /// Every tenant in numbers.
    Tenants {
        reply: SyncSender<Vec<TenantFigures>>,
    },
    /// Delays of these applications that were measured so far count no longer.
    ForgetDelays { apps: Vec<String> },
    /// By application, the delays of messages that were made since this was asked last.
    TakeDelayWindows {
        reply: SyncSender<BTreeMap<String, DelayQuantiles>>,
    },
    /// Every peer's paths in numbers.
    Paths {
        reply: SyncSender<Vec<(PeerId, Vec<PathSnapshot>)>>,
    },
    /// Everything in numbers.
    Snapshot { reply: SyncSender<Box<Snapshot>> },
    /// Take nothing new; [`Report::Drained`] follows when everything is delivered.
    Drain,
    /// Tell the peers and end the thread.
    Close,
}

/// An application of a peer that has no number yet.
#[derive(Clone, Debug)]
pub(crate) struct NewApp {
    pub(crate) name: String,
    pub(crate) config: AppConfig,
    pub(crate) has_forward: bool,
}

/// Where an application's traffic goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppRoute {
    pub(crate) peer: PeerId,
    pub(crate) config: AppConfig,
    /// Its messages leave by a forward, not by the message socket.
    pub(crate) has_forward: bool,
}

/// What the data thread tells unasked.
#[derive(Debug)]
pub(crate) enum Report {
    /// The core's event and when it was seen.
    Core { at: Instant, event: Event },
    /// A message was given up.
    Expired {
        app: String,
        age: Duration,
        length_bytes: u64,
    },
    /// A socket cannot send; told at most once a minute for each.
    SendFailed { socket: SocketId, error: String },
    /// A device refused segmentation offload; the socket goes on without.
    OffloadRefused { socket: SocketId },
    /// A TUN device does not work any more.
    DeviceLost { number: u64, error: String },
    /// Everything is delivered that was taken over before [`Command::Drain`].
    Drained,
    /// The thread ended by itself.
    Failed(String),
}

/// Everything in numbers.
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    pub(crate) endpoint: EndpointSnapshot,
    pub(crate) sessions: BTreeMap<PeerId, SessionSnapshot>,
    pub(crate) apps: BTreeMap<String, AppFigures>,
    pub(crate) sockets: BTreeMap<SocketId, SocketFigures>,
    pub(crate) lateness: LatenessFigures,
    pub(crate) message_senders: u64,
    pub(crate) message_receivers: u64,
    pub(crate) reports_lost: u64,
}

/// One application in the daemon's numbers; the protocol's are in its session's snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppFigures {
    pub(crate) id: Option<(PeerId, AppId)>,
    pub(crate) delay: DelayFigures,
    pub(crate) senders: u64,
    pub(crate) receivers: u64,
    /// Not taken over from local senders or listeners.
    pub(crate) refused_here: u64,
    pub(crate) listeners: Vec<ListenerFigures>,
    pub(crate) forward: Option<ForwardFigures>,
    pub(crate) tcp_listeners: Vec<TcpListenerFigures>,
    pub(crate) tcp_forward: Option<TcpForwardFigures>,
}

/// A UDP listener.
#[derive(Clone, Debug)]
pub(crate) struct ListenerFigures {
    pub(crate) address: SocketAddr,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    pub(crate) refused_packets: u64,
}

/// A UDP forward.
#[derive(Clone, Debug)]
pub(crate) struct ForwardFigures {
    pub(crate) to: SocketAddr,
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) failed_packets: u64,
}

/// A TCP listener, in connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpListenerFigures {
    pub(crate) address: SocketAddr,
    pub(crate) mode: Mode,
    pub(crate) open: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) reset: u64,
    pub(crate) failed: u64,
}

/// A TCP forward, in connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpForwardFigures {
    pub(crate) destination: TcpDestination,
    pub(crate) open: u64,
    pub(crate) connected: u64,
    pub(crate) failed: u64,
    pub(crate) forbidden: u64,
    pub(crate) reset: u64,
}

/// A WAN socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketFigures {
    /// Dropped because the own receive buffer was full: not the path's loss.
    pub(crate) receive_drops: u64,
    pub(crate) send_buffer_full: u64,
    pub(crate) send_too_large: u64,
    pub(crate) send_failed: u64,
}

/// The control thread's end.
pub(crate) struct DataHandle {
    commands: SyncSender<Command>,
    wake: Arc<Waker>,
}

/// The data thread is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data thread does not answer; is the machine overloaded?")]
pub(crate) struct DataThreadGone;

/// Commands that wait; the control thread waits at more.
const COMMANDS_MAX: usize = 256;
/// Reports that wait; more are counted and lost.
const REPORTS_MAX: usize = 8192;
/// The data thread answers within one turn; so long an answer is worth a line.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// After so many of them it hangs. Not one long wait: a machine that was stopped takes up its clock
/// where it is by then.
const ANSWER_WAITS: u32 = 12;

impl DataHandle {
    /// Both ends.
    pub(crate) fn new(wake: Arc<Waker>) -> (Self, Receiver<Command>) {
        let (commands, receiver) = sync_channel(COMMANDS_MAX);
        (Self { commands, wake }, receiver)
    }

    /// Has `command` done, without waiting for it.
    pub(crate) fn send(&self, command: Command) -> Result<(), DataThreadGone> {
        self.commands.send(command).map_err(|_| DataThreadGone)?;
        self.wake.wake();
        Ok(())
    }

    /// Adds a peer with its applications.
    pub(crate) fn add_peer(
        &self,
        config: PeerConfig,
        apps: Vec<NewApp>,
    ) -> Result<PeerId, DataThreadGone> {
        let config = Box::new(config);
        self.ask(|reply| Command::AddPeer {
            config,
            apps,
            reply,
        })
    }

    /// Every peer's paths in numbers; cheap enough to be asked often.
    pub(crate) fn paths(&self) -> Result<Vec<(PeerId, Vec<PathSnapshot>)>, DataThreadGone> {
        self.ask(|reply| Command::Paths { reply })
    }

    /// Everything in numbers.
    pub(crate) fn snapshot(&self) -> Result<Box<Snapshot>, DataThreadGone> {
        self.ask(|reply| Command::Snapshot { reply })
    }

    /// Delays by application of messages that were made since this was asked last.
    pub(crate) fn take_delay_windows(
        &self,
    ) -> Result<BTreeMap<String, DelayQuantiles>, DataThreadGone> {
        self.ask(|reply| Command::TakeDelayWindows { reply })
    }

    /// Every tenant in numbers.
    pub(crate) fn tenants(&self) -> Result<Vec<TenantFigures>, DataThreadGone> {
        self.ask(|reply| Command::Tenants { reply })
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, DataThreadGone> {
        let (reply, answer) = sync_channel(1);
        self.send(command(reply))?;
        for _ in 0..ANSWER_WAITS {
            match answer.recv_timeout(ANSWER_TIME) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!("the data thread has not answered for {ANSWER_TIME:?}");
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Err(DataThreadGone)
    }
}

/// The data thread's end for reports; never waits.
pub(crate) struct Reporter {
    reports: SyncSender<Report>,
    wake: Arc<Waker>,
    lost: Arc<AtomicU64>,
    fresh: bool,
}

impl Reporter {
    /// Both ends. `wake` is what the control thread waits for.
    pub(crate) fn new(wake: Arc<Waker>) -> (Self, Receiver<Report>) {
        let (reports, receiver) = sync_channel(REPORTS_MAX);
        let reporter = Self {
            reports,
            wake,
            lost: Arc::new(AtomicU64::new(0)),
            fresh: false,
        };
        (reporter, receiver)
    }

    /// Tells it with the next [`flush`](Self::flush); `false` if the queue is full, and it is lost.
    pub(crate) fn report(&mut self, report: Report) -> bool {
        let told = self.reports.try_send(report).is_ok();
        match told {
            true => self.fresh = true,
            false => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
        told
    }

    /// Wakes the control thread if there is something new.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.fresh) {
            self.wake.wake();
        }
    }

    /// Reports that found the queue full.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
