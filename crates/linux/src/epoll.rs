//! epoll(7) with nanosecond waits, and eventfd(2) to wake a waiting thread from another.
//!
//! Waits use `epoll_pwait2` (Linux 5.11). The thread's timer slack determines how late a wake-up is, see
//! [`crate::realtime`]. A thread that waits thousands of times per second and is rarely woken by the timeout
//! should use an [`Alarm`].

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use nix::sys::{
    eventfd::{EfdFlags, EventFd},
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

/// Ends waits at a time without setting a timer for each of them.
///
/// A wait with a timeout sets and cancels a timer. If that is the next timer of its CPU, as a timeout of a
/// millisecond mostly is, the CPU's timer is programmed twice, which takes 3 µs on a virtual machine. An
/// alarm stays set: a wait with a later deadline leaves it unchanged, and is sometimes ended early by it.
#[derive(Debug)]
pub struct Alarm {
    timer: TimerFd,
    token: u64,
    /// Time of the alarm, nanoseconds of CLOCK_MONOTONIC; `None` if not set.
    set_for: Option<u64>,
}

/// A set of descriptors that one thread waits for.
#[derive(Debug)]
pub struct Epoll {
    descriptor: OwnedFd,
}

/// Events to wait for. Hang-ups and errors are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Only hang-ups and errors.
    None,
    Read,
    Write,
    ReadWrite,
}

/// One descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token passed to [`Epoll::add`].
    pub token: u64,
    /// Input is available, or the other side has closed.
    pub readable: bool,
    /// There is room for output.
    pub writable: bool,
    /// The other side is gone or the descriptor is broken; received data may still be read.
    pub hangup: bool,
}

/// Buffer for the events of one wait.
pub struct ReadyList {
    events: Vec<libc::epoll_event>,
    filled: usize,
}

/// Wakes a thread that waits with [`Epoll`], from any thread.
#[derive(Debug)]
pub struct Waker {
    event: EventFd,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// Too many open descriptors, or no memory.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes a flag and gives a new descriptor or -1.
        let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor })
    }

    /// Adds `descriptor`, level-triggered, with this token.
    ///
    /// # Errors
    /// It is already in the set, or cannot be polled.
    pub fn add(&self, descriptor: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor, token, interest)
    }

    /// Changes the events to wait for.
    ///
    /// # Errors
    /// It is not in the set.
    pub fn modify(&self, descriptor: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, descriptor, token, interest)
    }

    /// Removes it. Closing a descriptor that was not duplicated does the same.
    ///
    /// # Errors
    /// It is not in the set.
    pub fn remove(&self, descriptor: &impl AsFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, descriptor, 0, Interest::None)
    }

    /// Waits until something is ready or `timeout` has passed (`None`: no timeout).
    ///
    /// A signal that interrupts the wait ends it with nothing ready.
    ///
    /// # Errors
    /// Those of `epoll_pwait2(2)`; `ENOSYS` before Linux 5.11.
    pub fn wait(&self, ready: &mut ReadyList, timeout: Option<Duration>) -> io::Result<()> {
        ready.filled = 0;
        let timeout = timeout.map(KernelTimespec::of);
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the list is valid for as many events as are asked for; the time is null or a
        // kernel timespec that outlives the call; without a signal mask its size is ignored.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.descriptor.as_raw_fd(),
                ready.events.as_mut_ptr(),
                ready.events.len() as libc::c_int,
                timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match usize::try_from(count) {
            Ok(count) => ready.filled = count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn control(
        &self,
        operation: libc::c_int,
        descriptor: &impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        self.control_events(operation, descriptor, token, interest.bits())
    }

    fn control_events(
        &self,
        operation: libc::c_int,
        descriptor: &impl AsFd,
        token: u64,
        events: u32,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: both descriptors are open for the time of the call, and so is the event.
        let result = unsafe {
            libc::epoll_ctl(
                self.descriptor.as_raw_fd(),
                operation,
                descriptor.as_fd().as_raw_fd(),
                &raw mut event,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Alarm {
    /// An alarm for waits of `epoll`. `token` must not belong to another descriptor; it is never reported.
    ///
    /// # Errors
    /// Too many open descriptors, or no memory.
    pub fn new(epoll: &Epoll, token: u64) -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let events = libc::EPOLLIN | libc::EPOLLET;
        epoll.control_events(libc::EPOLL_CTL_ADD, &timer, token, events as u32)?;
        Ok(Self {
            timer,
            token,
            set_for: None,
        })
    }

    /// Waits until something is ready or CLOCK_MONOTONIC has reached `until_nanos`. May return early with
    /// nothing ready.
    ///
    /// # Errors
    /// Those of [`Epoll::wait`] and `timerfd_settime(2)`.
    pub fn wait(
        &mut self,
        epoll: &Epoll,
        ready: &mut ReadyList,
        until_nanos: u64,
    ) -> io::Result<()> {
        if self.set_for.is_none_or(|at| until_nanos < at) {
            self.set(until_nanos)?;
        }
        epoll.wait(ready, None)?;
        self.take_out_of(ready);
        Ok(())
    }

    /// Polls without waiting.
    ///
    /// # Errors
    /// Those of [`Epoll::wait`].
    pub fn look(&mut self, epoll: &Epoll, ready: &mut ReadyList) -> io::Result<()> {
        epoll.wait(ready, Some(Duration::ZERO))?;
        self.take_out_of(ready);
        Ok(())
    }

    fn set(&mut self, at_nanos: u64) -> io::Result<()> {
        // Zero would disarm it; a time in the past fires at once.
        let at = TimeSpec::from_duration(Duration::from_nanos(at_nanos.max(1)));
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        self.timer.set(Expiration::OneShot(at), flags)?;
        self.set_for = Some(at_nanos);
        Ok(())
    }

    fn take_out_of(&mut self, ready: &mut ReadyList) {
        let filled = &ready.events[..ready.filled];
        // Copied: the kernel's structure is packed on some machines.
        let own = filled.iter().position(|event| { event.u64 } == self.token);
        if let Some(own) = own {
            // It is reported once, and set again before it is needed.
            self.set_for = None;
            ready.events.copy_within(own + 1..ready.filled, own);
            ready.filled -= 1;
        }
    }
}

impl Interest {
    const fn bits(self) -> u32 {
        let bits = match self {
            Self::None => 0,
            Self::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Self::Write => libc::EPOLLOUT,
            Self::ReadWrite => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT,
        };
        bits as u32
    }
}

impl ReadyList {
    /// Room for `capacity` descriptors per wait (at least 1); further ones are reported by the next wait.
    pub fn new(capacity: usize) -> Self {
        let event = libc::epoll_event { events: 0, u64: 0 };
        Self {
            events: vec![event; capacity.max(1)],
            filled: 0,
        }
    }

    /// Number of ready descriptors.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether nothing is ready.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The ready descriptor at `index`; `None` from [`len`](Self::len) on.
    pub fn at(&self, index: usize) -> Option<Ready> {
        // Copied: the kernel's structure is packed on some machines.
        let event = *self.events[..self.filled].get(index)?;
        let bits = event.events;
        let any = |wanted: libc::c_int| bits & wanted as u32 != 0;
        Some(Ready {
            token: event.u64,
            readable: any(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR),
            writable: any(libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR),
            hangup: any(libc::EPOLLHUP | libc::EPOLLERR),
        })
    }

    /// All ready descriptors.
    pub fn iter(&self) -> impl Iterator<Item = Ready> + '_ {
        (0..self.filled).filter_map(|index| self.at(index))
    }
}

impl Waker {
    /// A new one. Add it to an [`Epoll`] with [`Interest::Read`].
    ///
    /// # Errors
    /// Too many open descriptors, or no memory.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let event = EventFd::from_value_and_flags(0, flags)?;
        Ok(Self { event })
    }

    /// Makes it ready until [`reset`](Self::reset).
    pub fn wake(&self) {
        // Fails only if the counter is full, and then it is ready already.
        let _ = self.event.write(1);
    }

    /// Makes it no longer ready.
    pub fn reset(&self) {
        // Fails only if it was not ready.
        let _ = self.event.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// The kernel's `struct __kernel_timespec`: 64 bit on every machine.
#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanos: i64,
}

impl KernelTimespec {
    fn of(duration: Duration) -> Self {
        Self {
            seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            nanos: i64::from(duration.subsec_nanos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Instant};

    use super::*;
    use crate::clock;

    #[test]
    fn waker_ends_a_wait_of_another_thread() {
        let waker = Arc::new(Waker::new().unwrap());
        let epoll = Epoll::new().unwrap();
        epoll.add(&*waker, 7, Interest::Read).unwrap();
        let other = Arc::clone(&waker);
        let thread = thread::spawn(move || other.wake());
        let mut ready = ReadyList::new(4);
        epoll
            .wait(&mut ready, Some(Duration::from_secs(10)))
            .unwrap();
        thread.join().unwrap();
        assert_eq!(ready.len(), 1);
        let first = ready.at(0).unwrap();
        assert_eq!(first.token, 7);
        assert!(first.readable && !first.hangup);
        waker.reset();
        epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        assert_eq!(ready.at(0), None);
    }

    #[test]
    fn a_wait_is_not_shorter_than_its_timeout() {
        let epoll = Epoll::new().unwrap();
        let mut ready = ReadyList::new(1);
        let start = Instant::now();
        epoll
            .wait(&mut ready, Some(Duration::from_micros(300)))
            .unwrap();
        assert!(start.elapsed() >= Duration::from_micros(300));
        assert!(ready.is_empty());
    }

    #[test]
    fn an_alarm_ends_a_wait_in_time_and_is_not_reported() {
        let now = || clock::monotonic_nanos();
        let waker = Waker::new().unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.add(&waker, 1, Interest::Read).unwrap();
        let mut alarm = Alarm::new(&epoll, 2).unwrap();
        let mut ready = ReadyList::new(4);
        // The alarm is set for the first of these, and ends the second wait early.
        let (soon, later) = (now() + 2_000_000, now() + 20_000_000);
        waker.wake();
        alarm.wait(&epoll, &mut ready, soon).unwrap();
        assert_eq!((ready.len(), ready.at(0).map(|r| r.token)), (1, Some(1)));
        waker.reset();
        alarm.wait(&epoll, &mut ready, later).unwrap();
        assert!(ready.is_empty() && now() >= soon);
        while now() < later {
            alarm.wait(&epoll, &mut ready, later).unwrap();
            assert!(ready.is_empty());
        }
        // A time in the past, and one before that of the alarm.
        alarm.wait(&epoll, &mut ready, soon).unwrap();
        alarm.look(&epoll, &mut ready).unwrap();
        assert!(ready.is_empty());
        waker.wake();
        alarm
            .wait(&epoll, &mut ready, now() + 60_000_000_000)
            .unwrap();
        waker.reset();
        let soon = now() + 1_000_000;
        alarm.wait(&epoll, &mut ready, soon).unwrap();
        assert!(ready.is_empty() && now() >= soon);
    }

    #[test]
    fn removed_descriptor_is_not_reported() {
        let waker = Waker::new().unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.add(&waker, 1, Interest::Read).unwrap();
        epoll.modify(&waker, 2, Interest::None).unwrap();
        waker.wake();
        let mut ready = ReadyList::new(1);
        epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        epoll.remove(&waker).unwrap();
        assert!(epoll.remove(&waker).is_err());
    }
}
