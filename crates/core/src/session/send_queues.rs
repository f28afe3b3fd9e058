//! Send queues: what waits to be sent to one peer, and in which order it leaves.
//!
//! An *item* is a message, a datagram or the data of a stream. Each waits in the queue of its
//! application's tenant on the path that the application takes ([`ready`]); the queues are ordered by
//! the schedule key. What is left to send of an item is kept with the others of its kind
//! ([`messages`], [`datagrams`], [`streams`]). Path selection, pacing and the turns of tenants are
//! decided elsewhere.

mod credit_return;
mod datagrams;
mod invariants;
mod messages;
mod packetize;
pub(crate) mod ready;
mod sending_half;
mod streams;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use self::credit_return::CreditReturns;
pub(crate) use self::{
    datagrams::DatagramNeeds,
    messages::{NewMessage, OutMessage},
    packetize::{CONTENT_HEAD_MAX, FrameBuf, ItemSelection, WritableStream, WrittenItems},
    ready::{Coalescing, SendItem},
    sending_half::OutStream,
};

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use self::{
    datagrams::{OutDatagram, OutDatagrams},
    messages::{MessageRange, OutMessages},
    ready::{QueueKey, QueuePath, ReadyQueues, ScheduleKey},
    streams::OutStreams,
};
use crate::{
    config::{DeliveryClass, SchedulerKind},
    datagram::NewDatagram,
    id::{AppId, PathId, StreamId, TenantId},
};

/// Items whose lengths are read to estimate the mean length of those that wait to be coalesced. Ours:
/// hundreds of thousands may wait.
const SAMPLED_ITEMS_MAX: usize = 64;

/// Messages without credit that are looked at when another of their application has ended: no credit has come
/// since they were last looked at. Ours: it bounds the work.
const PASSED_MAX: usize = 16;

/// All keys equal: the order of acceptance decides. Zero is left for streams' repairs.
const FIFO_KEY: u64 = 1;

/// Everything that waits for one peer or is unacknowledged.
#[derive(Debug)]
pub(crate) struct SendQueues {
    scheduler: SchedulerKind,
    /// The next number in the order of acceptance.
    next: u64,
    messages: OutMessages,
    datagrams: OutDatagrams,
    streams: OutStreams,
    /// Tenants of applications; the others belong to tenant 0.
    tenants: BTreeMap<AppId, TenantId>,
    /// Applications whose items leave by the path that delivers them first, and how many bytes have left by which.
    spread_apps: BTreeMap<AppId, BTreeMap<PathId, u64>>,
    ready: ReadyQueues,
}

impl SendQueues {
    pub(crate) fn new(scheduler: SchedulerKind, bytes_max: u64) -> Self {
        Self {
            scheduler,
            next: 0,
            messages: OutMessages::new(bytes_max),
            datagrams: OutDatagrams::default(),
            streams: OutStreams::default(),
            tenants: BTreeMap::new(),
            spread_apps: BTreeMap::new(),
            ready: ReadyQueues::default(),
        }
    }

    /// Orders what is accepted from now on; what waits already keeps its place.
    pub(crate) fn set_scheduler(&mut self, scheduler: SchedulerKind) {
        self.scheduler = scheduler;
    }

    /// A message of `len` bytes would be accepted.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.messages.has_room(len)
    }

    /// Accepts a message for `path`; its local number.
    pub(crate) fn push_message(&mut self, new: NewMessage, path: Option<PathId>) -> u64 {
        let id = self.take_number();
        let key = self.key(new.made, new.latency_target);
        self.messages.insert(id, OutMessage::new(new, key));
        self.enqueue(SendItem::Message(id), path);
        id
    }

    /// Accepts a datagram for `path`; the applications whose oldest datagrams made room for it.
    pub(crate) fn push_datagram(
        &mut self,
        new: NewDatagram<'_>,
        needs: DatagramNeeds,
        path: Option<PathId>,
    ) -> Vec<AppId> {
        let mut dropped = Vec::new();
        while let Some(oldest) = self.datagrams.oldest_in_the_way(new.data.len()) {
            dropped.extend(self.remove_datagram(oldest).map(|datagram| datagram.app));
        }
        let id = self.take_number();
        let key = self.key(new.made, needs.latency_target);
        let datagram = OutDatagram::new(new, needs.lifetime, key);
        self.datagrams.insert(id, datagram);
        self.enqueue(SendItem::Datagram(id), path);
        dropped
    }

    /// Items of at most `bytes` bytes are coalesced on `path`; 0: none.
    pub(crate) fn set_coalescing_max(&mut self, path: PathId, bytes: u64) {
        for (key, schedule_key, item) in self.ready.set_coalescing_max(path, bytes) {
            self.insert(key, schedule_key, item);
        }
    }

    /// Assigns an application to a tenant, with its items that wait.
    pub(crate) fn set_tenant(&mut self, app: AppId, tenant: TenantId) {
        let before = self.tenant_of(app);
        if before == tenant {
            return;
        }
        let mut moving = Vec::new();
        for key in self.ready.keys_of_tenant(before) {
            moving.push((key.0, self.take_app(app, key)));
        }
        match tenant {
            TenantId::ZERO => self.tenants.remove(&app),
            _ => self.tenants.insert(app, tenant),
        };
        for (path, items) in moving {
            items.into_iter().for_each(|item| self.put(item, path));
        }
    }

    /// Items of an application that takes `path` leave by the path that delivers them first (`is_spread`), or by
    /// `path`.
    pub(crate) fn set_spread(&mut self, app: AppId, is_spread: bool, path: Option<PathId>) {
        if self.spread_apps.contains_key(&app) == is_spread {
            return;
        }
        let items = self.take_app(app, self.queue_key(app, path));
        match is_spread {
            true => self.spread_apps.insert(app, BTreeMap::new()),
            false => self.spread_apps.remove(&app),
        };
        let to = self.queue_path(app, path);
        items.into_iter().for_each(|item| self.put(item, to));
    }

    /// Bytes of a spread application that have left, by path; of others there are none.
    pub(crate) fn spread_bytes(&self, app: AppId) -> Vec<(PathId, u64)> {
        let of_app = self.spread_apps.get(&app).into_iter().flatten();
        of_app.map(|(path, bytes)| (*path, *bytes)).collect()
    }

    /// There are applications whose items leave by the path that delivers them first.
    pub(crate) fn has_spread_apps(&self) -> bool {
        !self.spread_apps.is_empty()
    }

    /// `bytes` of an application have left by `path`.
    pub(crate) fn on_app_bytes_sent(&mut self, app: AppId, path: PathId, bytes: u64) {
        if let Some(sent) = self.spread_apps.get_mut(&app) {
            *sent.entry(path).or_default() += bytes;
        }
    }

    /// See [`ReadyQueues::set_spread_over`].
    pub(crate) fn set_spread_over(&mut self, paths: BTreeMap<PathId, u64>) {
        self.ready.set_spread_over(paths);
    }

    /// See [`ReadyQueues::has_spread`].
    pub(crate) fn has_spread(&self) -> bool {
        self.ready.has_spread()
    }

    /// The tenant of an application.
    pub(crate) fn tenant_of(&self, app: AppId) -> TenantId {
        self.tenants.get(&app).copied().unwrap_or(TenantId::ZERO)
    }

    /// See [`ReadyQueues::take_newly_backlogged`].
    pub(crate) fn take_newly_backlogged(&mut self, path: PathId) -> Option<TenantId> {
        self.ready.take_newly_backlogged(path)
    }

    /// See [`ReadyQueues::forget_newly_backlogged`].
    pub(crate) fn forget_newly_backlogged(&mut self, path: PathId, tenant: TenantId) {
        self.ready.forget_newly_backlogged(path, tenant);
    }

    /// See [`ReadyQueues::mark_path_newly_backlogged`].
    pub(crate) fn mark_path_newly_backlogged(&mut self, path: PathId) {
        self.ready.mark_path_newly_backlogged(path);
    }

    /// See [`ReadyQueues::has_newly_backlogged`].
    pub(crate) fn has_newly_backlogged(&self, path: PathId) -> bool {
        self.ready.has_newly_backlogged(path)
    }

    /// The first of a tenant's items for `path` that may be sent, and how; items to be coalesced
    /// only with `may_coalesce`.
    pub(crate) fn first(
        &mut self,
        path: PathId,
        tenant: TenantId,
        may_coalesce: bool,
    ) -> Option<(SendItem, Coalescing)> {
        loop {
            let queue = self.ready.get((QueuePath::One(path), tenant));
            let own = queue.and_then(|queue| queue.plain.first_key_value());
            let own = own.map(|(key, item)| (*key, *item, QueuePath::One(path)));
            let spread = self.first_spread(path, tenant);
            let spread = spread.map(|(key, item)| (key, item, QueuePath::Any));
            let plain = own.into_iter().chain(spread).min();
            let coalescing = queue.and_then(|queue| queue.coalescing.first_key_value());
            let coalescing = coalescing.filter(|_| may_coalesce);
            let (schedule_key, item, queue_path) = match (plain, coalescing) {
                (Some(plain), Some(coalescing)) if *coalescing.0 < plain.0 => {
                    return Some((*coalescing.1, Coalescing::Yes));
                }
                (Some(plain), _) => plain,
                (None, coalescing) => return coalescing.map(|(_, item)| (*item, Coalescing::Yes)),
            };
            let key = (queue_path, tenant);
            match item {
                SendItem::Message(id) if !self.messages.may_send(id) => {
                    let left = self.left(item);
                    self.ready.sub_bytes(key, left);
                    self.ready.take(key, schedule_key);
                    self.messages.wait_for_credit(id);
                }
                _ => return Some((item, Coalescing::No)),
            }
        }
    }

    /// The first of a tenant's items of spread applications, if it arrives earlier by `path` than by waiting for the
    /// others.
    ///
    /// The other paths carry what waits in less time than a packet of `path` takes, unless more waits than
    /// they carry by then (water-filling). What waits at a stream that has refused bytes has no known end; what was lost has
    /// the receiver wait, and does.
    fn first_spread(&self, path: PathId, tenant: TenantId) -> Option<(ScheduleKey, SendItem)> {
        let carried_by_others = self.ready.carried_by_others(path)?;
        let queue = self.ready.get((QueuePath::Any, tenant))?;
        let (key, item) = queue.plain.first_key_value()?;
        let is_endless = match item {
            SendItem::Stream(id) => self.streams.get(*id).is_some_and(OutStream::is_endless),
            SendItem::Message(_) | SendItem::Datagram(_) => false,
        };
        let is_worth_it = carried_by_others == 0 || is_endless || queue.bytes > carried_by_others;
        is_worth_it.then_some((*key, *item))
    }

    /// The first of a tenant's items to be coalesced for `path`, if it is of this class.
    pub(crate) fn first_coalescing(
        &self,
        path: PathId,
        tenant: TenantId,
        class: DeliveryClass,
    ) -> Option<SendItem> {
        let queue = self.ready.get((QueuePath::One(path), tenant))?;
        let (_, item) = queue.coalescing.first_key_value()?;
        (Self::class_of(*item) == class).then_some(*item)
    }

    /// The class of what an item belongs to: an aggregate holds one.
    pub(crate) fn class_of(item: SendItem) -> DeliveryClass {
        match item {
            SendItem::Message(_) => DeliveryClass::Message,
            SendItem::Datagram(_) => DeliveryClass::Datagram,
            SendItem::Stream(_) => DeliveryClass::Stream,
        }
    }

    /// `part` of a message has left over `path`.
    fn on_part_sent(&mut self, path: PathId, id: u64, part: MessageRange) {
        self.messages.on_part_sent(id, part);
        let item = SendItem::Message(id);
        let Some((schedule_key, app)) = self.schedule_key_of(item).zip(self.app_of(item)) else {
            return;
        };
        let key = self.queue_key(app, Some(path));
        let bytes = (part.end - part.start) as u64;
        self.on_app_bytes_sent(app, path, bytes);
        self.ready.sub_bytes(key, bytes);
        if self.left(item) == 0 {
            self.ready.take(key, schedule_key);
        }
    }

    /// Takes a datagram that has left (whole or its last fragment) or is given up.
    fn remove_datagram(&mut self, id: u64) -> Option<OutDatagram> {
        self.unqueue(SendItem::Datagram(id));
        self.datagrams.remove(id)
    }

    /// `bytes` of a datagram have left as a fragment.
    fn on_fragment_sent(&mut self, path: PathId, id: u64, bytes: usize) {
        self.datagrams.on_fragment_sent(id, bytes);
        if let Some(app) = self.app_of(SendItem::Datagram(id)) {
            let key = self.queue_key(app, Some(path));
            self.on_app_bytes_sent(app, path, bytes as u64);
            self.ready.sub_bytes(key, bytes as u64);
        }
    }

    /// Bytes `start..end` of a message were lost; they wait for `path` again.
    pub(crate) fn on_lost(&mut self, id: u64, start: u32, end: u32, path: Option<PathId>) {
        let bytes = self.messages.on_lost(id, start, end);
        if bytes == 0 {
            return;
        }
        match self.find(SendItem::Message(id)) {
            Some(key) => self.ready.add_bytes(key, bytes),
            None => self.enqueue(SendItem::Message(id), path),
        }
    }

    /// Bytes `start..end` of a message arrived.
    pub(crate) fn on_acked(&mut self, id: u64, start: u32, end: u32) {
        let bytes = self.messages.on_acked(id, start, end);
        if bytes == 0 {
            return;
        }
        let item = SendItem::Message(id);
        if let Some((key, schedule_key)) = self.find(item).zip(self.schedule_key_of(item)) {
            self.ready.sub_bytes(key, bytes);
            if self.left(item) == 0 {
                self.ready.take(key, schedule_key);
            }
        }
    }

    /// Takes out the message that is called `wire_id` on the wire.
    pub(crate) fn finish(&mut self, wire_id: u64) -> Option<(u64, OutMessage)> {
        let id = self.messages.by_wire_id(wire_id)?;
        Some((id, self.remove_message(id)?))
    }

    /// Takes out the datagrams whose lifetime has ended; their applications.
    pub(crate) fn expire_datagrams(&mut self, now: Instant) -> Vec<AppId> {
        let mut expired = Vec::new();
        while let Some(id) = self.datagrams.next_expired(now) {
            expired.extend(self.remove_datagram(id).map(|datagram| datagram.app));
        }
        expired
    }

    /// Takes out every message whose lifetime has ended.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<(u64, OutMessage)> {
        let mut expired = Vec::new();
        while let Some(id) = self.messages.next_expired(now) {
            expired.extend(self.remove_message(id).map(|message| (id, message)));
        }
        expired
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let messages = self.messages.next_expiry().into_iter();
        messages.chain(self.datagrams.next_expiry()).min()
    }

    /// Takes out everything: the peer is removed.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, OutMessage)> {
        self.datagrams.clear();
        self.ready.clear();
        let ids = self.messages.ids().into_iter();
        ids.filter_map(|id| Some((id, self.remove_message(id)?)))
            .collect()
    }

    /// Takes out the messages of which all bytes have left: the peer may have delivered them.
    pub(crate) fn take_fully_sent(&mut self) -> Vec<(u64, OutMessage)> {
        let left = self.messages.iter();
        let left: Vec<u64> = left
            .filter(|(_, message)| message.has_left_whole())
            .map(|(id, _)| *id)
            .collect();
        left.into_iter()
            .filter_map(|id| Some((id, self.remove_message(id)?)))
            .collect()
    }

    /// The peer has restarted: it knows nothing of what was sent, all begins anew.
    pub(crate) fn restart(&mut self, credit: u64, path_of_app: impl Fn(AppId) -> Option<PathId>) {
        self.ready.clear();
        self.messages.restart(credit);
        self.datagrams.restart();
        let messages = self
            .messages
            .iter()
            .map(|(id, message)| (SendItem::Message(*id), message.app));
        let datagrams = self
            .datagrams
            .iter()
            .map(|(id, datagram)| (SendItem::Datagram(*id), datagram.app));
        let items: Vec<(SendItem, AppId)> = messages.chain(datagrams).collect();
        for (item, app) in items {
            self.enqueue(item, path_of_app(app));
        }
    }

    /// The peer lets messages of `granted` bytes in all begin; a smaller number is old news.
    pub(crate) fn on_credit(
        &mut self,
        granted: u64,
        path_of_app: impl Fn(AppId) -> Option<PathId>,
    ) {
        for app in self.messages.on_credit(granted) {
            self.begin_waiting(app, path_of_app(app), usize::MAX);
        }
    }

    /// A message of an application has ended: others of it may get their share of the credit.
    pub(crate) fn on_message_ended(&mut self, app: AppId, path: Option<PathId>) {
        self.begin_waiting(app, path, PASSED_MAX);
    }

    fn begin_waiting(&mut self, app: AppId, path: Option<PathId>, passed_max: usize) {
        for id in self.messages.take_with_credit(app, passed_max) {
            self.enqueue(SendItem::Message(id), path);
        }
    }

    /// Moves what waits for `app` to the queue of another path.
    pub(crate) fn move_app(&mut self, app: AppId, from: Option<PathId>, to: Option<PathId>) {
        let (from, to) = (self.queue_key(app, from), self.queue_path(app, to));
        if from.0 == to {
            return;
        }
        let items = self.take_app(app, from);
        items.into_iter().for_each(|item| self.put(item, to));
    }

    /// Takes an application's items out of a queue.
    fn take_app(&mut self, app: AppId, key: QueueKey) -> Vec<SendItem> {
        let Some(queue) = self.ready.get(key) else {
            return Vec::new();
        };
        let moving: Vec<(ScheduleKey, SendItem)> = queue
            .plain
            .iter()
            .chain(&queue.coalescing)
            .filter(|(_, item)| self.app_of(**item) == Some(app))
            .map(|(schedule_key, item)| (*schedule_key, *item))
            .collect();
        for (schedule_key, item) in &moving {
            self.ready.take(key, *schedule_key);
            let left = self.left(*item);
            self.ready.sub_bytes(key, left);
        }
        moving.into_iter().map(|(_, item)| item).collect()
    }

    /// Queues an item that was taken out for `path`, at its old place.
    fn put(&mut self, item: SendItem, path: QueuePath) {
        self.enqueue_for(item, path);
        if let SendItem::Stream(id) = item {
            self.on_stream_moved(id, path);
        }
    }

    /// Items of a tenant wait for `path` that leave this way.
    pub(crate) fn has_ready(&self, path: PathId, tenant: TenantId, coalescing: Coalescing) -> bool {
        self.ready.has_ready(path, tenant, coalescing)
            || coalescing == Coalescing::No && self.first_spread(path, tenant).is_some()
    }

    /// See [`ReadyQueues::has_coalescing`].
    pub(crate) fn has_coalescing(&self, path: PathId) -> bool {
        self.ready.has_coalescing(path)
    }

    /// Bytes of all tenants that wait for `path`.
    pub(crate) fn waiting_bytes(&self, path: PathId) -> u64 {
        self.ready.of_path(path).map(|(_, queue)| queue.bytes).sum()
    }

    /// Bytes that wait for `path` to be coalesced; an estimate if there are many items.
    pub(crate) fn coalescing_bytes(&self, path: PathId) -> u64 {
        let waiting = self.ready.of_path(path).map(|(_, queue)| {
            let first = queue.coalescing.values().take(SAMPLED_ITEMS_MAX);
            let (sampled, bytes) = first.fold((0, 0), |(items, bytes), item| {
                (items + 1, bytes + self.left(*item))
            });
            bytes * queue.coalescing.len() as u64 / u64::max(sampled, 1)
        });
        waiting.sum()
    }

    /// Bytes of one tenant that may leave by `path`.
    pub(crate) fn waiting_bytes_of(&self, path: PathId, tenant: TenantId) -> u64 {
        let queue = self.ready.get((QueuePath::One(path), tenant));
        let spread = self.ready.get((QueuePath::Any, tenant));
        let spread = spread.filter(|_| self.first_spread(path, tenant).is_some());
        let queues = queue.into_iter().chain(spread);
        queues.map(|queue| queue.bytes).sum()
    }

    /// Something of `app` waits or is on its way.
    pub(crate) fn has_app(&self, app: AppId) -> bool {
        // Asked for one stream after the other when an application with many goes.
        self.streams.has_app(app)
            || self
                .datagrams
                .iter()
                .any(|(_, datagram)| datagram.app == app)
            || self.messages.iter().any(|(_, message)| message.app == app)
    }

    /// Nothing waits or is unacknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.datagrams.is_empty() && self.stream_bytes() == 0
    }

    pub(crate) fn app_of_message(&self, id: u64) -> Option<AppId> {
        self.app_of(SendItem::Message(id))
    }

    /// The sending half of a stream.
    pub(crate) fn stream(&self, id: StreamId) -> Option<&OutStream> {
        self.streams.get(id)
    }

    /// Streams with a sending half.
    pub(crate) fn stream_ids(&self) -> impl Iterator<Item = StreamId> {
        self.streams.ids()
    }

    /// Messages that have not ended.
    pub(crate) fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Bytes of messages that have not ended.
    pub(crate) fn message_bytes(&self) -> u64 {
        self.messages.bytes()
    }

    /// Bytes of streams that are kept until they are acknowledged.
    pub(crate) fn stream_bytes(&self) -> u64 {
        self.streams.bytes()
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    fn key(&self, made: Instant, latency_target: Option<Duration>) -> u64 {
        match (self.scheduler, latency_target) {
            (SchedulerKind::Deadline, Some(latency_target)) => (made + latency_target).as_nanos(),
            (SchedulerKind::Deadline, None) => u64::MAX,
            (SchedulerKind::Fifo, _) => FIFO_KEY,
        }
    }

    fn schedule_key_of(&self, item: SendItem) -> Option<ScheduleKey> {
        match item {
            SendItem::Message(id) => self.messages.schedule_key_of(id),
            SendItem::Datagram(id) => self.datagrams.schedule_key_of(id),
            SendItem::Stream(id) => Some(self.streams.get(id)?.queued?.schedule_key),
        }
    }

    fn app_of(&self, item: SendItem) -> Option<AppId> {
        match item {
            SendItem::Message(id) => self.messages.get(id).map(|message| message.app),
            SendItem::Datagram(id) => self.datagrams.get(id).map(|datagram| datagram.app),
            SendItem::Stream(id) => self.streams.get(id).map(|stream| stream.app),
        }
    }

    /// Bytes of `item` still to send.
    fn left(&self, item: SendItem) -> u64 {
        match item {
            SendItem::Message(id) => self.messages.get(id).map_or(0, OutMessage::left),
            SendItem::Datagram(id) => self.datagrams.get(id).map_or(0, OutDatagram::left),
            SendItem::Stream(id) => {
                let queued = self.streams.get(id).and_then(|stream| stream.queued);
                queued.map_or(0, |queued| queued.bytes)
            }
        }
    }

    /// Where items of an application wait that takes `path`.
    fn queue_key(&self, app: AppId, path: Option<PathId>) -> QueueKey {
        (self.queue_path(app, path), self.tenant_of(app))
    }

    fn queue_path(&self, app: AppId, path: Option<PathId>) -> QueuePath {
        match path.is_some() && self.spread_apps.contains_key(&app) {
            true => QueuePath::Any,
            false => path.into(),
        }
    }

    fn enqueue(&mut self, item: SendItem, path: Option<PathId>) {
        if let Some(app) = self.app_of(item) {
            self.enqueue_for(item, self.queue_path(app, path));
        }
    }

    fn enqueue_for(&mut self, item: SendItem, path: QueuePath) {
        let Some((schedule_key, app)) = self.schedule_key_of(item).zip(self.app_of(item)) else {
            return;
        };
        let key = (path, self.tenant_of(app));
        self.ready.add_bytes(key, self.left(item));
        self.insert(key, schedule_key, item);
    }

    /// Takes an item out of the queue in which it waits, if it does.
    fn unqueue(&mut self, item: SendItem) {
        if let Some((key, schedule_key)) = self.find(item).zip(self.schedule_key_of(item)) {
            let left = self.left(item);
            self.ready.sub_bytes(key, left);
            self.ready.take(key, schedule_key);
        }
    }

    /// The queue in which an item waits.
    fn find(&self, item: SendItem) -> Option<QueueKey> {
        let tenant = self.tenant_of(self.app_of(item)?);
        self.ready.find(self.schedule_key_of(item)?, tenant)
    }

    fn insert(&mut self, key: QueueKey, schedule_key: ScheduleKey, item: SendItem) {
        let coalescing = self.coalescing(item, key.0);
        self.ready.insert(key, schedule_key, item, coalescing);
    }

    fn coalescing(&self, item: SendItem, path: QueuePath) -> Coalescing {
        let max = self.ready.coalescing_max(path);
        let has_begun = match item {
            SendItem::Message(_) => return Coalescing::No,
            SendItem::Datagram(id) => self.datagrams.get(id).is_none_or(|d| d.offset > 0),
            SendItem::Stream(_) => false,
        };
        match max > 0 && !has_begun && self.left(item) <= max {
            true => Coalescing::Yes,
            false => Coalescing::No,
        }
    }

    fn remove_message(&mut self, id: u64) -> Option<OutMessage> {
        self.unqueue(SendItem::Message(id));
        self.messages.remove(id)
    }
}
