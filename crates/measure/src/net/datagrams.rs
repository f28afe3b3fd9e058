//! The client's UDP socket.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use keiro_linux::{
    epoll::{Epoll, Interest, ReadyList},
    realtime::set_timer_slack,
    udp::{BatchSocket, DatagramBatch, Purpose, ReceiveBuffers, Sent},
};

use super::{
    error::NetError,
    server::single_stamps,
    wire::{Probe, Token},
};

/// A socket that is connected to one server.
pub(crate) struct Datagrams {
    socket: BatchSocket,
    epoll: Epoll,
    ready: ReadyList,
    buffers: ReceiveBuffers,
    server: SocketAddr,
    token: Token,
}

/// Period of checking whether to stop; ours.
const STEP: Duration = Duration::from_millis(100);

impl Datagrams {
    /// Opens a socket for a session with `server`.
    pub(crate) fn open(server: SocketAddr, token: Token) -> Result<Self, NetError> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = BatchSocket::bind(any, Purpose::Application)?;
        let system = |reason| NetError::System {
            what: "set up a UDP socket",
            reason,
        };
        single_stamps(&socket).map_err(system)?;
        let epoll = Epoll::new().map_err(system)?;
        epoll.add(&socket, 0, Interest::Read).map_err(system)?;
        // Without it probes leave up to 50 µs late, which makes their spacing less even and does no other
        // harm.
        let _ = set_timer_slack(Duration::ZERO);
        Ok(Self {
            socket,
            epoll,
            ready: ReadyList::new(1),
            buffers: ReceiveBuffers::new(),
            server,
            token,
        })
    }

    /// Sends one datagram; returns whether the kernel accepted it.
    pub(crate) fn send(&mut self, data: &[u8]) -> bool {
        let outgoing = DatagramBatch {
            remote: self.server,
            source: None,
            ecn: 0,
            data,
            segment_size: 0,
        };
        matches!(self.socket.send(&outgoing), Sent::All)
    }

    /// Waits until a datagram arrives or `until`. Passes all that have arrived to `take`, with length and the
    /// kernel's time stamp. Returns their number.
    pub(crate) fn receive(
        &mut self,
        until: Instant,
        stop: &AtomicBool,
        mut take: impl FnMut(&Probe, usize, u64),
    ) -> Result<usize, NetError> {
        let system = |reason: io::Error| NetError::System {
            what: "receive over UDP",
            reason,
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.epoll
                .wait(&mut self.ready, Some(left.min(STEP)))
                .map_err(system)?;
            if stop.load(Ordering::Acquire) {
                return Err(NetError::Interrupted);
            }
            let (server, token) = (self.server, self.token);
            let mut count = 0;
            // The error of an earlier datagram: there is no listener. The timeout will show that.
            let _ = self.socket.receive(&mut self.buffers, |received| {
                for data in received.data.chunks(received.stride) {
                    let probe = Probe::read(data).filter(|probe| probe.token == token);
                    if let (Some(probe), true) = (probe, received.remote == server) {
                        count += 1;
                        take(&probe, data.len(), received.received_at_nanos);
                    }
                }
            });
            if count > 0 || Instant::now() >= until {
                return Ok(count);
            }
        }
    }
}
