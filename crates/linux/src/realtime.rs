//! Being on time: real-time scheduling, timers without slack, clocks, and waiting for descriptors
//! until a deadline to the nanosecond.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    time::Duration,
};

/// A priority of SCHED_FIFO, 1 (lowest) to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FifoPriority(u8);

/// Waits until one of several descriptors is readable, or for a time.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
}

/// What a [`Waiter`] saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A descriptor is readable.
    pub readable: bool,
    /// A descriptor has an error or was hung up.
    pub failed: bool,
}

impl FifoPriority {
    /// `None` outside 1..=99.
    pub const fn new(priority: u8) -> Option<Self> {
        if matches!(priority, 1..=99) {
            Some(Self(priority))
        } else {
            None
        }
    }
}

/// Schedules the calling thread before all that are not real-time, first in, first out.
///
/// It then runs until it waits: a thread that never does takes a CPU from everybody else, but for
/// the 5 % that the kernel keeps back (`sched_rt_runtime_us`).
///
/// # Errors
/// `EPERM` without CAP_SYS_NICE or an `RLIMIT_RTPRIO`.
pub fn schedule_fifo(priority: FifoPriority) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sched_param.
    let mut parameters: libc::sched_param = unsafe { mem::zeroed() };
    parameters.sched_priority = libc::c_int::from(priority.0);
    // Children and threads of this thread fall back to ordinary scheduling.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: zero means the calling thread; the parameters are live.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) })
}

/// Lets the kernel delay the calling thread's timers by at most `slack`; the usual value is 50 µs.
/// Zero is taken as 1 ns. Real-time threads have none anyway.
///
/// # Errors
/// None that is known.
pub fn set_timer_slack(slack: Duration) -> io::Result<()> {
    let nanos = libc::c_ulong::try_from(slack.as_nanos())
        .unwrap_or(libc::c_ulong::MAX)
        .max(1);
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos) })
}

/// Keeps the whole process's memory in RAM from the moment that it is first touched.
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
/// `EINVAL` where there is no such CPU or the process may not use it.
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

/// Time since the machine started, suspended time not counted; never goes back.
pub fn monotonic() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

/// Time since 1970 by the clock that may be set.
pub fn realtime() -> Duration {
    clock(libc::CLOCK_REALTIME)
}

/// CPU time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

impl Waiter {
    /// Waits for nothing yet.
    ///
    /// # Errors
    /// Where the process has too many descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes an integer and gives a new descriptor or -1.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check(epoll.min(0))?;
        // SAFETY: the kernel has just given this descriptor to us alone.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        Ok(Self { epoll })
    }

    /// Adds a descriptor, until it is closed.
    ///
    /// # Errors
    /// Where it was added before, or is a plain file.
    pub fn add(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: both descriptors are open, and the event is live.
        check(unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                descriptor.as_raw_fd(),
                &raw mut event,
            )
        })
    }

    /// Waits until a descriptor is ready, or until `timeout` is over; `None` waits for ever.
    /// A signal ends it early.
    ///
    /// # Errors
    /// `ENOSYS` before Linux 5.11.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Readiness> {
        const EVENTS_MAX: usize = 16;
        // SAFETY: all-zero bytes are valid events.
        let mut events: [libc::epoll_event; EVENTS_MAX] = unsafe { mem::zeroed() };
        let timeout = timeout.map(timespec);
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: room for EVENTS_MAX events, a live timeout or none, and no signal mask. By
        // number because glibc 2.34 and older have no wrapper.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS_MAX as libc::c_int,
                timeout,
                ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(Readiness::default()),
                _ => Err(error),
            };
        };
        let seen = events
            .iter()
            .take(count)
            .fold(0, |seen, event| seen | event.events);
        Ok(Readiness {
            readable: seen & libc::EPOLLIN as u32 != 0,
            failed: seen & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0,
        })
    }
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live timespec. The call cannot fail for the clocks used here.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(duration.subsec_nanos() as i32),
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsFd};

    use super::*;

    #[test]
    fn waiter_waits_for_its_time() {
        let waiter = Waiter::new().unwrap();
        let start = monotonic();
        let ready = waiter.wait(Some(Duration::from_micros(300))).unwrap();
        assert_eq!(ready, Readiness::default());
        assert!(monotonic() - start >= Duration::from_micros(300));
    }

    #[test]
    fn waiter_sees_what_is_readable_or_hung_up() {
        let (reader, mut writer) = io::pipe().unwrap();
        let waiter = Waiter::new().unwrap();
        waiter.add(reader.as_fd()).unwrap();
        writer.write_all(b"x").unwrap();
        assert!(waiter.wait(None).unwrap().readable);
        drop(writer);
        assert!(waiter.wait(None).unwrap().failed);
    }

    #[test]
    fn priorities_are_those_of_the_kernel() {
        assert!(FifoPriority::new(0).is_none() && FifoPriority::new(100).is_none());
        assert!(FifoPriority::new(1).is_some() && FifoPriority::new(99).is_some());
    }

    #[test]
    fn impossible_cpu_is_refused() {
        assert!(pin_to_cpu(usize::MAX).is_err());
    }
}
