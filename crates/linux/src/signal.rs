//! Signals as a descriptor (`signalfd(2)`), so that they are handled between two waits.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::sys::{
    signal::{SigSet, Signal as NixSignal},
    signalfd::{SfdFlags, SignalFd},
};

/// A signal that a daemon handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    Stop,
}

/// The pending signals of this process.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Blocks SIGHUP, SIGTERM and SIGINT for the calling thread and the threads that it starts from now on,
    /// and returns them here instead. SIGPIPE is blocked too: writes report it as an error.
    ///
    /// # Errors
    /// Too many open descriptors, or no memory.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [NixSignal::SIGHUP, NixSignal::SIGTERM, NixSignal::SIGINT] {
            set.add(signal);
        }
        let mut blocked = set;
        blocked.add(NixSignal::SIGPIPE);
        blocked.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&set, flags)?;
        Ok(Self { descriptor })
    }

    /// The next pending signal; `None` if there is none.
    ///
    /// # Errors
    /// Those of `read(2)`.
    pub fn take(&mut self) -> io::Result<Option<Signal>> {
        let Some(info) = self.descriptor.read_signal()? else {
            return Ok(None);
        };
        Ok(Some(match info.ssi_signo as i32 {
            libc::SIGHUP => Signal::Reload,
            _ => Signal::Stop,
        }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_signals_are_given_out_one_by_one() {
        // In a separate thread, because the mask is the thread's.
        std::thread::spawn(|| {
            let mut signals = Signals::block().unwrap();
            assert_eq!(signals.take().unwrap(), None);
            // SAFETY: raise sends a signal to this thread, which has it blocked.
            unsafe {
                libc::raise(libc::SIGHUP);
                libc::raise(libc::SIGTERM);
            }
            let mut seen = [signals.take().unwrap(), signals.take().unwrap()];
            seen.sort_by_key(|signal| *signal == Some(Signal::Stop));
            assert_eq!(seen, [Some(Signal::Reload), Some(Signal::Stop)]);
            assert_eq!(signals.take().unwrap(), None);
        })
        .join()
        .unwrap();
    }
}
