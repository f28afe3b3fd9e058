//! TCP reads and writes with limits: a timeout of silence, a deadline, and cancellation.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use socket2::SockRef;

/// Limits of waiting, and the peer for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits<'a> {
    /// Maximum time without a byte.
    pub(crate) silence: Duration,
    /// Set to cancel.
    pub(crate) stop: &'a AtomicBool,
    /// Deadline even if bytes keep arriving; `None` for none.
    pub(crate) end: Option<Instant>,
}

/// Why a read or write ended early.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The measurement was cancelled.
    Stopped,
    /// The timeout of silence or the deadline has passed.
    Silent,
    /// The connection broke or was closed.
    Broken(io::Error),
}

/// Period of checking for cancellation. Ours: 0.1 s is not noticeable.
const STEP: Duration = Duration::from_millis(100);

/// TCP_USER_TIMEOUT (RFC 5482), and the maximum silence of a peer that should send. Ours: "a few seconds".
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Sets timeouts that [`WaitLimits`] relies on, and makes the kernel detect a dead peer. Call once per
/// stream.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_user_timeout(Some(SILENCE))?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))
}

impl WaitLimits<'_> {
    /// Reads at least one byte into `buffer`, which must not be empty.
    pub(crate) fn read_some(
        &self,
        stream: &mut TcpStream,
        buffer: &mut [u8],
    ) -> Result<usize, Ended> {
        self.attempt(|| stream.read(buffer), io::ErrorKind::UnexpectedEof)
    }

    pub(crate) fn read_full(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), Ended> {
        let mut filled = 0;
        while filled < buffer.len() {
            filled += self.read_some(stream, &mut buffer[filled..])?;
        }
        Ok(())
    }

    /// Writes at least one of `bytes`, which must not be empty.
    pub(crate) fn write_some(&self, stream: &mut TcpStream, bytes: &[u8]) -> Result<usize, Ended> {
        self.attempt(|| stream.write(bytes), io::ErrorKind::WriteZero)
    }

    /// Writes all of `bytes`.
    pub(crate) fn write_full(&self, stream: &mut TcpStream, bytes: &[u8]) -> Result<(), Ended> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.write_some(stream, &bytes[written..])?;
        }
        Ok(())
    }

    /// Retries until there is progress; `none` is the error for a call without progress.
    fn attempt(
        &self,
        mut call: impl FnMut() -> io::Result<usize>,
        none: io::ErrorKind,
    ) -> Result<usize, Ended> {
        let begin = Instant::now();
        loop {
            match call() {
                Ok(0) => return Err(Ended::Broken(none.into())),
                Ok(count) => return Ok(count),
                // Not ErrorKind::TimedOut, by which the kernel reports TCP_USER_TIMEOUT.
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                    _ => return Err(Ended::Broken(error)),
                },
            }
            if self.stop.load(Ordering::Acquire) {
                return Err(Ended::Stopped);
            }
            let late = self.end.is_some_and(|end| Instant::now() >= end);
            if late || begin.elapsed() >= self.silence {
                return Err(Ended::Silent);
            }
        }
    }
}
