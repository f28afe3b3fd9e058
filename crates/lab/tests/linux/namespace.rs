//! Unnamed network namespaces, and waiting.

use std::{
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use keiro_linux::netns::Netns;

/// Timeout of every wait; nothing takes longer unless it is broken.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// A network namespace, removed when dropped.
pub(crate) struct Namespace(pub(crate) Arc<Netns>);

impl Namespace {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("keiro-{}-{number}", std::process::id());
        let netns = |action: &str| {
            let status = Command::new("ip").args(["netns", action, &name]).status();
            assert!(
                status.expect("ip runs").success(),
                "ip netns {action} {name}"
            );
        };
        netns("add");
        let opened = Netns::open(&name);
        // It exists as long as it is open.
        netns("delete");
        let namespace = Self(Arc::new(opened.expect("the namespace is there")));
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `ip` inside, which must succeed, and returns its output.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        let mut command = Command::new("ip");
        command
            .args(arguments.split_whitespace())
            .stdin(Stdio::null());
        self.0.enter_on_exec(&mut command);
        let output = command.output().expect("ip runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {message}");
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.0.run(f).expect("the namespace can be entered")
    }

    /// A counter of `/proc/net/snmp`.
    pub(crate) fn counter(&self, group: &str, name: &str) -> u64 {
        let text = self.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
        let text = text.expect("the kernel's counters");
        let mut lines = text
            .lines()
            .filter(|line| line.split(':').next() == Some(group));
        let names = lines.next().expect("a line of names").split_whitespace();
        let values = lines.next().expect("a line of values").split_whitespace();
        let mut pairs = names.zip(values);
        let (_, value) = pairs.find(|(n, _)| *n == name).expect("such a counter");
        value.parse().expect("a number")
    }
}

pub(crate) use keiro_testing::wait_until;

pub(crate) use keiro_testing::has_root as is_root;
