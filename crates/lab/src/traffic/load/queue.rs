//! A device's receive queue: a ring that a kernel thread on one CPU serves, like a network card's.
//!
//! A plain veth device has none: the sender's own system call carries a packet through the receiving host.
//! With GRO, and without segmentation offload at the sending end, packets pass a ring of 256
//! (`VETH_RING_SIZE`). With threaded NAPI a thread serves the ring.

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

/// The receive queue of one device, and its CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// The kernel threads that serve it.
    pub threads: Vec<i32>,
    /// The CPU to which they are bound.
    pub cpu: usize,
}

/// Priority below the load's sender, above everything else; ours.
const PRIORITY: FifoPriority = FifoPriority::new(4).unwrap();

/// Time for the kernel to start the threads; ours: it does so at once.
const START_WAIT: Duration = Duration::from_secs(2);

const START_STEP: Duration = Duration::from_millis(2);

impl ReceiveQueue {
    /// Gives the plain link `device` a receive ring in `host`, served on `cpu`, for packets from `sender`. It
    /// stays as long as the link.
    ///
    /// # Errors
    /// [`TrafficError::ReceivePath`] if the kernel refuses. Threaded NAPI needs Linux 5.12.
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
        // `ip` mounts the host's /sys for its child; ours is the machine's.
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

/// The kernel threads that serve a device of this name, in any namespace.
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
