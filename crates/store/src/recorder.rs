//! A thread that writes and reads the history, so that the control thread never waits for a disk.

use std::{
    collections::VecDeque,
    fs, io,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

use crate::{
    history::{
        AppSample, Batch, Bounds, History, HistoryError, Latest, PathSample, Resolution, Row,
        SeriesKey,
    },
    quarantine::QuarantinedFile,
};

/// Batches and questions that wait; further ones are refused. Ours: a quarter of an hour of minutes
/// that a disk may hang.
const WAITING_MAX: usize = 16;
/// Updates that wait to be polled; the oldest goes.
const UPDATES_MAX: usize = 16;
/// Waited for on drop, so that the last batch is stored.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// See the module. Dropping it stores what waits, for up to a second.
#[derive(Debug)]
pub struct Recorder {
    /// `None` only while it is dropped.
    jobs: Option<SyncSender<Job>>,
    ended: Receiver<()>,
    updates: Arc<Mutex<VecDeque<RecorderUpdate>>>,
    counters: Arc<Counters>,
}

/// Counters of batches since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderCounts {
    pub written: u64,
    /// The disk or the database did not take them.
    pub failed: u64,
    /// Left out, since too many waited already.
    pub dropped: u64,
    /// Bytes of the file; 0 before it is open.
    pub file_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    written: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    file_bytes: AtomicU64,
}

/// An update of the history.
#[derive(Clone, Debug, PartialEq)]
pub enum RecorderUpdate {
    /// It is open, and this is what was known last: comes once.
    Opened(Latest),
    /// A database could not be read and was quarantined.
    Quarantined(QuarantinedFile),
    /// It cannot be written or read. Reported once, until [`RecorderUpdate::Recovered`].
    Failed { reason: String },
    /// It can be written again.
    Recovered,
    /// Series left out of the last batch, if the number has changed.
    SeriesLeftOut(usize),
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The disk is slower than the caller has time.
    #[error("the history does not answer in time; is the disk busy?")]
    Late,
    /// The history's own error.
    #[error(transparent)]
    History(#[from] HistoryError),
}

type Query = Box<dyn FnOnce(Result<&mut History, HistoryError>) + Send>;

enum Job {
    Record(u64, Batch),
    /// Of peers and of applications.
    Rename(Vec<[String; 2]>, Vec<[String; 2]>),
    Ask(Query),
}

impl Recorder {
    /// Starts the thread, which opens the database.
    ///
    /// `wake` is called from the thread after something has come that [`Recorder::poll`] gives; it
    /// must not wait.
    ///
    /// # Errors
    /// The system's, where no thread can be had.
    pub fn start(path: PathBuf, bounds: Bounds, wake: Box<dyn Fn() + Send>) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::sync_channel(WAITING_MAX);
        let (ending, ended) = mpsc::sync_channel(0);
        let updates = Arc::new(Mutex::new(VecDeque::new()));
        let counters = Arc::new(Counters::default());
        let runner = RecorderThread {
            path,
            bounds,
            wake,
            updates: Arc::clone(&updates),
            counters: Arc::clone(&counters),
            history: None,
            was_opened: false,
            has_failed: false,
            left_out: 0,
        };
        thread::Builder::new()
            .name("history".into())
            .spawn(move || {
                let _ended_with_this_thread = ending;
                runner.run(&waiting);
            })?;
        Ok(Self {
            jobs: Some(jobs),
            ended,
            updates,
            counters,
        })
    }

    /// Stores what was measured in the minute of `at_unix_seconds`. `false`: so much waits already
    /// that it is left out.
    pub fn record(&self, at_unix_seconds: u64, batch: Batch) -> bool {
        let is_taken = self.send(Job::Record(at_unix_seconds, batch)).is_ok();
        if !is_taken {
            self.counters.dropped.fetch_add(1, Relaxed);
        }
        is_taken
    }

    /// Gives peers and applications other names, `[before, now]` each; see [`History::rename`]. `false`: so much waits
    /// already that it is left out.
    pub fn rename(&self, peers: Vec<[String; 2]>, apps: Vec<[String; 2]>) -> bool {
        self.send(Job::Rename(peers, apps)).is_ok()
    }

    /// What has become of the batches so far.
    pub fn counts(&self) -> RecorderCounts {
        let Counters {
            written,
            failed,
            dropped,
            file_bytes,
        } = &*self.counters;
        RecorderCounts {
            written: written.load(Relaxed),
            failed: failed.load(Relaxed),
            dropped: dropped.load(Relaxed),
            file_bytes: file_bytes.load(Relaxed),
        }
    }

    /// A path's rows, oldest first; waits for `timeout` at most. Seconds since 1970.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn path(
        &self,
        subject: SeriesKey,
        resolution: Resolution,
        unix_seconds: Range<u64>,
        timeout: Duration,
    ) -> Result<Vec<Row<PathSample>>, QueryError> {
        self.ask(timeout, move |history| {
            history.path(&subject, resolution, unix_seconds)
        })
    }

    /// An application's rows, as [`Recorder::path`].
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn app(
        &self,
        subject: SeriesKey,
        resolution: Resolution,
        unix_seconds: Range<u64>,
        timeout: Duration,
    ) -> Result<Vec<Row<AppSample>>, QueryError> {
        self.ask(timeout, move |history| {
            history.app(&subject, resolution, unix_seconds)
        })
    }

    /// The next update. `None`: there is none now.
    pub fn poll(&self) -> Option<RecorderUpdate> {
        let mut updates = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        updates.pop_front()
    }

    fn ask<T: Send + 'static>(
        &self,
        timeout: Duration,
        question: impl FnOnce(&mut History) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, QueryError> {
        let (answer, answered) = mpsc::sync_channel(1);
        let job = move |history: Result<&mut History, HistoryError>| {
            // The caller may no longer be waiting.
            let _ = answer.try_send(history.and_then(question));
        };
        self.send(Job::Ask(Box::new(job)))
            .map_err(|_| QueryError::Late)?;
        let answer = answered
            .recv_timeout(timeout)
            .map_err(|_| QueryError::Late)?;
        Ok(answer?)
    }

    fn send(&self, job: Job) -> Result<(), TrySendError<Job>> {
        match &self.jobs {
            Some(jobs) => jobs.try_send(job),
            None => Err(TrySendError::Disconnected(job)),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.jobs = None;
        // Ends with the thread, or a disk that hangs is left behind.
        let _: Result<(), RecvTimeoutError> = self.ended.recv_timeout(STOP_WAIT);
    }
}

struct RecorderThread {
    path: PathBuf,
    bounds: Bounds,
    wake: Box<dyn Fn() + Send>,
    updates: Arc<Mutex<VecDeque<RecorderUpdate>>>,
    counters: Arc<Counters>,
    history: Option<History>,
    was_opened: bool,
    has_failed: bool,
    left_out: usize,
}

impl RecorderThread {
    fn run(mut self, waiting: &Receiver<Job>) {
        if let Err(error) = self.open() {
            self.on_error(&error);
        }
        self.measure_file();
        for job in waiting {
            match job {
                Job::Record(at, batch) => {
                    let recorded = self.open().and_then(|history| history.record(at, &batch));
                    match recorded {
                        Ok(left_out) => {
                            self.counters.written.fetch_add(1, Relaxed);
                            self.on_recorded(left_out);
                        }
                        Err(error) => {
                            self.counters.failed.fetch_add(1, Relaxed);
                            self.on_error(&error);
                        }
                    }
                    self.measure_file();
                }
                Job::Rename(peers, apps) => {
                    let renamed = self
                        .open()
                        .and_then(|history| history.rename(&peers, &apps));
                    if let Err(error) = renamed {
                        self.on_error(&error);
                    }
                }
                Job::Ask(question) => question(self.open()),
            }
            self.forward_notices();
        }
    }

    /// The history, opened if it could not be before.
    fn open(&mut self) -> Result<&mut History, HistoryError> {
        if self.history.is_none() {
            self.history = Some(History::open(&self.path, self.bounds)?);
        }
        if !self.was_opened {
            let latest = self.history.as_mut().expect("just opened").latest()?;
            self.was_opened = true;
            self.forward_notices();
            self.push_update(RecorderUpdate::Opened(latest));
        }
        Ok(self.history.as_mut().expect("just opened"))
    }

    fn measure_file(&self) {
        // Where there is none, nothing is stored.
        let bytes = fs::metadata(&self.path).map_or(0, |file| file.len());
        self.counters.file_bytes.store(bytes, Relaxed);
    }

    fn on_recorded(&mut self, left_out: usize) {
        if std::mem::take(&mut self.has_failed) {
            self.push_update(RecorderUpdate::Recovered);
        }
        if left_out != self.left_out {
            self.left_out = left_out;
            self.push_update(RecorderUpdate::SeriesLeftOut(left_out));
        }
    }

    fn on_error(&mut self, error: &HistoryError) {
        if !self.has_failed {
            self.has_failed = true;
            let reason = error.to_string();
            self.push_update(RecorderUpdate::Failed { reason });
        }
    }

    fn forward_notices(&mut self) {
        let notices = self.history.as_mut().map(History::take_notices);
        for kept in notices.unwrap_or_default() {
            self.push_update(RecorderUpdate::Quarantined(kept));
        }
    }

    fn push_update(&self, update: RecorderUpdate) {
        let mut updates = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        if updates.len() >= UPDATES_MAX {
            updates.pop_front();
        }
        updates.push_back(update);
        drop(updates);
        (self.wake)();
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Instant};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    const NOW: u64 = 1_700_000_040;

    struct Recording {
        recorder: Recorder,
        woken: Receiver<()>,
    }

    fn start(path: &Path) -> Recording {
        let (wake, woken) = mpsc::sync_channel(1);
        let wake = Box::new(move || {
            let _ = wake.try_send(());
        });
        let recorder = Recorder::start(path.to_owned(), Bounds::default(), wake).unwrap();
        Recording { recorder, woken }
    }

    impl Recording {
        fn next(&self) -> RecorderUpdate {
            let deadline = Instant::now() + LIMIT;
            loop {
                if let Some(update) = self.recorder.poll() {
                    return update;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                self.woken.recv_timeout(left).expect("an update");
            }
        }
    }

    fn subject() -> SeriesKey {
        SeriesKey {
            name: "fibre".into(),
            peer: "osaka".into(),
        }
    }

    fn batch() -> Batch {
        let sample = PathSample {
            loss_ratio: Some(0.5),
            ..PathSample::default()
        };
        Batch {
            paths: vec![(subject(), sample)],
            apps: vec![],
        }
    }

    #[test]
    fn what_was_recorded_last_is_shown_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.db");
        let first = start(&path);
        assert_eq!(first.next(), RecorderUpdate::Opened(Latest::default()));
        assert!(first.recorder.record(NOW, batch()));
        let rows = first
            .recorder
            .path(subject(), Resolution::Minute, 0..u64::MAX, LIMIT);
        assert_eq!(rows.unwrap().len(), 1);
        let counts = first.recorder.counts();
        assert_eq!((counts.written, counts.failed, counts.dropped), (1, 0, 0));
        assert_eq!(counts.file_bytes, fs::metadata(&path).unwrap().len());
        assert!(first.recorder.record(NOW + 60, batch()));
        drop(first);
        let RecorderUpdate::Opened(latest) = start(&path).next() else {
            panic!("nothing was wrong");
        };
        assert_eq!(latest.paths[0].1.at_unix_seconds, NOW + 60);
    }

    #[test]
    fn a_corrupt_database_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.db");
        fs::write(&path, "garbage ".repeat(100)).unwrap();
        let recording = start(&path);
        assert!(matches!(recording.next(), RecorderUpdate::Quarantined(_)));
        assert_eq!(recording.next(), RecorderUpdate::Opened(Latest::default()));
    }

    #[test]
    fn what_fails_is_reported_once_and_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let blocked = directory.path().join("state");
        fs::write(&blocked, "a file where the directory should be").unwrap();
        let recording = start(&blocked.join("history.db"));
        assert!(matches!(recording.next(), RecorderUpdate::Failed { .. }));
        assert!(recording.recorder.record(NOW, batch()));
        let asked =
            |recorder: &Recorder| recorder.path(subject(), Resolution::Minute, 0..u64::MAX, LIMIT);
        assert!(matches!(
            asked(&recording.recorder),
            Err(QueryError::History(_))
        ));
        fs::remove_file(&blocked).unwrap();
        assert!(recording.recorder.record(NOW, batch()));
        assert_eq!(recording.next(), RecorderUpdate::Opened(Latest::default()));
        assert_eq!(recording.next(), RecorderUpdate::Recovered);
        assert_eq!(recording.recorder.counts().failed, 1);
        assert_eq!(asked(&recording.recorder).unwrap().len(), 1);
    }
}
