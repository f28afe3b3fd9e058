//! A plan store in etcd 3.4 or newer, through its JSON gateway.
//!
//! Keys: `/keiro/<site>/inputs/<gateway>`, bound to a lease of the gateway, and
//! `/keiro/<site>/plan`, which stays. Reads are linearizable: a member without a majority refuses
//! rather than return stale data. Values that cannot be read are reported, ignored and never
//! removed, except that an unreadable plan is replaced by the next.
//!
//! A name belongs to the gateway whose lease its key is bound to. Gateways do not overwrite each
//! other's inputs, so two of one name do not take turns in a site's plan.

mod client;
mod message;
mod options;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

pub use self::options::{
    ClientFiles, ENDPOINTS_MAX, Endpoint, EtcdOptions, TIME_TO_LIVE_DEFAULT, TIMEOUT_DEFAULT,
    TlsFiles, UserFile,
};
use self::{
    client::Client,
    message::{
        Compare, Grant, Granted, KeepAlive, KeptAlive, KeyValue, Operation, Put, Range, Ranged,
        Revoke, Streamed, Transacted, Transaction, Watch, encoded,
    },
};
use crate::{
    plan_store::{Notice, Notices, OfferOutcome, PlanStore, PublishOutcome, StoreError, Watcher},
    site::{
        DocumentError, GATEWAYS_MAX, Inputs, Member, SitePlan, SiteView, decode, encode, is_name,
    },
};

/// Interval of looking without a notification of the watch. Ours: the plan is seen at most so late.
const REFRESH: Duration = Duration::from_millis(500);

/// One finds out what is there, the second writes; others for a key that comes and goes meanwhile.
const PUT_ATTEMPTS: usize = 4;

/// A plan store in etcd; see the module.
pub struct EtcdStore {
    client: Client,
    options: EtcdOptions,
    lease: Option<i64>,
    /// The lease before that one: what is bound to it may be there for a moment after it ran out.
    former_lease: Option<i64>,
    /// The number of the own key's last change, as far as is known; 0: there is none.
    own_revision: i64,
    /// The own key is bound to another gateway's lease.
    is_name_taken: bool,
    seen: CachedSite,
    notices: Notices,
}

/// What was read before, so that only changes are fetched.
#[derive(Default)]
struct CachedSite {
    cluster: u64,
    revision: i64,
    entries: BTreeMap<Vec<u8>, Entry>,
    /// The number of the plan's last change, and the plan unless it cannot be read.
    plan: Option<(i64, Option<SitePlan>)>,
}

struct Entry {
    revision: i64,
    since: Instant,
    inputs: Option<Inputs>,
}

impl EtcdStore {
    /// Reads certificates and password; connects only when it is used.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] or [`StoreError::File`]: what is wrong with the options.
    pub fn new(options: EtcdOptions) -> Result<Self, StoreError> {
        for (what, name) in [("site", &options.site), ("gateway", &options.gateway)] {
            if !is_name(name) {
                return Err(StoreError::Configuration(format!(
                    "{what} {name:?} is not a name: 1 to 64 bytes of A-Z a-z 0-9 . _ -"
                )));
            }
        }
        Ok(Self {
            client: Client::new(&options)?,
            options,
            lease: None,
            former_lease: None,
            own_revision: 0,
            is_name_taken: false,
            seen: CachedSite::default(),
            notices: Notices::default(),
        })
    }

    fn plan_key(&self) -> Vec<u8> {
        format!("/keiro/{}/plan", self.options.site).into_bytes()
    }

    fn inputs_prefix(&self) -> Vec<u8> {
        format!("/keiro/{}/inputs/", self.options.site).into_bytes()
    }

    fn own_key(&self) -> Vec<u8> {
        let mut key = self.inputs_prefix();
        key.extend_from_slice(self.options.gateway.as_bytes());
        key
    }

    fn grant(&mut self) -> Result<i64, StoreError> {
        let seconds = self.options.time_to_live.as_secs().max(1) as i64;
        let granted: Granted = self.client.call("lease/grant", &Grant { ttl: seconds })?;
        self.lease = Some(granted.id);
        Ok(granted.id)
    }

    fn is_lease_alive(&mut self) -> Result<bool, StoreError> {
        let Some(lease) = self.lease else {
            return Ok(false);
        };
        let kept: Streamed<KeptAlive> = self
            .client
            .call("lease/keepalive", &KeepAlive { id: lease })?;
        Ok(kept.result.ttl > 0)
    }

    fn drop_lease(&mut self) {
        self.former_lease = self.lease.take().or(self.former_lease);
    }

    /// Whether a key that is bound to this lease may be overwritten. A key without a lease is no
    /// gateway's, since every gateway has one.
    fn is_own(&self, lease: i64) -> bool {
        lease == 0 || [self.lease, self.former_lease].contains(&Some(lease))
    }

    /// Writes the own key unless it is bound to another gateway's lease.
    fn put_own(&mut self, value: &[u8]) -> Result<PublishOutcome, StoreError> {
        let lease = match self.lease {
            Some(lease) => lease,
            None => self.grant()?,
        };
        let key = self.own_key();
        for _ in 0..PUT_ATTEMPTS {
            let transaction = Transaction {
                compare: vec![Compare::mod_revision(&key, self.own_revision)],
                success: vec![Operation::put(Put {
                    key: encoded(&key),
                    value: encoded(value),
                    lease,
                })],
                failure: vec![Operation::range(Range::key(&key).keys_only())],
            };
            let answer: Transacted = self.client.call("kv/txn", &transaction)?;
            if answer.succeeded {
                self.own_revision = answer.header.revision;
                self.is_name_taken = false;
                return Ok(PublishOutcome::Stored);
            }
            // Changed since it was seen last, the first time in any case.
            let stored = answer.first_value();
            if stored.is_some_and(|kv| !self.is_own(kv.lease)) {
                break;
            }
            self.own_revision = stored.map_or(0, |kv| kv.mod_revision);
        }
        self.is_name_taken = true;
        Ok(PublishOutcome::NameTaken)
    }

    /// Everything of the site that changed after `revision`, with the names of all that is there.
    fn fetch(&mut self, revision: i64) -> Result<Transacted, StoreError> {
        let prefix = self.inputs_prefix();
        let inputs = Range::prefix(&prefix, GATEWAYS_MAX);
        let plan = Range::key(&self.plan_key());
        let transaction = Transaction {
            compare: vec![],
            success: vec![
                Operation::range(inputs.clone().keys_only()),
                Operation::range(inputs.changed_after(revision)),
                Operation::range(plan.clone().keys_only()),
                Operation::range(plan.changed_after(revision)),
            ],
            failure: vec![],
        };
        self.client.call("kv/txn", &transaction)
    }

    /// Brings what has been seen up to date. `false`: something changed that was not fetched, since
    /// the store's contents are others than before.
    fn update(&mut self, [names, changed, plan_name, plan_changed]: [Ranged; 4]) -> bool {
        self.update_inputs(&names, changed.kvs) && self.update_plan(&plan_name, &plan_changed)
    }

    fn update_plan(&mut self, name: &Ranged, changed: &Ranged) -> bool {
        let Some(revision) = name.kvs.first().map(|kv| kv.mod_revision) else {
            self.seen.plan = None;
            return true;
        };
        if let Some(kv) = changed.kvs.first() {
            let key = self.plan_key();
            let plan = self.read_or_notice(&key, decode::<SitePlan>(&kv.value));
            self.seen.plan = Some((kv.mod_revision, plan));
        }
        matches!(self.seen.plan, Some((known, _)) if known == revision)
    }

    fn update_inputs(&mut self, names: &Ranged, changed: Vec<KeyValue>) -> bool {
        let now = Instant::now();
        let listed: BTreeMap<_, _> = names
            .kvs
            .iter()
            .map(|kv| (kv.key.clone(), kv.mod_revision))
            .collect();
        self.seen.entries.retain(|key, _| listed.contains_key(key));
        let own_key = self.own_key();
        let own = names.kvs.iter().find(|kv| kv.key == own_key);
        let are_all = names.count.unsigned_abs() <= names.kvs.len() as u64;
        if own.is_some() || are_all {
            self.is_name_taken = own.is_some_and(|kv| !self.is_own(kv.lease));
        }
        for kv in changed {
            let key = kv.key.clone();
            if listed.get(&key) != Some(&kv.mod_revision) {
                continue;
            }
            let inputs = self.read_inputs(&key, &kv);
            let entry = Entry {
                revision: kv.mod_revision,
                since: now,
                inputs,
            };
            self.seen.entries.insert(key, entry);
        }
        listed.iter().all(|(key, revision)| {
            let entry = self.seen.entries.get(key);
            entry.is_some_and(|entry| entry.revision == *revision)
        })
    }

    fn view(&mut self, count: i64) -> SiteView {
        self.notices.count_gateways(count.unsigned_abs());
        let mut view = SiteView {
            is_name_taken: self.is_name_taken,
            ..SiteView::default()
        };
        for entry in self.seen.entries.values() {
            if let Some(inputs) = &entry.inputs {
                let member = Member {
                    inputs: inputs.clone(),
                    age: entry.since.elapsed(),
                    revision: entry.revision.unsigned_abs(),
                };
                view.gateways.insert(inputs.gateway.clone(), member);
            }
        }
        if let Some((revision, plan)) = &self.seen.plan {
            view.plan_revision = revision.unsigned_abs();
            view.plan = plan.clone().map(|plan| SitePlan {
                revision: view.plan_revision,
                ..plan
            });
        }
        view
    }

    fn read_inputs(&mut self, key: &[u8], kv: &KeyValue) -> Option<Inputs> {
        let prefix = self.inputs_prefix();
        let name = key.strip_prefix(prefix.as_slice()).unwrap_or_default();
        let read = decode::<Inputs>(&kv.value).and_then(|inputs| {
            if inputs.gateway.as_bytes() == name {
                return Ok(inputs);
            }
            let gateway = &inputs.gateway;
            Err(DocumentError::Value(format!(
                "it is of gateway {gateway:?}"
            )))
        });
        self.read_or_notice(key, read)
    }

    fn read_or_notice<T>(&mut self, key: &[u8], read: Result<T, DocumentError>) -> Option<T> {
        let error = match read {
            Ok(document) => return Some(document),
            Err(error) => error,
        };
        let shown: String = String::from_utf8_lossy(key).chars().take(200).collect();
        self.notices.add(Notice::Ignored {
            entry: format!("{:?} of {}", shown, self.client.endpoint()),
            error,
        });
        None
    }
}

impl PlanStore for EtcdStore {
    fn description(&self) -> String {
        let endpoints = self.options.endpoints.iter().map(Endpoint::to_string);
        let endpoints = endpoints.collect::<Vec<_>>().join(", ");
        format!("etcd at {endpoints}, site {}", self.options.site)
    }

    fn publish(&mut self, inputs: &Inputs) -> Result<PublishOutcome, StoreError> {
        let value = encode(inputs)?;
        if inputs.gateway != self.options.gateway {
            let (own, other) = (&self.options.gateway, &inputs.gateway);
            let text = format!("inputs of gateway {other:?}, this is {own:?}");
            return Err(DocumentError::Value(text).into());
        }
        // A lease that has run out is only found out by using it.
        if self.lease.is_some() && !self.is_lease_alive()? {
            self.drop_lease();
        }
        let put = self.put_own(&value);
        // The lease ran out meanwhile; if there was no answer, it may still be valid.
        if let Err(StoreError::Refused { .. }) = put {
            self.drop_lease();
        }
        put
    }

    fn keep_alive(&mut self) -> Result<bool, StoreError> {
        let is_alive = self.is_lease_alive()?;
        if !is_alive {
            self.drop_lease();
        }
        // A lease that nothing is bound to keeps nothing alive.
        Ok(is_alive && !self.is_name_taken)
    }

    fn withdraw(&mut self) -> Result<(), StoreError> {
        let Some(lease) = self.lease.take() else {
            return Ok(());
        };
        self.client
            .call::<_, serde::de::IgnoredAny>("lease/revoke", &Revoke { id: lease })?;
        Ok(())
    }

    fn load(&mut self) -> Result<SiteView, StoreError> {
        for _ in 0..2 {
            let since = self.seen.revision;
            let mut fetched = self.fetch(since)?;
            let ranges = fetched
                .four_ranges()
                .map_err(|reason| self.client.not_understood(reason))?;
            let header = fetched.header;
            let is_continued =
                since == 0 || (header.cluster_id == self.seen.cluster && header.revision >= since);
            let count = ranges[0].count;
            if is_continued && self.update(ranges) {
                self.seen.cluster = header.cluster_id;
                self.seen.revision = header.revision;
                return Ok(self.view(count));
            }
            // Not the contents of before: everything is fetched anew.
            self.seen = CachedSite::default();
        }
        Err(self.client.not_understood("keys without their values"))
    }

    fn offer(&mut self, plan: &SitePlan, based_on: u64) -> Result<OfferOutcome, StoreError> {
        let value = encode(plan)?;
        let key = self.plan_key();
        let transaction = Transaction {
            compare: vec![Compare::mod_revision(&key, based_on as i64)],
            success: vec![Operation::put(Put {
                key: encoded(&key),
                value: encoded(&value),
                lease: 0,
            })],
            failure: vec![Operation::range(Range::key(&key))],
        };
        let answer: Transacted = self.client.call("kv/txn", &transaction)?;
        if answer.succeeded {
            let revision = answer.header.revision.unsigned_abs();
            return Ok(OfferOutcome::Accepted { revision });
        }
        let stored = answer.first_value();
        let revision = stored.map_or(0, |kv| kv.mod_revision.unsigned_abs());
        // A request whose answer got lost was made again at another endpoint: it is ours already.
        match stored {
            Some(kv) if kv.value == value => Ok(OfferOutcome::Accepted { revision }),
            _ => Ok(OfferOutcome::Refused { revision }),
        }
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        self.notices.take()
    }

    fn time_to_live(&self) -> Duration {
        self.options.time_to_live
    }

    fn refresh_interval(&self) -> Duration {
        REFRESH
    }

    fn watcher(&self) -> Option<Box<dyn Watcher>> {
        // Certificates and password were read and found good when the store was made; where they
        // have gone since, looking now and then has to do.
        let client = Client::new(&self.options).ok()?;
        let site = format!("/keiro/{}/", self.options.site).into_bytes();
        Some(Box::new(EtcdWatcher { client, site }))
    }
}

struct EtcdWatcher {
    client: Client,
    site: Vec<u8>,
}

impl Watcher for EtcdWatcher {
    /// Any answer means that something may have changed, the confirmation at the beginning too; what
    /// changed is fetched by [`EtcdStore::load`], so that nothing hangs on this stream.
    fn watch(&mut self, timeout: Duration, on_change: &mut dyn FnMut()) -> Result<(), StoreError> {
        let watch = Watch::prefix(&self.site);
        self.client.stream("watch", &watch, timeout, on_change)
    }
}
