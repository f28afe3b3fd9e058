//! The WAN's sockets: sends the core's batches and counts what becomes of them.

use std::{collections::BTreeMap, io, time::Duration};

use keiro_core::{Endpoint, Instant, SocketId, Transmit};
use keiro_linux::{
    epoll::{Epoll, Interest},
    overflow::ReceiveOverflows,
    udp::{BatchSocket, Outgoing, Sent},
};

use super::{
    command::{Report, Reporter, SocketFigures},
    token,
};

/// All WAN sockets.
pub(crate) struct Wan {
    sockets: BTreeMap<SocketId, WanSocket>,
    /// `None`: the kernel does not tell.
    overflows: Option<ReceiveOverflows>,
}

struct WanSocket {
    socket: BatchSocket,
    figures: SocketFigures,
    /// The kernel's counter when it was read last; it wraps around.
    drops_seen: u32,
    told_failure: Option<Instant>,
    told_offload: bool,
}

/// A socket that cannot send says so this often.
const FAILURE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl Wan {
    pub(crate) fn new() -> Self {
        Self {
            sockets: BTreeMap::new(),
            overflows: ReceiveOverflows::open().ok(),
        }
    }

    pub(crate) fn add(
        &mut self,
        epoll: &Epoll,
        id: SocketId,
        socket: BatchSocket,
    ) -> io::Result<()> {
        epoll.add(&socket, token::wan(id.0), Interest::Read)?;
        let socket = WanSocket {
            socket,
            figures: SocketFigures::default(),
            drops_seen: 0,
            told_failure: None,
            told_offload: false,
        };
        self.sockets.insert(id, socket);
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: SocketId) {
        // Dropping the socket takes it out of the epoll set.
        self.sockets.remove(&id);
    }

    pub(crate) fn socket(&self, id: SocketId) -> Option<&BatchSocket> {
        self.sockets.get(&id).map(|wan| &wan.socket)
    }

    /// Sends a batch. What cannot be sent is lost like on the way, and counted here.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        transmit: &Transmit,
        data: &[u8],
        reporter: &mut Reporter,
    ) {
        let Some(wan) = self.sockets.get_mut(&transmit.socket) else {
            return;
        };
        let outgoing = Outgoing {
            remote: transmit.remote,
            source: None,
            ecn: transmit.ecn,
            data: data.get(..transmit.len).unwrap_or(data),
            segment_size: transmit.segment_size,
        };
        match wan.socket.send(&outgoing) {
            Sent::All => {}
            Sent::BufferFull => wan.figures.send_buffer_full += 1,
            Sent::TooLarge => wan.figures.send_too_large += 1,
            Sent::Failed(error) => {
                wan.figures.send_failed += 1;
                let quiet = wan.told_failure.is_some_and(|told| {
                    now.saturating_duration_since(told) < FAILURE_REPORT_INTERVAL
                });
                if !quiet {
                    wan.told_failure = Some(now);
                    let error = format!("{}: {error}", transmit.remote);
                    reporter.report(Report::SendFailed {
                        socket: transmit.socket,
                        error,
                    });
                }
            }
        }
        if wan.socket.gso_refusals() > 0 && !wan.told_offload {
            wan.told_offload = true;
            reporter.report(Report::OffloadRefused {
                socket: transmit.socket,
            });
        }
    }

    /// Looks at every socket's own receive drops (0.4 µs each) and at the system's (20 µs), and tells
    /// the peers.
    pub(crate) fn count_drops(&mut self, endpoint: &mut Endpoint) {
        for wan in self.sockets.values_mut() {
            if let Ok(drops) = wan.socket.receive_drops() {
                let new = drops.wrapping_sub(wan.drops_seen);
                wan.figures.receive_drops += u64::from(new);
                wan.drops_seen = drops;
            }
        }
        let total = self.overflows.as_mut().and_then(|o| o.read().ok());
        let own: u64 = self
            .sockets
            .values()
            .map(|wan| wan.figures.receive_drops)
            .sum();
        // The system's counter has ours among them.
        let others = total.map_or(0, |total| total.saturating_sub(own));
        for (id, wan) in &self.sockets {
            endpoint.set_overflows(*id, wan.figures.receive_drops, others);
        }
    }

    pub(crate) fn figures(&self) -> BTreeMap<SocketId, SocketFigures> {
        self.sockets
            .iter()
            .map(|(id, wan)| (*id, wan.figures.clone()))
            .collect()
    }
}
