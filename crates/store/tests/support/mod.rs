//! Stores of a real etcd, and waiting for updates of a worker.

mod server;

use std::{
    cell::RefCell,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use keiro_store::{
    EtcdStore, Inputs, PlanStore, SiteView, Update, Worker,
    etcd::{Endpoint, EtcdOptions, TlsFiles, UserFile},
};

pub(crate) use self::server::Etcd;

/// For everything that is waited for; far more than anything takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

impl Etcd {
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint {
            is_secure: self.is_secure(),
            address: self.client,
        }
    }

    pub(crate) fn options(&self, gateway: &str) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.endpoint()],
            site: "site".into(),
            gateway: gateway.into(),
            time_to_live: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            tls: None::<TlsFiles>,
            user: None::<UserFile>,
        }
    }

    pub(crate) fn store(&self, gateway: &str) -> EtcdStore {
        EtcdStore::new(self.options(gateway)).expect("options are good")
    }
}

pub(crate) fn inputs(gateway: &str, sequence: u64) -> Inputs {
    Inputs {
        gateway: gateway.into(),
        sequence,
        ..Inputs::default()
    }
}

/// A worker as a control thread uses it: woken, then polled until nothing is left.
pub(crate) struct Control {
    pub(crate) worker: Worker,
    woken: mpsc::Receiver<()>,
    view: RefCell<Arc<SiteView>>,
}

impl Control {
    pub(crate) fn start(store: impl PlanStore + 'static) -> Self {
        let (wake, woken) = mpsc::sync_channel(1);
        let wake = Box::new(move || {
            let _ = wake.try_send(());
        });
        let worker = Worker::start(Box::new(store), None, wake).expect("threads");
        let view = RefCell::default();
        Self {
            worker,
            woken,
            view,
        }
    }

    /// Takes updates until one gives a value.
    pub(crate) fn wait<T>(&self, what: &str, mut is_it: impl FnMut(&Update) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        let mut seen = Vec::new();
        loop {
            while let Some(update) = self.worker.poll() {
                if let Update::View(view) = &update {
                    *self.view.borrow_mut() = Arc::clone(view);
                }
                if let Some(found) = is_it(&update) {
                    return found;
                }
                seen.push(update);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.woken.recv_timeout(left).is_err() {
                panic!("no {what} came; instead: {seen:#?}");
            }
        }
    }

    /// Waits until what was seen last is so.
    pub(crate) fn wait_for_view(
        &self,
        what: &str,
        is_it: impl Fn(&SiteView) -> bool,
    ) -> Arc<SiteView> {
        let known = Arc::clone(&self.view.borrow());
        if is_it(&known) {
            return known;
        }
        self.wait(what, |update| match update {
            Update::View(view) if is_it(view) => Some(Arc::clone(view)),
            _ => None,
        })
    }

    pub(crate) fn wait_for_connection(&self) -> Option<Duration> {
        self.wait("connection", |update| match update {
            Update::Connected { lost_for } => Some(*lost_for),
            _ => None,
        })
    }

    pub(crate) fn wait_for_loss(&self) -> String {
        self.wait("loss", |update| match update {
            Update::Lost { reason } => Some(reason.clone()),
            _ => None,
        })
    }
}
