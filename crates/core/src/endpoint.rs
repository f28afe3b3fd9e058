//! All peers of one gateway: finds the session of a datagram, answers handshakes, hands out work.

use std::net::SocketAddr;

use keiro_model::Instant;

use crate::{
    config::{AppConfig, EndpointConfig, PathConfig, PeerConfig},
    event::{Delivery, Event, RefusalReason, SendError},
    id::{AppId, FlowId, MessageId, PathId, PeerId, SocketId},
    snapshot::{EndpointSnapshot, SessionSnapshot},
};

/// Where a datagram came from and how.
#[derive(Clone, Copy, Debug)]
pub struct DatagramMeta {
    /// The socket on which it arrived.
    pub socket: SocketId,
    /// Its source.
    pub remote: SocketAddr,
    /// The two ECN bits of its IP header.
    pub ecn: u8,
    /// When the kernel (or the simulated wire) had it; not later than `now`.
    pub received_at: Instant,
}

/// A batch of datagrams for one destination: `len` bytes of the buffer, cut every
/// `segment_size` bytes; only the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The socket to send on.
    pub socket: SocketId,
    /// Where to.
    pub remote: SocketAddr,
    /// Bytes of the buffer that were filled.
    pub len: usize,
    /// UDP payload of each datagram but the last.
    pub segment_size: usize,
    /// The two ECN bits for the IP header.
    pub ecn: u8,
    /// When the first datagram was due by the pacer: a driver's lateness is `now` minus this.
    pub due: Instant,
}

/// Memory for one batch; reused by the driver.
#[derive(Debug)]
pub struct TransmitBuf {
    pub(crate) bytes: Vec<u8>,
    pub(crate) segments_max: usize,
}

impl TransmitBuf {
    /// Room for up to `segments_max` datagrams of a batch (1 without GSO, at most 64).
    pub fn new(segments_max: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(1 << 16),
            segments_max: segments_max.clamp(1, 64),
        }
    }

    /// What the last `poll_transmit` wrote.
    pub fn filled(&self) -> &[u8] {
        &self.bytes
    }

    /// Datagrams per batch from now on (1 after the kernel refused GSO).
    pub fn set_segments_max(&mut self, segments_max: usize) {
        self.segments_max = segments_max.clamp(1, 64);
    }
}

/// One gateway's end of the overlay.
#[derive(Debug)]
pub struct Endpoint {}

impl Endpoint {
    /// An endpoint without peers. `seed` must be unpredictable: all keys are drawn from it.
    pub fn new(now: Instant, config: EndpointConfig, seed: [u8; 32]) -> Self {
        todo!("{now:?} {config:?} {seed:?}")
    }

    /// Adds a peer and starts to talk to it. The id is never reused.
    pub fn add_peer(&mut self, now: Instant, config: PeerConfig) -> PeerId {
        todo!("{now:?} {config:?}")
    }

    /// Forgets a peer and its keys at once; it is told so. Its messages end as `PeerRemoved`.
    pub fn remove_peer(&mut self, now: Instant, peer: PeerId) {
        todo!("{now:?} {peer:?}")
    }

    /// Changes the paths of a peer: new ones are validated, unnamed ones end, others continue.
    pub fn set_paths(&mut self, now: Instant, peer: PeerId, paths: Vec<PathConfig>) {
        todo!("{now:?} {peer:?} {paths:?}")
    }

    /// Adds or changes an application of a peer, its preferred paths included.
    pub fn set_app(&mut self, now: Instant, peer: PeerId, app: AppConfig) {
        todo!("{now:?} {peer:?} {app:?}")
    }

    /// Forgets an application. What waits is still sent; what arrives is refused.
    pub fn remove_app(&mut self, now: Instant, peer: PeerId, app: AppId) {
        todo!("{now:?} {peer:?} {app:?}")
    }

    /// Takes a datagram that arrived; it is decrypted in place. Bad ones are counted, never an error.
    pub fn handle_datagram(&mut self, now: Instant, meta: DatagramMeta, data: &mut [u8]) {
        todo!("{now:?} {meta:?} {data:?}")
    }

    /// Accepts a message of 1 byte to 16 MiB made at `made` (not later than `now`).
    ///
    /// Its deadline and lifetime run from `made`. On an error the body is handed back.
    pub fn send_message(
        &mut self,
        now: Instant,
        made: Instant,
        peer: PeerId,
        app: AppId,
        body: Vec<u8>,
    ) -> Result<MessageId, (SendError, Vec<u8>)> {
        todo!("{now:?} {made:?} {peer:?} {app:?} {body:?}")
    }

    /// Accepts a datagram of up to 65,507 bytes. Where the queue is full the oldest is dropped and counted.
    pub fn send_datagram(
        &mut self,
        now: Instant,
        peer: PeerId,
        app: AppId,
        flow: FlowId,
        reply: bool,
        data: &[u8],
    ) -> Result<(), SendError> {
        todo!("{now:?} {peer:?} {app:?} {flow:?} {reply} {data:?}")
    }

    /// Says what became of a delivered message; frees its share of the reassembly memory and
    /// acknowledges (`None`) or refuses it. Unknown ids are ignored.
    pub fn finish_message(
        &mut self,
        now: Instant,
        peer: PeerId,
        id: MessageId,
        refused: Option<RefusalReason>,
    ) {
        todo!("{now:?} {peer:?} {id:?} {refused:?}")
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        todo!("{now:?}")
    }

    /// The next batch to send, or `None` if nothing may leave now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut TransmitBuf) -> Option<Transmit> {
        todo!("{now:?} {buf:?}")
    }

    /// The next datagram or message from a peer.
    pub fn poll_delivery(&mut self) -> Option<Delivery<'_>> {
        todo!()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }

    /// When to call `handle_timeout` and `poll_transmit` again if nothing arrives before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// Tells every peer that this gateway stops; drain `poll_transmit` once more after it.
    pub fn close(&mut self, now: Instant) {
        todo!("{now:?}")
    }

    /// Counters of the endpoint as a whole.
    pub fn snapshot(&self) -> EndpointSnapshot {
        todo!()
    }

    /// One peer in numbers; `None` if there is no such peer.
    pub fn session(&self, peer: PeerId) -> Option<SessionSnapshot> {
        todo!("{peer:?}")
    }

    /// The preferred and the active path of an application, for `explain`.
    pub fn active_path(&self, peer: PeerId, app: AppId) -> Option<PathId> {
        todo!("{peer:?} {app:?}")
    }

    /// `true` if nothing waits to be sent or acknowledged: a drained endpoint may stop.
    pub fn is_drained(&self) -> bool {
        todo!()
    }
}
