//! Send queues: what waits to be sent to one peer, and in which order it leaves.
//!
//! An *item* is a message, a datagram or the data of a stream. Each waits in the queue of its
//! application's tenant on the path that the application takes; the queues are ordered by the
//! schedule key. Path selection, pacing and the turns of tenants are decided elsewhere.

mod invariants;
mod packetize;
mod streams;
#[cfg(test)]
mod tests;

pub(crate) use self::packetize::{CONTENT_HEAD_MAX, FrameBuf, ItemSelection, WritableStream};

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use super::stream::{credit_return::CreditReturns, outbound::OutStream};
use crate::{
    config::{DeliveryClass, SchedulerKind},
    id::{AppId, FlowId, PathId, StreamId, TenantId},
    ranges::RangeSet,
    wire::CREDIT_PER_MESSAGE,
};

/// Messages accepted and not ended at most, whatever their bytes: bounds bookkeeping.
pub(crate) const MESSAGES_MAX: usize = 65_536;
/// Datagram bytes that wait at most; then the oldest go. 2 MiB: 170 ms of 100 Mbit/s.
const DATAGRAM_BYTES_MAX: usize = 2 << 20;
/// Datagrams that wait at most, whatever their bytes: bounds bookkeeping. Ours: 64 bytes each in the mean.
const DATAGRAMS_MAX: usize = DATAGRAM_BYTES_MAX / 64;
/// Items whose lengths are read to estimate the mean length of those that wait to be coalesced. Ours:
/// hundreds of thousands may wait.
const SAMPLED_ITEMS_MAX: usize = 64;

/// All keys equal: the order of acceptance decides. Zero is left for streams' repairs.
const FIFO_KEY: u64 = 1;

/// A message on its way.
#[derive(Debug)]
pub(crate) struct OutMessage {
    pub(crate) app: AppId,
    pub(crate) body: Vec<u8>,
    pub(crate) made: Instant,
    key: u64,
    expires: Option<Instant>,
    /// Its number on the wire, given when its first byte leaves.
    pub(crate) wire_id: Option<u64>,
    /// Sent for the first time up to here.
    fresh: usize,
    /// To be sent again.
    repair: RangeSet,
    acked: RangeSet,
}

/// A datagram that waits.
#[derive(Debug)]
pub(crate) struct OutDatagram {
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) data: Vec<u8>,
    key: u64,
    /// Sent as fragments up to here.
    pub(crate) offset: usize,
    /// Number of its fragments' datagram, once it has begun.
    pub(crate) fragment_id: Option<u64>,
}

/// A message that is to be sent.
#[derive(Debug)]
pub(crate) struct NewMessage {
    pub(crate) app: AppId,
    pub(crate) body: Vec<u8>,
    pub(crate) made: Instant,
    pub(crate) latency_target: Option<Duration>,
    pub(crate) lifetime: Option<Duration>,
}

/// A datagram that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewDatagram<'a> {
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) data: &'a [u8],
    pub(crate) latency_target: Option<Duration>,
}

/// Local number of an item, in order of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SendItem {
    Message(u64),
    Datagram(u64),
    Stream(StreamId),
}

/// Part of a message to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) repair: bool,
}

/// The order in a queue: deadline or constant, then order of acceptance. Unique.
type ScheduleKey = (u64, u64);

/// Whether an item is packed into an aggregate with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coalescing {
    /// It leaves as it is, once.
    No,
    /// It is packed into an aggregate with others.
    Yes,
}

/// The path that an item waits for (`None`: its application has none), and its tenant.
pub(crate) type QueueKey = (Option<PathId>, TenantId);

/// What one tenant has waiting for one path.
#[derive(Debug, Default)]
struct Queue {
    plain: BTreeMap<ScheduleKey, SendItem>,
    coalescing: BTreeMap<ScheduleKey, SendItem>,
    /// Bytes still to send.
    bytes: u64,
}

/// Everything that waits for one peer or is unacknowledged.
#[derive(Debug)]
pub(crate) struct SendQueues {
    scheduler: SchedulerKind,
    bytes_max: u64,
    next: u64,
    next_wire_id: u64,
    next_fragment_id: u64,
    messages: BTreeMap<u64, OutMessage>,
    datagrams: BTreeMap<u64, OutDatagram>,
    streams: BTreeMap<StreamId, OutStream>,
    /// Number of streams by application; there are no zeros.
    streams_of: BTreeMap<AppId, usize>,
    /// Bytes of streams that are kept until they are acknowledged.
    stream_bytes: u64,
    /// Streams that were refused bytes because all together keep too many.
    without_memory: BTreeSet<StreamId>,
    /// The one of them that was woken last.
    memory_turn: Option<StreamId>,
    returns: CreditReturns,
    /// Streams that wait and have more than a turn's worth: the second part of their places.
    backlog: BTreeSet<(QueueKey, u64)>,
    by_wire_id: BTreeMap<u64, u64>,
    expiries: BTreeSet<(Instant, u64)>,
    /// Tenants of applications; the others belong to tenant 0.
    tenants: BTreeMap<AppId, TenantId>,
    /// Items with something to send.
    ready: BTreeMap<QueueKey, Queue>,
    /// Paths for which something has ever waited.
    paths: BTreeSet<Option<PathId>>,
    /// Items of all tenants that are to be coalesced.
    coalescing_items: BTreeMap<PathId, usize>,
    /// Where something has come since [`SendQueues::take_woken`].
    woken: BTreeSet<(PathId, TenantId)>,
    /// Items of so many bytes at most are coalesced, by path; 0: none.
    coalescing_max: BTreeMap<PathId, u64>,
    /// Messages that may not begin for want of credit.
    without_credit: BTreeSet<(u64, u64)>,
    message_bytes: u64,
    datagram_bytes: usize,
    credit_granted: u64,
    credit_used: u64,
}

impl Queue {
    fn items(&self, coalescing: Coalescing) -> &BTreeMap<ScheduleKey, SendItem> {
        match coalescing {
            Coalescing::No => &self.plain,
            Coalescing::Yes => &self.coalescing,
        }
    }

    fn items_mut(&mut self, coalescing: Coalescing) -> &mut BTreeMap<ScheduleKey, SendItem> {
        match coalescing {
            Coalescing::No => &mut self.plain,
            Coalescing::Yes => &mut self.coalescing,
        }
    }
}

impl SendQueues {
    pub(crate) fn new(scheduler: SchedulerKind, bytes_max: u64) -> Self {
        Self {
            scheduler,
            bytes_max,
            next: 0,
            next_wire_id: 0,
            next_fragment_id: 0,
            messages: BTreeMap::new(),
            datagrams: BTreeMap::new(),
            streams: BTreeMap::new(),
            streams_of: BTreeMap::new(),
            stream_bytes: 0,
            without_memory: BTreeSet::new(),
            memory_turn: None,
            returns: CreditReturns::default(),
            backlog: BTreeSet::new(),
            by_wire_id: BTreeMap::new(),
            expiries: BTreeSet::new(),
            tenants: BTreeMap::new(),
            ready: BTreeMap::new(),
            paths: BTreeSet::new(),
            coalescing_items: BTreeMap::new(),
            woken: BTreeSet::new(),
            coalescing_max: BTreeMap::new(),
            without_credit: BTreeSet::new(),
            message_bytes: 0,
            datagram_bytes: 0,
            credit_granted: 0,
            credit_used: 0,
        }
    }

    /// Orders what is accepted from now on; what waits already keeps its place.
    pub(crate) fn set_scheduler(&mut self, scheduler: SchedulerKind) {
        self.scheduler = scheduler;
    }

    /// A message of `len` bytes would be accepted.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.messages.len() < MESSAGES_MAX
            && (self.message_bytes + len as u64 <= self.bytes_max || self.messages.is_empty())
    }

    /// Accepts a message for `path`; its local number.
    pub(crate) fn push_message(&mut self, new: NewMessage, path: Option<PathId>) -> u64 {
        let id = self.take_number();
        let expires = new.lifetime.map(|lifetime| new.made + lifetime);
        if let Some(at) = expires {
            self.expiries.insert((at, id));
        }
        self.message_bytes += new.body.len() as u64;
        let message = OutMessage {
            app: new.app,
            body: new.body,
            made: new.made,
            key: self.key(new.made, new.latency_target),
            expires,
            wire_id: None,
            fresh: 0,
            repair: RangeSet::default(),
            acked: RangeSet::default(),
        };
        self.messages.insert(id, message);
        self.enqueue(SendItem::Message(id), path);
        id
    }

    /// Accepts a datagram for `path`; the applications whose oldest datagrams made room for it.
    pub(crate) fn push_datagram(
        &mut self,
        now: Instant,
        new: NewDatagram<'_>,
        path: Option<PathId>,
    ) -> Vec<AppId> {
        let mut dropped = Vec::new();
        while self.datagram_bytes + new.data.len() > DATAGRAM_BYTES_MAX
            || self.datagrams.len() >= DATAGRAMS_MAX
        {
            let Some((&oldest, _)) = self.datagrams.first_key_value() else {
                break;
            };
            dropped.extend(self.remove_datagram(oldest).map(|datagram| datagram.app));
        }
        let id = self.take_number();
        self.datagram_bytes += new.data.len();
        let datagram = OutDatagram {
            app: new.app,
            flow: new.flow,
            reply: new.reply,
            data: new.data.to_vec(),
            key: self.key(now, new.latency_target),
            offset: 0,
            fragment_id: None,
        };
        self.datagrams.insert(id, datagram);
        self.enqueue(SendItem::Datagram(id), path);
        dropped
    }

    /// Items of at most so many bytes are coalesced on `path`; 0: none.
    pub(crate) fn set_coalescing_max(&mut self, path: PathId, bytes: u64) {
        if self.coalescing_max.insert(path, bytes) == Some(bytes) {
            return;
        }
        self.coalescing_items.remove(&path);
        let queues_of_path: Vec<QueueKey> =
            self.queues_of_path(path).map(|(key, _)| *key).collect();
        for key in queues_of_path {
            let Some(queue) = self.ready.get_mut(&key) else {
                continue;
            };
            let mut items = std::mem::take(&mut queue.coalescing);
            // Messages are never coalesced, and may be many.
            let changing =
                |_: &ScheduleKey, item: &mut SendItem| !matches!(item, SendItem::Message(_));
            items.extend(queue.plain.extract_if(.., changing));
            for (place, item) in items {
                self.insert(key, place, item);
            }
        }
    }

    /// Assigns an application to a tenant, with its items that wait.
    pub(crate) fn set_tenant(&mut self, app: AppId, tenant: TenantId) {
        let before = self.tenant_of(app);
        if before == tenant {
            return;
        }
        let queues_of_path: Vec<QueueKey> = self.ready.keys().copied().collect();
        let mut moving = Vec::new();
        for key in queues_of_path.into_iter().filter(|(_, of)| *of == before) {
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

    /// The tenant of an application.
    pub(crate) fn tenant_of(&self, app: AppId) -> TenantId {
        self.tenants.get(&app).copied().unwrap_or(TenantId::ZERO)
    }

    /// Tenants of which something has come for `path` since the last call.
    pub(crate) fn take_woken(&mut self, path: PathId) -> Vec<TenantId> {
        let of_path = (path, TenantId::ZERO)..=(path, TenantId(u32::MAX));
        let woken = self.woken.extract_if(of_path, |_| true);
        woken.map(|(_, tenant)| tenant).collect()
    }

    /// Has [`take_woken`](Self::take_woken) return a tenant wherever something of it waits.
    pub(crate) fn wake_all(&mut self, tenant: TenantId) {
        for ((path, of), queue) in &self.ready {
            let waits = !queue.plain.is_empty() || !queue.coalescing.is_empty();
            if let Some(path) = path.filter(|_| waits && *of == tenant) {
                self.woken.insert((path, tenant));
            }
        }
    }

    /// Something has come for `path` that [`take_woken`](Self::take_woken) has not returned yet.
    pub(crate) fn has_woken(&self, path: PathId) -> bool {
        let of_path = (path, TenantId::ZERO)..=(path, TenantId(u32::MAX));
        self.woken.range(of_path).next().is_some()
    }

    /// The first of a tenant's items for `path` that may be sent, and how; items to be coalesced
    /// only with `may_coalesce`.
    pub(crate) fn first(
        &mut self,
        path: PathId,
        tenant: TenantId,
        may_coalesce: bool,
    ) -> Option<(SendItem, Coalescing)> {
        let key = (Some(path), tenant);
        loop {
            let queue = self.ready.get(&key)?;
            let plain = queue.plain.first_key_value();
            let coalescing = queue.coalescing.first_key_value().filter(|_| may_coalesce);
            let (&place, &item) = match (plain, coalescing) {
                (Some(plain), Some(coalescing)) if coalescing.0 < plain.0 => {
                    return Some((*coalescing.1, Coalescing::Yes));
                }
                (Some(plain), _) => plain,
                (None, coalescing) => return coalescing.map(|(_, item)| (*item, Coalescing::Yes)),
            };
            let SendItem::Message(id) = item else {
                return Some((item, Coalescing::No));
            };
            let message = &self.messages[&id];
            if message.wire_id.is_some() || self.may_begin(message.body.len()) {
                return Some((item, Coalescing::No));
            }
            let left = self.left(item);
            self.sub_waiting(key, left);
            self.take_from_queue(key, place);
            self.without_credit.insert((place.0, id));
        }
    }

    /// The first of a tenant's items to be coalesced for `path`, if it is of this class.
    pub(crate) fn first_coalescing(
        &self,
        path: PathId,
        tenant: TenantId,
        class: DeliveryClass,
    ) -> Option<SendItem> {
        let queue = self.ready.get(&(Some(path), tenant))?;
        let (_, item) = queue.coalescing.first_key_value()?;
        (Self::class_of(*item) == class).then_some(*item)
    }

    /// The class of what a item belongs to: an aggregate holds one.
    pub(crate) fn class_of(item: SendItem) -> DeliveryClass {
        match item {
            SendItem::Message(_) => DeliveryClass::Message,
            SendItem::Datagram(_) => DeliveryClass::Datagram,
            SendItem::Stream(_) => DeliveryClass::Stream,
        }
    }

    /// The next part of a message, at most `max` bytes; `None` if nothing is left to send.
    pub(crate) fn next_part(&self, id: u64, max: usize) -> Option<Part> {
        let message = self.messages.get(&id)?;
        if let Some((start, end)) = message.repair.first() {
            let (start, end) = (start as usize, end as usize);
            return Some(Part {
                start,
                end: end.min(start + max),
                repair: true,
            });
        }
        let start = message.fresh;
        let end = message.body.len().min(start + max);
        (start < end).then_some(Part {
            start,
            end,
            repair: false,
        })
    }

    /// The number of a message on the wire; beginning it uses credit.
    pub(crate) fn begin(&mut self, id: u64) -> u64 {
        let message = self
            .messages
            .get_mut(&id)
            .expect("a message that is sent exists");
        if let Some(wire_id) = message.wire_id {
            return wire_id;
        }
        let wire_id = self.next_wire_id;
        self.next_wire_id += 1;
        self.credit_used += message.body.len() as u64 + CREDIT_PER_MESSAGE;
        message.wire_id = Some(wire_id);
        self.by_wire_id.insert(wire_id, id);
        wire_id
    }

    /// `part` of a message has left over `path`.
    pub(crate) fn on_part_sent(&mut self, path: PathId, id: u64, part: Part) {
        let message = self
            .messages
            .get_mut(&id)
            .expect("a message that is sent exists");
        if part.repair {
            message.repair.remove(part.start as u64, part.end as u64);
        } else {
            message.fresh = part.end;
        }
        let (place, app) = ((message.key, id), message.app);
        let idle = message.repair.is_empty() && message.fresh == message.body.len();
        let key = (Some(path), self.tenant_of(app));
        self.sub_waiting(key, (part.end - part.start) as u64);
        if idle {
            self.take_from_queue(key, place);
        }
    }

    /// Takes a datagram that has left (whole or its last fragment) or is given up.
    pub(crate) fn remove_datagram(&mut self, id: u64) -> Option<OutDatagram> {
        let datagram = self.datagrams.remove(&id)?;
        self.datagram_bytes -= datagram.data.len();
        let place = (datagram.key, id);
        let left = (datagram.data.len() - datagram.offset) as u64;
        if let Some(key) = self.queue_key_of(place, datagram.app) {
            self.sub_waiting(key, left);
            self.take_from_queue(key, place);
        }
        Some(datagram)
    }

    /// `bytes` of a datagram have left as a fragment.
    pub(crate) fn on_fragment_sent(&mut self, path: PathId, id: u64, bytes: usize) {
        if let Some(datagram) = self.datagrams.get_mut(&id) {
            datagram.offset += bytes;
            let app = datagram.app;
            self.sub_waiting((Some(path), self.tenant_of(app)), bytes as u64);
        }
    }

    /// Bytes `start..end` of a message were lost; they wait for `path` again.
    pub(crate) fn on_lost(&mut self, id: u64, start: u32, end: u32, path: Option<PathId>) {
        let Some(message) = self.messages.get_mut(&id) else {
            return;
        };
        let mut missing = RangeSet::default();
        missing.insert(u64::from(start), u64::from(end));
        for (low, high) in message.acked.iter() {
            missing.remove(low, high);
        }
        let mut fresh = 0;
        for (low, high) in missing.iter() {
            fresh += message.repair.insert(low, high);
        }
        if fresh == 0 {
            return;
        }
        let (place, app) = ((message.key, id), message.app);
        match self.queue_key_of(place, app) {
            Some(key) => self.ready.entry(key).or_default().bytes += fresh,
            None => self.enqueue(SendItem::Message(id), path),
        }
    }

    /// Bytes `start..end` of a message arrived.
    pub(crate) fn on_acked(&mut self, id: u64, start: u32, end: u32) {
        let Some(message) = self.messages.get_mut(&id) else {
            return;
        };
        let (start, end) = (u64::from(start), u64::from(end));
        message.acked.insert(start, end);
        if message.repair.is_empty() {
            return;
        }
        let before: u64 = message.repair.iter().map(|(low, high)| high - low).sum();
        message.repair.remove(start, end);
        let after: u64 = message.repair.iter().map(|(low, high)| high - low).sum();
        let (place, app) = ((message.key, id), message.app);
        let idle = message.repair.is_empty() && message.fresh == message.body.len();
        if let Some(key) = self.queue_key_of(place, app) {
            self.sub_waiting(key, before - after);
            if idle {
                self.take_from_queue(key, place);
            }
        }
    }

    /// Takes out the message that is called `wire_id` on the wire.
    pub(crate) fn finish(&mut self, wire_id: u64) -> Option<(u64, OutMessage)> {
        let id = *self.by_wire_id.get(&wire_id)?;
        self.remove_message(id).map(|message| (id, message))
    }

    /// Takes out every message whose lifetime has ended.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<(u64, OutMessage)> {
        let mut expired = Vec::new();
        while let Some(&(at, id)) = self.expiries.first() {
            if at > now {
                break;
            }
            expired.extend(self.remove_message(id).map(|message| (id, message)));
        }
        expired
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Takes out everything: the peer is removed.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, OutMessage)> {
        self.datagrams.clear();
        self.clear_queues();
        let ids: Vec<u64> = self.messages.keys().copied().collect();
        ids.into_iter()
            .filter_map(|id| Some((id, self.remove_message(id)?)))
            .collect()
    }

    /// The peer has restarted: it knows nothing of what was sent, all begins anew.
    pub(crate) fn restart(&mut self, credit: u64, path_of_app: impl Fn(AppId) -> Option<PathId>) {
        self.clear_queues();
        self.without_credit.clear();
        self.by_wire_id.clear();
        self.credit_granted = credit;
        self.credit_used = 0;
        for message in self.messages.values_mut() {
            message.wire_id = None;
            message.fresh = 0;
            message.repair = RangeSet::default();
            message.acked = RangeSet::default();
        }
        for datagram in self.datagrams.values_mut() {
            datagram.offset = 0;
            datagram.fragment_id = None;
        }
        let items = self
            .messages
            .iter()
            .map(|(id, message)| (SendItem::Message(*id), message.app));
        let datagrams = self
            .datagrams
            .iter()
            .map(|(id, d)| (SendItem::Datagram(*id), d.app));
        let items: Vec<(SendItem, AppId)> = items.chain(datagrams).collect();
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
        if granted <= self.credit_granted {
            return;
        }
        self.credit_granted = granted;
        for (_, id) in std::mem::take(&mut self.without_credit) {
            if let Some(message) = self.messages.get(&id) {
                let path = path_of_app(message.app);
                self.enqueue(SendItem::Message(id), path);
            }
        }
    }

    /// Moves what waits for `app` to the queue of another path.
    pub(crate) fn move_app(&mut self, app: AppId, from: Option<PathId>, to: Option<PathId>) {
        let items = self.take_app(app, (from, self.tenant_of(app)));
        items.into_iter().for_each(|item| self.put(item, to));
    }

    /// Takes an application's items out of a queue.
    fn take_app(&mut self, app: AppId, key: QueueKey) -> Vec<SendItem> {
        let Some(queue) = self.ready.get(&key) else {
            return Vec::new();
        };
        let moving: Vec<(ScheduleKey, SendItem)> = queue
            .plain
            .iter()
            .chain(&queue.coalescing)
            .filter(|(_, item)| self.app_of(**item) == Some(app))
            .map(|(place, item)| (*place, *item))
            .collect();
        for (place, item) in &moving {
            self.take_from_queue(key, *place);
            let left = self.left(*item);
            self.sub_waiting(key, left);
        }
        moving.into_iter().map(|(_, item)| item).collect()
    }

    /// Queues an item that was taken out for `path`, at its old place.
    fn put(&mut self, item: SendItem, path: Option<PathId>) {
        self.enqueue(item, path);
        if let SendItem::Stream(id) = item {
            self.on_stream_moved(id, path);
        }
    }

    /// Items of a tenant wait for `path` that leave this way.
    pub(crate) fn has_ready(&self, path: PathId, tenant: TenantId, coalescing: Coalescing) -> bool {
        self.ready
            .get(&(Some(path), tenant))
            .is_some_and(|queue| !queue.items(coalescing).is_empty())
    }

    /// Items of any tenant wait for `path` to be coalesced.
    pub(crate) fn has_coalescing(&self, path: PathId) -> bool {
        self.coalescing_items
            .get(&path)
            .is_some_and(|count| *count > 0)
    }

    /// Bytes of all tenants that wait for `path`.
    pub(crate) fn waiting_bytes(&self, path: PathId) -> u64 {
        self.queues_of_path(path)
            .map(|(_, queue)| queue.bytes)
            .sum()
    }

    /// Bytes that wait for `path` to be coalesced; an estimate if there are many items.
    pub(crate) fn coalescing_bytes(&self, path: PathId) -> u64 {
        let waiting = self.queues_of_path(path).map(|(_, queue)| {
            let first = queue.coalescing.values().take(SAMPLED_ITEMS_MAX);
            let (sampled, bytes) = first.fold((0, 0), |(items, bytes), item| {
                (items + 1, bytes + self.left(*item))
            });
            bytes * queue.coalescing.len() as u64 / u64::max(sampled, 1)
        });
        waiting.sum()
    }

    /// Bytes of one tenant that wait for `path`.
    pub(crate) fn waiting_bytes_of(&self, path: PathId, tenant: TenantId) -> u64 {
        let queue = self.ready.get(&(Some(path), tenant));
        queue.map_or(0, |queue| queue.bytes)
    }

    fn queues_of_path(&self, path: PathId) -> impl Iterator<Item = (&QueueKey, &Queue)> {
        let (first, last) = (TenantId::ZERO, TenantId(u32::MAX));
        self.ready.range((Some(path), first)..=(Some(path), last))
    }

    fn clear_queues(&mut self) {
        self.ready.clear();
        self.coalescing_items.clear();
        self.woken.clear();
    }

    /// Something of `app` waits or is on its way.
    pub(crate) fn has_app(&self, app: AppId) -> bool {
        // Asked for one stream after the other when an application with many goes.
        self.streams_of.contains_key(&app)
            || self.datagrams.values().any(|datagram| datagram.app == app)
            || self.messages.values().any(|message| message.app == app)
    }

    /// Nothing waits or is unacknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.datagrams.is_empty() && self.stream_bytes == 0
    }

    pub(crate) fn app_of_message(&self, id: u64) -> Option<AppId> {
        self.app_of(SendItem::Message(id))
    }

    /// The sending half of a stream.
    pub(crate) fn stream(&self, id: StreamId) -> Option<&OutStream> {
        self.streams.get(&id)
    }

    /// Streams with a sending half.
    pub(crate) fn stream_ids(&self) -> impl Iterator<Item = StreamId> {
        self.streams.keys().copied()
    }

    /// Messages that have not ended.
    pub(crate) fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Bytes of messages that have not ended.
    pub(crate) fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    /// Bytes of streams that are kept until they are acknowledged.
    pub(crate) fn stream_bytes(&self) -> u64 {
        self.stream_bytes
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

    fn may_begin(&self, len: usize) -> bool {
        self.credit_used + len as u64 + CREDIT_PER_MESSAGE <= self.credit_granted
    }

    fn place_of(&self, item: SendItem) -> Option<ScheduleKey> {
        match item {
            SendItem::Message(id) => self.messages.get(&id).map(|message| (message.key, id)),
            SendItem::Datagram(id) => self.datagrams.get(&id).map(|datagram| (datagram.key, id)),
            SendItem::Stream(id) => Some(self.streams.get(&id)?.queued?.place),
        }
    }

    fn app_of(&self, item: SendItem) -> Option<AppId> {
        match item {
            SendItem::Message(id) => self.messages.get(&id).map(|message| message.app),
            SendItem::Datagram(id) => self.datagrams.get(&id).map(|datagram| datagram.app),
            SendItem::Stream(id) => self.streams.get(&id).map(|stream| stream.app),
        }
    }

    /// Bytes of `item` still to send.
    pub(crate) fn left(&self, item: SendItem) -> u64 {
        match item {
            SendItem::Message(id) => self.messages.get(&id).map_or(0, |message| {
                let repair: u64 = message.repair.iter().map(|(low, high)| high - low).sum();
                repair + (message.body.len() - message.fresh) as u64
            }),
            SendItem::Datagram(id) => self
                .datagrams
                .get(&id)
                .map_or(0, |datagram| (datagram.data.len() - datagram.offset) as u64),
            SendItem::Stream(id) => {
                let queued = self.streams.get(&id).and_then(|stream| stream.queued);
                queued.map_or(0, |queued| queued.bytes)
            }
        }
    }

    fn enqueue(&mut self, item: SendItem, path: Option<PathId>) {
        let Some((place, app)) = self.place_of(item).zip(self.app_of(item)) else {
            return;
        };
        let (key, left) = ((path, self.tenant_of(app)), self.left(item));
        self.ready.entry(key).or_default().bytes += left;
        self.insert(key, place, item);
    }

    /// The queue in which a item waits; there are few paths.
    fn queue_key_of(&self, place: ScheduleKey, app: AppId) -> Option<QueueKey> {
        let tenant = self.tenant_of(app);
        let mut queues_of_path = self.paths.iter().map(|path| (*path, tenant));
        queues_of_path.find(|key| {
            let queue = self.ready.get(key);
            queue.is_some_and(|q| q.plain.contains_key(&place) || q.coalescing.contains_key(&place))
        })
    }

    fn take_from_queue(&mut self, key: QueueKey, place: ScheduleKey) {
        let Some(queue) = self.ready.get_mut(&key) else {
            return;
        };
        let was_coalescing =
            queue.plain.remove(&place).is_none() && queue.coalescing.remove(&place).is_some();
        if was_coalescing
            && let Some(count) = key.0.and_then(|path| self.coalescing_items.get_mut(&path))
        {
            *count -= 1;
        }
    }

    fn insert(&mut self, key: QueueKey, place: ScheduleKey, item: SendItem) {
        let coalescing = self.coalescing(item, key.0);
        self.paths.insert(key.0);
        let queue = self.ready.entry(key).or_default();
        queue.items_mut(coalescing).insert(place, item);
        let Some(path) = key.0 else { return };
        if coalescing == Coalescing::Yes {
            *self.coalescing_items.entry(path).or_default() += 1;
        }
        self.woken.insert((path, key.1));
    }

    fn coalescing(&self, item: SendItem, path: Option<PathId>) -> Coalescing {
        let max = path
            .and_then(|path| self.coalescing_max.get(&path))
            .copied();
        let coalesces = max.is_some_and(|max| max > 0);
        match item {
            SendItem::Message(_) => Coalescing::No,
            SendItem::Datagram(id) => {
                let datagram = self.datagrams.get(&id).filter(|d| d.offset == 0);
                let thin = datagram.is_some_and(|d| Some(d.data.len() as u64) <= max);
                if coalesces && thin {
                    Coalescing::Yes
                } else {
                    Coalescing::No
                }
            }
            SendItem::Stream(_) if coalesces && Some(self.left(item)) <= max => Coalescing::Yes,
            SendItem::Stream(_) => Coalescing::No,
        }
    }

    fn sub_waiting(&mut self, key: QueueKey, bytes: u64) {
        if let Some(queue) = self.ready.get_mut(&key) {
            queue.bytes = queue.bytes.saturating_sub(bytes);
        }
    }

    fn remove_message(&mut self, id: u64) -> Option<OutMessage> {
        let place = self.place_of(SendItem::Message(id))?;
        let app = self.app_of(SendItem::Message(id))?;
        let left = self.left(SendItem::Message(id));
        if let Some(key) = self.queue_key_of(place, app) {
            self.sub_waiting(key, left);
            self.take_from_queue(key, place);
        }
        let message = self.messages.remove(&id)?;
        self.without_credit.remove(&(message.key, id));
        if let Some(wire_id) = message.wire_id {
            self.by_wire_id.remove(&wire_id);
        }
        if let Some(at) = message.expires {
            self.expiries.remove(&(at, id));
        }
        self.message_bytes -= message.body.len() as u64;
        Some(message)
    }
}
