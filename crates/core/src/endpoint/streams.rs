//! The driver's operations on streams.

use std::net::SocketAddr;

use keiro_units::Instant;

use super::Endpoint;
use crate::{
    event::{ResetReason, SendError},
    id::{AppId, PeerId, StreamId},
};

impl Endpoint {
    /// Opens a stream of `app` to a peer, which connects it to `target`, or to its forward (`None`).
    pub fn open_stream(
        &mut self,
        now: Instant,
        peer: PeerId,
        app: AppId,
        target: Option<SocketAddr>,
    ) -> Result<StreamId, SendError> {
        let session = self.peers.get_mut(&peer).ok_or(SendError::UnknownPeer)?;
        session.open_stream(now, app, target)
    }

    /// Takes as many of `bytes` as there is room for; less than all is followed by a `Writable`
    /// signal. `None`: the stream is gone, or was finished.
    pub fn write_stream(
        &mut self,
        now: Instant,
        peer: PeerId,
        stream: StreamId,
        bytes: &[u8],
    ) -> Option<usize> {
        self.peers.get_mut(&peer)?.write_stream(now, stream, bytes)
    }

    /// Bytes that [`write_stream`](Self::write_stream) would take; after a zero a `Writable` or a `Reset`
    /// signal follows. `None`: the stream is gone, or was finished.
    pub fn stream_room(&mut self, peer: PeerId, stream: StreamId) -> Option<usize> {
        self.peers.get_mut(&peer)?.stream_room(stream)
    }

    /// Ends our direction of a stream behind what was written.
    pub fn finish_stream(&mut self, now: Instant, peer: PeerId, stream: StreamId) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.finish_stream(now, stream);
        }
    }

    /// Ends both directions of a stream at once; what was not acknowledged may not arrive.
    pub fn reset_stream(&mut self, peer: PeerId, stream: StreamId, reason: ResetReason) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.reset_stream(stream, reason);
        }
    }

    /// Ends both directions of a stream, for this driver at once. The peer's driver gets the signal when it has
    /// read what was written before, or has not for some seconds: as TCP resets.
    pub fn reset_stream_behind(
        &mut self,
        now: Instant,
        peer: PeerId,
        stream: StreamId,
        reason: ResetReason,
    ) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.reset_stream_behind(now, stream, reason);
        }
    }

    /// What arrived of a stream and was not consumed, in two pieces, and whether the peer's
    /// direction ends with it. `None`: the stream is gone.
    pub fn stream_data(&self, peer: PeerId, stream: StreamId) -> Option<(&[u8], &[u8], bool)> {
        let readable = self.peers.get(&peer)?.stream_data(stream)?;
        Some((readable.first, readable.second, readable.ends))
    }

    /// The driver has taken the first `count` bytes of [`stream_data`](Self::stream_data). To be
    /// called with zero for an end that comes alone.
    pub fn consume_stream(&mut self, now: Instant, peer: PeerId, stream: StreamId, count: usize) {
        if let Some(session) = self.peers.get_mut(&peer) {
            session.consume_stream(now, stream, count);
        }
    }
}
