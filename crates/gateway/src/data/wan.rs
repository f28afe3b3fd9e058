//! The WAN's sockets: sends the core's batches and counts what becomes of them.

use std::{collections::BTreeMap, io, time::Duration};

use keiro_core::{Endpoint, Instant, SocketId, Transmit};
use keiro_linux::{
    epoll::{Epoll, Interest},
    udp::{BatchSocket, DatagramBatch, Sent},
};
use keiro_stats::PathSocketStats;

use super::{
    drops::SystemDrops,
    report::{Report, Reporter},
    token,
};

pub(crate) struct Wan {
    sockets: BTreeMap<SocketId, WanSocket>,
    /// `None`: the kernel has no such counter.
    system: Option<SystemDrops>,
    /// Drops of removed sockets, which the system's counter includes.
    removed_drops: u64,
    /// Drops of other sockets in the system that were reported to the peers.
    foreign_drops_reported: u64,
}

#[derive(Default)]
struct WanSocket {
    /// `None`: it has no local address now.
    socket: Option<BatchSocket>,
    stats: PathSocketStats,
    /// The kernel's counter when it was read last; it wraps around.
    drops_counter: u32,
    failure_reported_at: Option<Instant>,
    offload_refusal_reported: bool,
}

/// A socket that cannot send is reported this often.
const FAILURE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl Wan {
    pub(crate) fn new(system: Option<SystemDrops>) -> Self {
        Self {
            sockets: BTreeMap::new(),
            system,
            removed_drops: 0,
            foreign_drops_reported: 0,
        }
    }

    /// From now on packets of `id` leave by `socket`, in place of another one if there was one.
    pub(crate) fn bind(
        &mut self,
        epoll: &Epoll,
        id: SocketId,
        socket: BatchSocket,
    ) -> io::Result<()> {
        epoll.add(&socket, token::wan(id.0), Interest::Read)?;
        self.sockets.entry(id).or_default().replace(Some(socket));
        Ok(())
    }

    /// Binds the socket of `id` to an interface too.
    pub(crate) fn bind_to_device(&self, id: SocketId, device: &str) -> io::Result<()> {
        match self.socket(id) {
            Some(socket) => socket.bind_to_device(device),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Closes the socket of `id`; its counters stay.
    pub(crate) fn unbind(&mut self, id: SocketId) {
        // Dropping the socket takes it out of the epoll set.
        self.sockets.entry(id).or_default().replace(None);
    }

    pub(crate) fn remove(&mut self, id: SocketId) {
        if let Some(mut wan) = self.sockets.remove(&id) {
            wan.count_drops();
            self.removed_drops += wan.stats.dropped_packets;
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = SocketId> + '_ {
        self.sockets.keys().copied()
    }

    pub(crate) fn socket(&self, id: SocketId) -> Option<&BatchSocket> {
        self.sockets.get(&id)?.socket.as_ref()
    }

    /// Sends a batch. What cannot be sent counts as lost on the way, and is counted here.
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
        // The core hears at once that it has none.
        let Some(socket) = &mut wan.socket else {
            return;
        };
        let outgoing = DatagramBatch {
            remote: transmit.remote,
            source: None,
            ecn: transmit.ecn,
            data: data.get(..transmit.len).unwrap_or(data),
            segment_size: transmit.segment_size,
        };
        match socket.send(&outgoing) {
            Sent::All => {}
            Sent::BufferFull => wan.stats.buffer_full_batches += 1,
            Sent::TooLarge => wan.stats.too_large_batches += 1,
            Sent::Failed(error) => {
                wan.stats.failed_batches += 1;
                let quiet = wan.failure_reported_at.is_some_and(|reported_at| {
                    now.saturating_duration_since(reported_at) < FAILURE_REPORT_INTERVAL
                });
                if !quiet {
                    wan.failure_reported_at = Some(now);
                    let error = format!("{}: {error}", transmit.remote);
                    reporter.report(Report::SendFailed {
                        socket: transmit.socket,
                        error,
                    });
                }
            }
        }
        if socket.gso_refusals() > 0 && !wan.offload_refusal_reported {
            wan.offload_refusal_reported = true;
            reporter.report(Report::OffloadRefused {
                socket: transmit.socket,
            });
        }
    }

    /// Reads every socket's receive drops (0.4 µs each), reports them to the peers, and requests
    /// the system's counter.
    pub(crate) fn count_drops(&mut self, endpoint: &mut Endpoint) {
        self.sockets.values_mut().for_each(WanSocket::count_drops);
        self.report_drops(endpoint);
        if let Some(system) = &self.system {
            system.request_read();
        }
    }

    /// Reads the receive drops of one socket, and reports new ones to the peers.
    pub(crate) fn count_drops_of(&mut self, endpoint: &mut Endpoint, id: SocketId) {
        let Some(wan) = self.sockets.get_mut(&id) else {
            return;
        };
        let before = wan.stats.dropped_packets;
        wan.count_drops();
        if wan.stats.dropped_packets > before {
            let dropped = wan.stats.dropped_packets;
            endpoint.set_overflows(id, dropped, self.foreign_drops_reported);
        }
    }

    /// Reports the system's drops to the peers, if they were read since.
    pub(crate) fn update_system_drops(&mut self, endpoint: &mut Endpoint) {
        let Some(total) = self.system.as_ref().and_then(SystemDrops::take_new_total) else {
            return;
        };
        // The system's counter includes our sockets' drops, which are read later and may be more.
        // Peers get an increasing value only; a smaller one would look like a restart.
        self.sockets.values_mut().for_each(WanSocket::count_drops);
        let others = total.saturating_sub(self.own_drops());
        if others > self.foreign_drops_reported {
            self.foreign_drops_reported = others;
            self.report_drops(endpoint);
        }
    }

    fn report_drops(&self, endpoint: &mut Endpoint) {
        for (id, wan) in &self.sockets {
            endpoint.set_overflows(*id, wan.stats.dropped_packets, self.foreign_drops_reported);
        }
    }

    /// Receive drops of our sockets, including removed ones.
    fn own_drops(&self) -> u64 {
        let present = self.sockets.values().map(|wan| wan.stats.dropped_packets);
        self.removed_drops + present.sum::<u64>()
    }

    pub(crate) fn stats(&self) -> BTreeMap<SocketId, PathSocketStats> {
        self.sockets
            .iter()
            .map(|(id, wan)| (*id, wan.stats))
            .collect()
    }
}

impl WanSocket {
    fn replace(&mut self, socket: Option<BatchSocket>) {
        self.count_drops();
        *self = Self {
            socket,
            stats: self.stats,
            ..Self::default()
        };
    }

    fn count_drops(&mut self) {
        let drops = self.socket.as_ref().map(BatchSocket::receive_drops);
        if let Some(Ok(drops)) = drops {
            let new = drops.wrapping_sub(self.drops_counter);
            self.stats.dropped_packets += u64::from(new);
            self.drops_counter = drops;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, sync::Arc};

    use keiro_core::{EndpointConfig, PrivateKey};
    use keiro_linux::{epoll::Waker, udp::Purpose};

    use super::*;
    use crate::privileges::Privileges;

    #[test]
    fn drops_of_other_sockets_are_reported_once_read() {
        let config = EndpointConfig::new(PrivateKey::from_bytes([1; 32]));
        let mut endpoint = Endpoint::new(Instant::ZERO, config, [2; 32]);
        let mut wan = Wan::new(SystemDrops::start(Privileges::Kept));
        let mut reported = |wan: &mut Wan| {
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            let before = wan.foreign_drops_reported;
            while wan.foreign_drops_reported == before && std::time::Instant::now() < deadline {
                wan.count_drops(&mut endpoint);
                std::thread::sleep(Duration::from_millis(5));
                wan.update_system_drops(&mut endpoint);
            }
            wan.foreign_drops_reported
        };
        let (foreign, from) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        // The socket is not read, and no buffer holds as many.
        let sent = 50_000;
        let overflow = || {
            for _ in 0..sent {
                from.send_to(&[0], foreign.local_addr().unwrap()).unwrap();
            }
        };
        overflow();
        let first = reported(&mut wan);
        overflow();
        // It was full before.
        let second = reported(&mut wan);
        assert!(second >= first + sent, "{first}, {second}");
    }

    #[test]
    fn drops_of_a_removed_socket_stay_counted() {
        let epoll = Epoll::new().unwrap();
        let mut wan = Wan::new(None);
        let socket = BatchSocket::bind("127.0.0.1:0".parse().unwrap(), Purpose::Path).unwrap();
        let to = socket.local();
        let id = SocketId(1);
        wan.bind(&epoll, id, socket).unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Each takes some hundred bytes of the buffer whatever its length; the socket is not read.
        let sent_max = 1_000_000;
        let dropped = |wan: &Wan| wan.socket(id).unwrap().receive_drops().unwrap();
        let mut sent = 0;
        while dropped(&wan) == 0 {
            assert!(sent < sent_max, "{sent} were sent and none was dropped");
            for _ in 0..1000 {
                from.send_to(&[0], to).unwrap();
            }
            sent += 1000;
        }
        let dropped = u64::from(dropped(&wan));
        wan.unbind(id);
        assert!(wan.own_drops() >= dropped && wan.socket(id).is_none());
        let other = BatchSocket::bind("127.0.0.1:0".parse().unwrap(), Purpose::Path).unwrap();
        wan.bind(&epoll, id, other).unwrap();
        assert!(wan.stats()[&id].dropped_packets >= dropped);
        wan.remove(id);
        assert!(wan.own_drops() >= dropped);
    }

    #[test]
    fn a_batch_that_is_too_long_for_the_system_is_counted() {
        let epoll = Epoll::new().unwrap();
        let mut wan = Wan::new(None);
        let socket = BatchSocket::bind("127.0.0.1:0".parse().unwrap(), Purpose::Path).unwrap();
        let remote = socket.local();
        let id = SocketId(1);
        wan.bind(&epoll, id, socket).unwrap();
        // UDP over IPv4 carries 65,507 bytes at most.
        let data = vec![0; 65_508];
        let transmit = Transmit {
            socket: id,
            remote,
            len: data.len(),
            segment_size: data.len(),
            ecn: 0,
            due: Instant::ZERO,
        };
        let wake = Arc::new(Waker::new().unwrap());
        let (mut reporter, _reports) = Reporter::new(wake);
        wan.send(Instant::ZERO, &transmit, &data, &mut reporter);
        assert_eq!(wan.stats()[&id].too_large_batches, 1);
    }
}
