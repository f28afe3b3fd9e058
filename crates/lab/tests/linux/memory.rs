//! A process for which the kernel finds no memory: in a memory control group whose limit is nothing.
//!
//! Of such a process the kernel refuses what it charges to groups, rules and addresses among it, with ENOMEM,
//! as it refuses everybody when there is none. Routes and messages are not charged. Nor is the process's own
//! memory, because it is that of the process that waits for it; for the same reason version 2, which has no setting
//! against killing, finds no process to kill there, and says so in the kernel's log. Where there are no such groups,
//! tests say aloud that they have tested nothing.

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

/// How groups of a version are spoken to.
struct Version {
    /// Where they are made.
    groups: &'static str,
    /// What is there, if they are of this version.
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

/// A group of processes without memory, gone with this value.
pub(crate) struct NoMemory {
    path: PathBuf,
    version: &'static Version,
}

impl NoMemory {
    /// For a test; `None`: this machine has no such groups, which is said.
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
        // Without it the first kills a process; the second has no such file.
        match group.set("memory.oom_control", "1") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        group.set(version.limit, "0")?;
        Ok(group)
    }

    /// Runs something in a process of this group.
    pub(crate) fn run<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let member = || {
            // 0 is who writes it.
            self.set("cgroup.procs", "0").expect("the group takes it");
            what()
        };
        process::apart(member).expect("a process")
    }

    /// How often memory was asked for in vain.
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

    /// There is enough from now on.
    pub(crate) fn relieve(&self) {
        let Version {
            limit, unlimited, ..
        } = self.version;
        self.set(limit, unlimited).expect("no limit");
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        // Files that are not there are not to be made: that would be refused in other words.
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
        // Its processes have ended, which the group may hear a moment later.
        let until = Instant::now() + Duration::from_secs(1);
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
