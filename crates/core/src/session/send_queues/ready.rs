//! What is ready to leave: a queue per path and tenant, ordered by schedule key.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::{PathId, StreamId, TenantId},
    table::Table,
};

/// An item by its local number, which counts in order of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SendItem {
    Message(u64),
    Datagram(u64),
    Stream(StreamId),
}

/// The order in a queue: deadline or constant, then order of acceptance. Unique.
pub(crate) type ScheduleKey = (u64, u64);

/// Whether an item is packed into an aggregate with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coalescing {
    /// It leaves as it is, once.
    No,
    /// It is packed into an aggregate with others.
    Yes,
}

/// The paths by which an item may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueuePath {
    /// Its application has none.
    None,
    /// The path that its application takes.
    One(PathId),
    /// Its application is spread: the path by which it arrives first.
    Any,
}

impl From<Option<PathId>> for QueuePath {
    fn from(path: Option<PathId>) -> Self {
        path.map_or(Self::None, Self::One)
    }
}

/// The paths by which an item may leave, and its tenant.
pub(crate) type QueueKey = (QueuePath, TenantId);

/// What one tenant has waiting for one path.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) plain: BTreeMap<ScheduleKey, SendItem>,
    pub(super) coalescing: BTreeMap<ScheduleKey, SendItem>,
    /// Bytes still to send.
    pub(super) bytes: u64,
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

    pub(super) fn contains(&self, schedule_key: ScheduleKey) -> bool {
        self.plain.contains_key(&schedule_key) || self.coalescing.contains_key(&schedule_key)
    }

    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.coalescing.is_empty()
    }
}

/// Items with something to send.
#[derive(Debug, Default)]
pub(super) struct ReadyQueues {
    queues: BTreeMap<QueueKey, Queue>,
    /// Paths for which something has ever waited.
    paths: BTreeSet<QueuePath>,
    /// The paths by which items of spread applications may leave, and how many bytes of such items the others
    /// would have carried by the time that the next packet of this one arrives.
    spread_over: BTreeMap<PathId, u64>,
    /// Items of all tenants that are to be coalesced.
    coalescing_items: Table<PathId, usize>,
    /// Where something has come since [`take_newly_backlogged`](Self::take_newly_backlogged).
    newly_backlogged: Table<(PathId, TenantId), ()>,
    /// The longest item that is coalesced, in bytes, by path; 0: none is.
    coalescing_max: Table<PathId, u64>,
}

/// The keys of all tenants' queues on one path.
fn keys_of_path(path: PathId) -> std::ops::RangeInclusive<QueueKey> {
    let path = QueuePath::One(path);
    (path, TenantId::ZERO)..=(path, TenantId(u32::MAX))
}

impl ReadyQueues {
    pub(super) fn get(&self, key: QueueKey) -> Option<&Queue> {
        self.queues.get(&key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&QueueKey, &Queue)> {
        self.queues.iter()
    }

    pub(super) fn of_path(&self, path: PathId) -> impl Iterator<Item = (&QueueKey, &Queue)> {
        self.queues.range(keys_of_path(path))
    }

    /// The keys of a tenant's queues on all paths.
    pub(super) fn keys_of_tenant(&self, tenant: TenantId) -> Vec<QueueKey> {
        let keys = self.queues.keys().copied();
        keys.filter(|(_, of)| *of == tenant).collect()
    }

    /// Adds an item; its bytes are added with [`add_bytes`](Self::add_bytes).
    pub(super) fn insert(
        &mut self,
        key: QueueKey,
        schedule_key: ScheduleKey,
        item: SendItem,
        coalescing: Coalescing,
    ) {
        self.paths.insert(key.0);
        let queue = self.queues.entry(key).or_default();
        queue.items_mut(coalescing).insert(schedule_key, item);
        match key.0 {
            QueuePath::None => {}
            QueuePath::One(path) => {
                if coalescing == Coalescing::Yes {
                    *self.coalescing_items.get_or_default(path) += 1;
                }
                self.newly_backlogged.insert((path, key.1), ());
            }
            QueuePath::Any => self.wake_spread(key.1),
        }
    }

    /// Takes an item out; its bytes are subtracted with [`sub_bytes`](Self::sub_bytes).
    pub(super) fn take(&mut self, key: QueueKey, schedule_key: ScheduleKey) {
        let Some(queue) = self.queues.get_mut(&key) else {
            return;
        };
        let was_coalescing = queue.plain.remove(&schedule_key).is_none()
            && queue.coalescing.remove(&schedule_key).is_some();
        if was_coalescing
            && let QueuePath::One(path) = key.0
            && let Some(count) = self.coalescing_items.get_mut(path)
        {
            *count -= 1;
        }
    }

    pub(super) fn add_bytes(&mut self, key: QueueKey, bytes: u64) {
        self.queues.entry(key).or_default().bytes += bytes;
        if key.0 == QueuePath::Any {
            // More may wait now than the other paths carry.
            self.wake_spread(key.1);
        }
    }

    pub(super) fn sub_bytes(&mut self, key: QueueKey, bytes: u64) {
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.bytes = queue.bytes.saturating_sub(bytes);
        }
    }

    /// The queue of a tenant in which an item waits; there are few paths.
    pub(super) fn find(&self, schedule_key: ScheduleKey, tenant: TenantId) -> Option<QueueKey> {
        let mut keys = self.paths.iter().map(|path| (*path, tenant));
        keys.find(|key| {
            let queue = self.queues.get(key);
            queue.is_some_and(|queue| queue.contains(schedule_key))
        })
    }

    pub(super) fn clear(&mut self) {
        self.queues.clear();
        self.coalescing_items.clear();
        self.newly_backlogged.clear();
    }

    /// The longest item that is coalesced on a path, bytes; 0: none is.
    pub(super) fn coalescing_max(&self, path: QueuePath) -> u64 {
        match path {
            QueuePath::One(path) => self.coalescing_max.get(path).copied().unwrap_or(0),
            QueuePath::None | QueuePath::Any => 0,
        }
    }

    /// The paths by which items of spread applications may leave, each with the bytes that the others would have
    /// carried by the time that its next packet arrives.
    pub(super) fn set_spread_over(&mut self, paths: BTreeMap<PathId, u64>) {
        let tenants: Vec<TenantId> = self.spread_tenants().collect();
        for (path, carried) in &paths {
            // What had to wait for the others may leave by it now.
            let before = self.spread_over.get(path);
            if before.is_none_or(|before| carried < before) {
                self.newly_backlogged
                    .extend(tenants.iter().map(|tenant| ((*path, *tenant), ())));
            }
        }
        self.spread_over = paths;
    }

    /// Bytes that the other paths would have carried by the time that the next packet of `path` arrives; `None`:
    /// items of spread applications do not leave by it.
    pub(super) fn carried_by_others(&self, path: PathId) -> Option<u64> {
        self.spread_over.get(&path).copied()
    }

    /// Tenants of which items of spread applications wait.
    fn spread_tenants(&self) -> impl Iterator<Item = TenantId> {
        let keys = (QueuePath::Any, TenantId::ZERO)..=(QueuePath::Any, TenantId(u32::MAX));
        let queues = self.queues.range(keys);
        queues
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(key, _)| key.1)
    }

    /// Items of spread applications wait.
    pub(super) fn has_spread(&self) -> bool {
        self.spread_tenants().next().is_some()
    }

    fn wake_spread(&mut self, tenant: TenantId) {
        let paths = self.spread_over.keys();
        self.newly_backlogged
            .extend(paths.map(|path| ((*path, tenant), ())));
    }

    /// Items of at most `bytes` bytes are coalesced on `path`. What may change sides is taken out of
    /// its queue, and is to be inserted again.
    pub(super) fn set_coalescing_max(
        &mut self,
        path: PathId,
        bytes: u64,
    ) -> Vec<(QueueKey, ScheduleKey, SendItem)> {
        if self.coalescing_max.insert(path, bytes) == Some(bytes) {
            return Vec::new();
        }
        self.coalescing_items.remove(path);
        let mut taken = Vec::new();
        for (key, queue) in self.queues.range_mut(keys_of_path(path)) {
            let mut items = std::mem::take(&mut queue.coalescing);
            // Messages are never coalesced, and may be many.
            let changing = queue
                .plain
                .extract_if(.., |_, item| !matches!(item, SendItem::Message(_)));
            items.extend(changing);
            taken.extend(
                items
                    .into_iter()
                    .map(|(schedule_key, item)| (*key, schedule_key, item)),
            );
        }
        taken
    }

    /// The next tenant of which something has come for `path` since it was last returned.
    pub(super) fn take_newly_backlogged(&mut self, path: PathId) -> Option<TenantId> {
        let newly_backlogged = self.first_newly_backlogged(path)?;
        self.newly_backlogged.remove((path, newly_backlogged));
        Some(newly_backlogged)
    }

    /// What has come of a tenant for `path` is known.
    pub(super) fn forget_newly_backlogged(&mut self, path: PathId, tenant: TenantId) {
        self.newly_backlogged.remove((path, tenant));
    }

    /// Marks tenants of which something waits for `path`, for [`take_newly_backlogged`](Self::take_newly_backlogged).
    pub(super) fn mark_path_newly_backlogged(&mut self, path: PathId) {
        let own = self.queues.range(keys_of_path(path));
        let own = own.filter(|(_, queue)| !queue.is_empty());
        let own: Vec<TenantId> = own.map(|((_, tenant), _)| *tenant).collect();
        let is_spread_over = self.spread_over.contains_key(&path);
        let spread = self.spread_tenants().filter(|_| is_spread_over);
        let tenants: Vec<TenantId> = spread.chain(own).collect();
        self.newly_backlogged
            .extend(tenants.into_iter().map(|tenant| ((path, tenant), ())));
    }

    /// Something has come for `path` that [`take_newly_backlogged`](Self::take_newly_backlogged) has not returned yet.
    pub(super) fn has_newly_backlogged(&self, path: PathId) -> bool {
        self.first_newly_backlogged(path).is_some()
    }

    fn first_newly_backlogged(&self, path: PathId) -> Option<TenantId> {
        let (of, tenant) = self.newly_backlogged.first_from((path, TenantId::ZERO))?;
        (of == path).then_some(tenant)
    }

    /// Items of a tenant wait for `path` that leave this way.
    pub(super) fn has_ready(&self, path: PathId, tenant: TenantId, coalescing: Coalescing) -> bool {
        let queue = self.get((QueuePath::One(path), tenant));
        queue.is_some_and(|queue| !queue.items(coalescing).is_empty())
    }

    /// Items of any tenant wait for `path` to be coalesced.
    pub(super) fn has_coalescing(&self, path: PathId) -> bool {
        let count = self.coalescing_items.get(path);
        count.is_some_and(|count| *count > 0)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        for (key, queue) in &self.queues {
            let mut coalescing = queue.coalescing.values();
            assert!(
                coalescing.all(|item| !matches!(item, SendItem::Message(_))),
                "messages are not coalesced"
            );
            assert!(self.paths.contains(&key.0), "paths of queues");
        }
        let mut carried = self.spread_over.values();
        assert!(
            self.spread_over.is_empty() || carried.any(|bytes| *bytes == 0),
            "what is spread may leave at once by one of the paths"
        );
        for (path, count) in self.coalescing_items.iter() {
            let coalescing = self.of_path(path).map(|(_, queue)| queue.coalescing.len());
            assert_eq!(
                *count,
                coalescing.sum::<usize>(),
                "items to be coalesced on {path:?}"
            );
        }
    }
}
