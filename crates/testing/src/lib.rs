//! What the tests of all crates share: waiting for a condition with a deadline, and reporting a test
//! that could not test anything.
//!
//! A test never sleeps for a fixed time: it waits for what it needs. A deadline is far beyond what a
//! loaded machine takes, so that it only ends a test that would hang.
#![forbid(unsafe_code)]

use std::{
    env,
    fmt::{self, Debug},
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time limit of waiting for a condition.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Pause between two checks.
const STEP: Duration = Duration::from_millis(2);

/// The variable that names a file to which tests append what they have not tested.
pub const NOT_TESTED: &str = "KEIRO_NOT_TESTED";

/// Waits until `condition` returns a value.
///
/// # Panics
/// With `what` if it gives none within [`LIMIT`].
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        thread::sleep(STEP);
    }
}

/// Waits until `holds` returns true, and returns how long that took.
///
/// # Panics
/// With `what` if it does not within [`LIMIT`].
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    eventually(what, || holds().then_some(()));
    start.elapsed()
}

/// Waits until the result of `look` satisfies `holds`, and returns it.
///
/// # Panics
/// With `what` and the last value if it does not within [`LIMIT`].
#[track_caller]
pub fn wait_for_value<T: Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    holds: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        let value = look();
        if holds(&value) {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "not within {LIMIT:?}: {what}: {value:?}"
        );
        thread::sleep(STEP);
    }
}

/// Whether the process is root. Without root the test is reported as not tested, and returns.
pub fn has_root(test: &str) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = uids.and_then(|line| line.split_whitespace().nth(1));
    let root = effective == Some("0");
    if !root {
        not_tested(test, "network namespaces need root");
    }
    root
}

/// Copies the program `from` to `to`, where every user may run it.
///
/// Another process writes the copy. What this process has open for writing, the children that its
/// other threads start have open as well until they execute, and the kernel does not execute a file
/// that is open for writing (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(from).arg(to);
    let status = install.status().expect("install runs");
    assert!(status.success(), "{} to {}", from.display(), to.display());
}

/// Writes a shell script with the lines `text` to `to`, where every user may run it. It is written by
/// another process, for the reason given at [`copy_program`].
///
/// # Panics
/// If it cannot be written.
#[track_caller]
pub fn write_script(to: impl AsRef<Path>, text: &str) {
    let to = to.as_ref();
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(to);
    let mut child = install.stdin(Stdio::piped()).spawn().expect("install runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    write!(stdin, "#!/bin/sh\n{text}\n").expect("install reads");
    drop(stdin);
    let status = child.wait().expect("install ends");
    assert!(status.success(), "{}", to.display());
}

/// Reports that a test tested nothing: on standard error, past the harness that captures what passing
/// tests print, and in the file named by [`NOT_TESTED`], which `cargo xtask test` reads.
///
/// # Panics
/// If that file cannot be written.
pub fn not_tested(test: &str, reason: impl fmt::Display) {
    let line = format!("NOT TESTED: {test}: {reason}\n");
    // The macro would print into the harness's capture.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = env::var_os(NOT_TESTED) {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_returned_as_soon_as_it_is_there() {
        let mut looks = 0;
        let value = eventually("three looks", || {
            looks += 1;
            (looks == 3).then_some("value")
        });
        assert_eq!((value, looks), ("value", 3));
        assert_eq!(wait_for_value("at once", || 7, |n| *n == 7), 7);
        assert!(wait_until("at once", || true) < LIMIT);
    }
}
