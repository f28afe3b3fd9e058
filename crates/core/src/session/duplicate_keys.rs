//! Several gateways with the peer's key: which of them is served, and what the other one gets.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use keiro_units::Instant;

use super::{
    ConfirmedEpoch, Session,
    incarnations::{IncarnationDecision, NewIncarnation},
    keys::Epoch,
    path::Path,
};
use crate::{
    datagram::DatagramMeta,
    event::Event,
    id::{PathId, SocketId},
    snapshot::DuplicateKey,
    wire::{DATA_HEADER_LEN, DataHeader, Frame, RefusalCause, TAG_LEN},
};

/// That the peer serves another gateway is reported at most this often. Ours: as on its side.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Bytes of a packet that refuses: header, tag, and two frames of a few bytes.
const REFUSAL_LEN_MAX: usize = DATA_HEADER_LEN + TAG_LEN + 16;

/// Refusals on both sides.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// A packet that refuses a new incarnation and that is to be sent.
    packet: Option<(SocketId, SocketAddr, Vec<u8>)>,
    /// When it was last reported that the peer refuses us.
    reported_at: Option<Instant>,
    /// The peer has just refused us; a close follows.
    is_refused: bool,
}

impl Refusals {
    /// Whether the close that has come belongs to a refusal.
    pub(super) fn take_refused(&mut self) -> bool {
        std::mem::take(&mut self.is_refused)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        let len = self.packet.as_ref().map(|(_, _, packet)| packet.len());
        assert!(
            len.is_none_or(|len| len > DATA_HEADER_LEN + TAG_LEN && len <= REFUSAL_LEN_MAX),
            "a refusal is one short sealed packet"
        );
    }
}

/// What a response of the peer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeDecision {
    /// The keys may be used.
    Accept,
    /// They may not: handshakes continue.
    Ignore,
    /// They may not: another handshake is begun at once.
    Repeat,
}

impl Session {
    /// A packet has come under keys that were not used yet; whether they are used from now on.
    pub(super) fn confirm_epoch(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        header: DataHeader,
    ) -> bool {
        let index = header.receiver;
        let Some(epoch) = self.keys.by_index(index) else {
            return false;
        };
        let confirmed = epoch.confirmation();
        match self.decide(now, meta, confirmed) {
            IncarnationDecision::Accept => {
                if let Some(epoch) = self.keys.by_index(index) {
                    epoch.confirmed = true;
                }
                self.on_epoch_confirmed(now, confirmed);
                return true;
            }
            IncarnationDecision::ProbeServed => self.probe_served(confirmed.incarnation),
            IncarnationDecision::ProbePending => {}
            IncarnationDecision::Refuse => {
                if let Some(epoch) = self.keys.remove(index) {
                    self.retired.push(index);
                    self.refuse(now, meta, &epoch);
                }
            }
            IncarnationDecision::NeedsRehandshake => {
                self.keys.remove(index);
                self.retired.push(index);
            }
        }
        false
    }

    /// The peer has answered our handshake.
    pub(crate) fn decide_on_response(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        confirmed: ConfirmedEpoch,
    ) -> HandshakeDecision {
        match self.decide(now, meta, confirmed) {
            IncarnationDecision::Accept => HandshakeDecision::Accept,
            IncarnationDecision::NeedsRehandshake => {
                self.incarnations.on_rehandshake_needed();
                self.handshake.next_at = Some(now);
                HandshakeDecision::Repeat
            }
            IncarnationDecision::ProbeServed => {
                self.probe_served(confirmed.incarnation);
                HandshakeDecision::Ignore
            }
            IncarnationDecision::ProbePending => HandshakeDecision::Ignore,
            IncarnationDecision::Refuse => {
                self.report_duplicate(now, self.served_address(meta), meta.remote);
                HandshakeDecision::Ignore
            }
        }
    }

    /// There is a packet for [`poll_refusal`](Self::poll_refusal).
    pub(crate) fn has_refusal(&self) -> bool {
        self.refusals.packet.is_some()
    }

    /// The packet that refuses a new incarnation, to be sent beside the pacer.
    pub(crate) fn poll_refusal(&mut self) -> Option<(SocketId, SocketAddr, Vec<u8>)> {
        self.refusals.packet.take()
    }

    /// The peer serves another gateway that has our key.
    pub(super) fn handle_refusal(&mut self, now: Instant, cause: RefusalCause) {
        self.refusals.is_refused = true;
        let reported_at = self.refusals.reported_at;
        let is_due =
            reported_at.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_INTERVAL);
        if cause == RefusalCause::DuplicateKey && is_due {
            self.refusals.reported_at = Some(now);
            let peer = self.id;
            self.events.push_back(Event::RefusedDuplicateKey { peer });
        }
    }

    /// What to do about keys that an incarnation of the peer has used from an address.
    fn decide(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        confirmed: ConfirmedEpoch,
    ) -> IncarnationDecision {
        let ConfirmedEpoch {
            incarnation, ours, ..
        } = confirmed;
        let ours = ours.incarnation;
        if self.incarnations.is_served(incarnation, ours) {
            return IncarnationDecision::Accept;
        }
        let is_there =
            |path: &Path| path.socket() == meta.socket && path.remote() == Some(meta.remote);
        let new = NewIncarnation {
            incarnation,
            ours,
            at_served_address: self.paths.iter().any(is_there),
        };
        let decision = self.incarnations.decide(now, new, self.is_up());
        if decision == IncarnationDecision::Accept && self.incarnations.is_return(incarnation) {
            let other = self.served_address(meta);
            self.report_duplicate(now, meta.remote, other);
        }
        decision
    }

    /// Has the gateway that is served answer a ping on every path that is up.
    fn probe_served(&mut self, new: u64) {
        let paths = self.paths.iter();
        let first: BTreeMap<PathId, u64> = paths
            .map(|path| (path.id(), path.next_packet_number()))
            .collect();
        self.incarnations.on_probe_sent(new, first);
        for path in self.paths.iter_mut().filter(|path| path.is_up()) {
            path.request_ping();
        }
    }

    /// The address of the gateway that is served, preferably of a path that is up.
    fn served_address(&self, meta: DatagramMeta) -> SocketAddr {
        let fastest = self.paths.fastest().and_then(|id| self.paths.get(id));
        let mut paths = self.paths.iter();
        fastest
            .and_then(Path::remote)
            .or_else(|| paths.find_map(Path::remote))
            .unwrap_or(meta.remote)
    }

    /// Says to a new incarnation that another gateway with its key is served. Its keys are used for that
    /// one packet.
    fn refuse(&mut self, now: Instant, meta: DatagramMeta, epoch: &Epoch) {
        let number = self
            .incarnations
            .on_refused(epoch.incarnation, epoch.ours.incarnation);
        let path = self.paths.between_mut(meta.socket, meta.remote);
        let path = path.map_or(PathId(0), |path| path.id());
        let header = DataHeader {
            path: path.0,
            receiver: epoch.remote_index,
            packet_number: number as u32,
        };
        let mut packet = header.encode().to_vec();
        Frame::Refusal(RefusalCause::DuplicateKey).encode(&mut packet);
        // For a gateway that does not know the first frame.
        Frame::Close.encode(&mut packet);
        epoch.keys.seal(path, number, &mut packet, 0);
        self.refusals.packet = Some((meta.socket, meta.remote, packet));
        self.report_duplicate(now, self.served_address(meta), meta.remote);
    }

    fn report_duplicate(&mut self, now: Instant, served: SocketAddr, other: SocketAddr) {
        let duplicate = DuplicateKey {
            served,
            other,
            seen_at: now,
        };
        if self.incarnations.on_duplicate(duplicate) {
            let peer = self.id;
            self.events.push_back(Event::DuplicateKey {
                peer,
                served,
                other,
            });
        }
    }
}
