//! Reading and writing TCP with an end: silence has a limit, and cancellation ends it.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use socket2::SockRef;

/// How long to wait, and for which peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits<'a> {
    /// Longest time without a byte.
    pub(crate) silence: Duration,
    /// Set when it is over.
    pub(crate) stop: &'a AtomicBool,
    /// The end even if bytes keep coming. `None`: never.
    pub(crate) end: Option<Instant>,
}

/// Why reading or writing ended early.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The measurement was cancelled.
    Stopped,
    /// Silence, or the end of all limits.
    Silent,
    /// The connection broke or was closed.
    Broken(io::Error),
}

/// How often waiting looks whether it should stop. Ours: a tenth of a second is not noticeable.
const STEP: Duration = Duration::from_millis(100);

/// How long the kernel tries to get data through before it gives a connection up (RFC 5482), and
/// how long the other side may say nothing where it should. Ours: "a few seconds".
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Makes blocking calls return often enough for [`WaitLimits`], and the kernel notice a peer that is
/// gone. Once per stream.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_user_timeout(Some(SILENCE))?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))
}

impl WaitLimits<'_> {
    /// Reads some bytes into `buffer`, which has room; at least one.
    pub(crate) fn read_some(
        &self,
        stream: &mut TcpStream,
        buffer: &mut [u8],
    ) -> Result<usize, Ended> {
        self.attempt(|| stream.read(buffer), io::ErrorKind::UnexpectedEof)
    }

    /// Fills `buffer`.
    pub(crate) fn read_full(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), Ended> {
        let mut filled = 0;
        while filled < buffer.len() {
            filled += self.read_some(stream, &mut buffer[filled..])?;
        }
        Ok(())
    }

    /// Writes some of `bytes`, of which there are some; at least one.
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

    /// Calls until there is progress; `none` is what no progress at all means.
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
                // Not ErrorKind::TimedOut: with that the kernel gives the connection up.
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
