//! A thread between a plan store and a control thread that must not wait.
//!
//! The control thread leaves its newest inputs and its newest plan; both replace what was left
//! before and not yet stored. The thread stores them, keeps them alive, follows what others store,
//! and retries while the store is lost. Updates are bounded as well: the newest view, and the last
//! `UPDATES_MAX` of everything else.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::{
    file::FileStore,
    plan_store::{Notice, OfferOutcome, PlanStore, PublishOutcome, StoreError, Watcher},
    site::{Inputs, SitePlan, SiteView},
};

/// Updates that wait to be polled, beside the newest view; the oldest goes. Ours: a lost store and
/// its return are two.
const UPDATES_MAX: usize = 64;

/// Between attempts while the store is lost; doubled up to the maximum. Ours: a store that is back
/// is found in time for one plan within a second.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_millis(400);
/// Between two looks at a store that changes all the time. Ours.
const LOAD_GAP: Duration = Duration::from_millis(20);
/// One watch; the next follows at once. Ours: a connection that died unseen costs no more.
const WATCH: Duration = Duration::from_secs(2);
/// A watch that ends sooner has failed.
const WATCH_MIN: Duration = Duration::from_millis(200);
/// Between attempts to keep a plan on this machine that failed. Ours: a disk that is full or gone is
/// back after a person's doing.
const LOCAL_COPY_RETRY: Duration = Duration::from_secs(1);
/// Waiting time on drop; a longer request ends by itself, unnoticed.
const STOP_WAIT: Duration = Duration::from_millis(250);

/// See the module. Dropping it stops the thread; what was published runs out after its time to
/// live, see [`Worker::leave`].
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    description: String,
}

/// News from the store.
#[derive(Clone, Debug)]
pub enum Update {
    /// The store answers; the first time, or again.
    Connected {
        /// `None`: it was not lost before.
        lost_for: Option<Duration>,
    },
    /// The store fails. Reported once, until it is connected again.
    Lost { reason: String },
    /// A plan that was offered is the site's plan now. A view with it follows.
    Accepted { revision: u64 },
    /// Another plan was stored before the one offered; a view with it follows. The leader plans
    /// again on top of it, the others follow it.
    Refused {
        /// The number of the stored one; 0: none is stored.
        revision: u64,
    },
    /// The plan in force before the restart, from the local copy, because the store does not
    /// answer. At most once, just before the first [`Update::Lost`].
    Restored(Arc<SitePlan>),
    /// For the operator.
    Notice(Notice),
    /// The site's gateways or its plan have changed.
    View(Arc<SiteView>),
}

/// The state of the store.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether it answers.
    pub connection: Connection,
    /// Since when it has been so.
    pub since: SystemTime,
}

/// Whether a store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// It has not been asked yet.
    Starting,
    Connected,
    /// It does not, or not as it should.
    Lost {
        reason: String,
    },
}

impl Worker {
    /// Starts the thread, and a second one where the store can be watched.
    ///
    /// `local_copy` is a place on this machine where the last plan is kept: where the store does not
    /// answer after a restart, [`Update::Restored`] gives it. `None`: the store itself is here.
    ///
    /// `wake` is called from the thread after something has come that [`Worker::poll`] gives; it
    /// must not wait, and may be called once more just after the worker is dropped.
    ///
    /// # Errors
    /// The system's, where no thread can be had.
    pub fn start(
        store: Box<dyn PlanStore>,
        local_copy: Option<FileStore>,
        wake: Box<dyn Fn() + Send>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new()),
            work: Condvar::new(),
        });
        let worker = Self {
            shared: Arc::clone(&shared),
            description: store.description(),
        };
        if let Some(watcher) = store.watcher() {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("store-watch".into())
                .spawn(move || watch(&shared, watcher))?;
        }
        thread::Builder::new()
            .name("store".into())
            .spawn(move || WorkerThread::new(shared, store, local_copy, wake).run())?;
        Ok(worker)
    }

    /// What and where the store is.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Makes these the gateway's inputs as soon as the store can be reached; replaces those not yet
    /// stored. Meant for what has changed, a few times per second at most.
    pub fn publish(&self, inputs: Inputs) {
        self.shared.lock().inputs = Some(inputs);
        self.shared.work.notify_all();
    }

    /// Offers a plan that takes the plan of number `based_on` into account
    /// ([`SiteView::plan_revision`]); replaces one that has not been offered yet. [`Update::Accepted`] or
    /// [`Update::Refused`] follows once the store can be reached.
    pub fn offer(&self, plan: SitePlan, based_on: u64) {
        self.shared.lock().offer = Some((plan, based_on));
        self.shared.work.notify_all();
    }

    /// The next update. `None`: there is none now.
    pub fn poll(&self) -> Option<Update> {
        let mut state = self.shared.lock();
        let next = state.updates.pop_front();
        next.or_else(|| state.view.take().map(Update::View))
    }

    /// How it is with the store now.
    pub fn status(&self) -> Status {
        self.shared.lock().status.clone()
    }

    /// Takes this gateway's inputs out of the store, so that the others plan without it at once, and
    /// stops. Gives up after `timeout`.
    pub fn leave(self, timeout: Duration) {
        self.shared.lock().leave = true;
        self.shared.work.notify_all();
        self.shared.wait_for_end(timeout);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        self.shared.wait_for_end(STOP_WAIT);
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug)]
struct State {
    /// To be published.
    inputs: Option<Inputs>,
    /// To be offered, and what it is based on.
    offer: Option<(SitePlan, u64)>,
    /// The watch has seen something.
    changed: bool,
    leave: bool,
    stop: bool,
    ended: bool,
    updates: VecDeque<Update>,
    view: Option<Arc<SiteView>>,
    status: Status,
}

impl State {
    fn new() -> Self {
        Self {
            inputs: None,
            offer: None,
            changed: false,
            leave: false,
            stop: false,
            ended: false,
            updates: VecDeque::new(),
            view: None,
            status: Status {
                connection: Connection::Starting,
                since: SystemTime::now(),
            },
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for news, a stop or the time.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, timeout: Duration) -> MutexGuard<'a, State> {
        let waited = self.work.wait_timeout(state, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait_for_end(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wait(state, left);
        }
    }
}

/// The thread's own state.
struct WorkerThread {
    shared: Arc<Shared>,
    store: Box<dyn PlanStore>,
    local_copy: Option<FileStore>,
    memory_error: Option<String>,
    /// The plan could not be kept on this machine: when to try again.
    remember_at: Option<Instant>,
    wake: Box<dyn Fn() + Send>,
    /// What was published last or is to be.
    inputs: Option<Inputs>,
    /// Not decided by the store yet.
    offer: Option<(SitePlan, u64)>,
    is_published: bool,
    was_published: bool,
    name: NameOwnership,
    keep_alive_at: Instant,
    load_at: Instant,
    loaded_at: Option<Instant>,
    view: Option<Arc<SiteView>>,
    lost_since: Option<Instant>,
    retry_at: Instant,
    backoff: Duration,
}

/// Whose the name is that this gateway publishes under.
enum NameOwnership {
    /// Its own, as far as is known.
    Own,
    /// Not its own since then. If it was left by this gateway before it was started again, it runs
    /// out by itself.
    Pending(Instant),
    /// Another live gateway's, which was reported.
    Taken,
}

/// What a round of the thread has to do.
struct Work {
    has_inputs: bool,
    changed: bool,
    leave: bool,
}

impl WorkerThread {
    fn new(
        shared: Arc<Shared>,
        store: Box<dyn PlanStore>,
        local_copy: Option<FileStore>,
        wake: Box<dyn Fn() + Send>,
    ) -> Self {
        let now = Instant::now();
        Self {
            shared,
            store,
            local_copy,
            memory_error: None,
            remember_at: None,
            wake,
            inputs: None,
            offer: None,
            is_published: false,
            was_published: false,
            name: NameOwnership::Own,
            keep_alive_at: now,
            load_at: now,
            loaded_at: None,
            view: None,
            lost_since: None,
            retry_at: now,
            backoff: BACKOFF_MIN,
        }
    }

    fn run(mut self) {
        while let Some(work) = self.next_work() {
            if work.leave {
                // The time to live does what cannot be done now.
                let _ = self.store.withdraw();
                break;
            }
            if let Err(error) = self.round(&work) {
                self.on_error(&error);
            }
            for notice in self.store.take_notices() {
                self.push_update(Update::Notice(notice));
            }
        }
        self.shared.lock().ended = true;
        self.shared.work.notify_all();
    }

    /// Waits until there is something to do. `None`: stop.
    fn next_work(&mut self) -> Option<Work> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if state.stop {
                return None;
            }
            let due = self.due(&state);
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared.wait(state, left);
        }
        let inputs = state.inputs.take();
        let has_inputs = inputs.is_some();
        self.inputs = inputs.or(self.inputs.take());
        self.offer = state.offer.take().or(self.offer.take());
        Some(Work {
            has_inputs,
            changed: std::mem::take(&mut state.changed),
            leave: state.leave,
        })
    }

    /// When to do something, given what waits.
    fn due(&self, state: &State) -> Instant {
        let now = Instant::now();
        if state.leave {
            return now;
        }
        if self.lost_since.is_some() {
            return self.retry_at;
        }
        if state.inputs.is_some() || state.offer.is_some() {
            return now;
        }
        let mut due = self.load_at;
        let waits_for_name = self.inputs.is_some() && !matches!(self.name, NameOwnership::Own);
        if self.is_published || waits_for_name {
            due = due.min(self.keep_alive_at);
        }
        if let Some(at) = self.remember_at {
            due = due.min(at);
        }
        if state.changed {
            due = due.min(self.loaded_at.map_or(now, |at| at + LOAD_GAP));
        }
        due
    }

    fn round(&mut self, work: &Work) -> Result<(), StoreError> {
        let has_published = self.store_inputs(work.has_inputs)?;
        let has_offered = self.store_offer()?;
        self.retry_local_copy();
        let is_load_due = Instant::now() >= self.load_at || self.lost_since.is_some();
        if is_load_due || work.changed || has_published || has_offered {
            self.load()?;
        }
        Ok(())
    }

    /// Publishes what is new or has run out, and keeps the rest alive. Whether it published.
    fn store_inputs(&mut self, is_new: bool) -> Result<bool, StoreError> {
        let Some(inputs) = &self.inputs else {
            return Ok(false);
        };
        let now = Instant::now();
        if self.is_published && !is_new {
            if now < self.keep_alive_at {
                return Ok(false);
            }
            if self.store.keep_alive()? {
                self.keep_alive_at = now + self.keep_alive_interval();
                return Ok(false);
            }
        }
        if !matches!(self.name, NameOwnership::Own) && !is_new && now < self.keep_alive_at {
            return Ok(false);
        }
        self.is_published = false;
        let published = match self.store.publish(inputs) {
            Err(StoreError::Document(error)) => {
                self.inputs = None;
                self.not_stored("this gateway's inputs were", error.to_string());
                return Ok(false);
            }
            result => result?,
        };
        // Where the name is another's this is when to look whether it is free.
        self.keep_alive_at = now + self.keep_alive_interval();
        self.is_published = published == PublishOutcome::Stored;
        match published {
            PublishOutcome::Stored => self.on_name_own(),
            PublishOutcome::NameTaken => self.on_name_taken(now),
        }
        Ok(self.is_published)
    }

    fn on_name_own(&mut self) {
        self.was_published = true;
        if let NameOwnership::Taken = std::mem::replace(&mut self.name, NameOwnership::Own) {
            let gateway = self.gateway();
            self.push_update(Update::Notice(Notice::NameFree { gateway }));
        }
    }

    /// Reported once another gateway is sure to be live: what is left of this one's former run
    /// expires after the time to live, and there is nothing once this run has published.
    fn on_name_taken(&mut self, now: Instant) {
        let is_sure = match self.name {
            NameOwnership::Taken => return,
            NameOwnership::Own => self.was_published,
            NameOwnership::Pending(since) => {
                now - since > self.store.time_to_live() + self.keep_alive_interval()
            }
        };
        if is_sure {
            self.name = NameOwnership::Taken;
            let (gateway, store) = (self.gateway(), self.store.description());
            self.push_update(Update::Notice(Notice::NameTaken { gateway, store }));
        } else if let NameOwnership::Own = self.name {
            self.name = NameOwnership::Pending(now);
        }
    }

    fn gateway(&self) -> String {
        let inputs = self.inputs.as_ref();
        inputs.map_or_else(String::new, |inputs| inputs.gateway.clone())
    }

    /// Whether a plan was offered, and the store has decided.
    fn store_offer(&mut self) -> Result<bool, StoreError> {
        let Some((plan, based_on)) = &self.offer else {
            return Ok(false);
        };
        let update = match self.store.offer(plan, *based_on) {
            Err(StoreError::Document(error)) => {
                self.not_stored("the plan was", error.to_string());
                self.offer = None;
                return Ok(false);
            }
            Ok(OfferOutcome::Accepted { revision }) => Update::Accepted { revision },
            Ok(OfferOutcome::Refused { revision }) => Update::Refused { revision },
            // Offered again when the store is back; a plan that was stored meanwhile wins.
            Err(error) => return Err(error),
        };
        self.offer = None;
        self.push_update(update);
        Ok(true)
    }

    fn load(&mut self) -> Result<(), StoreError> {
        let view = self.store.load()?;
        // Reported before the view, and here: it is the last step of a round that may fail.
        self.on_success();
        let now = Instant::now();
        self.loaded_at = Some(now);
        self.load_at = now + self.store.refresh_interval();
        if !view.is_name_taken && !matches!(self.name, NameOwnership::Own) {
            // The name is free.
            self.keep_alive_at = now;
        }
        if self.view.as_ref().is_some_and(|known| known.is_same(&view)) {
            return Ok(());
        }
        let view = Arc::new(view);
        self.view = Some(Arc::clone(&view));
        self.shared.lock().view = Some(Arc::clone(&view));
        (self.wake)();
        if let Some(plan) = &view.plan {
            self.keep_local_copy(plan);
        }
        Ok(())
    }

    /// Keeps a copy of the plan on this machine. Faults are reported and stop nothing.
    fn keep_local_copy(&mut self, plan: &SitePlan) {
        let Some(local_copy) = &mut self.local_copy else {
            return;
        };
        let remembered = local_copy.load().and_then(|known| {
            let is_known = known.plan.is_some_and(|known| known.is_same(plan));
            if !is_known {
                local_copy.offer(plan, known.plan_revision)?;
            }
            Ok(())
        });
        self.remember_at = remembered
            .is_err()
            .then(|| Instant::now() + LOCAL_COPY_RETRY);
        self.on_local_copy(remembered);
    }

    fn retry_local_copy(&mut self) {
        if self.remember_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.remember_at = None;
        let view = self.view.clone();
        if let Some(plan) = view.as_ref().and_then(|view| view.plan.as_ref()) {
            self.keep_local_copy(plan);
        }
    }

    /// The plan of before the restart, if nothing better has come.
    fn restore_local_copy(&mut self) {
        let (None, Some(local_copy)) = (&self.view, &mut self.local_copy) else {
            return;
        };
        match local_copy.load() {
            Ok(SiteView {
                plan: Some(plan), ..
            }) => self.push_update(Update::Restored(Arc::new(plan))),
            other => self.on_local_copy(other.map(drop)),
        }
    }

    fn on_local_copy(&mut self, result: Result<(), StoreError>) {
        let notices = self.local_copy.as_mut().map(FileStore::take_notices);
        for notice in notices.unwrap_or_default() {
            self.push_update(Update::Notice(notice));
        }
        let error = result.err().map(|error| error.to_string());
        // Reported once per reason.
        if error != self.memory_error {
            self.memory_error.clone_from(&error);
            self.push_update(Update::Notice(match error {
                Some(error) => Notice::NotRemembered { error },
                None => Notice::Remembered,
            }));
        }
    }

    fn on_success(&mut self) {
        self.backoff = BACKOFF_MIN;
        let lost_for = self.lost_since.take().map(|since| since.elapsed());
        if self.set_connection(Connection::Connected) {
            self.push_update(Update::Connected { lost_for });
        }
    }

    fn on_error(&mut self, error: &StoreError) {
        let now = Instant::now();
        self.retry_at = now + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        // The store may come back empty.
        self.is_published = false;
        let reason = error.to_string();
        self.set_connection(Connection::Lost {
            reason: reason.clone(),
        });
        if self.lost_since.is_none() {
            self.lost_since = Some(now);
            self.restore_local_copy();
            self.push_update(Update::Lost { reason });
        }
    }

    /// Whether it is another than before; the reason alone does not count.
    fn set_connection(&self, connection: Connection) -> bool {
        let mut state = self.shared.lock();
        let is_other =
            std::mem::discriminant(&state.status.connection) != std::mem::discriminant(&connection);
        if is_other {
            state.status.since = SystemTime::now();
        }
        state.status.connection = connection;
        is_other
    }

    /// A third of the time to live: two may be missed.
    fn keep_alive_interval(&self) -> Duration {
        self.store.time_to_live() / 3
    }

    fn not_stored(&self, what: &'static str, error: String) {
        self.push_update(Update::Notice(Notice::NotStored { what, error }));
    }

    fn push_update(&self, update: Update) {
        let mut state = self.shared.lock();
        if state.updates.len() >= UPDATES_MAX {
            state.updates.pop_front();
        }
        state.updates.push_back(update);
        let is_stopped = state.stop;
        drop(state);
        if !is_stopped {
            (self.wake)();
        }
    }
}

/// The second thread: wakes the first when something may have changed. The first finds errors of
/// the store by itself.
fn watch(shared: &Shared, mut watcher: Box<dyn Watcher>) {
    loop {
        let began = Instant::now();
        let result = watcher.watch(WATCH, &mut || {
            shared.lock().changed = true;
            shared.work.notify_all();
        });
        let has_failed = result.is_err() || began.elapsed() < WATCH_MIN;
        let again_at = Instant::now()
            + if has_failed {
                BACKOFF_MAX
            } else {
                Duration::ZERO
            };
        let mut state = shared.lock();
        loop {
            if state.stop || state.ended {
                return;
            }
            let left = again_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared.wait(state, left);
        }
    }
}

#[cfg(test)]
mod tests;
