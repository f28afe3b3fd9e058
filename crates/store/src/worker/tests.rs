use std::sync::mpsc;

use super::*;
use crate::site::DocumentError;

const LIMIT: Duration = Duration::from_secs(20);

/// A store in memory that fails on demand, and that is shared by its clones.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    view: SiteView,
    is_down: bool,
    is_hanging: bool,
    is_name_taken: bool,
    /// `None`: 150 ms.
    time_to_live: Option<Duration>,
    published: Vec<u64>,
    kept_alive: usize,
    withdrawn: usize,
    calls: Vec<Instant>,
}

impl Scripted {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }

    fn call(&self) -> Result<MutexGuard<'_, Script>, StoreError> {
        while self.script().is_hanging {
            thread::sleep(Duration::from_millis(5));
        }
        let mut script = self.script();
        script.calls.push(Instant::now());
        match script.is_down {
            true => Err(StoreError::Unreachable {
                endpoint: "test".into(),
                reason: "said so".into(),
            }),
            false => Ok(script),
        }
    }
}

impl PlanStore for Scripted {
    fn description(&self) -> String {
        "a test".into()
    }

    fn publish(&mut self, inputs: &Inputs) -> Result<PublishOutcome, StoreError> {
        let mut script = self.call()?;
        if inputs.gateway.is_empty() {
            return Err(DocumentError::Value("no name".into()).into());
        }
        if script.is_name_taken {
            return Ok(PublishOutcome::NameTaken);
        }
        script.published.push(inputs.sequence);
        Ok(PublishOutcome::Stored)
    }

    fn keep_alive(&mut self) -> Result<bool, StoreError> {
        let mut script = self.call()?;
        script.kept_alive += 1;
        // Every other time it has run out.
        Ok(script.kept_alive % 2 == 1 && !script.is_name_taken)
    }

    fn withdraw(&mut self) -> Result<(), StoreError> {
        self.call()?.withdrawn += 1;
        Ok(())
    }

    fn load(&mut self) -> Result<SiteView, StoreError> {
        Ok(self.call()?.view.clone())
    }

    fn offer(&mut self, plan: &SitePlan, based_on: u64) -> Result<OfferOutcome, StoreError> {
        let view = &mut self.call()?.view;
        if based_on != view.plan_revision {
            let revision = view.plan_revision;
            return Ok(OfferOutcome::Refused { revision });
        }
        view.plan_revision += 1;
        view.plan = Some(plan.clone());
        let revision = view.plan_revision;
        Ok(OfferOutcome::Accepted { revision })
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        vec![]
    }

    fn time_to_live(&self) -> Duration {
        let given = self.script().time_to_live;
        given.unwrap_or(Duration::from_millis(150))
    }

    fn refresh_interval(&self) -> Duration {
        Duration::from_millis(50)
    }

    fn watcher(&self) -> Option<Box<dyn Watcher>> {
        None
    }
}

struct Control {
    worker: Worker,
    woken: mpsc::Receiver<()>,
}

fn start(store: &Scripted, memory: Option<FileStore>) -> Control {
    let (wake, woken) = mpsc::sync_channel(1);
    let wake = Box::new(move || {
        let _ = wake.try_send(());
    });
    let store = Box::new(store.clone());
    let worker = Worker::start(store, memory, wake).unwrap();
    Control { worker, woken }
}

impl Control {
    fn next(&self) -> Update {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(update) = self.worker.poll() {
                return update;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.woken.recv_timeout(left).expect("an update");
        }
    }

    fn wait(&self, is_it: impl Fn(&Update) -> bool) -> Update {
        loop {
            let update = self.next();
            if is_it(&update) {
                return update;
            }
        }
    }
}

use keiro_testing::wait_until as until;

fn inputs(sequence: u64) -> Inputs {
    Inputs {
        gateway: "a".into(),
        sequence,
        ..Inputs::default()
    }
}

fn plan(made_at: f64) -> SitePlan {
    SitePlan {
        made_by: "a".into(),
        made_at_unix_seconds: made_at,
        ..SitePlan::default()
    }
}

#[test]
fn the_newest_is_stored_when_the_store_is_back() {
    let store = Scripted::default();
    store.script().is_down = true;
    let control = start(&store, None);
    assert!(matches!(control.next(), Update::Lost { .. }));
    for sequence in 1..=5 {
        control.worker.publish(inputs(sequence));
        control.worker.offer(plan(sequence as f64), 0);
    }
    store.script().is_down = false;
    let connected = control.wait(|update| matches!(update, Update::Connected { .. }));
    assert!(matches!(connected, Update::Connected { lost_for: Some(_) }));
    let Update::View(view) = control.wait(|update| matches!(update, Update::View(_))) else {
        unreachable!("waited for it");
    };
    assert_eq!(view.plan, Some(plan(5.0)));
    assert_eq!(store.script().published[0], 5);
    assert_eq!(control.worker.status().connection, Connection::Connected);
}

#[test]
fn attempts_become_rarer_but_not_rarer_than_a_second_allows() {
    let store = Scripted::default();
    store.script().is_down = true;
    let _control = start(&store, None);
    until("tried often enough", || store.script().calls.len() >= 8);
    let calls = store.script().calls.clone();
    let gaps: Vec<_> = calls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[0] >= BACKOFF_MIN, "{gaps:?}");
    assert!(gaps[5] >= BACKOFF_MAX, "{gaps:?}");
    assert!(BACKOFF_MAX < Duration::from_millis(500));
}

#[test]
fn a_loss_is_reported_once_and_so_is_its_end() {
    let store = Scripted::default();
    let control = start(&store, None);
    assert!(matches!(
        control.next(),
        Update::Connected { lost_for: None }
    ));
    for _ in 0..3 {
        store.script().is_down = true;
        control.wait(|update| matches!(update, Update::Lost { .. }));
        let calls = store.script().calls.len();
        until("tried again", || store.script().calls.len() > calls + 2);
        store.script().is_down = false;
        let next = control.next();
        assert!(matches!(next, Update::Connected { .. }), "{next:?}");
    }
}

#[test]
fn inputs_are_kept_alive_and_published_again_when_they_ran_out() {
    let store = Scripted::default();
    let control = start(&store, None);
    control.worker.publish(inputs(7));
    until("published three times", || {
        store.script().published.len() >= 3
    });
    assert!(
        store
            .script()
            .published
            .iter()
            .all(|sequence| *sequence == 7)
    );
    control.worker.leave(LIMIT);
    assert_eq!(store.script().withdrawn, 1);
}

#[test]
fn what_cannot_be_stored_is_reported_and_does_not_count_as_a_loss() {
    let store = Scripted::default();
    let control = start(&store, None);
    control.worker.publish(Inputs::default());
    let notice = control.wait(|update| matches!(update, Update::Notice(_)));
    let Update::Notice(notice) = notice else {
        unreachable!("waited for it");
    };
    assert_eq!(
        notice.to_string(),
        "this gateway's inputs were not stored: no name"
    );
    until("connected", || {
        control.worker.status().connection == Connection::Connected
    });
}

#[test]
fn a_store_that_hangs_does_not_hold_the_control_thread() {
    let store = Scripted::default();
    let control = start(&store, None);
    store.script().is_hanging = true;
    let began = Instant::now();
    control.worker.publish(inputs(1));
    control.worker.offer(plan(1.0), 0);
    control.worker.poll();
    drop(control);
    assert!(began.elapsed() < STOP_WAIT + Duration::from_secs(2));
    store.script().is_hanging = false;
}

#[test]
fn updates_that_are_not_polled_are_bounded() {
    let store = Scripted::default();
    let control = start(&store, None);
    for sequence in 0..2 * UPDATES_MAX as u64 {
        let calls = store.script().calls.len();
        control.worker.offer(plan(sequence as f64), u64::MAX);
        until("offered", || store.script().calls.len() > calls);
    }
    let mut count = 0;
    while control.worker.poll().is_some() {
        count += 1;
    }
    assert!(count <= UPDATES_MAX + 2, "{count}");
}

#[test]
fn the_last_plan_is_remembered_where_the_store_is_gone_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let memory = || Some(FileStore::new(directory.path(), "a").unwrap());
    let remembered = || {
        let view = memory().unwrap().load().unwrap();
        view.plan.map(|plan| plan.made_at_unix_seconds)
    };
    let store = Scripted::default();
    {
        let control = start(&store, memory());
        for (based_on, made_at) in [(0, 1.0), (1, 2.0)] {
            control.worker.offer(plan(made_at), based_on);
            until("remembered", || remembered() == Some(made_at));
        }
    }
    store.script().is_down = true;
    let control = start(&store, memory());
    let Update::Restored(plan) = control.next() else {
        panic!("the plan of before comes first");
    };
    assert_eq!(plan.made_at_unix_seconds, 2.0);
    assert!(matches!(control.next(), Update::Lost { .. }));
    store.script().is_down = false;
    control.wait(|update| matches!(update, Update::View(_)));
}

fn next_name_notice(control: &Control) -> Notice {
    let is_one = |notice: &Notice| {
        matches!(
            notice,
            Notice::NameTaken { .. } | Notice::NameFree { .. } | Notice::Remembered
        )
    };
    let update = control.wait(|update| matches!(update, Update::Notice(n) if is_one(n)));
    match update {
        Update::Notice(notice) => notice,
        _ => unreachable!("waited for it"),
    }
}

#[test]
fn a_name_that_is_anothers_is_reported_once_and_so_is_its_return() {
    let store = Scripted::default();
    store.script().is_name_taken = true;
    let control = start(&store, None);
    let began = Instant::now();
    control.worker.publish(inputs(1));
    let reported = next_name_notice(&control).to_string();
    assert!(
        reported.contains("another gateway is named \"a\" too in a test"),
        "{reported}"
    );
    assert!(
        reported.contains("give one of them another `name`"),
        "{reported}"
    );
    // It may have been this gateway's own of before a restart.
    assert!(began.elapsed() > Duration::from_millis(150));
    let calls = store.script().calls.len();
    until("tried again", || store.script().calls.len() > calls + 8);
    store.script().is_name_taken = false;
    let reported = next_name_notice(&control);
    assert!(matches!(reported, Notice::NameFree { .. }), "{reported}");
    assert_eq!(store.script().published[0], 1);
    assert_eq!(control.worker.status().connection, Connection::Connected);
    // Now it is known not to be left from before.
    store.script().is_name_taken = true;
    let reported = next_name_notice(&control);
    assert!(matches!(reported, Notice::NameTaken { .. }), "{reported}");
}

#[test]
fn what_was_left_before_a_restart_is_waited_for_in_silence() {
    let store = Scripted::default();
    store.script().is_name_taken = true;
    store.script().time_to_live = Some(Duration::from_secs(3));
    let control = start(&store, None);
    control.worker.publish(inputs(1));
    until("tried", || !store.script().calls.is_empty());
    store.script().is_name_taken = false;
    until("published", || !store.script().published.is_empty());
    while let Some(update) = control.worker.poll() {
        assert!(!matches!(update, Update::Notice(_)), "{update:?}");
    }
}

#[test]
fn a_place_for_files_that_comes_later_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("state");
    std::fs::write(&place, "in the way").unwrap();
    let files = || FileStore::new(&place.join("plan"), "a").unwrap();
    let (wake, woken) = mpsc::sync_channel(1);
    let wake = Box::new(move || {
        let _ = wake.try_send(());
    });
    let worker = Worker::start(Box::new(files()), None, wake).unwrap();
    let control = Control { worker, woken };
    let lost = control.next();
    assert!(
        matches!(&lost, Update::Lost { reason } if reason.contains("cannot make")),
        "{lost:?}"
    );
    // And a plan that is to be remembered beside etcd.
    let store = Scripted::default();
    let beside = start(&store, Some(files()));
    beside.worker.offer(plan(1.0), 0);
    beside.wait(|update| matches!(update, Update::Notice(Notice::NotRemembered { .. })));
    std::fs::remove_file(&place).unwrap();
    let back = control.next();
    assert!(
        matches!(back, Update::Connected { lost_for: Some(_) }),
        "{back:?}"
    );
    let reported = next_name_notice(&beside).to_string();
    assert_eq!(reported, "the plan on this machine is stored again");
    assert!(files().load().unwrap().plan.is_some());
}
