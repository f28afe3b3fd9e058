//! The plan store: shares inputs and plan with the other gateways of the site, or keeps the plan
//! over a restart.
//!
//! Alone (files), the gateway stores its plan and begins with it after a restart. In a site (etcd),
//! every gateway publishes its inputs, the leader plans for all, and every gateway follows the
//! stored plan as far as its own paths allow. While the store is gone, or the leader does not
//! answer, the last plan stays in force unless it leaves a latency target unmet that this gateway
//! can meet alone.
//!
//! Applications that this gateway has placed itself are moved only by a plan that was made from its
//! newest inputs. An older plan would send them back, and the next one here again.

mod forecasts;
mod leader;
mod others;
mod prices;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant as Stopwatch, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use keiro_control::{
    config::{Config, Etcd, Planner, Scheduler, Store},
    protocol::{EventKind, PlanInSite, StoreSnapshot, StoreState, Timestamp},
};
use keiro_linux::epoll::Waker;
use keiro_planner::{
    delay::Tolerance,
    plan::incumbent::{Aim, Hysteresis, Settings},
};
use keiro_planning::LineUse;
use keiro_store::{
    AppInputs, Connection, EtcdStore, FileStore, Inputs, Notice, PathInputs, PlanStore, SitePlan,
    SiteView, Update, Worker,
    etcd::{
        ClientFiles, Endpoint, EtcdOptions, TIME_TO_LIVE_DEFAULT, TIMEOUT_DEFAULT, TlsFiles,
        UserFile,
    },
};

pub(crate) use self::report::inputs;

use keiro_units::Probability;

use self::{
    forecasts::plan_for_all,
    others::{Others, others_on},
    report::is_unchanged,
};
use crate::privileges::Privileges;

/// This gateway's part in the site plan and its store; see the module.
pub(crate) struct SitePlanClient {
    /// `None`: the gateway stops.
    worker: Option<Worker>,
    /// Other gateways may share the store.
    shared: bool,
    gateway: String,
    published: Inputs,
    view: Arc<SiteView>,
    /// The last plan that was seen; stays when the store is gone.
    plan: Option<SitePlan>,
    /// What the plan was before the start.
    before_start: Option<BTreeMap<String, String>>,
    /// The store's contents have been read.
    seen: bool,
    /// A plan made from these inputs was offered; the answer, or the view with it, is pending.
    offered: Option<BTreeMap<String, u64>>,
    /// The number of the plan that was accepted, until a view has it.
    accepted: Option<u64>,
    /// The inputs of the last plan that could not be stored; it is not tried again.
    failed_from: Option<BTreeMap<String, u64>>,
    /// Why this gateway takes no part in the site's plan.
    alone: Option<String>,
    /// Applications that this gateway has placed itself: see the module.
    own: BTreeSet<String>,
    /// Inputs must be published even if nothing else has changed.
    must_publish: bool,
    /// Since when published inputs wait for a plan made from them, while the store answers.
    waits: Option<Stopwatch>,
    /// The leader does not answer.
    is_unanswered: bool,
    /// What other gateways send, of the last view and plan.
    others: Others,
    /// The view or the plan has changed since.
    others_outdated: bool,
    /// Since when the store does not answer.
    lost_since: Option<Stopwatch>,
}

/// What the control thread has to do after an update of the store.
#[derive(Default)]
pub(crate) struct SiteChange {
    pub(crate) event: Option<EventKind>,
    pub(crate) needs_replan: bool,
    /// Application to path, as this gateway's part of the stored plan.
    pub(crate) stored_paths: BTreeMap<String, String>,
}

/// How this gateway's plans relate to those of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SiteRole {
    /// There is no site, or it takes no part in it.
    Alone,
    /// The site decides.
    Follows,
    /// The site's store is gone, or its leader does not answer.
    CutOff,
}

/// How a site is planned for: as its leader plans for itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SitePlanner {
    pub(crate) planner: Planner,
    pub(crate) scheduler: Scheduler,
    pub(crate) tolerance: Probability,
}

/// How long the leader may take. Ours: it plans within some tens of milliseconds, and dies for its
/// store after five seconds.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How long forecasts count what other gateways sent last while the store does not answer. Ours: as
/// long as the window in which their traffic was measured.
const OTHERS_AGE_MAX: Duration = Duration::from_secs(300);
/// How long an orderly stop may wait for the store.
const LEAVE_TIME: Duration = Duration::from_millis(500);

impl SitePlanClient {
    /// Opens the configured store on a thread of its own. If it cannot be used, the gateway
    /// continues without it, reports that, and tries again.
    ///
    /// The configuration of etcd is wrong; not that etcd does not answer.
    pub(crate) fn start(
        config: &Config,
        wake: Arc<Waker>,
        privileges: Privileges,
    ) -> anyhow::Result<Self> {
        let gateway = config.gateway.name.to_string();
        let directory = config.gateway.state_directory.join("plan");
        let files = FileStore::new(&directory, &gateway).context("plan store")?;
        let (store, memory): (Box<dyn PlanStore>, _) = match &config.store {
            Store::File => (Box::new(files), None),
            Store::Etcd(etcd) => {
                let store = EtcdStore::new(etcd_options(etcd, &gateway)).context("[store]")?;
                (Box::new(store), Some(files))
            }
        };
        let wake = Box::new(move || wake.wake());
        let worker = privileges.start_without("store", || Worker::start(store, memory, wake));
        let worker = worker.context("plan store")?;
        let shared = matches!(config.store, Store::Etcd(_));
        Ok(Self {
            worker: Some(worker),
            ..Self::without_store(gateway, shared)
        })
    }

    fn without_store(gateway: String, shared: bool) -> Self {
        Self {
            worker: None,
            shared,
            gateway,
            published: Inputs::default(),
            view: Arc::default(),
            plan: None,
            before_start: None,
            seen: false,
            offered: None,
            accepted: None,
            failed_from: None,
            alone: None,
            own: BTreeSet::new(),
            must_publish: false,
            waits: None,
            is_unanswered: false,
            others: Others::default(),
            others_outdated: false,
            lost_since: None,
        }
    }

    /// Where the site's plan puts this gateway's applications, of those for which it counts; empty
    /// where the gateway plans alone.
    pub(crate) fn assignments(&self) -> impl Iterator<Item = (&String, &String)> {
        let takes_part = self.role() != SiteRole::Alone;
        let plan = self.plan.as_ref().filter(|_| takes_part);
        let places = plan.and_then(|plan| plan.assignments.get(&self.gateway));
        let places = places.into_iter().flatten();
        places.filter(|(app, _)| !self.own.contains(*app))
    }

    /// Whether the site's plan was made with regard to what paths cost.
    pub(crate) fn knows_prices(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.knows_prices)
    }

    /// How this gateway's plans stand to the site's.
    pub(crate) fn role(&self) -> SiteRole {
        let is_cut_off = self.is_lost() || self.is_unanswered;
        match (self.shared && self.alone.is_none(), is_cut_off) {
            (false, _) => SiteRole::Alone,
            (true, false) => SiteRole::Follows,
            (true, true) => SiteRole::CutOff,
        }
    }

    /// Whether a site's plan decides, or has decided, where applications are.
    pub(crate) fn has_say(&self) -> bool {
        match self.role() {
            SiteRole::Alone => false,
            SiteRole::Follows => true,
            SiteRole::CutOff => self.plan.is_some(),
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self.connection(), Some(Connection::Lost { .. }))
    }

    fn connection(&self) -> Option<Connection> {
        let status = self.worker.as_ref()?.status();
        Some(status.connection)
    }

    /// Whether the plan was made from the newest published inputs.
    fn is_answered(&self) -> bool {
        let made_from = |plan: &SitePlan| plan.made_from.get(&self.gateway).copied();
        let known = self.plan.as_ref().and_then(made_from);
        known.is_some_and(|sequence| sequence >= self.published.sequence)
    }

    /// Whether it has come to light now that the leader does not answer, or does again.
    fn check_answer(&mut self, now: Stopwatch) -> bool {
        let waits = self.shared
            && self.published.sequence > 0
            && !self.is_answered()
            && matches!(self.connection(), Some(Connection::Connected));
        self.waits = waits.then(|| self.waits.unwrap_or(now));
        let is_long = |since: Stopwatch| now.saturating_duration_since(since) >= ANSWER_TIME;
        let is_unanswered = self.waits.is_some_and(is_long);
        std::mem::replace(&mut self.is_unanswered, is_unanswered) != is_unanswered
    }

    /// A plan that was made from the newest inputs counts again for applications that this gateway
    /// has placed itself, if it has a path for them. Returns whether it counts for more than
    /// before.
    fn settle(&mut self) -> bool {
        let Some(plan) = &self.plan else { return false };
        if self.published.sequence == 0 || !self.is_answered() {
            return false;
        }
        let before = self.own.len();
        if let Some(places) = plan.assignments.get(&self.gateway) {
            self.own.retain(|app| !places.contains_key(app));
        }
        self.own.len() < before
    }

    /// What a site's plan has to do with a plan of this gateway; `None`: nothing.
    pub(crate) fn in_plan(&self) -> Option<PlanInSite> {
        let store = match (self.role(), self.is_lost()) {
            (SiteRole::Alone, _) => return None,
            (_, false) => StoreState::Connected,
            (_, true) => StoreState::Lost,
        };
        let plan = self.plan.as_ref();
        Some(PlanInSite {
            store,
            plan_revision: plan.map(|plan| plan.revision).filter(|number| *number > 0),
            plan_made_by: plan.map(|plan| plan.made_by.clone()),
            own: self.own.iter().cloned().collect(),
        })
    }

    /// Whether the paths of before the start are known, this gateway plans alone, and no request
    /// has made them void.
    pub(crate) fn resumes(&self) -> bool {
        let before = self.before_start.as_ref();
        before.is_some_and(|places| !places.is_empty())
    }

    /// The file with the plan of before the start has not been read yet.
    pub(crate) fn awaits_files(&self) -> bool {
        !self.shared && !self.seen && self.worker.is_some() && !self.is_lost()
    }

    /// Forgets the plan of before the start, because another one was requested.
    pub(crate) fn forget_before_start(&mut self) {
        self.before_start = None;
    }

    /// Takes this gateway's inputs away, so that the others plan without it.
    pub(crate) fn leave(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.leave(LEAVE_TIME);
        }
    }

    /// How it is with the store.
    pub(crate) fn snapshot(&self) -> Option<StoreSnapshot> {
        let worker = self.worker.as_ref()?;
        let status = worker.status();
        let (state, reason) = match status.connection {
            Connection::Starting => (StoreState::Starting, None),
            Connection::Connected => (StoreState::Connected, None),
            Connection::Lost { reason } => (StoreState::Lost, Some(reason)),
        };
        let made = |plan: &SitePlan| {
            let at = Duration::try_from_secs_f64(plan.made_at_unix_seconds).unwrap_or_default();
            UNIX_EPOCH.checked_add(at).map(Timestamp)
        };
        Some(StoreSnapshot {
            description: worker.description().to_owned(),
            state,
            since: Timestamp(status.since),
            reason,
            gateways: self.view.gateways.keys().cloned().collect(),
            leader: self.view.leader().map(str::to_owned),
            alone: self.alone.clone(),
            // One that waits to be stored has none.
            plan_revision: self
                .plan
                .as_ref()
                .map(|plan| plan.revision)
                .filter(|revision| *revision > 0),
            plan_made_by: self.plan.as_ref().map(|plan| plan.made_by.clone()),
            plan_made: self.plan.as_ref().and_then(made),
        })
    }

    /// Publishes what has changed, and offers the plan of a gateway that plans alone.
    pub(crate) fn publish(
        &mut self,
        paths: Vec<PathInputs>,
        apps: Vec<AppInputs>,
        own: BTreeMap<String, String>,
    ) {
        let Some(worker) = &self.worker else { return };
        let sequence = self.published.sequence;
        let again = std::mem::take(&mut self.must_publish);
        let same = paths == self.published.paths && is_unchanged(&apps, &self.published.apps);
        if sequence == 0 || again || !same {
            self.published = Inputs {
                gateway: self.gateway.clone(),
                // Never one of before a restart.
                sequence: (sequence + 1).max(unix_seconds() as u64),
                made_at_unix_seconds: unix_seconds(),
                paths,
                apps,
            };
            worker.publish(self.published.clone());
        }
        let stored = self
            .plan
            .as_ref()
            .and_then(|plan| plan.assignments.get(&self.gateway));
        // Not before it is known what the plan was before the start.
        if !self.shared && self.seen && !own.is_empty() && stored != Some(&own) {
            let plan = SitePlan {
                assignments: BTreeMap::from([(self.gateway.clone(), own)]),
                made_from: BTreeMap::from([(self.gateway.clone(), self.published.sequence)]),
                ..self.new_plan()
            };
            worker.offer(plan.clone(), self.view.plan_revision);
            // It is in force, whether it can be stored or not.
            self.plan = Some(plan);
        }
    }

    /// Plans for the site if this gateway leads it and something has changed.
    pub(crate) fn lead(&mut self, planner: SitePlanner) {
        let Some(worker) = &self.worker else { return };
        let leads = self.shared
            && self.alone.is_none()
            && !self.view.is_name_taken
            && self.view.leader() == Some(self.gateway.as_str());
        let members = self.view.gateways.iter();
        let made_from: BTreeMap<String, u64> = members
            .map(|(name, member)| (name.clone(), member.inputs.sequence))
            .collect();
        let is_new = |plan: &SitePlan| plan.made_from != made_from;
        let failed = self.failed_from.as_ref() == Some(&made_from);
        if !leads || failed || self.offered.is_some() || !self.view.plan.as_ref().is_none_or(is_new)
        {
            return;
        }
        let inputs: Vec<&Inputs> = self.view.gateways.values().map(|m| &m.inputs).collect();
        let before = self.view.plan.as_ref().or(self.plan.as_ref());
        let plan = SitePlan {
            assignments: plan_for_all(&inputs, before, planner),
            made_from: made_from.clone(),
            knows_prices: true,
            ..self.new_plan()
        };
        worker.offer(plan, self.view.plan_revision);
        self.offered = Some(made_from);
    }

    fn new_plan(&self) -> SitePlan {
        SitePlan {
            made_by: self.gateway.clone(),
            made_at_unix_seconds: unix_seconds(),
            ..SitePlan::default()
        }
    }

    /// The next update of the store; `None`: there is none now.
    pub(crate) fn poll(&self) -> Option<Update> {
        self.worker.as_ref()?.poll()
    }

    /// Other gateways may share the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Finds what other gateways send over `lines`, the names of this one's paths, after updates or
    /// a new configuration. Returns what forecasts newly leave out.
    pub(crate) fn update_others(&mut self, lines: &BTreeSet<String>) -> Option<String> {
        if !self.shared {
            return None;
        }
        let others = others_on(&self.view, self.plan.as_ref(), &self.gateway, lines);
        let before = std::mem::replace(&mut self.others, others);
        self.others_outdated = false;
        let is_new = self.others.refused != before.refused;
        self.others.notice().filter(|_| is_new)
    }

    /// The view or the plan has changed since [`update_others`](Self::update_others).
    pub(crate) const fn are_others_outdated(&self) -> bool {
        self.others_outdated
    }

    /// What other gateways send over this one's lines, by name. Empty while nothing is known, and once
    /// the store has not answered for [`OTHERS_AGE_MAX`]. A gateway that ends is left out after the time to
    /// live of its inputs.
    pub(crate) fn others(
        &self,
        now: Stopwatch,
    ) -> impl Iterator<Item = (&String, &Arc<[LineUse]>)> {
        let is_recent = self.others_age(now).is_none_or(|age| age < OTHERS_AGE_MAX);
        let lines = is_recent.then_some(&self.others.lines);
        lines.into_iter().flatten()
    }

    /// How long the store has not answered; `None`: it does, or there is no site.
    pub(crate) fn others_age(&self, now: Stopwatch) -> Option<Duration> {
        let since = self.lost_since.filter(|_| self.shared)?;
        Some(now.saturating_duration_since(since))
    }

    /// Takes an update of the store over.
    pub(crate) fn on_update(&mut self, update: Update) -> SiteChange {
        match &update {
            Update::Connected { .. } => self.lost_since = None,
            Update::Lost { .. } => self.lost_since = Some(Stopwatch::now()),
            Update::View(_) | Update::Restored(_) => self.others_outdated = true,
            Update::Accepted { .. } | Update::Refused { .. } | Update::Notice(_) => {}
        }
        match update {
            Update::Connected { lost_for: None } => SiteChange::default(),
            Update::Connected {
                lost_for: Some(lost),
            } => {
                // The store may have come back empty: offers on their way there are void.
                (self.offered, self.accepted) = (None, None);
                SiteChange::event(EventKind::StoreConnected {
                    lost_seconds: Some(lost.as_secs_f64()),
                })
            }
            Update::Lost { reason } => SiteChange {
                // The site does not answer what it was about to answer.
                needs_replan: self.shared,
                ..SiteChange::event(EventKind::StoreLost { reason })
            },
            Update::Notice(notice) => self.on_notice(&notice),
            Update::Accepted { revision } => {
                self.accepted = Some(revision);
                SiteChange::default()
            }
            Update::Refused { .. } => {
                self.offered = None;
                SiteChange::default()
            }
            Update::Restored(plan) => {
                let stored_paths = self.own_part(&plan);
                self.plan = Some(SitePlan::clone(&plan));
                SiteChange {
                    event: None,
                    needs_replan: true,
                    stored_paths,
                }
            }
            Update::View(view) => self.on_view(view),
        }
    }

    fn on_notice(&mut self, notice: &Notice) -> SiteChange {
        if let Notice::NotStored { .. } = notice {
            self.failed_from = self.offered.take();
        }
        let text = notice.to_string();
        let mut needs_replan = true;
        match notice {
            Notice::NameTaken { .. } => self.alone = Some(text.clone()),
            Notice::NameFree { .. } => self.alone = None,
            _ => needs_replan = false,
        }
        SiteChange {
            needs_replan,
            ..SiteChange::event(EventKind::StoreNotice { text })
        }
    }

    fn on_view(&mut self, view: Arc<SiteView>) -> SiteChange {
        let mut change = SiteChange::default();
        if let Some(plan) = &view.plan {
            let known = self.plan.as_ref();
            let is_other = known.is_none_or(|known| known.assignments != plan.assignments);
            change.stored_paths = self.own_part(plan);
            if !self.shared && !self.seen {
                self.before_start = plan.assignments.get(&self.gateway).cloned();
            }
            self.plan = Some(plan.clone());
            change.needs_replan = (self.settle() | is_other) && self.shared;
        }
        // Until now nothing could be offered.
        change.needs_replan |= !std::mem::replace(&mut self.seen, true);
        let seen = |accepted: &mut u64| *accepted <= view.plan_revision;
        if self.accepted.take_if(seen).is_some() {
            self.offered = None;
        }
        self.view = view;
        change
    }

    fn own_part(&self, plan: &SitePlan) -> BTreeMap<String, String> {
        let own = plan.assignments.get(&self.gateway);
        own.cloned().unwrap_or_default()
    }

    /// Whether there is a site whose plan is known, as far as it can be.
    pub(crate) fn knows_plan(&self) -> bool {
        let is_known = self.seen || self.role() == SiteRole::CutOff;
        self.role() != SiteRole::Alone && is_known
    }

    /// This gateway has put an application on another path than the site's plan.
    pub(crate) fn on_own_path(&mut self, app: String) {
        self.must_publish |= self.own.insert(app);
    }

    /// Forgets applications that `is_configured` does not name.
    pub(crate) fn retain_own(&mut self, is_configured: impl Fn(&String) -> bool) {
        self.own.retain(is_configured);
    }

    /// What to report where it has come to light that the leader does not answer, or does again.
    pub(crate) fn check_leader(&mut self, now: Stopwatch) -> Option<String> {
        if !self.check_answer(now) {
            return None;
        }
        let leader = self.view.leader().unwrap_or("the leader");
        Some(match self.is_unanswered {
            true => format!(
                "{leader}, which plans for the site, has not answered for {ANSWER_TIME:?}; \
                 this gateway plans for latency targets that the site's plan leaves unmet"
            ),
            false => format!("{leader} plans for the site again"),
        })
    }
}

impl SitePlanner {
    /// For the plan by eq. 3.
    fn settings(self) -> Settings {
        Settings {
            tolerance: Tolerance::from_ratio(self.tolerance.get()).unwrap_or(Tolerance::STRICT),
            aim: match self.planner {
                Planner::Frugal => Aim::Frugal,
                Planner::Exact | Planner::Off => Aim::LeastDelay,
            },
            hysteresis: Hysteresis::default(),
        }
    }
}

impl SiteChange {
    fn event(event: EventKind) -> Self {
        Self {
            event: Some(event),
            ..Self::default()
        }
    }
}

/// Why the configured store cannot be used here, from the files that it names alone: what
/// [`SitePlanClient::start`] would refuse. `None`: nothing is known against it.
pub fn store_problem(config: &Config) -> Option<String> {
    let Store::Etcd(etcd) = &config.store else {
        return None;
    };
    let opened = EtcdStore::new(etcd_options(etcd, config.gateway.name.as_str()));
    opened.err().map(|error| format!("[store]: {error}"))
}

fn etcd_options(etcd: &Etcd, gateway: &str) -> EtcdOptions {
    let client = etcd.client.as_ref();
    EtcdOptions {
        endpoints: etcd
            .endpoints
            .iter()
            .map(|endpoint| Endpoint {
                is_secure: endpoint.is_secure,
                address: endpoint.address,
            })
            .collect(),
        site: etcd.site.to_string(),
        gateway: gateway.to_owned(),
        time_to_live: TIME_TO_LIVE_DEFAULT,
        timeout: etcd.timeout.unwrap_or(TIMEOUT_DEFAULT),
        tls: etcd.ca.as_ref().map(|ca| TlsFiles {
            authorities: ca.clone(),
            client: client.map(|(certificate, key)| ClientFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            }),
        }),
        user: etcd.user.as_ref().map(|(name, password)| UserFile {
            name: name.to_string(),
            password_file: password.clone(),
        }),
    }
}

fn unix_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_name(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, other): &(&str, &str)| ((*name).to_owned(), (*other).to_owned());
        pairs.iter().map(owned).collect()
    }

    /// The gateway `g` in a site whose plan has `x` on p1, made from `g`'s inputs of that number.
    fn site(made_from: u64) -> SitePlanClient {
        let plan = SitePlan {
            assignments: [("g".to_owned(), by_name(&[("x", "p1")]))].into(),
            made_from: [("g".to_owned(), made_from)].into(),
            ..SitePlan::default()
        };
        SitePlanClient {
            plan: Some(plan),
            seen: true,
            ..SitePlanClient::without_store("g".into(), true)
        }
    }

    fn places(site: &SitePlanClient) -> Vec<&str> {
        site.assignments().map(|(app, _)| app.as_str()).collect()
    }

    #[test]
    fn an_app_a_gateway_placed_itself_is_moved_only_by_a_plan_that_knows_it() {
        let mut site = site(7);
        assert_eq!(places(&site), ["x"]);
        site.own.insert("x".into());
        assert_eq!(places(&site), [""; 0]);
        // It has published that as number 8.
        site.published.sequence = 8;
        assert!(!site.settle());
        assert_eq!(places(&site), [""; 0]);
        let plan = site.plan.as_mut().unwrap();
        plan.made_from.insert("g".into(), 8);
        assert!(site.settle());
        assert_eq!(places(&site), ["x"]);
        assert!(!site.settle(), "nothing more counts than before");
    }

    #[test]
    fn a_plan_without_a_place_for_it_leaves_it_to_the_gateway() {
        let mut site = site(8);
        site.published.sequence = 8;
        site.own.insert("y".into());
        assert!(!site.settle());
        assert_eq!(site.own, BTreeSet::from(["y".to_owned()]));
    }

    #[test]
    fn before_it_has_reported_anything_no_plan_knows_of_it() {
        let mut site = site(8);
        site.own.insert("x".into());
        assert!(!site.settle());
        assert_eq!(places(&site), [""; 0]);
    }

    #[test]
    fn what_is_known_of_others_ages_while_the_store_is_gone_and_is_forgotten_in_the_end() {
        let mut site = site(1);
        let uses: Arc<[LineUse]> = Arc::new([]);
        site.others.lines.insert("p1".into(), uses);
        let lost = Stopwatch::now();
        assert_eq!(site.others_age(lost), None);
        assert_eq!(site.others(lost).count(), 1);
        site.lost_since = Some(lost);
        let later = lost + OTHERS_AGE_MAX / 2;
        assert_eq!(site.others_age(later), Some(OTHERS_AGE_MAX / 2));
        assert_eq!(site.others(later).count(), 1);
        let latest = lost + OTHERS_AGE_MAX;
        assert_eq!(site.others(latest).count(), 0);
        // It answers again.
        let _ = site.on_update(Update::Connected { lost_for: None });
        assert_eq!(site.others(latest).count(), 1);
        // With files there is no site.
        let alone = SitePlanClient::without_store("g".into(), false);
        assert_eq!(alone.others_age(latest), None);
    }
}
