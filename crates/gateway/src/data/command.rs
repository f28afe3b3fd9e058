//! Commands of the control thread to the data thread.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use keiro_core::{
    AggregationConfig, AppId, EndpointSnapshot, Instant, MessageId, PathConfig, PathSnapshot,
    PeerConfig, PeerId, RefusalReason, SchedulerKind, SessionSnapshot, SocketId, TenantId,
    TraceBatch,
};
use keiro_linux::{
    epoll::Waker,
    tcp::{Listener, Mode},
    tun::{Offloads, TunQueue},
    udp::BatchSocket,
};
use keiro_stats::PathSocketStats;
use keiro_units::{Bandwidth, Probability};

use super::{
    destination::{TcpDestination, UdpDestination},
    figures::AppFigures,
    measure::{DelayQuantiles, LatenessFigures},
    messages,
    route::{AppRoute, NewApp},
    split::TransparentSockets,
    tunnels::{SplitListeners, TenantFigures, TenantSetup},
};

/// A change or a query. They are handled in order.
pub(crate) enum Command {
    /// A WAN socket to use, in place of the one of this number if there is one: the paths over it answer
    /// again before they are used.
    BindSocket {
        id: SocketId,
        socket: Box<BatchSocket>,
    },
    /// A WAN socket to close. Its paths are down until there is another one.
    UnbindSocket {
        id: SocketId,
        reply: SyncSender<()>,
    },
    /// What leaves a WAN socket is to leave by this interface from now on, and only what comes in by it is received.
    /// The socket stays, so its paths stay up; those that are down are challenged at once.
    BindToDevice {
        id: SocketId,
        device: String,
        reply: SyncSender<io::Result<()>>,
    },
    /// Paths over a WAN socket that are down are to be challenged at once: there is a new route.
    ChallengePaths {
        id: SocketId,
    },
    /// What may leave a WAN socket to all peers together.
    SetUplink {
        id: SocketId,
        rate: Option<Bandwidth>,
    },
    /// A WAN socket that no path uses any more.
    RemoveSocket {
        id: SocketId,
    },
    /// A new peer and its applications, whose traffic may arrive at once.
    AddPeer {
        config: Box<PeerConfig>,
        apps: Vec<NewApp>,
        reply: SyncSender<PeerId>,
    },
    /// A peer to forget, its sessions included.
    RemovePeer {
        peer: PeerId,
    },
    /// A peer's paths from now on.
    SetPaths {
        peer: PeerId,
        paths: Vec<PathConfig>,
    },
    /// An application that is new or changed.
    SetApp {
        route: AppRoute,
    },
    /// An application to forget.
    RemoveApp {
        app: AppId,
    },
    /// How much of each path's rate trains may take.
    SetProbeShare(Probability),
    /// Aggregation of thin traffic.
    SetAggregation(Box<AggregationConfig>),
    /// The order in which what waits is served.
    SetScheduler(SchedulerKind),
    /// A UDP address where datagrams enter.
    AddListener {
        app: AppId,
        socket: Box<BatchSocket>,
    },
    /// A listener that belongs to another application from now on.
    MoveListener {
        address: SocketAddr,
        app: AppId,
    },
    /// A listener to close.
    RemoveListener {
        address: SocketAddr,
    },
    /// A TCP address where connections enter.
    AddTcpListener {
        app: AppId,
        listener: Listener,
        mode: Mode,
    },
    /// A TCP listener that belongs to another application from now on.
    MoveTcpListener {
        address: SocketAddr,
        app: AppId,
    },
    /// A TCP listener to close; its connections stay.
    RemoveTcpListener {
        address: SocketAddr,
    },
    /// Where an application's streams leave; `interface`: by which alone, a tenant's.
    SetTcpForward {
        app: AppId,
        destination: TcpDestination,
        interface: Option<String>,
    },
    /// A TCP forward to close; its connections stay.
    RemoveTcpForward {
        app: AppId,
    },
    /// Where an application's datagrams leave.
    SetForward {
        app: AppId,
        destination: UdpDestination,
    },
    /// A forward to close.
    RemoveForward {
        app: AppId,
    },
    /// A socket where local applications attach.
    AddMessageListener(messages::Listener),
    /// A TUN device, new or brought back.
    AddDevice {
        number: u64,
        queues: Vec<TunQueue>,
        offloads: Offloads,
    },
    /// A TUN device that no tenant has any more.
    RemoveDevice {
        number: u64,
    },
    /// A tenant that is new or changed.
    SetTenant {
        setup: Box<TenantSetup>,
    },
    /// A tenant to forget.
    RemoveTenant {
        id: TenantId,
    },
    /// Sockets towards the servers of split TCP connections, once.
    SetSplitSockets {
        sockets: TransparentSockets,
    },
    /// Where clients of a tenant's split TCP connections are accepted.
    AddSplitListeners {
        opened: SplitListeners,
    },
    RemoveSplitListeners {
        tenant: TenantId,
    },
    /// Every tenant in numbers.
    Tenants {
        /// The tenant whose largest flows are wanted: looking for them takes time.
        flows_of: Option<TenantId>,
        reply: SyncSender<Vec<TenantFigures>>,
    },
    /// Delays of these applications that were measured so far count no longer.
    ForgetDelays {
        apps: Vec<AppId>,
    },
    /// By application, the delays of messages that were made since this was asked last.
    TakeDelayWindows {
        reply: SyncSender<BTreeMap<AppId, DelayQuantiles>>,
    },
    /// Every peer's paths in numbers.
    Paths {
        reply: SyncSender<Vec<(PeerId, Vec<PathSnapshot>)>>,
    },
    /// A snapshot of all figures.
    Snapshot {
        reply: SyncSender<Box<Snapshot>>,
    },
    /// The packets of a peer's paths since the last such command.
    TakeTrace {
        peer: PeerId,
        reply: SyncSender<PacketTrace>,
    },
    /// Packets are not recorded any more.
    StopTrace {
        peer: PeerId,
    },
    /// Documents of the network channel are taken from all peers, or from none.
    OpenNetworkChannel(bool),
    /// Send a peer a document over the network channel; [`super::report::Report::NetworkDocumentDone`] follows.
    SendNetworkDocument {
        peer: PeerId,
        bytes: Vec<u8>,
    },
    /// A document was taken, or refused.
    FinishNetworkDocument {
        peer: PeerId,
        id: MessageId,
        length_bytes: usize,
        refused: Option<RefusalReason>,
    },
    /// Accept nothing new; [`super::report::Report::Drained`] follows when everything is delivered.
    Drain,
    /// Send close notices to the peers and end the thread.
    Close,
}

/// Everything in numbers.
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    pub(crate) endpoint: EndpointSnapshot,
    pub(crate) sessions: BTreeMap<PeerId, SessionSnapshot>,
    pub(crate) apps: BTreeMap<AppId, AppFigures>,
    pub(crate) sockets: BTreeMap<SocketId, PathSocketStats>,
    pub(crate) lateness: LatenessFigures,
    pub(crate) message_senders: u64,
    pub(crate) message_receivers: u64,
    pub(crate) reports_lost: u64,
}

/// What happened on a peer's paths.
pub(crate) struct PacketTrace {
    /// When it was taken.
    pub(crate) at: Instant,
    /// `None`: there is no such peer.
    pub(crate) batch: Option<TraceBatch>,
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
/// A later answer is logged.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Waits after which the thread is considered stuck. Not one long wait: a machine that was
/// suspended continues with the clock's present time.
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

    /// Closes a WAN socket. Its address is free when this returns.
    pub(crate) fn unbind_socket(&self, id: SocketId) -> Result<(), DataThreadGone> {
        self.ask(|reply| Command::UnbindSocket { id, reply })
    }

    /// Binds a WAN socket to an interface too.
    pub(crate) fn bind_to_device(
        &self,
        id: SocketId,
        device: &str,
    ) -> Result<io::Result<()>, DataThreadGone> {
        let device = device.to_owned();
        self.ask(|reply| Command::BindToDevice { id, device, reply })
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
    ) -> Result<BTreeMap<AppId, DelayQuantiles>, DataThreadGone> {
        self.ask(|reply| Command::TakeDelayWindows { reply })
    }

    /// The packets of a peer's paths since this was asked last; the first time none.
    pub(crate) fn take_trace(&self, peer: PeerId) -> Result<PacketTrace, DataThreadGone> {
        self.ask(|reply| Command::TakeTrace { peer, reply })
    }

    /// Every tenant in numbers, with flows that of `flows_of` alone.
    pub(crate) fn tenants(
        &self,
        flows_of: Option<TenantId>,
    ) -> Result<Vec<TenantFigures>, DataThreadGone> {
        self.ask(|reply| Command::Tenants { flows_of, reply })
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
