//! A process that the kernel gives no memory: in a memory control group with a limit of zero.
//!
//! The kernel refuses such a process memory that it charges to groups (rules and addresses, for example) with
//! ENOMEM, as it would if the machine were out of memory. Routes and messages are not charged. Nor is the
//! process's own memory, because it shares that of the process that waits for it. For the same reason control
//! groups version 2, which cannot disable the OOM killer, find no process to kill and only log that. On
//! machines without such groups the tests report that they tested nothing.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_linux::process;
use keiro_testing::not_tested;

/// Interface files of a version of control groups.
struct Version {
    /// Where groups are made.
    groups: &'static str,
    /// A file that exists in this version only.
    mark: &'static str,
    limit: &'static str,
    unlimited: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        groups: "/sys/fs/cgroup/memory",
        mark: "memory.oom_control",
        limit: "memory.limit_in_bytes",
        unlimited: "-1",
    },
    Version {
        groups: "/sys/fs/cgroup",
        mark: "cgroup.controllers",
        limit: "memory.max",
        unlimited: "max",
    },
];

/// A group of processes without memory, removed when dropped.
pub(crate) struct NoMemory {
    path: PathBuf,
    version: &'static Version,
}

impl NoMemory {
    /// `None` if this machine has no such groups; the test then reports that it tested nothing.
    pub(crate) fn new(test: &str) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("keiro-{}-{number}", std::process::id());
        let mut why = Vec::new();
        for version in &VERSIONS {
            match Self::make(version, &name) {
                Ok(group) => return Some(group),
                Err(error) => why.push(format!("{}: {error}", version.groups)),
            }
        }
        not_tested(
            test,
            format!("no memory control groups: {}", why.join("; ")),
        );
        None
    }

    fn make(version: &'static Version, name: &str) -> io::Result<Self> {
        fs::metadata(Path::new(version.groups).join(version.mark))?;
        let path = Path::new(version.groups).join(name);
        make(&path)?;
        let group = Self { path, version };
        // Without it, version 1 kills a process; version 2 has no such file.
        match group.set("memory.oom_control", "1") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        group.set(version.limit, "0")?;
        Ok(group)
    }

    /// Runs `f` in a process of this group.
    pub(crate) fn run<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let member = || {
            // 0 stands for the writing process.
            self.set("cgroup.procs", "0").expect("the group takes it");
            what()
        };
        process::run_in_child(member).expect("a process")
    }

    /// Number of refused allocations.
    pub(crate) fn refused(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.path.join(name));
        let count = match read("memory.failcnt") {
            Ok(count) => count,
            Err(_) => {
                let events = read("memory.events").expect("a counter");
                let mut events = events.lines();
                let count = events.find_map(|line| line.strip_prefix("max "));
                count.expect("it is counted").to_owned()
            }
        };
        count.trim().parse().expect("a number")
    }

    /// Removes the limit.
    pub(crate) fn relieve(&self) {
        let Version {
            limit, unlimited, ..
        } = self.version;
        self.set(limit, unlimited).expect("no limit");
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        // Does not create a missing file, which would fail with another error.
        let mut file = OpenOptions::new().write(true).open(self.path.join(name))?;
        file.write_all(value.as_bytes())
    }
}

/// An earlier process of this number may have left one.
fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(path)?;
            fs::create_dir(path)
        }
        made => made,
    }
}

impl Drop for NoMemory {
    fn drop(&mut self) {
        // The group notices the end of its processes with a delay.
        let until = Instant::now() + Duration::from_secs(30);
        let mut removed = fs::remove_dir(&self.path);
        while let Err(error) = &removed {
            if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() >= until {
                break;
            }
            thread::sleep(Duration::from_millis(5));
            removed = fs::remove_dir(&self.path);
        }
        assert!(removed.is_ok() || thread::panicking(), "{removed:?}");
    }
}
