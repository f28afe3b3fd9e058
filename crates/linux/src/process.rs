//! Processes held by a descriptor (`pidfd_open(2)`): signalled and waited for without the danger
//! that their number has been given to another process meanwhile.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// Ask a process to end.
pub const SIGTERM: i32 = libc::SIGTERM;
/// End a process; it cannot refuse.
pub const SIGKILL: i32 = libc::SIGKILL;
/// Interrupt, as Ctrl-C does.
pub const SIGINT: i32 = libc::SIGINT;

/// A process, held by descriptor.
#[derive(Debug)]
pub struct PidFd {
    pid: i32,
    descriptor: OwnedFd,
}

impl PidFd {
    /// Holds the process that has number `pid` now.
    ///
    /// # Errors
    /// `ESRCH` where there is none.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: takes two integers and gives a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone; it fits an i32.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
        Ok(Self { pid, descriptor })
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal, for example [`SIGTERM`].
    ///
    /// # Errors
    /// `ESRCH` where the process has ended and been reaped.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the descriptor is open, and a null siginfo asks for the one of kill(2).
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.descriptor.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until the process has ended, at most for `timeout`; whether it has.
    ///
    /// It reaps nothing: a child's exit status remains for its parent.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            match self.poll(left) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(false) if !left.is_zero() => {}
                result => return result,
            }
        }
    }

    fn poll(&self, timeout: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // Rounded up, so that a wait of less than a millisecond does not turn into a busy loop.
        let milliseconds =
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        // SAFETY: one valid pollfd for the time of the call.
        match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
            -1 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn signalled_child_is_seen_to_end() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id() as i32).unwrap();
        assert!(!process.wait(Duration::ZERO).unwrap());
        process.signal(SIGKILL).unwrap();
        assert!(process.wait(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        assert!(process.signal(SIGKILL).is_err());
    }
}
