//! One gateway, asked once for all viewers.
//!
//! A thread polls its control socket every second while a page is open and every half a minute otherwise, one follows
//! its events, and one asks single questions, at a bounded rate. Another one plans what viewers suppose, without the
//! gateway. So what a gateway has to do does not depend on the number of viewers.

mod ask;
pub(crate) mod egress;
pub(crate) mod events;
mod fault;
mod poll;
pub(crate) mod record;
mod suppose;

use std::{
    path::PathBuf,
    str::FromStr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use keiro_control::protocol::{HistoryKind, Request, Response, WhatIf};
use tokio::sync::watch;

pub(crate) use self::{
    ask::Answer,
    fault::Fault,
    poll::{Data, View},
    suppose::{Plans, Row},
};
use self::{ask::Asker, events::Events, record::Record, suppose::Supposition};

/// A gateway's control socket and the name of the gateway in addresses of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketName {
    /// Letters, digits, `-`, `_` and `.`; absent: the pages number it.
    pub name: Option<String>,
    pub path: PathBuf,
}

/// Why a text names no socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a gateway; try: FILE, or NAME=FILE with 1 to 32 letters, digits, - and _ in NAME"
)]
pub struct SocketNameError(String);

/// Letters of a name. Ours.
const NAME_MAX: usize = 32;

impl FromStr for SocketName {
    type Err = SocketNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, path) = match text.split_once('=') {
            // A file whose name has a `=`.
            Some((name, _)) if name.contains('/') => (None, text),
            Some((name, path)) => (Some(name), path),
            None => (None, text),
        };
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_name =
            |name: &str| (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_letter);
        if path.is_empty() || name.is_some_and(|name| !is_name(name)) {
            return Err(SocketNameError(text.to_owned()));
        }
        Ok(Self {
            name: name.map(str::to_owned),
            path: path.into(),
        })
    }
}

/// What a page needs beyond the state, paths, peers and applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Usual,
    Tenants,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    shared: Arc<Shared>,
    view: watch::Receiver<Arc<View>>,
    gateway: Asker<Request, Response>,
    planner: Asker<Supposition, Plans>,
}

/// What the threads of a source share with the pages.
#[derive(Debug)]
pub(crate) struct Shared {
    socket: PathBuf,
    wanted: Mutex<Wanted>,
    /// A page is open, or the source ends.
    woken: Condvar,
    ended: AtomicBool,
    events: Mutex<Events>,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Wanted {
    looked: Option<Instant>,
    tenants: Option<Instant>,
}

/// A page that was shown so long ago is not looked at any more. Ours: some updates of a live page.
const LOOKED_AT_FOR: Duration = Duration::from_secs(5);
/// Answers of the gateway that are kept. Ours.
const GATEWAY_ANSWERS_MAX: usize = 64;
/// Hypothetical plans that are kept. Ours.
const PLANS_MAX: usize = 8;
/// How long a page waits for a new poll. Ours: longer than a gateway takes that is well.
const FRESH_WAIT: Duration = Duration::from_secs(2);

impl Source {
    /// Starts the threads of the gateway at `socket`.
    pub(crate) fn start(name: String, socket: PathBuf) -> Self {
        let shared = Arc::new(Shared {
            socket,
            wanted: Mutex::default(),
            woken: Condvar::new(),
            ended: AtomicBool::new(false),
            events: Mutex::default(),
            record: Mutex::default(),
        });
        let view = poll::start(Arc::clone(&shared));
        events::start(Arc::clone(&shared));
        let gateway = Asker::start(
            Arc::clone(&shared),
            "ask",
            GATEWAY_ANSWERS_MAX,
            ask::of_gateway(),
        );
        let planner = Asker::start(Arc::clone(&shared), "plan", PLANS_MAX, suppose::planner());
        Self {
            name,
            shared,
            view,
            gateway,
            planner,
        }
    }

    pub(crate) fn socket(&self) -> String {
        self.shared.socket.display().to_string()
    }

    /// The newest poll, after a new one if the last is old; at most [`FRESH_WAIT`] later.
    pub(crate) async fn fresh(&self, needs: Needs) -> Arc<View> {
        self.look(needs);
        let mut view = self.view.clone();
        let has_needs = |view: &View| {
            let data = view.data.as_ref();
            needs == Needs::Usual
                || view.fault.is_some()
                || data.is_some_and(|data| data.tenants.is_some())
        };
        let is_fresh = |view: &Arc<View>| view.is_recent(Instant::now()) && has_needs(view);
        // What the threads do not bring in time is shown as it is, with its age.
        let _ = tokio::time::timeout(FRESH_WAIT, view.wait_for(is_fresh)).await;
        Arc::clone(&view.borrow())
    }

    /// The polls to come; `changed` waits for the next.
    pub(crate) fn views(&self) -> watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    /// A page is open, so that polls come every second.
    pub(crate) fn look(&self, needs: Needs) {
        let now = Instant::now();
        let mut wanted = lock(&self.shared.wanted);
        let is_idle = !is_looked_at(wanted.looked, now)
            || (needs == Needs::Tenants && !is_looked_at(wanted.tenants, now));
        wanted.looked = Some(now);
        if needs == Needs::Tenants {
            wanted.tenants = Some(now);
        }
        if is_idle {
            self.shared.woken.notify_all();
        }
    }

    pub(crate) fn events(&self) -> MutexGuard<'_, Events> {
        lock(&self.shared.events)
    }

    /// Forecasts of the last hour.
    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.shared.record)
    }

    /// Why an application is where it is.
    pub(crate) async fn explain(&self, app: &str) -> Answer {
        let request = Request::Explain {
            app: app.to_owned(),
        };
        self.ask(request, EXPLANATION_FRESH_FOR).await
    }

    /// Past measurements.
    pub(crate) async fn history(&self, kind: HistoryKind, name: &str, past: Duration) -> Answer {
        let request = Request::History {
            kind,
            name: name.to_owned(),
            past_seconds: past.as_secs(),
        };
        self.ask(request, HISTORY_FRESH_FOR).await
    }

    /// What the planner would do now and after `changes`, planned in this process.
    pub(crate) async fn suppose(&self, changes: Vec<WhatIf>) -> Answer<Plans> {
        let input = self.ask(Request::PlannerInput {}, PLAN_FRESH_FOR).await?;
        let key = serde_json::to_string(&changes).unwrap_or_default();
        let supposition = Supposition { input, changes };
        self.planner.ask(key, supposition, PLAN_FRESH_FOR).await
    }

    async fn ask(&self, request: Request, fresh_for: Duration) -> Answer {
        let key = serde_json::to_string(&request).unwrap_or_default();
        self.gateway.ask(key, request, fresh_for).await
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let _wanted = lock(&self.shared.wanted);
        self.shared.woken.notify_all();
    }
}

/// How old answers may be. Ours: rows of the history come once a minute; explanations and the planner's input cost the gateway work.
const HISTORY_FRESH_FOR: Duration = Duration::from_secs(30);
const EXPLANATION_FRESH_FOR: Duration = Duration::from_secs(5);
const PLAN_FRESH_FOR: Duration = Duration::from_secs(10);

impl Shared {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits, or until the source ends.
    fn rest(&self, time: Duration) {
        let wanted = lock(&self.wanted);
        let is_over = |_: &mut Wanted| !self.has_ended();
        let _ = self.woken.wait_timeout_while(wanted, time, is_over);
    }
}

fn is_looked_at(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_duration_since(at) < LOOKED_AT_FOR)
}

/// A thread that panicked while it held the lock left consistent values: they are replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer to another question than was asked.
pub(crate) fn unexpected(response: &Response) -> Fault {
    let name = serde_json::to_value(response).ok();
    let name = name
        .as_ref()
        .and_then(|value| value["response"].as_str().map(str::to_owned));
    let name = name.unwrap_or_else(|| "unknown".to_owned());
    Fault::new(
        format!("the gateway answered `{name}`, which was not asked"),
        "install `keiro-web` and the gateway from one version",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_may_have_names() {
        let named = |text: &str| {
            let socket: SocketName = text.parse().unwrap();
            (socket.name, socket.path.display().to_string())
        };
        let (tokyo, file) = (Some("tokyo".to_owned()), "/run/a.sock".to_owned());
        assert_eq!(named("/run/a.sock"), (None, file.clone()));
        assert_eq!(named("tokyo=/run/a.sock"), (tokyo, file));
        assert_eq!(named("/run/a=b"), (None, "/run/a=b".to_owned()));
        for wrong in ["", "tokyo=", "=/run/a", "a b=/run/a", "<b>=x"] {
            assert!(wrong.parse::<SocketName>().is_err(), "{wrong}");
        }
    }
}
