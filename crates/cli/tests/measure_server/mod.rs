//! A server for `keiro measure`, and measurements that something ends.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::harness::{LIMIT, Ran, Site, keiro, wait};

/// A server that is ended when dropped, and where it is.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    _reading: thread::JoinHandle<()>,
}

impl Server {
    /// Starts one and waits until it serves.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let rest = line.split_once("serving measurements on ")?.1;
                Some(rest.split_once(' ')?.0.to_owned())
            })
            .expect("it says where it serves");
        // Read on, or it could not write.
        let reading = thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self {
            child,
            address,
            _reading: reading,
        }
    }

    /// On loopback, for everybody.
    pub(crate) fn open() -> Self {
        Self::start(&mut keiro(["measure", "--serve", "127.0.0.1:0", "--open"]))
    }

    /// On loopback, with `site`'s key, for these keys.
    pub(crate) fn guarded(site: &Site, allowed: &[&str]) -> Self {
        let mut command = keiro(["measure", "--serve", "127.0.0.1:0", "--key"]);
        command.arg(site.path("private.key"));
        for key in allowed {
            command.args(["--allow", key]);
        }
        Self::start(&mut command)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A measurement that goes on until something ends it, and its file.
pub(crate) struct Endless {
    child: Child,
    csv: PathBuf,
}

impl Endless {
    /// Lets `command`, which has its server already, measure `sizes`, and waits until it does.
    pub(crate) fn start(command: &mut Command, sizes: &str, site: &Site) -> Self {
        let csv = site.path("x.csv");
        let mut child = command
            .args(["--only", "tcp", "--sizes", sizes, "--per-decade", "1"])
            .args(["--precision", "0.001%", "--repeats", "1000"])
            .args(["--time", "10min", "--csv"])
            .arg(&csv)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        // Byte by byte: a buffer would keep what comes behind the first line.
        let stderr = child.stderr.as_mut().expect("piped");
        let (mut first, mut byte) = (Vec::new(), [0]);
        while !first.ends_with(b"\n") && stderr.read(&mut byte).expect("a pipe is read") == 1 {
            first.push(byte[0]);
        }
        let first = String::from_utf8_lossy(&first);
        assert!(first.contains("transfers over TCP"), "{first}");
        // Some of them; how many is no matter. Nothing reports the first before the end, and a machine
        // may be starved.
        thread::sleep(Duration::from_secs(3));
        Self { child, csv }
    }

    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// Waits until it ends with exit status 1, and makes sure that what was measured is kept.
    pub(crate) fn ended(mut self) -> Ran {
        let code = wait(&mut self.child, LIMIT).expect("it ends");
        let output = self.child.wait_with_output().expect("read");
        let ran = Ran {
            code,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        assert!(ran.stdout.contains("transfers over TCP"), "{ran:#?}");
        let text = fs::read_to_string(&self.csv).expect("written");
        assert!(
            text.contains("ended early") && text.lines().count() > 5,
            "{text}"
        );
        ran.expect_code(1)
    }
}
