//! Groups of aggregates that are sent, and the parity that follows them.
//!
//! An aggregate leaves at once. Its content is kept until its group is full or no aggregate has joined
//! it for some time; then parity for the whole group leaves.

use std::time::Duration;

use keiro_model::erasure;
use keiro_units::Instant;

use crate::config::Parity;

/// Bytes in front of every protected content: its length.
pub(crate) const LENGTH_PREFIX: usize = 2;

/// The group that aggregates join.
#[derive(Debug)]
pub(super) struct OpenGroup {
    first: u64,
    /// N when it was begun.
    copies: u8,
    shards: Vec<Vec<u8>>,
    close_at: Instant,
}

/// A group whose parity is to leave.
#[derive(Debug)]
pub(crate) struct ClosedGroup {
    /// Number of its first aggregate.
    pub(crate) first: u64,
    /// How many aggregates it has.
    pub(crate) data: u8,
    /// The parity packets' contents, all of one length.
    pub(crate) parity: Vec<Vec<u8>>,
}

impl OpenGroup {
    pub(super) fn new(first: u64, copies: u8) -> Self {
        Self {
            first,
            copies,
            shards: Vec::new(),
            close_at: Instant::ZERO,
        }
    }

    /// Aggregates that have joined.
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    /// The content of an aggregate joins; nothing more does after `wait`.
    pub(super) fn push(&mut self, now: Instant, content: &[u8], wait: Duration) {
        self.shards.push(shard_of(content));
        self.close_at = now + wait;
    }

    /// When its parity is to leave.
    pub(super) fn due(&self, parity: &Parity) -> Instant {
        match self.len() >= usize::from(parity.group()) {
            true => Instant::ZERO,
            false => self.close_at,
        }
    }

    /// N − 1 times the parity of a group, or of as many copies if that is less: a group that stayed
    /// short is protected as well as a full one, and costs no more than copies would.
    pub(super) fn close(self, parity: &Parity) -> ClosedGroup {
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
