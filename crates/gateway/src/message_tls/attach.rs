//! Hands connections over to the message socket of the data thread, which serves them like local clients.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
};

/// The end that hands over.
#[derive(Debug)]
pub(crate) struct Attach {
    streams: SyncSender<UnixStream>,
    /// One byte per stream, so that the other end can wait for it.
    bell: UnixStream,
}

/// The end that takes over: ready when there is one.
#[derive(Debug)]
pub(crate) struct Attached {
    streams: Receiver<UnixStream>,
    bell: UnixStream,
}

/// Why a connection was not handed over.
#[derive(Debug)]
pub(crate) enum AttachError {
    /// The other end is gone.
    Stopping,
    /// Not now.
    Busy(String),
}

/// Connections that wait to be taken over. Ours: the data thread takes eight per turn.
const WAITING_MAX: usize = 64;

pub(crate) fn channel() -> io::Result<(Attach, Attached)> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    let attach = Attach {
        streams: sender,
        bell: ours,
    };
    let attached = Attached {
        streams: receiver,
        bell: theirs,
    };
    Ok((attach, attached))
}

impl Attach {
    pub(crate) fn send(&self, stream: UnixStream) -> Result<(), AttachError> {
        self.streams.try_send(stream).map_err(|error| match error {
            TrySendError::Full(_) => AttachError::Busy("too many connections begin at once".into()),
            TrySendError::Disconnected(_) => AttachError::Stopping,
        })?;
        // The bell has room for far more bytes than streams may wait.
        (&self.bell)
            .write(&[0])
            .map_err(|_| AttachError::Stopping)?;
        Ok(())
    }
}

impl Attached {
    /// The next one; `WouldBlock` if there is none.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        if (&self.bell).read(&mut [0])? == 0 {
            // The other thread has ended. Not `WouldBlock`: the end stays readable.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.streams
            .try_recv()
            .map_err(|_| io::ErrorKind::WouldBlock.into())
    }
}

impl AsFd for Attached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
