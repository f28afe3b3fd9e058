//! The privileges of a process's threads, from `/proc` (proc_pid_status(5)).
#![allow(dead_code, reason = "every test file uses its own part")]

use std::{collections::BTreeMap, fs, process::Command};

/// The unprivileged user and group of most distributions.
pub(crate) const NOBODY: u32 = 65_534;
/// CAP_NET_BIND_SERVICE as a bit.
pub(crate) const BIND: u64 = 1 << 10;
/// CAP_NET_ADMIN as a bit.
pub(crate) const ADMIN: u64 = 1 << 12;

/// What one thread may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    /// Real, effective, saved and of file systems.
    pub(crate) users: Vec<u64>,
    pub(crate) groups: Vec<u64>,
    pub(crate) supplementary: Vec<u64>,
    pub(crate) inheritable: u64,
    pub(crate) permitted: u64,
    pub(crate) effective: u64,
    pub(crate) bounding: u64,
    pub(crate) ambient: u64,
    pub(crate) no_new_privileges: bool,
}

/// By name, and number where it is the first thread's name too.
pub(crate) fn threads(pid: i32) -> BTreeMap<String, Thread> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("it runs") {
        let task = task.expect("a thread");
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let id = task.file_name().to_string_lossy().into_owned();
        let name = match id == pid.to_string() {
            true => "main".to_owned(),
            false => format!("{} {id}", field(&status, "Name")),
        };
        all.insert(name, thread(&status));
    }
    all
}

fn thread(status: &str) -> Thread {
    let numbers = |name| -> Vec<u64> {
        let words = field(status, name).split_whitespace();
        words.map(|word| word.parse().expect("a number")).collect()
    };
    let set = |name| u64::from_str_radix(field(status, name), 16).expect("a set");
    Thread {
        users: numbers("Uid"),
        groups: numbers("Gid"),
        supplementary: numbers("Groups"),
        inheritable: set("CapInh"),
        permitted: set("CapPrm"),
        effective: set("CapEff"),
        bounding: set("CapBnd"),
        ambient: set("CapAmb"),
        no_new_privileges: field(status, "NoNewPrivs") == "1",
    }
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(field, _)| *field == name);
    found.expect("the field").1.trim()
}

/// Whether a process of the same user, root's too, that may not trace others can read the process's memory
/// (`PR_SET_DUMPABLE`, ptrace(2)).
fn is_readable(pid: i32, user: u32) -> bool {
    // Opened only: what lies at its beginning is no memory of the process.
    let memory = format!("if=/proc/{pid}/mem");
    let tried = Command::new("setpriv")
        .args([format!("--reuid={user}"), format!("--regid={user}")])
        .args(["--clear-groups", "--bounding-set=-sys_ptrace"])
        .args(["dd", "count=0", "of=/dev/null", &memory])
        .output();
    tried.expect("util-linux").status.success()
}

/// No core file of the process is written, and no other process of its user reads its memory.
fn assert_protected(pid: i32, user: u32) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let of_core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let numbers: Vec<&str> = of_core
        .expect("Linux")
        .split_whitespace()
        .skip(4)
        .take(2)
        .collect();
    assert_eq!(numbers, ["0", "0"], "{limits}");
    // What is not protected can be read like this.
    let mut other = Command::new("setpriv")
        .args([format!("--reuid={user}"), format!("--regid={user}")])
        .args([
            "--clear-groups",
            "--bounding-set=-sys_ptrace",
            "sleep",
            "60",
        ])
        .spawn()
        .expect("util-linux");
    let other_pid = i32::try_from(other.id()).expect("a process");
    keiro_testing::eventually("another process is readable", || {
        let name = fs::read_to_string(format!("/proc/{other_pid}/comm")).ok()?;
        (name.trim() == "sleep" && is_readable(other_pid, user)).then_some(())
    });
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    assert!(!is_readable(pid, user), "its memory can be read");
}

/// Every thread is `user`'s and has no way to get more; the first has the capabilities `main`, as has the one that
/// runs nft, the others none, and `bounding` bounds all. The process's memory is its own.
pub(crate) fn assert_reduced(pid: i32, user: u32, main: u64, bounding: u64) {
    assert_protected(pid, user);
    let all = threads(pid);
    for (name, thread) in &all {
        let capabilities = match name.split(' ').next() {
            Some("main" | "steering") => main,
            _ => 0,
        };
        let user = u64::from(user);
        let wanted = Thread {
            users: vec![user; 4],
            groups: vec![user; 4],
            // Root's are the test's own.
            supplementary: match user {
                0 => thread.supplementary.clone(),
                _ => vec![user],
            },
            inheritable: 0,
            permitted: capabilities,
            effective: capabilities,
            bounding,
            ambient: 0,
            no_new_privileges: true,
        };
        assert_eq!(*thread, wanted, "thread {name} of {:?}", all.keys());
    }
}
