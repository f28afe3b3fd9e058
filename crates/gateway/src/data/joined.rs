//! Two cores beside each other without a network, for tests of what stands between a core and sockets.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Instant,
    PathConfig, PathId, PathTerms, PeerConfig, PeerId, PrivateKey, SocketId, StreamId,
    StreamSignal, TenantId, TransmitBuf,
};
use keiro_units::Bandwidth;

/// Two cores with one path between them.
pub(crate) struct Joined {
    pub(crate) now: Instant,
    pub(crate) ends: [Endpoint; 2],
    pub(crate) peers: [PeerId; 2],
    /// Of streams at the second.
    pub(crate) signals: Vec<(StreamId, StreamSignal)>,
    app: AppId,
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 7600 + end as u16))
}

impl Joined {
    /// An application of class `stream` is between them.
    pub(crate) fn new(app: AppId) -> Self {
        let key = |end: usize| PrivateKey::from_bytes([end as u8 + 1; 32]);
        let mut ends = [0, 1].map(|end| {
            let config = EndpointConfig::new(key(end));
            Endpoint::new(Instant::ZERO, config, [end as u8; 32])
        });
        let peers = [0, 1].map(|end| {
            let mut peer = PeerConfig::new(key(1 - end).public_key());
            peer.paths = vec![PathConfig {
                id: PathId(0),
                socket: SocketId(0),
                remote: Some(address(1 - end)),
                rate: Some(Bandwidth::from_mbit_per_second(1000)),
                mtu_max: 1500,
                probe_limit: None,
                terms: PathTerms::FREE,
            }];
            peer.apps = vec![AppConfig {
                id: app,
                class: DeliveryClass::Stream,
                latency_target: None,
                lifetime: None,
                paths: vec![PathId(0)],
                tenant: TenantId::ZERO,
                is_spread: false,
            }];
            ends[end].add_peer(Instant::ZERO, peer)
        });
        Self {
            now: Instant::ZERO,
            ends,
            peers,
            signals: Vec::new(),
            app,
        }
    }

    /// Brings over what either has to send, half a millisecond later.
    pub(crate) fn exchange(&mut self) {
        let mut buf = TransmitBuf::new(10);
        self.now += Duration::from_micros(500);
        for from in 0..2 {
            self.ends[from].handle_timeout(self.now);
            while let Some(transmit) = self.ends[from].poll_transmit(self.now, &mut buf) {
                let meta = DatagramMeta {
                    socket: SocketId(0),
                    remote: address(from),
                    ecn: 0,
                    received_at: self.now,
                };
                for datagram in buf.filled().chunks(transmit.segment_size) {
                    let mut datagram = datagram.to_vec();
                    self.ends[1 - from].handle_datagram(self.now, meta, &mut datagram);
                }
            }
        }
        while let Some(delivery) = self.ends[1].poll_delivery() {
            if let Delivery::Stream { stream, signal, .. } = delivery {
                self.signals.push((stream, signal));
            }
        }
    }

    pub(crate) fn readable(&self, stream: StreamId) -> usize {
        let data = self.ends[1].stream_data(self.peers[1], stream);
        data.map_or(0, |(first, second, _)| first.len() + second.len())
    }

    pub(crate) fn bring_up(&mut self) {
        let end = self.now + Duration::from_secs(10);
        while !self.ends.iter().zip(self.peers).all(|(e, p)| e.is_up(p)) {
            self.exchange();
            assert!(self.now < end);
        }
    }

    /// A stream from the first to the second, of which `len` bytes at least wait to be read.
    pub(crate) fn stream_with(&mut self, len: usize) -> StreamId {
        self.bring_up();
        let (now, peer) = (self.now, self.peers[0]);
        let ours = self.ends[0].open_stream(now, peer, self.app, None).unwrap();
        while self.signals.is_empty() {
            self.exchange();
        }
        let theirs = self.signals[0].0;
        // A reader that takes all of a window at once, so that the next is wider.
        for exchanges in 1.. {
            let now = self.now;
            self.ends[0].write_stream(now, peer, ours, &[7; 64 << 10]);
            self.exchange();
            let came = self.readable(theirs);
            if came >= len {
                break;
            }
            if exchanges % 8 == 0 {
                self.ends[1].consume_stream(self.now, self.peers[1], theirs, came);
            }
            assert!(exchanges < 1000, "{came} bytes");
        }
        theirs
    }
}
