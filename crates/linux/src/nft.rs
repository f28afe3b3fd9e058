//! nftables by the program nft(8), and notice of changes.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use caps::{CapSet, Capability};

use crate::netlink_groups::NetlinkGroups;

/// How long nft may take. Ours: a script of some rules takes milliseconds, and the caller waits.
const TIME_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);
/// What is read of its messages.
const MESSAGE_BYTES_MAX: u64 = 4096;
/// What is read of an answer. Ours: some ten thousand names.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Carries out a script (`nft -f`), all of it or nothing, in the calling thread's network namespace.
///
/// # Errors
/// There is no nft, the thread lacks CAP_NET_ADMIN, the kernel or nft refuses, or it takes too long.
pub fn run(script: &str) -> io::Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]);
    started(&mut command, script)
}

/// Whether there is a table; `family` as nft calls it.
///
/// # Errors
/// As [`run`].
pub fn has_table(family: &str, name: &str) -> io::Result<bool> {
    let mut command = Command::new("nft");
    command.args(["list", "table", family, name]);
    match started(&mut command, "") {
        Ok(()) => Ok(true),
        // nft's own message; other failures have another kind.
        Err(error) if error.kind() == io::ErrorKind::Other => Ok(false),
        Err(error) => Err(error),
    }
}

/// Families of tables for IPv4 and IPv6, as nft calls them.
pub const IP_FAMILIES: [&str; 2] = ["ip", "ip6"];

/// A script that removes the tables of this name in [`IP_FAMILIES`], if they are there.
pub fn removal(name: &str) -> String {
    let script = |family| {
        // Added first, so that the removal of one that is not there is no error.
        format!("table {family} {name}\ndelete table {family} {name}\n")
    };
    IP_FAMILIES.map(script).concat()
}

/// The names of all tables, each once.
///
/// # Errors
/// As [`run`].
pub fn table_names() -> io::Result<BTreeSet<String>> {
    let mut command = Command::new("nft");
    command.args(["list", "tables"]).stdout(Stdio::piped());
    let text = answered(&mut command, "")?;
    // `table ip NAME`, a line each.
    let names = text.lines().filter_map(|line| line.split(' ').nth(2));
    Ok(names.map(str::to_owned).collect())
}

fn started(command: &mut Command, input: &str) -> io::Result<()> {
    answered(command.stdout(Stdio::null()), input).map(drop)
}

/// What the program has written, up to [`ANSWER_BYTES_MAX`].
fn answered(command: &mut Command, input: &str) -> io::Result<String> {
    command
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let spawned = {
        let _lent = Lent::take();
        command.spawn()
    };
    let mut child = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::NotFound,
            "there is no program nft; install the package nftables",
        ),
        _ => error,
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // Fits into the pipe; a program that has failed says why itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let stdout = child.stdout.take();
    thread::scope(|scope| {
        // Beside the wait, so that a long answer does not hold the program up.
        let answer = scope.spawn(|| {
            let mut text = String::new();
            if let Some(stdout) = stdout {
                // What was read before an error counts.
                let _ = stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut text);
            }
            text
        });
        let outcome = wait(&mut child);
        if outcome.is_err() {
            // It may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
        }
        outcome.map(|()| answer.join().unwrap_or_default())
    })
}

fn wait(child: &mut Child) -> io::Result<()> {
    let until = Instant::now() + TIME_MAX;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            let why = format!("nft has not ended within {} s", TIME_MAX.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        thread::sleep(POLL);
    };
    if status.success() {
        return Ok(());
    }
    let mut message = String::new();
    if let Some(stderr) = child.stderr.take() {
        // What was read before an error counts.
        let _ = stderr.take(MESSAGE_BYTES_MAX).read_to_string(&mut message);
    }
    let first = message.lines().next().unwrap_or_default();
    Err(io::Error::other(format!("nft: {first} ({status})")))
}

/// The thread's CAP_NET_ADMIN passes to programs that it starts, until this is dropped.
struct Lent;

impl Lent {
    /// `None`: the thread does not have it, or it passes anyhow.
    fn take() -> Option<Self> {
        let is_permitted = caps::has_cap(None, CapSet::Permitted, Capability::CAP_NET_ADMIN);
        let is_ambient = caps::has_cap(None, CapSet::Ambient, Capability::CAP_NET_ADMIN);
        if !is_permitted.unwrap_or(false) || is_ambient.unwrap_or(true) {
            return None;
        }
        caps::raise(None, CapSet::Inheritable, Capability::CAP_NET_ADMIN).ok()?;
        let lent = Self;
        caps::raise(None, CapSet::Ambient, Capability::CAP_NET_ADMIN).ok()?;
        Some(lent)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Dropping what a thread has is always permitted.
        let _ = caps::drop(None, CapSet::Ambient, Capability::CAP_NET_ADMIN);
        let _ = caps::drop(None, CapSet::Inheritable, Capability::CAP_NET_ADMIN);
    }
}

/// Receives a notification for every change of nftables in the namespace in which it was opened. It does not report
/// what changed.
#[derive(Debug)]
pub struct NftWatch(NetlinkGroups);

/// `NFNLGRP_NFTABLES` (`include/uapi/linux/netfilter/nfnetlink.h`).
const GROUP: u32 = 7;

impl NftWatch {
    /// For the calling thread's network namespace; needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// No netlink socket is available, or the capability is missing.
    pub fn open() -> io::Result<Self> {
        NetlinkGroups::join(libc::NETLINK_NETFILTER, &[GROUP]).map(Self)
    }

    /// Whether anything changed since the last call. Does not block.
    ///
    /// # Errors
    /// Notifications from the kernel have ended.
    pub fn changed(&mut self) -> io::Result<bool> {
        self.0.changed()
    }
}
