//! Counters of the network channel's documents.

/// What became of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DocumentCounts {
    pub(crate) received: u64,
    /// Of a type that this release does not know, and ignored.
    pub(crate) unknown: u64,
    /// Not understood, too long, or not for this gateway to take from that peer.
    pub(crate) refused: u64,
    /// Sent to peers and not delivered.
    pub(crate) undelivered: u64,
}

impl DocumentCounts {
    pub(crate) fn by_result(&self) -> [(&'static str, u64); 4] {
        [
            ("received", self.received),
            ("unknown", self.unknown),
            ("refused", self.refused),
            ("undelivered", self.undelivered),
        ]
    }
}
