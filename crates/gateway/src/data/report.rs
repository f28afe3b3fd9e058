//! What the data thread reports to the control thread without being asked.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use keiro_core::{AppId, Event, Instant, MessageId, PeerId, SocketId, TenantId};
use keiro_linux::epoll::Waker;

use super::tunnels::PrefixMismatch;

#[derive(Debug)]
pub(crate) enum Report {
    /// The core's event and when it was seen.
    Core { at: Instant, event: Event },
    /// A message outlived its lifetime and was dropped.
    Expired {
        app: AppId,
        age: Duration,
        length_bytes: u64,
    },
    /// A socket cannot send; reported at most once a minute for each.
    SendFailed { socket: SocketId, error: String },
    /// A device refused segmentation offload; the socket goes on without.
    OffloadRefused { socket: SocketId },
    /// A TUN device does not work any more.
    DeviceLost { number: u64, error: String },
    /// Packets of a tenant were dropped because of an address.
    PrefixMismatch {
        tenant: TenantId,
        mismatch: PrefixMismatch,
    },
    /// At a branch of a network, a tenant has packets for this address.
    Destination {
        tenant: TenantId,
        destination: IpAddr,
    },
    /// A peer has sent a document over the network channel, and waits for
    /// [`super::command::Command::FinishNetworkDocument`].
    NetworkDocument {
        peer: PeerId,
        id: MessageId,
        bytes: Vec<u8>,
    },
    /// A document for a peer has ended.
    NetworkDocumentDone { peer: PeerId, is_delivered: bool },
    /// Everything accepted before [`super::command::Command::Drain`] is delivered.
    Drained,
    /// The thread ended by itself.
    Failed(String),
}

/// Reports that wait for the control thread; further ones are counted and lost.
const REPORTS_MAX: usize = 8192;

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

    /// Queues a report, which the control thread sees with the next [`flush`](Self::flush); `false` if the queue is full, and it is lost.
    pub(crate) fn report(&mut self, report: Report) -> bool {
        let queued = self.reports.try_send(report).is_ok();
        match queued {
            true => self.fresh = true,
            false => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
        queued
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
