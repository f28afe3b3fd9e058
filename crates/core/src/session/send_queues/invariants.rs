//! Invariants of the send queues: sums, places and bounds.

use super::{DATAGRAM_BYTES_MAX, DATAGRAMS_MAX, MESSAGES_MAX, SendItem, SendQueues};
use crate::session::stream::outbound::{OutStream, Urgency};

impl SendQueues {
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.check_bounds();
        for (key, queue) in &self.ready {
            let items = || queue.plain.iter().chain(&queue.coalescing);
            let bytes: u64 = items().map(|(_, item)| self.left(*item)).sum();
            assert_eq!(queue.bytes, bytes, "bytes that wait in the queue {key:?}");
            for (place, item) in items() {
                assert_eq!(self.place_of(*item), Some(*place), "place of {item:?}");
                let app = self.app_of(*item).expect("an item has an application");
                assert_eq!(self.tenant_of(app), key.1, "tenant of {item:?}");
            }
            let messages = queue.coalescing.values();
            assert!(
                messages
                    .copied()
                    .all(|item| !matches!(item, SendItem::Message(_))),
                "messages are not coalesced"
            );
            assert!(self.paths.contains(&key.0), "paths of queues");
        }
        for (path, count) in &self.coalescing_items {
            let thin = self
                .queues_of_path(*path)
                .map(|(_, queue)| queue.coalescing.len());
            assert_eq!(
                *count,
                thin.sum::<usize>(),
                "items to be coalesced on {path:?}"
            );
        }
        for (id, message) in &self.messages {
            let place = (message.key, *id);
            let is_queued = self.queue_key_of(place, message.app).is_some();
            let lacks_credit = self.without_credit.contains(&place);
            let has_data = self.left(SendItem::Message(*id)) > 0;
            assert!(
                has_data == (is_queued || lacks_credit) && !(is_queued && lacks_credit),
                "message {id} waits in one place if it has something to send"
            );
            let known = message.wire_id.map(|wire_id| self.by_wire_id.get(&wire_id));
            assert!(
                known.is_none_or(|known| known == Some(id)),
                "number on the wire"
            );
        }
        for (id, stream) in &self.streams {
            let Some(queued) = stream.queued else {
                continue;
            };
            let queue = self.ready.get(&queued.queue_key);
            let waits = queue.is_some_and(|queue| {
                queue.plain.contains_key(&queued.place)
                    || queue.coalescing.contains_key(&queued.place)
            });
            assert!(waits, "stream {id:?} waits where it is said to");
            let in_backlog = (queued.queue_key, queued.place.1);
            assert_eq!(
                queued.urgency == Urgency::Backlog,
                self.backlog.contains(&in_backlog),
                "backlog of streams"
            );
        }
    }

    fn check_bounds(&self) {
        let bodies = self
            .messages
            .values()
            .map(|message| message.body.len() as u64);
        assert_eq!(self.message_bytes, bodies.sum::<u64>(), "message bytes");
        let data = self.datagrams.values().map(|datagram| datagram.data.len());
        assert_eq!(self.datagram_bytes, data.sum::<usize>(), "datagram bytes");
        let kept = self.streams.values().map(OutStream::len);
        assert_eq!(self.stream_bytes, kept.sum::<u64>(), "stream bytes");
        assert!(self.messages.len() <= MESSAGES_MAX, "messages");
        assert!(
            self.message_bytes <= self.bytes_max || self.messages.len() == 1,
            "message bytes are bounded"
        );
        assert!(self.datagrams.len() <= DATAGRAMS_MAX, "datagrams");
        assert!(self.datagram_bytes <= DATAGRAM_BYTES_MAX, "datagram bytes");
        assert!(
            self.credit_used <= self.credit_granted,
            "messages begin within the peer's credit"
        );
        assert_eq!(
            self.streams_of.values().sum::<usize>(),
            self.streams.len(),
            "streams of applications"
        );
        let expiring = self.messages.values().filter(|m| m.expires.is_some());
        assert_eq!(self.expiries.len(), expiring.count(), "lifetimes");
    }
}
