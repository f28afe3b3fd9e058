//! A plan store in a directory: one JSON file per gateway and one for the plan.
//!
//! For one gateway, or several on one machine. A file is replaced as a whole or not at all, even if
//! the disk is full or the power fails. A file that cannot be read is quarantined and a new one
//! begun. The modification time of a gateway's inputs is when they were last kept alive.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use keiro_config::regular_file;
use serde::{Deserialize, Serialize};

use crate::{
    plan_store::{Notice, Notices, OfferOutcome, PlanStore, PublishOutcome, StoreError, Watcher},
    quarantine::quarantine,
    site::{
        DOCUMENT_BYTES_MAX, Document, DocumentError, GATEWAYS_MAX, Inputs, Member, SitePlan,
        SiteView, decode, encode, is_name,
    },
};

/// How long the inputs of another gateway of this machine count. Ours: as with etcd.
const TIME_TO_LIVE: Duration = Duration::from_secs(5);
/// Ours: a look costs a few system calls.
const REFRESH: Duration = Duration::from_millis(250);
/// Waited for another process that is storing a plan. Ours: it takes a write to disk.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(5);
/// Time after which inputs of a gateway that has gone are removed. Ours: a day to look at them.
const REMOVED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The largest number of a plan: the largest whole number that every reader of JSON takes exactly.
const REVISION_MAX: u64 = (1 << 53) - 1;

const PLAN: &str = "plan.json";
const LOCK: &str = "lock";
const INPUTS_PREFIX: &str = "inputs-";
const INPUTS_SUFFIX: &str = ".json";

pub struct FileStore {
    directory: PathBuf,
    gateway: String,
    seen: BTreeMap<String, Entry>,
    plan: Option<SeenPlan>,
    /// Counts files that were read, to number versions of inputs.
    reads: u64,
    notices: Notices,
}

struct Entry {
    file: Identity,
    inputs: Inputs,
    since: Instant,
    revision: u64,
}

struct SeenPlan {
    file: Identity,
    plan: StoredPlan,
}

/// Identifies a version of a file. Files are replaced, not changed; but the inode number of a
/// removed file is reused.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: u64,
    bytes: u64,
    modified_nanoseconds: i128,
}

/// A plan with its number, which grows with every plan stored.
#[derive(Clone, Serialize, Deserialize)]
struct StoredPlan {
    revision: u64,
    #[serde(flatten)]
    plan: SitePlan,
}

impl Document for StoredPlan {
    fn check(&self) -> Result<(), DocumentError> {
        if self.revision > REVISION_MAX {
            return Err(DocumentError::Value(format!(
                "revision {} is above {REVISION_MAX}",
                self.revision
            )));
        }
        self.plan.check()
    }
}

impl FileStore {
    /// The store in a directory, which is made with mode 0700 when it is used: where that fails,
    /// the next use tries again.
    ///
    /// # Errors
    /// [`StoreError::Configuration`] for a bad name.
    pub fn new(directory: &Path, gateway: &str) -> Result<Self, StoreError> {
        if !is_name(gateway) {
            return Err(StoreError::Configuration(format!(
                "gateway {gateway:?} is not a name: 1 to 64 bytes of A-Z a-z 0-9 . _ -"
            )));
        }
        Ok(Self {
            directory: directory.to_owned(),
            gateway: gateway.to_owned(),
            seen: BTreeMap::new(),
            plan: None,
            reads: 0,
            notices: Notices::default(),
        })
    }

    fn inputs_path(&self, gateway: &str) -> PathBuf {
        self.directory
            .join(format!("{INPUTS_PREFIX}{gateway}{INPUTS_SUFFIX}"))
    }

    fn plan_path(&self) -> PathBuf {
        self.directory.join(PLAN)
    }

    /// Keeps the processes of several gateways from storing plans at the same time.
    fn lock(&self) -> Result<File, StoreError> {
        let path = self.directory.join(LOCK);
        let file = regular_file::append(&path, Some(0o600))
            .map_err(|e| StoreError::file("open", &path, e))?;
        let deadline = Instant::now() + LOCK_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    thread::sleep(LOCK_RETRY);
                }
                Err(TryLockError::WouldBlock) => return Err(StoreError::Busy { path }),
                Err(TryLockError::Error(e)) => return Err(StoreError::file("lock", &path, e)),
            }
        }
    }

    /// Reads a file unless it is `known`; one that cannot be read is quarantined.
    fn read<T: Document>(
        &mut self,
        path: &Path,
        known: Option<Identity>,
    ) -> Result<ReadOutcome<T>, StoreError> {
        let failed = |e| StoreError::file("read", path, e);
        let file = match regular_file::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(ReadOutcome::Missing);
            }
            Err(error) if regular_file::is_refused(&error) => {
                self.quarantine_file(path, &error.to_string())?;
                return Ok(ReadOutcome::Missing);
            }
            file => file.map_err(failed)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        let identity = Identity {
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified_nanoseconds: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
        };
        if known == Some(identity) {
            return Ok(ReadOutcome::Known);
        }
        let mut bytes = Vec::new();
        file.take(DOCUMENT_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        match decode(&bytes) {
            Ok(document) => Ok(ReadOutcome::New(identity, document)),
            Err(error) => {
                self.quarantine_file(path, &error.to_string())?;
                Ok(ReadOutcome::Missing)
            }
        }
    }

    fn quarantine_file(&mut self, path: &Path, reason: &str) -> Result<(), StoreError> {
        match quarantine(path, reason) {
            Ok(kept) => self.notices.add(Notice::QuarantinedFile(kept)),
            // Another gateway's process was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::file("put aside", path, error)),
        }
        Ok(())
    }

    fn stored_plan(&mut self) -> Result<Option<StoredPlan>, StoreError> {
        let path = self.plan_path();
        let known = self.plan.as_ref().map(|seen| seen.file);
        match self.read(&path, known)? {
            ReadOutcome::Known => {}
            ReadOutcome::Missing => self.plan = None,
            ReadOutcome::New(file, plan) => self.plan = Some(SeenPlan { file, plan }),
        }
        Ok(self.plan.as_ref().map(|seen| seen.plan.clone()))
    }

    /// Names of the gateways that have a file here, with its age; those gone for long are removed.
    fn gateways(&self) -> Result<BTreeMap<String, Duration>, StoreError> {
        let failed = |e| StoreError::file("list", &self.directory, e);
        let now = SystemTime::now();
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let file_name = entry.file_name();
            let name = file_name.to_str().and_then(|name| {
                let name = name.strip_prefix(INPUTS_PREFIX)?;
                name.strip_suffix(INPUTS_SUFFIX)
            });
            let Some(name) = name.filter(|name| is_name(name)) else {
                continue;
            };
            // Gone meanwhile: not there.
            let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else {
                continue;
            };
            // A time in the future, after the clock was set back, is as far off as one in the past.
            let age = match now.duration_since(modified) {
                Ok(age) => age,
                Err(ahead) => ahead.duration(),
            };
            if age > REMOVED_AFTER && name != self.gateway {
                // Whether it succeeds or not: the entry does not count.
                let _ = fs::remove_file(entry.path());
                continue;
            }
            found.insert(name.to_owned(), age);
        }
        Ok(found)
    }
}

enum ReadOutcome<T> {
    Missing,
    Known,
    New(Identity, T),
}

impl PlanStore for FileStore {
    fn description(&self) -> String {
        format!("files in {}", self.directory.display())
    }

    fn publish(&mut self, inputs: &Inputs) -> Result<PublishOutcome, StoreError> {
        if inputs.gateway != self.gateway {
            let (own, other) = (&self.gateway, &inputs.gateway);
            let text = format!("inputs of gateway {other:?}, this is {own:?}");
            return Err(DocumentError::Value(text).into());
        }
        let document = encode(inputs)?;
        make_directory(&self.directory)?;
        replace(&self.inputs_path(&self.gateway), &document)?;
        Ok(PublishOutcome::Stored)
    }

    fn keep_alive(&mut self) -> Result<bool, StoreError> {
        let path = self.inputs_path(&self.gateway);
        let file = match regular_file::append(&path, None) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file.map_err(|e| StoreError::file("open", &path, e))?,
        };
        file.set_modified(SystemTime::now())
            .map_err(|e| StoreError::file("touch", &path, e))?;
        Ok(true)
    }

    fn withdraw(&mut self) -> Result<(), StoreError> {
        let path = self.inputs_path(&self.gateway);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::file("remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    fn load(&mut self) -> Result<SiteView, StoreError> {
        make_directory(&self.directory)?;
        let mut live = self.gateways()?;
        live.retain(|_, age| *age <= TIME_TO_LIVE);
        self.notices.count_gateways(live.len() as u64);
        self.seen.retain(|name, _| live.contains_key(name));
        for name in live.into_keys().take(GATEWAYS_MAX) {
            let path = self.inputs_path(&name);
            let known = self.seen.get(&name).map(|entry| entry.file);
            match self.read::<Inputs>(&path, known)? {
                ReadOutcome::Known => {}
                ReadOutcome::Missing => {
                    self.seen.remove(&name);
                }
                ReadOutcome::New(_, inputs) if inputs.gateway != name => {
                    let text = format!("it is of gateway {:?}", inputs.gateway);
                    self.seen.remove(&name);
                    self.quarantine_file(&path, &text)?;
                }
                ReadOutcome::New(file, inputs) => {
                    // Kept alive only.
                    if let Some(entry) = self.seen.get_mut(&name)
                        && entry.inputs == inputs
                    {
                        entry.file = file;
                        continue;
                    }
                    self.reads += 1;
                    let entry = Entry {
                        file,
                        inputs,
                        since: Instant::now(),
                        revision: self.reads,
                    };
                    self.seen.insert(name, entry);
                }
            }
        }
        let mut view = SiteView::default();
        for (name, entry) in &self.seen {
            let member = Member {
                inputs: entry.inputs.clone(),
                age: entry.since.elapsed(),
                revision: entry.revision,
            };
            view.gateways.insert(name.clone(), member);
        }
        if let Some(StoredPlan { revision, plan }) = self.stored_plan()? {
            view.plan_revision = revision;
            view.plan = Some(SitePlan { revision, ..plan });
        }
        Ok(view)
    }

    fn offer(&mut self, plan: &SitePlan, based_on: u64) -> Result<OfferOutcome, StoreError> {
        make_directory(&self.directory)?;
        let _lock = self.lock()?;
        let revision = self.stored_plan()?.map_or(0, |stored| stored.revision);
        if revision != based_on {
            return Ok(OfferOutcome::Refused { revision });
        }
        let stored = StoredPlan {
            // A store that lasts so long begins again.
            revision: revision % REVISION_MAX + 1,
            plan: plan.clone(),
        };
        replace(&self.plan_path(), &encode(&stored)?)?;
        Ok(OfferOutcome::Accepted {
            revision: stored.revision,
        })
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        self.notices.take()
    }

    fn time_to_live(&self) -> Duration {
        TIME_TO_LIVE
    }

    fn refresh_interval(&self) -> Duration {
        REFRESH
    }

    fn watcher(&self) -> Option<Box<dyn Watcher>> {
        None
    }
}

/// Makes the directory and those above it, readable by their owner alone.
pub(crate) fn make_directory(directory: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|e| StoreError::file("make", directory, e))
}

/// Puts `bytes` in the file's place, all or nothing, and on the disk before it returns.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    // The process's number, so that two processes never write to one file.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let written = write_durably(&temporary, path, bytes);
    if written.is_err() {
        // Frees what a full disk needs most; where even that fails there is nothing to be done.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_durably(temporary: &Path, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let failed = |doing| move |e| StoreError::file(doing, path, e);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(temporary).map_err(failed("write"))?;
    file.write_all(bytes).map_err(failed("write"))?;
    file.sync_all().map_err(failed("write"))?;
    fs::rename(temporary, path).map_err(failed("replace"))?;
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let directory = File::open(directory).map_err(failed("replace"))?;
    directory.sync_all().map_err(failed("replace"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_disk::{fill, on_a_small_disk};

    fn inputs(gateway: &str, sequence: u64) -> Inputs {
        Inputs {
            gateway: gateway.into(),
            sequence,
            ..Inputs::default()
        }
    }

    fn plan(made_by: &str) -> SitePlan {
        SitePlan {
            made_by: made_by.into(),
            ..SitePlan::default()
        }
    }

    #[test]
    fn gateways_see_each_other_and_one_plan() {
        let directory = tempfile::tempdir().unwrap();
        let mut a = FileStore::new(directory.path(), "a").unwrap();
        let mut b = FileStore::new(directory.path(), "b").unwrap();
        a.publish(&inputs("a", 1)).unwrap();
        b.publish(&inputs("b", 7)).unwrap();
        let view = a.load().unwrap();
        assert_eq!(view.gateways["b"].inputs.sequence, 7);
        assert_eq!(view.leader(), Some("a"));
        assert_eq!(view.plan, None);

        assert_eq!(
            a.offer(&plan("a"), 0).unwrap(),
            OfferOutcome::Accepted { revision: 1 }
        );
        assert_eq!(
            b.offer(&plan("b"), 0).unwrap(),
            OfferOutcome::Refused { revision: 1 }
        );
        assert_eq!(
            b.offer(&plan("b"), 1).unwrap(),
            OfferOutcome::Accepted { revision: 2 }
        );
        let stored = a.load().unwrap().plan.unwrap();
        assert_eq!((stored.made_by.as_str(), stored.revision), ("b", 2));

        b.withdraw().unwrap();
        assert!(!a.load().unwrap().gateways.contains_key("b"));
        assert!(!b.keep_alive().unwrap());
    }

    #[test]
    fn a_gateway_that_is_not_kept_alive_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let mut a = FileStore::new(directory.path(), "a").unwrap();
        a.publish(&inputs("a", 1)).unwrap();
        let file = File::open(directory.path().join("inputs-a.json")).unwrap();
        for far in [TIME_TO_LIVE * 2, REMOVED_AFTER * 2] {
            file.set_modified(SystemTime::now() - far).unwrap();
            assert!(a.load().unwrap().gateways.is_empty());
            file.set_modified(SystemTime::now() + far).unwrap();
            assert!(a.load().unwrap().gateways.is_empty());
        }
        assert!(a.keep_alive().unwrap());
        assert_eq!(a.load().unwrap().gateways.len(), 1);
    }

    #[test]
    fn plans_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let open = || FileStore::new(directory.path(), "a").unwrap();
        open().offer(&plan("a"), 0).unwrap();
        let view = open().load().unwrap();
        assert_eq!(view.plan_revision, 1);
        assert_eq!(view.plan.unwrap().made_by, "a");
    }

    #[test]
    fn corrupt_files_are_quarantined_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = FileStore::new(directory.path(), "a").unwrap();
        store.offer(&plan("a"), 0).unwrap();
        let too_large = vec![b' '; DOCUMENT_BYTES_MAX + 1];
        // A number that cannot be counted up any more would be in the way for good.
        let last = format!(
            r#"{{"layout":1,"made_by":"a","made_at_unix_seconds":0,"revision":{}}}"#,
            u64::MAX
        );
        let garbage = [
            &b"\0\xff{"[..],
            b"",
            b"{\"layout\":9}",
            &too_large,
            last.as_bytes(),
        ];
        for garbage in garbage {
            fs::write(directory.path().join(PLAN), garbage).unwrap();
            let view = store.load().unwrap();
            assert_eq!((view.plan, view.plan_revision), (None, 0));
            let notices = store.take_notices();
            let [Notice::QuarantinedFile(kept)] = &notices[..] else {
                panic!("{notices:?}");
            };
            assert_eq!(fs::read(&kept.kept).unwrap(), garbage);
            assert_eq!(
                store.offer(&plan("a"), 0).unwrap(),
                OfferOutcome::Accepted { revision: 1 }
            );
        }
        fs::write(directory.path().join("inputs-a.json"), "garbage").unwrap();
        assert!(store.load().unwrap().gateways.is_empty());
        assert_eq!(store.take_notices().len(), 1);
        assert!(!store.keep_alive().unwrap());
    }

    /// Reading a FIFO would wait for its writer.
    #[test]
    fn fifos_in_place_of_files_do_not_stop_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = FileStore::new(directory.path(), "a").unwrap();
        store.publish(&inputs("a", 1)).unwrap();
        store.offer(&plan("a"), 0).unwrap();
        for name in [PLAN, LOCK, "inputs-a.json", "inputs-b.json"] {
            let path = directory.path().join(name);
            let _ = fs::remove_file(&path);
            let made = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(made.unwrap().success());
        }
        let (done, result) = std::sync::mpsc::channel();
        let started = thread::spawn(move || {
            let kept_alive = store.keep_alive().unwrap_err().to_string();
            let offered = store.offer(&plan("a"), 0).unwrap_err().to_string();
            let view = store.load().unwrap();
            done.send(()).unwrap();
            (kept_alive, offered, view, store.take_notices().len())
        });
        let limit = Duration::from_secs(60);
        result.recv_timeout(limit).expect("it does not wait");
        let (kept_alive, offered, view, notices) = started.join().unwrap();
        assert!(kept_alive.contains("not a regular file"), "{kept_alive}");
        assert!(offered.contains("not a regular file"), "{offered}");
        assert!(view.plan.is_none() && view.gateways.is_empty());
        assert_eq!(notices, 3, "put aside: the plan and two inputs");
    }

    #[test]
    fn only_the_owner_may_read() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("state/plan");
        let mut store = FileStore::new(&directory, "a").unwrap();
        store.publish(&inputs("a", 1)).unwrap();
        store.offer(&plan("a"), 0).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{:?}", entry.file_name());
        }
    }

    #[test]
    fn a_held_lock_is_an_error_after_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = FileStore::new(directory.path(), "a").unwrap();
        let _held = store.lock().unwrap();
        let error = store.offer(&plan("a"), 0).unwrap_err();
        assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    }

    #[test]
    fn a_full_disk_leaves_the_stored_plan_intact() {
        on_a_small_disk(1 << 20, |disk| {
            let mut store = FileStore::new(disk, "a").unwrap();
            let plan = |apps: u32| SitePlan {
                made_by: "a".into(),
                assignments: [(
                    "a".to_owned(),
                    (0..apps)
                        .map(|n| (format!("app-{n}"), "fibre".to_owned()))
                        .collect(),
                )]
                .into(),
                ..SitePlan::default()
            };
            let inputs = Inputs {
                gateway: "a".into(),
                ..Inputs::default()
            };
            store.publish(&inputs).unwrap();
            assert_eq!(
                store.offer(&plan(10), 0).unwrap(),
                OfferOutcome::Accepted { revision: 1 }
            );
            let filler = fill(disk, 8192);
            let error = store.offer(&plan(5000), 1).unwrap_err();
            assert!(matches!(error, StoreError::NoSpace { .. }), "{error:?}");
            assert!(error.to_string().contains("no space left"), "{error}");
            let names: Vec<_> = fs::read_dir(disk)
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            assert_eq!(names.len(), 4, "{names:?}");
            assert!(store.keep_alive().unwrap());
            let mut other = FileStore::new(disk, "a").unwrap();
            for store in [&mut store, &mut other] {
                let view = store.load().unwrap();
                assert_eq!(view.plan_revision, 1);
                assert_eq!(view.plan.unwrap().assignments["a"].len(), 10);
                assert_eq!(view.gateways.len(), 1);
                assert_eq!(store.take_notices(), []);
            }
            fs::remove_file(filler).unwrap();
            assert_eq!(
                store.offer(&plan(5000), 1).unwrap(),
                OfferOutcome::Accepted { revision: 2 }
            );
        });
    }
}
