//! A device's receive queue: a ring that a kernel thread on one CPU serves, as a network card's.
//!
//! A plain veth device has none: the sender's own system call carries a packet through the
//! receiving host. With GRO, and without segmentation offload at the sending end, packets pass a
//! ring of 256 (`VETH_RING_SIZE`), and with threaded NAPI a thread serves the ring.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use keiro_linux::{
    offload::{disable_offloads, enable_gro},
    realtime::{FifoPriority, schedule_fifo_of},
};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    lab::{Host, LabError, iproute},
    traffic::TrafficError,
};

/// The receive queue of one device, and where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// The kernel threads that serve it.
    pub threads: Vec<i32>,
    /// The CPU to which they are bound.
    pub cpu: usize,
}

/// Below the load's sender, above whatever else the machine does; ours.
const PRIORITY: FifoPriority = FifoPriority::new(4).unwrap();

/// How long the kernel may take to start the threads; ours: it does so at once.
const START_WAIT: Duration = Duration::from_secs(2);

const START_STEP: Duration = Duration::from_millis(2);

impl ReceiveQueue {
    /// Gives the plain link `device` a receive ring in `host`, served on `cpu`, for what comes from
    /// `sender`. It stays for as long as the link does.
    ///
    /// # Errors
    /// [`TrafficError::ReceivePath`]: what the kernel refuses. Threaded NAPI is there from Linux
    /// 5.12 on.
    pub fn make(
        host: &Host,
        sender: &Host,
        device: &str,
        cpu: usize,
    ) -> Result<Self, TrafficError> {
        let failed = |what: &str| {
            let what = format!("{what} of device `{device}`");
            let host = host.name().to_owned();
            move |source| TrafficError::ReceivePath { host, what, source }
        };
        sender
            .run(|| disable_offloads(device))
            .map_err(LabError::from)?
            .map_err(|error| failed("the sending end's offloads")(error.source))?;
        let before = threads_of(device);
        host.run(|| enable_gro(device))
            .map_err(LabError::from)?
            .map_err(|error| failed("the receive ring")(error.source))?;
        // `ip` shows the host's /sys to what it starts; ours is the machine's.
        let file = format!("/sys/class/net/{device}/threaded");
        let script = format!("echo 1 > {file}");
        iproute::run(&["netns", "exec", host.namespace(), "sh", "-c", &script])?;
        let deadline = Instant::now() + START_WAIT;
        let threads = loop {
            let started: Vec<i32> = threads_of(device).difference(&before).copied().collect();
            if !started.is_empty() {
                break started;
            }
            if Instant::now() >= deadline {
                let error = io::Error::other("no thread serves it");
                return Err(failed("the receive ring")(error));
            }
            thread::sleep(START_STEP);
        };
        let bound = threads.iter().try_for_each(|&thread| {
            let mut cpus = CpuSet::new();
            cpus.set(cpu)?;
            sched_setaffinity(Pid::from_raw(thread), &cpus)?;
            schedule_fifo_of(thread, PRIORITY)
        });
        bound.map_err(failed(
            "the CPU and priority of the thread that serves the ring",
        ))?;
        Ok(Self { threads, cpu })
    }
}

/// The kernel threads that serve a device of this name, in whatever namespace.
fn threads_of(device: &str) -> BTreeSet<i32> {
    let prefix = format!("napi/{device}-");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let comm = Path::new("/proc").join(pid.to_string()).join("comm");
            fs::read_to_string(comm).is_ok_and(|comm| comm.starts_with(&prefix))
        })
        .collect()
}
