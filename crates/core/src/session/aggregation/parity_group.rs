//! Groups of aggregates that are sent, and the parity that follows them.
//!
//! An aggregate leaves at once. Its content is kept until its group is full or no aggregate has joined
//! it for some time; then parity for the whole group leaves.

use std::time::Duration;

use keiro_model::erasure;
use keiro_units::Instant;

use keiro_model::aggregation::Parameters;

use super::copies::SentAggregate;
use crate::config::{Parity, Redundancy};

/// Bytes in front of every protected content: its length.
pub(crate) const LENGTH_PREFIX: usize = 2;

/// Parity in the place of copies, on one path.
#[derive(Debug)]
pub(super) struct Protection {
    parity: Parity,
    /// The group that the next aggregate joins.
    group: Option<OpenGroup>,
    /// IP bytes of parity that the group's aggregates have been charged for, each N times.
    paid: u64,
}

impl Protection {
    pub(super) fn new(parity: Parity) -> Self {
        Self {
            parity,
            group: None,
            paid: 0,
        }
    }

    pub(super) fn redundancy(&self) -> Redundancy {
        Redundancy::Parity(self.parity)
    }

    /// The place that the next aggregate takes in its group; `None`: it is in none, and copied.
    /// `copies`: N.
    pub(super) fn place_in_group(&self, copies: u8) -> Option<u8> {
        match &self.group {
            Some(group) => Some(group.len() as u8),
            None => (copies > 1).then_some(0),
        }
    }

    /// The content of an aggregate that leaves joins its group.
    pub(super) fn protect(
        &mut self,
        now: Instant,
        sent: SentAggregate,
        content: &[u8],
        parameters: Parameters,
    ) {
        let copies = parameters.copies();
        let wait = self.parity.wait().unwrap_or(parameters.interval() * 3 / 2);
        if self.group.is_none() {
            self.paid = 0;
        }
        self.paid += sent.ip_bytes * u64::from(copies.saturating_sub(1));
        self.group
            .get_or_insert_with(|| OpenGroup::new(sent.number, copies))
            .push(now, content, wait);
    }

    /// When the parity of the group that is open is to leave; in the past: at once.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.group.as_ref()?.due(&self.parity))
    }

    /// The group whose parity is to leave now.
    pub(super) fn take_group(&mut self, now: Instant) -> Option<ClosedGroup> {
        self.due().filter(|due| *due <= now)?;
        Some(self.group.take()?.close(&self.parity))
    }

    /// How much of a parity packet of `ip_bytes` is paid for. Parity is as long as the longest of its
    /// group, and may be more than their copies would be.
    pub(super) fn take_paid(&mut self, ip_bytes: u64) -> u64 {
        let paid = self.paid.min(ip_bytes);
        self.paid -= paid;
        paid
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        if let Some(group) = &self.group {
            assert!(
                (1..=erasure::DATA_MAX).contains(&group.len()),
                "an open group has aggregates, and not too many"
            );
        }
    }

    /// No parity is to follow what was sent.
    pub(super) fn drop_group(&mut self) {
        self.group = None;
    }
}

/// The group that aggregates join.
#[derive(Debug)]
struct OpenGroup {
    first: u64,
    /// N when it was begun.
    copies: u8,
    shards: Vec<Vec<u8>>,
    close_at: Instant,
}

/// A group whose parity is to leave.
#[derive(Debug)]
pub(super) struct ClosedGroup {
    /// Number of its first aggregate.
    pub(super) first: u64,
    /// How many aggregates it has.
    pub(super) data: u8,
    /// The parity packets' contents, all of one length.
    pub(super) parity: Vec<Vec<u8>>,
}

impl OpenGroup {
    fn new(first: u64, copies: u8) -> Self {
        Self {
            first,
            copies,
            shards: Vec::new(),
            close_at: Instant::ZERO,
        }
    }

    /// Aggregates that have joined.
    fn len(&self) -> usize {
        self.shards.len()
    }

    /// The content of an aggregate joins; nothing more does after `wait`.
    fn push(&mut self, now: Instant, content: &[u8], wait: Duration) {
        self.shards.push(shard_of(content));
        self.close_at = now + wait;
    }

    /// When its parity is to leave.
    fn due(&self, parity: &Parity) -> Instant {
        match self.len() >= usize::from(parity.group()) {
            true => Instant::ZERO,
            false => self.close_at,
        }
    }

    /// N − 1 times the parity of a group, or of as many copies if that is less: a group that stayed
    /// short is protected as well as a full one, and costs no more than copies would.
    fn close(self, parity: &Parity) -> ClosedGroup {
        let more = usize::from(self.copies.saturating_sub(1));
        let packets = usize::from(parity.packets())
            .min(self.len())
            .saturating_mul(more)
            .min(erasure::PARITY_MAX);
        ClosedGroup {
            first: self.first,
            data: self.len() as u8,
            parity: erasure::encode(&self.shards, packets),
        }
    }
}

/// The shard of a content: its length and the content.
pub(super) fn shard_of(content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).unwrap_or(u16::MAX);
    let mut shard = Vec::with_capacity(LENGTH_PREFIX + content.len());
    shard.extend_from_slice(&len.to_be_bytes());
    shard.extend_from_slice(content);
    shard
}
