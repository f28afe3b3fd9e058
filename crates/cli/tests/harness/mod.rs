//! Runs the real command, `crate::PROGRAM`, and looks at what it says.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::{
    ffi::OsStr,
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use keiro_testing::not_tested;
use serde_json::Value;

/// Nothing that these tests run takes longer, on a busy machine either.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Its exit status; `None`: a signal ended it, or the time limit.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Panics unless it ended with `code`.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Panics unless standard error holds every one of `parts`.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "no `{part}` in:\n{}",
                self.stderr
            );
        }
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// The command, to be run without a terminal and with nothing to read.
pub(crate) fn keiro<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(crate::PROGRAM);
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    finish(&mut keiro(args), b"")
}

/// Runs a command to its end, at most for [`LIMIT`], with `input` to read.
pub(crate) fn finish(command: &mut Command, input: &[u8]) -> Ran {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A program that was just written is busy while a process that another test forked meanwhile
    // still holds the descriptor it was written through.
    let mut child = eventually("the program is not busy", || match command.spawn() {
        Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
        spawned => Some(spawned.expect("the command starts")),
    });
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // A command that does not read its input closes the pipe, which is its right.
    let writing = thread::spawn(move || drop(stdin.write_all(&input)));
    let stdout = gather(child.stdout.take().expect("piped"));
    let stderr = gather(child.stderr.take().expect("piped"));
    let code = wait(&mut child, LIMIT);
    if code.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    writing.join().expect("input is written");
    Ran {
        code: code.flatten(),
        stdout: stdout.join().expect("output is read"),
        stderr: stderr.join().expect("messages are read"),
    }
}

fn gather(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("a pipe is read");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The exit status, `Some(None)` for a signal; `None` if it still runs after `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<Option<i32>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status.code());
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal, for example `TERM`, to a process that a test started. By the shell: a small
/// machine has no `kill` of its own.
pub(crate) fn signal(child: &Child, signal: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{signal} {}", child.id())])
        .status();
    assert!(status.expect("the shell runs").success());
}

pub(crate) use keiro_testing::eventually;

/// A directory with a configuration and a key.
pub(crate) struct Site {
    pub(crate) directory: tempfile::TempDir,
}

impl Site {
    pub(crate) fn without_key() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    /// A directory with a private key.
    pub(crate) fn new() -> Self {
        let site = Self::without_key();
        let key = run(["genkey"]).expect_code(0).stdout;
        site.write("private.key", &key);
        site.set_mode("private.key", 0o600);
        site
    }

    /// The file of this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path
    }

    pub(crate) fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).expect("mode set");
    }

    /// Makes the directory and its files `user`'s, but the private key, which stays root's.
    pub(crate) fn give_to(&self, user: &str) {
        let mut command = Command::new("chown");
        command.args(["-R", user]).arg(self.directory.path());
        finish(&mut command, b"").expect_code(0);
        let mut command = Command::new("chown");
        finish(command.arg("root").arg(self.path("private.key")), b"").expect_code(0);
    }

    /// The beginning of a configuration: `[gateway]`, all of whose files are in the directory.
    pub(crate) fn gateway(&self, name: &str) -> String {
        let at = |file| self.path(file).display().to_string();
        format!(
            "[gateway]\nname = \"{name}\"\nprivate_key_file = \"{}\"\ncontrol_socket = \"{}\"\n\
             message_socket = \"{}\"\nstate_directory = \"{}\"\n",
            at("private.key"),
            at("control.sock"),
            at("message.sock"),
            at("state"),
        )
    }

    /// The public key of the private key.
    pub(crate) fn public_key(&self) -> String {
        let key = fs::read(self.path("private.key")).expect("the key is there");
        finish(&mut keiro(["pubkey"]), &key)
            .expect_code(0)
            .stdout
            .trim()
            .to_owned()
    }
}

/// A path as text.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Whether the tests run as root; says so where they do not, since then a part is left out.
pub(crate) fn is_root(test: &str) -> bool {
    let root =
        fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        not_tested(test, "network namespaces need root");
    }
    root
}
