//! Datagrams that wait to be sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use super::ready::ScheduleKey;
use crate::{
    datagram::NewDatagram,
    id::{AppId, FlowId},
};

/// Datagram bytes that wait at most; then the oldest go. 2 MiB: 170 ms of 100 Mbit/s.
pub(super) const DATAGRAM_BYTES_MAX: usize = 2 << 20;
/// Datagrams that wait at most, whatever their bytes: bounds bookkeeping. Ours: 64 bytes each in the mean.
pub(super) const DATAGRAMS_MAX: usize = DATAGRAM_BYTES_MAX / 64;

/// What the application of a datagram needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DatagramNeeds {
    pub(crate) latency_target: Option<Duration>,
    /// From when it was made: an older one is of no use to its receiver. `None`: any age.
    pub(crate) lifetime: Option<Duration>,
}

/// A datagram that waits.
#[derive(Debug)]
pub(crate) struct OutDatagram {
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) data: Vec<u8>,
    key: u64,
    expires: Option<Instant>,
    /// Sent as fragments up to here.
    pub(super) offset: usize,
    /// Number of its fragments' datagram, once it has begun.
    pub(super) fragment_id: Option<u64>,
}

/// All datagrams that wait.
#[derive(Debug, Default)]
pub(super) struct OutDatagrams {
    datagrams: BTreeMap<u64, OutDatagram>,
    expiries: BTreeSet<(Instant, u64)>,
    bytes: usize,
    next_fragment_id: u64,
}

impl OutDatagram {
    /// `key`: its place in the schedule.
    pub(super) fn new(new: NewDatagram<'_>, lifetime: Option<Duration>, key: u64) -> Self {
        Self {
            app: new.app,
            flow: new.flow,
            reply: new.reply,
            data: new.data.to_vec(),
            key,
            expires: lifetime.map(|lifetime| new.made + lifetime),
            offset: 0,
            fragment_id: None,
        }
    }

    /// Bytes still to send.
    pub(super) fn left(&self) -> u64 {
        (self.data.len() - self.offset) as u64
    }
}

impl OutDatagrams {
    /// The oldest datagram, if it has to make room for one of `len` bytes.
    pub(super) fn oldest_in_the_way(&self, len: usize) -> Option<u64> {
        let is_full =
            self.bytes + len > DATAGRAM_BYTES_MAX || self.datagrams.len() >= DATAGRAMS_MAX;
        let oldest = self.datagrams.first_key_value().map(|(id, _)| *id);
        oldest.filter(|_| is_full)
    }

    pub(super) fn insert(&mut self, id: u64, datagram: OutDatagram) {
        if let Some(at) = datagram.expires {
            self.expiries.insert((at, id));
        }
        self.bytes += datagram.data.len();
        self.datagrams.insert(id, datagram);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<OutDatagram> {
        let datagram = self.datagrams.remove(&id)?;
        if let Some(at) = datagram.expires {
            self.expiries.remove(&(at, id));
        }
        self.bytes -= datagram.data.len();
        Some(datagram)
    }

    /// The next datagram whose lifetime has ended.
    pub(super) fn next_expired(&self, now: Instant) -> Option<u64> {
        let (at, id) = self.expiries.first()?;
        (*at <= now).then_some(*id)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    pub(super) fn get(&self, id: u64) -> Option<&OutDatagram> {
        self.datagrams.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &OutDatagram)> {
        self.datagrams.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// The peer is removed.
    pub(super) fn clear(&mut self) {
        self.datagrams.clear();
        self.expiries.clear();
        self.bytes = 0;
    }

    /// Where a datagram is in its queue.
    pub(super) fn schedule_key_of(&self, id: u64) -> Option<ScheduleKey> {
        self.datagrams.get(&id).map(|datagram| (datagram.key, id))
    }

    /// The number of the fragments of a datagram, given when the first leaves.
    pub(super) fn begin_fragments(&mut self, id: u64) -> Option<u64> {
        let next = self.next_fragment_id;
        let datagram = self.datagrams.get_mut(&id)?;
        let number = *datagram.fragment_id.get_or_insert(next);
        self.next_fragment_id = next.max(number + 1);
        Some(number)
    }

    /// `bytes` of a datagram have left as a fragment.
    pub(super) fn on_fragment_sent(&mut self, id: u64, bytes: usize) {
        if let Some(datagram) = self.datagrams.get_mut(&id) {
            datagram.offset += bytes;
        }
    }

    /// The peer has restarted: datagrams that have begun begin again.
    pub(super) fn restart(&mut self) {
        for datagram in self.datagrams.values_mut() {
            datagram.offset = 0;
            datagram.fragment_id = None;
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        let data = self.datagrams.values().map(|datagram| datagram.data.len());
        assert_eq!(self.bytes, data.sum::<usize>(), "datagram bytes");
        let expiring = self.datagrams.values().filter(|d| d.expires.is_some());
        assert_eq!(self.expiries.len(), expiring.count(), "datagram lifetimes");
        assert!(self.datagrams.len() <= DATAGRAMS_MAX, "datagrams");
        assert!(self.bytes <= DATAGRAM_BYTES_MAX, "datagram bytes");
    }
}
