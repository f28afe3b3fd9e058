//! Invariants of the send queues: what waits is where it is said to be.

use super::{SendQueues, ready::SendItem};

impl SendQueues {
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.messages.check_invariants();
        self.datagrams.check_invariants();
        self.streams.check_invariants();
        self.ready.check_invariants();
        for (key, queue) in self.ready.iter() {
            let items = || queue.plain.iter().chain(&queue.coalescing);
            let bytes: u64 = items().map(|(_, item)| self.left(*item)).sum();
            assert_eq!(queue.bytes, bytes, "bytes that wait in the queue {key:?}");
            for (schedule_key, item) in items() {
                assert_eq!(
                    self.schedule_key_of(*item),
                    Some(*schedule_key),
                    "schedule key of {item:?}"
                );
                let app = self.app_of(*item).expect("an item has an application");
                assert_eq!(self.tenant_of(app), key.1, "tenant of {item:?}");
            }
        }
        for (id, _) in self.messages.iter() {
            let item = SendItem::Message(*id);
            let is_queued = self.find(item).is_some();
            let lacks_credit = self.messages.lacks_credit(*id);
            let has_data = self.left(item) > 0;
            assert!(
                has_data == (is_queued || lacks_credit) && !(is_queued && lacks_credit),
                "message {id} waits in one place if it has something to send"
            );
        }
        for id in self.streams.ids() {
            let Some(queued) = self.streams.get(id).and_then(|stream| stream.queued) else {
                continue;
            };
            let queue = self.ready.get(queued.queue_key);
            assert!(
                queue.is_some_and(|queue| queue.contains(queued.schedule_key)),
                "stream {id:?} is in the queue that it records"
            );
        }
    }
}
