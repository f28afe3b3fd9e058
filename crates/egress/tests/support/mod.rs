//! What tests of the daemons in network namespaces share.

use std::{
    sync::mpsc,
    thread::{self, JoinHandle},
};

use keiro_egress::daemon::{Daemon, Handle, Role};
use keiro_lab::Host;
use keiro_linux::netns::Netns;

/// A daemon in a thread of its own; dropping it ends it.
pub(crate) struct Serving {
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Has it made in a host's namespace.
    pub(crate) fn start<R: Role>(
        host: &Host,
        make: impl FnOnce() -> Daemon<R> + Send + 'static,
    ) -> Self {
        let netns = Netns::open(host.namespace()).unwrap();
        let (ready, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            netns.enter().unwrap();
            let daemon = make();
            ready.send(daemon.handle()).unwrap();
            daemon.serve(None).unwrap();
        });
        Self {
            handle: started.recv().expect("it starts"),
            thread: Some(thread),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || thread::panicking());
        }
    }
}

/// Runs `ip -6` in a host, and gives what it printed.
pub(crate) fn ip(host: &Host, arguments: &str) -> String {
    ip_of(host, "-6", arguments)
}

/// The same for the family of `-4` or `-6`.
#[allow(dead_code, reason = "every binary uses its own part")]
pub(crate) fn ip_of(host: &Host, family: &str, arguments: &str) -> String {
    let mut command = host.command("ip");
    command.arg(family).args(arguments.split_whitespace());
    let output = command.output().expect("ip runs");
    let message = String::from_utf8_lossy(&output.stderr);
    // A table without routes is none.
    let empty = message.contains("FIB table does not exist");
    let done = output.status.success() || empty;
    assert!(done, "ip {family} {arguments}: {message}");
    String::from_utf8(output.stdout).expect("text")
}
