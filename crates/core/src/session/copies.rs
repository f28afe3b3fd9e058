//! Copies of aggregates, and the parity that takes their place: over which path each leaves, when,
//! and whether there is room for it.
//!
//! How many there are is `aggregate`'s, and what they hold is `transmit`'s and `parity`'s.

use keiro_units::Instant;

use super::{
    Session,
    path::Path,
    recovery::{Owner, SentFrames},
};
use crate::{
    config::CopySpread,
    endpoint::TransmitBuf,
    id::{PathId, TenantId},
    uplink::Uplinks,
};

/// Copies that wait on one path at most; more are left out. Ours: 10 ms of a hundred aggregates a
/// millisecond, spaced widely, and 1.5 MB of full packets.
const COPIES_PENDING_MAX: usize = 1024;

/// What a copy carries.
#[derive(Debug)]
pub(super) struct Copied {
    /// Unsealed.
    pub(super) clear: Vec<u8>,
    pub(super) frames: SentFrames,
    /// Whose it is.
    pub(super) owner: Owner,
}

/// A copy that is still to leave.
#[derive(Debug)]
pub(super) struct PendingCopy {
    pub(super) due: Instant,
    /// The path whose aggregate it is of.
    of: PathId,
    copied: Copied,
}

impl PendingCopy {
    /// UDP payload of its packet.
    pub(super) fn packet_bytes(&self) -> usize {
        Path::packet_bytes(self.copied.clear.len())
    }
}

impl Session {
    /// What left over path `of` leaves as often again as there are `copies`. They take turns among
    /// the paths; with time between them the first follows after so many `gaps`.
    pub(super) fn push_copies(
        &mut self,
        now: Instant,
        of: PathId,
        gaps: u32,
        copies: impl Iterator<Item = Copied>,
        uplinks: &mut Uplinks,
    ) {
        let mut to = self.paths_of_copies(of).into_iter().cycle();
        for (copied, gaps) in copies.zip(gaps..) {
            let due = match self.aggregation.spread {
                CopySpread::Spaced(gap) => now + gap * gaps,
                CopySpread::BackToBack | CopySpread::Paths => now,
            };
            let copy = PendingCopy { due, of, copied };
            let refused = match to.next() {
                Some(to) => self.push_copy(now, to, copy, uplinks),
                None => Some(copy),
            };
            if let Some(copy) = refused {
                self.drop_copy(&copy);
            }
        }
    }

    /// The paths behind this one, then this one.
    fn paths_of_copies(&self, id: PathId) -> Vec<PathId> {
        let up = |ids: &PathId| self.paths.get(ids).is_some_and(Path::is_up);
        match self.aggregation.spread {
            CopySpread::Paths => {
                let ids = || self.paths.keys().copied().filter(up);
                let after = ids().filter(|other| *other > id);
                after.chain(ids().filter(|other| *other <= id)).collect()
            }
            CopySpread::BackToBack | CopySpread::Spaced(_) => vec![id],
        }
    }

    /// A copy is to leave over `to`; it comes back if there is no room for it.
    fn push_copy(
        &mut self,
        now: Instant,
        to: PathId,
        copy: PendingCopy,
        uplinks: &mut Uplinks,
    ) -> Option<PendingCopy> {
        let ahead = self.paths.get(&copy.of).map(|of| of.aggregator.interval());
        let Some((path, ahead)) = self.paths.get_mut(&to).zip(ahead) else {
            return Some(copy);
        };
        // Another path may have a smaller MTU.
        let is_too_long = copy.packet_bytes() > path.udp_payload_max();
        if is_too_long || path.copies.len() >= COPIES_PENDING_MAX || path.sent.is_full() {
            return Some(copy);
        }
        // Its own path the aggregate itself has asked, and what follows it is paid for by the next.
        if to != copy.of {
            let socket = path.socket;
            let has_room =
                path.pacer.may_take_copy(now, ahead) && uplinks.may_take_copy(socket, now, ahead);
            if !has_room {
                return Some(copy);
            }
            let ip_bytes = copy.packet_bytes() as u64 + u64::from(path.ip_overhead());
            path.pacer.on_copy_taken(now, ip_bytes);
            uplinks.on_copy_taken(socket, now, ip_bytes);
        }
        let at = path.copies.partition_point(|other| other.due <= copy.due);
        path.copies.insert(at, copy);
        None
    }

    /// Those copies do not leave: the path that they wait for is gone.
    pub(super) fn drop_copies(&mut self, copies: impl IntoIterator<Item = PendingCopy>) {
        copies.into_iter().for_each(|copy| self.drop_copy(&copy));
    }

    /// The peer will not see it: to the controller that is no loss of the line.
    fn drop_copy(&mut self, copy: &PendingCopy) {
        if let Some(path) = self.paths.get_mut(&copy.of) {
            let ip_bytes = copy.packet_bytes() as u64 + u64::from(path.ip_overhead());
            path.aggregator.on_copy_dropped(ip_bytes);
        }
    }

    /// The copy that is due on a path.
    pub(super) fn next_copy(&self, now: Instant, id: PathId) -> Option<&PendingCopy> {
        let path = self.paths.get(&id).filter(|path| path.is_up())?;
        path.copies.front().filter(|copy| copy.due <= now)
    }

    /// Writes and seals the copy that is due.
    pub(super) fn write_copy(
        &mut self,
        now: Instant,
        id: PathId,
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let start = self.begin_packet(id, buf)?;
        let path = self.paths.get_mut(&id)?;
        let (mtu, overhead) = (path.mtu.current(), u64::from(path.ip_overhead()));
        let Copied {
            clear,
            frames,
            owner,
        } = path.copies.pop_front()?.copied;
        buf.bytes.extend_from_slice(&clear);
        self.seal(now, id, buf, start, (true, owner), frames);
        if owner.tenant != TenantId::ZERO {
            let bytes = (buf.bytes.len() - start) as u64 + overhead;
            self.tenants
                .on_copy_sent(now, (id, mtu), owner.tenant, bytes);
        }
        Some(())
    }
}
