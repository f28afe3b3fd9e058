//! Messages and datagrams on their way through the scheduler, and the applications that they belong to.

use std::collections::BTreeMap;

use keiro_units::Instant;

use super::SendScheduler;
use crate::{
    config::SchedulerKind,
    datagram::NewDatagram,
    id::{AppId, PathId, TenantId},
    session::send_queues::{
        Coalescing, DatagramNeeds, FrameBuf, ItemSelection, NewMessage, OutMessage, SendItem,
        WrittenItems,
    },
};

impl SendScheduler {
    /// See [`SendQueues::set_scheduler`](crate::session::send_queues::SendQueues::set_scheduler).
    pub(crate) fn set_kind(&mut self, kind: SchedulerKind) {
        self.queues.set_scheduler(kind);
    }

    /// Accepts a message for `path`; its local number.
    pub(crate) fn push_message(&mut self, message: NewMessage, path: Option<PathId>) -> u64 {
        self.queues.push_message(message, path)
    }

    /// Accepts a datagram for `path`; the applications whose oldest datagrams made room for it.
    pub(crate) fn push_datagram(
        &mut self,
        datagram: NewDatagram<'_>,
        needs: DatagramNeeds,
        path: Option<PathId>,
    ) -> Vec<AppId> {
        self.queues.push_datagram(datagram, needs, path)
    }

    /// Items of at most `bytes` bytes are coalesced on `path`; 0: none.
    pub(crate) fn set_coalescing_max(&mut self, path: PathId, bytes: u64) {
        self.queues.set_coalescing_max(path, bytes);
    }

    /// The first of a tenant's items for `path` that may be sent, and how.
    pub(crate) fn first_item(
        &mut self,
        path: PathId,
        tenant: TenantId,
        may_coalesce: bool,
    ) -> Option<(SendItem, Coalescing)> {
        self.queues.first(path, tenant, may_coalesce)
    }

    /// Writes as many items as there is room for.
    pub(crate) fn write_items(
        &mut self,
        now: Instant,
        selection: ItemSelection,
        buf: &mut FrameBuf<'_>,
    ) -> WrittenItems {
        self.queues.write_items(now, selection, buf)
    }

    /// Bytes `start..end` of a message arrived.
    pub(crate) fn on_message_acked(&mut self, id: u64, start: u32, end: u32) {
        self.queues.on_acked(id, start, end);
    }

    /// Bytes `start..end` of a message were lost; they wait for `path` again.
    pub(crate) fn on_message_lost(&mut self, id: u64, start: u32, end: u32, path: Option<PathId>) {
        self.queues.on_lost(id, start, end, path);
    }

    /// Takes out the message that is called `wire_id` on the wire.
    pub(crate) fn finish_message(&mut self, wire_id: u64) -> Option<(u64, OutMessage)> {
        self.queues.finish(wire_id)
    }

    /// A message of an application has ended: others of it may get their share of the credit.
    pub(crate) fn on_message_ended(&mut self, app: AppId, path: Option<PathId>) {
        self.queues.on_message_ended(app, path);
    }

    /// The peer lets messages of `granted` bytes in all begin.
    pub(crate) fn on_message_credit(
        &mut self,
        granted: u64,
        path_of_app: impl Fn(AppId) -> Option<PathId>,
    ) {
        self.queues.on_credit(granted, path_of_app);
    }

    /// Takes out every message whose lifetime has ended.
    pub(crate) fn take_expired_messages(&mut self, now: Instant) -> Vec<(u64, OutMessage)> {
        self.queues.take_expired(now)
    }

    /// Takes out the datagrams whose lifetime has ended; their applications.
    pub(crate) fn expire_datagrams(&mut self, now: Instant) -> Vec<AppId> {
        self.queues.expire_datagrams(now)
    }

    /// Takes out the messages of which all bytes have left.
    pub(crate) fn take_fully_sent_messages(&mut self) -> Vec<(u64, OutMessage)> {
        self.queues.take_fully_sent()
    }

    /// Takes out all messages: the peer is removed.
    pub(crate) fn take_all_messages(&mut self) -> Vec<(u64, OutMessage)> {
        self.queues.take_all()
    }

    /// The peer has restarted: it knows nothing of the items that were sent. `credit`: its first for messages.
    pub(crate) fn on_peer_restarted(
        &mut self,
        credit: u64,
        path_of_app: impl Fn(AppId) -> Option<PathId>,
    ) {
        self.queues.restart(credit, path_of_app);
    }

    /// Moves the items of an application that wait to the queue of another path.
    pub(crate) fn move_app(&mut self, app: AppId, from: Option<PathId>, to: Option<PathId>) {
        self.queues.move_app(app, from, to);
    }

    /// Items of an application that takes `path` leave by the path that delivers them first (`is_spread`), or by
    /// `path`.
    pub(crate) fn set_spread(&mut self, app: AppId, is_spread: bool, path: Option<PathId>) {
        self.queues.set_spread(app, is_spread, path);
    }

    /// The paths by which items of spread applications may leave, each with the bytes that the others would have
    /// carried by the time that its next packet arrives.
    pub(crate) fn set_spread_over(&mut self, paths: BTreeMap<PathId, u64>) {
        self.queues.set_spread_over(paths);
    }

    /// `bytes` of an application have left by `path`.
    pub(crate) fn on_app_bytes_sent(&mut self, app: AppId, path: PathId, bytes: u64) {
        self.queues.on_app_bytes_sent(app, path, bytes);
    }
}
