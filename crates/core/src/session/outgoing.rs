//! What waits to be sent to one peer, and in which order it leaves.
//!
//! A *unit* is a message, a datagram or what a stream has to send. Each waits in the queue of the
//! path that its application takes; the queues are ordered by the scheduler's key. Which path an
//! application takes, and when a path may send, is decided elsewhere.

mod streams;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_model::Instant;

use super::stream::outbound::OutStream;
use crate::{
    config::{DeliveryClass, SchedulerKind},
    id::{AppId, FlowId, PathId, StreamId},
    ranges::RangeSet,
    wire::CREDIT_PER_MESSAGE,
};

/// Messages accepted and not ended at most, whatever their bytes: bounds bookkeeping.
pub(crate) const MESSAGES_MAX: usize = 65_536;
/// Datagram bytes that wait at most; then the oldest go. 2 MiB: 170 ms of 100 Mbit/s.
const DATAGRAM_BYTES_MAX: usize = 2 << 20;

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
    /// Acknowledged.
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

/// Local number of a unit, in order of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
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

/// (scheduler's key, order of acceptance): unique.
type Place = (u64, u64);

/// How a unit leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// As it is, once.
    Plain,
    /// Gathered with others into an aggregate.
    Thin,
}

/// What waits for one path.
#[derive(Debug, Default)]
struct Queue {
    plain: BTreeMap<Place, Unit>,
    thin: BTreeMap<Place, Unit>,
}

/// Everything that waits for or is on its way to one peer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    scheduler: SchedulerKind,
    bytes_max: u64,
    next: u64,
    next_wire_id: u64,
    pub(crate) next_fragment_id: u64,
    pub(crate) messages: BTreeMap<u64, OutMessage>,
    pub(crate) datagrams: BTreeMap<u64, OutDatagram>,
    pub(crate) streams: BTreeMap<StreamId, OutStream>,
    /// Bytes of streams that are kept until they are acknowledged.
    pub(crate) stream_bytes: u64,
    /// Streams that were refused bytes because all together keep too many.
    without_memory: BTreeSet<StreamId>,
    /// Streams that wait and have more than a turn's worth, by path: the second part of their places.
    backlog: BTreeSet<(Option<PathId>, u64)>,
    by_wire_id: BTreeMap<u64, u64>,
    expiries: BTreeSet<(Instant, u64)>,
    /// Units with something to send, by path; `None`: their application has no path.
    ready: BTreeMap<Option<PathId>, Queue>,
    /// Units of so many bytes at most are gathered, by path; 0: none.
    thin_max: BTreeMap<PathId, u64>,
    /// Bytes of `ready` units still to send, by path.
    waiting_bytes: BTreeMap<Option<PathId>, u64>,
    /// Messages that may not begin for want of credit.
    without_credit: BTreeSet<(u64, u64)>,
    pub(crate) message_bytes: u64,
    datagram_bytes: usize,
    credit_granted: u64,
    credit_used: u64,
}

impl Queue {
    fn lane(&self, lane: Lane) -> &BTreeMap<Place, Unit> {
        match lane {
            Lane::Plain => &self.plain,
            Lane::Thin => &self.thin,
        }
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut BTreeMap<Place, Unit> {
        match lane {
            Lane::Plain => &mut self.plain,
            Lane::Thin => &mut self.thin,
        }
    }
}

impl Outgoing {
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
            stream_bytes: 0,
            without_memory: BTreeSet::new(),
            backlog: BTreeSet::new(),
            by_wire_id: BTreeMap::new(),
            expiries: BTreeSet::new(),
            ready: BTreeMap::new(),
            thin_max: BTreeMap::new(),
            waiting_bytes: BTreeMap::new(),
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
    pub(crate) fn push_message(
        &mut self,
        app: AppId,
        body: Vec<u8>,
        made: Instant,
        (demand, lifetime): (Option<Duration>, Option<Duration>),
        path: Option<PathId>,
    ) -> u64 {
        let id = self.take_number();
        let expires = lifetime.map(|lifetime| made + lifetime);
        if let Some(at) = expires {
            self.expiries.insert((at, id));
        }
        self.message_bytes += body.len() as u64;
        let message = OutMessage {
            app,
            body,
            made,
            key: self.key(made, demand),
            expires,
            wire_id: None,
            fresh: 0,
            repair: RangeSet::default(),
            acked: RangeSet::default(),
        };
        self.messages.insert(id, message);
        self.enqueue(Unit::Message(id), path);
        id
    }

    /// Accepts a datagram for `path`; the applications whose oldest datagrams made room for it.
    pub(crate) fn push_datagram(
        &mut self,
        now: Instant,
        datagram: (AppId, FlowId, bool, &[u8]),
        demand: Option<Duration>,
        path: Option<PathId>,
    ) -> Vec<AppId> {
        let (app, flow, reply, data) = datagram;
        let mut dropped = Vec::new();
        while self.datagram_bytes + data.len() > DATAGRAM_BYTES_MAX {
            let Some((&oldest, _)) = self.datagrams.first_key_value() else {
                break;
            };
            dropped.extend(self.remove_datagram(oldest).map(|datagram| datagram.app));
        }
        let id = self.take_number();
        self.datagram_bytes += data.len();
        let datagram = OutDatagram {
            app,
            flow,
            reply,
            data: data.to_vec(),
            key: self.key(now, demand),
            offset: 0,
            fragment_id: None,
        };
        self.datagrams.insert(id, datagram);
        self.enqueue(Unit::Datagram(id), path);
        dropped
    }

    /// What has at most so many bytes is gathered where it takes `path`.
    pub(crate) fn set_thin_max(&mut self, path: PathId, bytes: u64) {
        if self.thin_max.insert(path, bytes) == Some(bytes) {
            return;
        }
        let Some(queue) = self.ready.get_mut(&Some(path)) else {
            return;
        };
        let mut units = std::mem::take(&mut queue.plain);
        units.append(&mut queue.thin);
        for (place, unit) in units {
            let lane = self.lane(unit, Some(path));
            if let Some(queue) = self.ready.get_mut(&Some(path)) {
                queue.lane_mut(lane).insert(place, unit);
            }
        }
    }

    /// The first unit in `path`'s queue that may be sent, and how; of the thin ones only with
    /// `thin`.
    pub(crate) fn first(&mut self, path: PathId, thin: bool) -> Option<(Unit, Lane)> {
        loop {
            let queue = self.ready.get(&Some(path))?;
            let plain = queue.plain.first_key_value();
            let gathered = queue.thin.first_key_value().filter(|_| thin);
            let (&place, &unit) = match (plain, gathered) {
                (Some(plain), Some(gathered)) if gathered.0 < plain.0 => {
                    return Some((*gathered.1, Lane::Thin));
                }
                (Some(plain), _) => plain,
                (None, gathered) => return gathered.map(|(_, unit)| (*unit, Lane::Thin)),
            };
            let Unit::Message(id) = unit else {
                return Some((unit, Lane::Plain));
            };
            let message = &self.messages[&id];
            if message.wire_id.is_some() || self.may_begin(message.body.len()) {
                return Some((unit, Lane::Plain));
            }
            let left = self.left(unit);
            self.sub_waiting(Some(path), left);
            self.take_from_queue(Some(path), place);
            self.without_credit.insert((place.0, id));
        }
    }

    /// The first thin unit in `path`'s queue, if it is of this class.
    pub(crate) fn first_thin(&self, path: PathId, class: DeliveryClass) -> Option<Unit> {
        let (_, unit) = self.ready.get(&Some(path))?.thin.first_key_value()?;
        (Self::class_of(*unit) == class).then_some(*unit)
    }

    /// The class of what a unit belongs to: an aggregate holds one.
    pub(crate) fn class_of(unit: Unit) -> DeliveryClass {
        match unit {
            Unit::Message(_) => DeliveryClass::Message,
            Unit::Datagram(_) => DeliveryClass::Datagram,
            Unit::Stream(_) => DeliveryClass::Stream,
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
        let place = (message.key, id);
        let idle = message.repair.is_empty() && message.fresh == message.body.len();
        self.sub_waiting(Some(path), (part.end - part.start) as u64);
        if idle {
            self.take_from_queue(Some(path), place);
        }
    }

    /// Takes a datagram that has left (whole or its last fragment) or is given up.
    pub(crate) fn remove_datagram(&mut self, id: u64) -> Option<OutDatagram> {
        let datagram = self.datagrams.remove(&id)?;
        self.datagram_bytes -= datagram.data.len();
        let place = (datagram.key, id);
        let left = (datagram.data.len() - datagram.offset) as u64;
        let path = self.path_of(place);
        if let Some(path) = path {
            self.sub_waiting(path, left);
            self.take_from_queue(path, place);
        }
        Some(datagram)
    }

    /// `bytes` of a datagram have left as a fragment.
    pub(crate) fn on_fragment_sent(&mut self, path: PathId, id: u64, bytes: usize) {
        if let Some(datagram) = self.datagrams.get_mut(&id) {
            datagram.offset += bytes;
            self.sub_waiting(Some(path), bytes as u64);
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
        let place = (message.key, id);
        match self.path_of(place) {
            Some(queued) => *self.waiting_bytes.entry(queued).or_default() += fresh,
            None => self.enqueue(Unit::Message(id), path),
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
        let place = (message.key, id);
        let idle = message.repair.is_empty() && message.fresh == message.body.len();
        if let Some(path) = self.path_of(place) {
            self.sub_waiting(path, before - after);
            if idle {
                self.take_from_queue(path, place);
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
        self.ready.clear();
        let ids: Vec<u64> = self.messages.keys().copied().collect();
        ids.into_iter()
            .filter_map(|id| Some((id, self.remove_message(id)?)))
            .collect()
    }

    /// The peer has restarted: it knows nothing of what was sent, all begins anew.
    pub(crate) fn restart(&mut self, credit: u64, path_of_app: impl Fn(AppId) -> Option<PathId>) {
        self.ready.clear();
        self.waiting_bytes.clear();
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
        let units = self
            .messages
            .iter()
            .map(|(id, message)| (Unit::Message(*id), message.app));
        let datagrams = self
            .datagrams
            .iter()
            .map(|(id, d)| (Unit::Datagram(*id), d.app));
        let units: Vec<(Unit, AppId)> = units.chain(datagrams).collect();
        for (unit, app) in units {
            self.enqueue(unit, path_of_app(app));
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
                self.enqueue(Unit::Message(id), path);
            }
        }
    }

    /// Moves what waits for `app` to the queue of another path.
    pub(crate) fn move_app(&mut self, app: AppId, from: Option<PathId>, to: Option<PathId>) {
        let Some(queue) = self.ready.get(&from) else {
            return;
        };
        let moving: Vec<(Place, Unit)> = queue
            .plain
            .iter()
            .chain(&queue.thin)
            .filter(|(_, unit)| self.app_of(**unit) == Some(app))
            .map(|(place, unit)| (*place, *unit))
            .collect();
        for (place, unit) in moving {
            self.take_from_queue(from, place);
            let left = self.left(unit);
            self.sub_waiting(from, left);
            self.enqueue(unit, to);
            if let Unit::Stream(id) = unit {
                self.on_stream_moved(id, to);
            }
        }
    }

    /// Something waits for `path` that leaves this way.
    pub(crate) fn has_ready(&self, path: PathId, lane: Lane) -> bool {
        self.ready
            .get(&Some(path))
            .is_some_and(|queue| !queue.lane(lane).is_empty())
    }

    pub(crate) fn waiting_bytes(&self, path: PathId) -> u64 {
        self.waiting_bytes.get(&Some(path)).copied().unwrap_or(0)
    }

    /// Something of `app` waits or is on its way.
    pub(crate) fn has_app(&self, app: AppId) -> bool {
        self.messages.values().any(|message| message.app == app)
            || self.datagrams.values().any(|datagram| datagram.app == app)
            || self.streams.values().any(|stream| stream.app == app)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.datagrams.is_empty()
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    fn key(&self, made: Instant, demand: Option<Duration>) -> u64 {
        match (self.scheduler, demand) {
            (SchedulerKind::Deadline, Some(demand)) => (made + demand).as_nanos(),
            (SchedulerKind::Deadline, None) => u64::MAX,
            (SchedulerKind::Fifo, _) => FIFO_KEY,
        }
    }

    fn may_begin(&self, len: usize) -> bool {
        self.credit_used + len as u64 + CREDIT_PER_MESSAGE <= self.credit_granted
    }

    fn place_of(&self, unit: Unit) -> Option<Place> {
        match unit {
            Unit::Message(id) => self.messages.get(&id).map(|message| (message.key, id)),
            Unit::Datagram(id) => self.datagrams.get(&id).map(|datagram| (datagram.key, id)),
            Unit::Stream(id) => Some(self.streams.get(&id)?.queued?.place),
        }
    }

    fn app_of(&self, unit: Unit) -> Option<AppId> {
        match unit {
            Unit::Message(id) => self.messages.get(&id).map(|message| message.app),
            Unit::Datagram(id) => self.datagrams.get(&id).map(|datagram| datagram.app),
            Unit::Stream(id) => self.streams.get(&id).map(|stream| stream.app),
        }
    }

    /// Bytes of `unit` still to send.
    fn left(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Message(id) => self.messages.get(&id).map_or(0, |message| {
                let repair: u64 = message.repair.iter().map(|(low, high)| high - low).sum();
                repair + (message.body.len() - message.fresh) as u64
            }),
            Unit::Datagram(id) => self
                .datagrams
                .get(&id)
                .map_or(0, |datagram| (datagram.data.len() - datagram.offset) as u64),
            Unit::Stream(id) => {
                let queued = self.streams.get(&id).and_then(|stream| stream.queued);
                queued.map_or(0, |queued| queued.bytes)
            }
        }
    }

    fn enqueue(&mut self, unit: Unit, path: Option<PathId>) {
        let Some(place) = self.place_of(unit) else {
            return;
        };
        *self.waiting_bytes.entry(path).or_default() += self.left(unit);
        self.insert(path, place, unit);
    }

    /// The queue in which a unit waits; there are few paths.
    fn path_of(&self, place: Place) -> Option<Option<PathId>> {
        self.ready
            .iter()
            .find(|(_, queue)| queue.plain.contains_key(&place) || queue.thin.contains_key(&place))
            .map(|(path, _)| *path)
    }

    fn take_from_queue(&mut self, path: Option<PathId>, place: Place) {
        if let Some(queue) = self.ready.get_mut(&path)
            && queue.plain.remove(&place).is_none()
        {
            queue.thin.remove(&place);
        }
    }

    fn insert(&mut self, path: Option<PathId>, place: Place, unit: Unit) {
        let lane = self.lane(unit, path);
        let queue = self.ready.entry(path).or_default();
        queue.lane_mut(lane).insert(place, unit);
    }

    fn lane(&self, unit: Unit, path: Option<PathId>) -> Lane {
        let max = path.and_then(|path| self.thin_max.get(&path)).copied();
        let gathers = max.is_some_and(|max| max > 0);
        match unit {
            Unit::Datagram(id) | Unit::Message(id) => {
                let datagram = self.datagrams.get(&id).filter(|d| d.offset == 0);
                let thin = datagram.is_some_and(|d| Some(d.data.len() as u64) <= max);
                if gathers && thin {
                    Lane::Thin
                } else {
                    Lane::Plain
                }
            }
            Unit::Stream(_) if gathers && Some(self.left(unit)) <= max => Lane::Thin,
            Unit::Stream(_) => Lane::Plain,
        }
    }

    fn sub_waiting(&mut self, path: Option<PathId>, bytes: u64) {
        let waiting = self.waiting_bytes.entry(path).or_default();
        *waiting = waiting.saturating_sub(bytes);
    }

    fn remove_message(&mut self, id: u64) -> Option<OutMessage> {
        let place = self.place_of(Unit::Message(id))?;
        let left = self.left(Unit::Message(id));
        if let Some(path) = self.path_of(place) {
            self.sub_waiting(path, left);
            self.take_from_queue(path, place);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const APP: AppId = AppId(1);
    const PATH: PathId = PathId(0);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn outgoing(scheduler: SchedulerKind) -> Outgoing {
        let mut outgoing = Outgoing::new(scheduler, 1 << 30);
        outgoing.on_credit(1 << 40, |_| None);
        outgoing
    }

    fn push(out: &mut Outgoing, made_ms: u64, demand_ms: Option<u64>, len: usize) -> u64 {
        let demand = demand_ms.map(Duration::from_millis);
        out.push_message(APP, vec![0; len], at(made_ms), (demand, None), Some(PATH))
    }

    /// Sends everything in parts of `max`; local ids in the order of their parts.
    fn drain(out: &mut Outgoing, max: usize) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some((Unit::Message(id), _)) = out.first(PATH, true) {
            let part = out.next_part(id, max).expect("a ready message has a part");
            out.begin(id);
            out.on_part_sent(PATH, id, part);
            order.push(id);
        }
        order
    }

    proptest! {
        #[test]
        fn earliest_deadline_leaves_first(units in proptest::collection::vec(
            (0u64..100, proptest::option::of(1u64..500), 1usize..50), 1..40)) {
            let mut out = outgoing(SchedulerKind::Deadline);
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for (made, demand, len) in units {
                let id = push(&mut out, made, demand, len);
                expected.push((demand.map_or(u64::MAX, |demand| made + demand), id));
            }
            expected.sort_unstable();
            let expected: Vec<u64> = expected.into_iter().map(|(_, id)| id).collect();
            let mut order = drain(&mut out, 10);
            order.dedup();
            prop_assert_eq!(order, expected);
            prop_assert_eq!(out.waiting_bytes(PATH), 0);
        }
    }

    #[test]
    fn fifo_ignores_deadlines() {
        let mut out = outgoing(SchedulerKind::Fifo);
        push(&mut out, 5, Some(500), 10);
        push(&mut out, 0, Some(1), 10);
        assert_eq!(drain(&mut out, 100), [0, 1]);
    }

    #[test]
    fn lost_parts_are_sent_again_unless_acknowledged() {
        let mut out = outgoing(SchedulerKind::Deadline);
        let id = push(&mut out, 0, None, 100);
        drain(&mut out, 50);
        out.on_acked(id, 0, 50);
        out.on_lost(id, 0, 60, Some(PATH));
        assert_eq!(
            out.next_part(id, 100),
            Some(Part {
                start: 50,
                end: 60,
                repair: true
            })
        );
        assert_eq!(out.waiting_bytes(PATH), 10);
        out.on_acked(id, 50, 60);
        assert_eq!(out.first(PATH, true), None);
        assert_eq!(out.waiting_bytes(PATH), 0);
    }

    #[test]
    fn message_without_credit_waits_and_lets_others_pass() {
        let mut out = Outgoing::new(SchedulerKind::Deadline, 1 << 30);
        out.on_credit(CREDIT_PER_MESSAGE + 10, |_| None);
        let large = push(&mut out, 0, Some(1), 11);
        let small = push(&mut out, 0, Some(2), 10);
        assert_eq!(drain(&mut out, 100), [small]);
        out.on_credit(1000, |_| Some(PATH));
        assert_eq!(drain(&mut out, 100), [large]);
    }

    #[test]
    fn moved_application_waits_elsewhere() {
        let mut out = outgoing(SchedulerKind::Deadline);
        push(&mut out, 0, None, 10);
        out.move_app(APP, Some(PATH), Some(PathId(1)));
        assert_eq!(out.first(PATH, true), None);
        assert_eq!(
            out.first(PathId(1), true),
            Some((Unit::Message(0), Lane::Plain))
        );
        assert_eq!(
            (out.waiting_bytes(PATH), out.waiting_bytes(PathId(1))),
            (0, 10)
        );
    }

    #[test]
    fn full_datagram_queue_drops_the_oldest() {
        let mut out = outgoing(SchedulerKind::Deadline);
        let data = vec![0; 60_000];
        let dropped = (0..40)
            .map(|_| {
                out.push_datagram(at(0), (APP, FlowId(0), false, &data), None, Some(PATH))
                    .len()
            })
            .sum::<usize>();
        assert_eq!(dropped, 40 - DATAGRAM_BYTES_MAX / 60_000);
        let first = out.first(PATH, true);
        assert_eq!(first, Some((Unit::Datagram(dropped as u64), Lane::Plain)));
    }

    #[test]
    fn an_opening_that_only_seemed_lost_holds_nobody_up() {
        let mut out = outgoing(SchedulerKind::Deadline);
        let [early, late] = [0, 1].map(|number| {
            let id = StreamId::of_ours(0, number);
            let stream = OutStream::new(APP, None, Some(None));
            out.insert_stream(at(number), id, stream, Some(PATH));
            id
        });
        let stream = out.streams.get_mut(&early).expect("it is open");
        stream.on_open_sent();
        out.on_stream_opened(at(2), PATH, early);
        out.on_stream_open_lost(at(3), early, Some(PATH));
        let first = out.first(PATH, true).map(|(unit, _)| unit);
        assert_eq!(first, Some(Unit::Stream(early)), "what was lost goes first");
        out.on_stream_open_acked(early);
        let first = out.first(PATH, true).map(|(unit, _)| unit);
        assert_eq!(first, Some(Unit::Stream(late)));
    }
}
