//! Real-time behaviour: scheduling, timers without slack, locked memory, CPU affinity, CPUs that do not
//! sleep.
//!
//! For waiting until a deadline see [`crate::epoll`], for clocks [`crate::clock`].

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    mem,
    time::Duration,
};

/// A priority of SCHED_FIFO, 1 (lowest) to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FifoPriority(u8);

impl FifoPriority {
    pub const fn get(self) -> u8 {
        self.0
    }

    /// `None` outside 1..=99.
    pub const fn new(priority: u8) -> Option<Self> {
        if matches!(priority, 1..=99) {
            Some(Self(priority))
        } else {
            None
        }
    }
}

/// Schedules the calling thread with SCHED_FIFO, ahead of all threads that are not real-time.
///
/// It runs until it waits. A thread that never waits takes a CPU from all others, except for the 5 % that the
/// kernel reserves (`sched_rt_runtime_us`).
///
/// # Errors
/// `EPERM` without CAP_SYS_NICE or an `RLIMIT_RTPRIO`.
pub fn schedule_fifo(priority: FifoPriority) -> io::Result<()> {
    schedule_fifo_of(0, priority)
}

/// Like [`schedule_fifo`] for another thread; `thread` is its number, 0 that of the caller.
///
/// # Errors
/// `ESRCH` if there is none; `EPERM` without CAP_SYS_NICE.
pub fn schedule_fifo_of(thread: i32, priority: FifoPriority) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sched_param.
    let mut parameters: libc::sched_param = unsafe { mem::zeroed() };
    parameters.sched_priority = libc::c_int::from(priority.0);
    // Children and threads of this thread fall back to ordinary scheduling.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: takes a number and parameters that are live.
    check(unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) })
}

/// Lets the kernel delay the calling thread's timers by at most `slack`; the usual value is 50 µs.
/// Zero is taken as 1 ns. Real-time threads have none anyway.
///
/// # Errors
/// None is known.
pub fn set_timer_slack(slack: Duration) -> io::Result<()> {
    let nanos = libc::c_ulong::try_from(slack.as_nanos())
        .unwrap_or(libc::c_ulong::MAX)
        .max(1);
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos) })
}

/// Keeps the process's memory in RAM once it was touched.
///
/// # Errors
/// `ENOMEM` or `EPERM` beyond `RLIMIT_MEMLOCK` without CAP_IPC_LOCK.
pub fn lock_memory() -> io::Result<()> {
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: takes integers only and changes no content.
    check(unsafe { libc::mlockall(flags) })
}

/// Binds the calling thread to one CPU, counted from zero.
///
/// # Errors
/// `EINVAL` if there is no such CPU or the process may not use it.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the number was just checked against the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: zero means the calling thread; the set is live and of the length given.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) })
}

/// Keeps every CPU of the machine awake while it exists: idle CPUs poll instead of halting, and wake up in
/// about 1 µs instead of some 25 µs on a virtual machine.
#[derive(Debug)]
pub struct CpusAwake(#[expect(dead_code, reason = "the kernel looks whether it is open")] File);

impl CpusAwake {
    /// Asks for a CPU latency of 0 µs by the kernel's PM QoS interface.
    ///
    /// # Errors
    /// Those of opening and writing `/dev/cpu_dma_latency`, which requires root and is missing in most
    /// containers.
    pub fn hold() -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .write(true)
            .open("/dev/cpu_dma_latency")?;
        file.write_all(&0_i32.to_ne_bytes())?;
        Ok(Self(file))
    }
}

/// CPU time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live timespec. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_priorities_match_the_kernel() {
        assert!(FifoPriority::new(0).is_none() && FifoPriority::new(100).is_none());
        assert!(FifoPriority::new(1).is_some() && FifoPriority::new(99).is_some());
    }

    #[test]
    fn impossible_cpu_is_refused() {
        assert!(pin_to_cpu(usize::MAX).is_err());
    }
}
