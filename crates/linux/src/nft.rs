//! nftables by the program nft(8), and notice of changes.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use caps::{CapSet, Capability};

use crate::netlink_groups::NetlinkGroups;

/// How long nft may take with a short script. Ours: some rules take milliseconds, and the caller waits.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of a script for which it may take another second. Ours: it reads some megabytes a second.
const BYTES_PER_SECOND: usize = 100_000;
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
    // Listing one table fails alike if it is not there and if nft cannot look.
    let mut command = Command::new("nft");
    command
        .args(["list", "tables", family])
        .stdout(Stdio::piped());
    let text = answered(&mut command, "")?;
    let wanted = format!("table {family} {name}");
    Ok(text.lines().any(|line| line.trim_end() == wanted))
}

/// The parts of a table's listing, in no order; `None`: there is no such table.
///
/// # Errors
/// As [`run`].
pub fn parts_of_table(family: &str, name: &str) -> io::Result<Option<Vec<String>>> {
    if !has_table(family, name)? {
        return Ok(None);
    }
    let mut command = Command::new("nft");
    command
        .args(["list", "table", family, name])
        .stdout(Stdio::piped());
    Ok(Some(parts(&answered(&mut command, "")?)))
}

/// Elements of sets and maps need not be listed in one order.
fn parts(listing: &str) -> Vec<String> {
    let parts = listing.split([',', '\n', '{', '}']).map(str::trim);
    let mut parts: Vec<String> = parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    parts.sort_unstable();
    parts
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
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let limit = TIME_MAX + Duration::from_secs((input.len() / BYTES_PER_SECOND) as u64);
    // Pipes beside the wait: one that is full holds the program up, and the limit ends that.
    thread::scope(|scope| {
        scope.spawn(|| {
            // A program that has failed says why itself.
            stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
        });
        let answer = scope.spawn(|| read_start(stdout, ANSWER_BYTES_MAX));
        let message = scope.spawn(|| read_start(stderr, MESSAGE_BYTES_MAX));
        let status = wait(&mut child, limit);
        if status.is_err() {
            // It may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
        }
        let status = status?;
        if status.success() {
            return Ok(answer.join().unwrap_or_default());
        }
        let message = message.join().unwrap_or_default();
        let first = message.lines().next().unwrap_or_default();
        Err(io::Error::other(format!("nft: {first} ({status})")))
    })
}

/// The first bytes of a pipe, whose rest is dropped.
fn read_start(pipe: Option<impl Read>, most: u64) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read before an error counts.
        let _ = pipe.by_ref().take(most).read_to_end(&mut bytes);
        let _ = io::copy(&mut pipe, &mut io::sink());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= until {
            let why = format!("nft has not ended within {} s", limit.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        thread::sleep(POLL);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_the_same_in_any_order_of_its_elements() {
        let listing = |elements: &str| {
            parts(&format!(
                "table ip6 a {{\n\tmap m {{\n\t\ttype ipv6_addr : mark\n\t\telements = {{ {elements} }}\n\t}}\n}}\n"
            ))
        };
        let one = listing("fd00::1 : 0x00000001, fd00::2 : 0x00000002");
        assert_eq!(
            one,
            listing("fd00::2 : 0x00000002,\n\t\t\t     fd00::1 : 0x00000001")
        );
        assert_ne!(one, listing("fd00::1 : 0x00000002, fd00::2 : 0x00000001"));
        assert_ne!(one, listing("fd00::1 : 0x00000001"));
    }

    #[test]
    fn long_input_and_long_messages_do_not_block() {
        let long = "x".repeat(1 << 20);
        // One that reads all and writes as much to both outputs, and one that never reads.
        let mut command = Command::new("tee");
        command.arg("/dev/stderr").stdout(Stdio::piped());
        assert_eq!(answered(&mut command, &long).unwrap().len(), 1 << 20);
        let mut command = Command::new("false");
        let error = answered(command.stdout(Stdio::null()), &long).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }
}
