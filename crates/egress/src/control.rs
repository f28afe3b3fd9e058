//! The control socket: a request is a line of JSON, and so is its answer.
//!
//! Each request has a thread that reads it, gets the answer from the event loop, and adds the
//! kernel's state, which would take too long for the event loop.

mod message;

use std::{
    borrow::Borrow,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use keiro_linux::{privilege, unix};
use serde::Serialize;

pub use self::message::{Answer, Request};
use crate::{handle::Handle, kernel::KernelView, status::TimedEvent};

/// The event loop's reply to a request thread.
pub(crate) enum Reply {
    /// An answer to which the kernel's state must be added.
    Answer(Answer, Option<KernelView>),
    /// Events, until the daemon ends.
    Events(mpsc::Receiver<TimedEvent>),
}

pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    asked: mpsc::Receiver<PendingRequest>,
    ask: mpsc::Sender<PendingRequest>,
    handle: Handle,
    requests: Arc<AtomicUsize>,
    /// Clients that get events; they take no place of requests.
    monitors: Arc<AtomicUsize>,
}

/// One of a bounded number of places, free again when this is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let place = Self(Arc::clone(taken));
        (taken.fetch_add(1, Ordering::AcqRel) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that waits for the event loop.
pub(crate) struct PendingRequest {
    pub(crate) request: Request,
    pub(crate) reply: mpsc::Sender<Reply>,
}

impl ControlSocket {
    pub(crate) fn open(path: &Path, handle: Handle) -> Result<Self, unix::ListenError> {
        let (ask, asked) = mpsc::channel();
        Ok(Self {
            listener: unix::listen(path, None)?,
            path: path.to_owned(),
            asked,
            ask,
            handle,
            requests: Arc::default(),
            monitors: Arc::default(),
        })
    }

    /// Accepts all pending connections; their requests arrive later and wake the event loop.
    pub(crate) fn accept(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // Beyond the limit, the connection is closed at once.
            let Some(place) = Place::take(&self.requests, REQUESTS_MAX) else {
                continue;
            };
            let (ask, handle) = (self.ask.clone(), self.handle.clone());
            let monitors = Arc::clone(&self.monitors);
            let serving = thread::Builder::new().name("control".to_owned());
            // Without a thread the connection is closed.
            let _ = serving.spawn(move || {
                privilege::give_up_in_thread();
                if let Err(error) = serve(&stream, &ask, &handle, place, &monitors) {
                    tracing::debug!(%error, "a request was not answered");
                }
            });
        }
    }

    /// The next request; `None`: there is none.
    pub(crate) fn take(&self) -> Option<PendingRequest> {
        self.asked.try_recv().ok()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Already removed, or not permitted: nothing can be done either way.
        let _ = fs::remove_file(&self.path);
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn serve(
    stream: &UnixStream,
    ask: &mpsc::Sender<PendingRequest>,
    handle: &Handle,
    place: Place,
    monitors: &Arc<AtomicUsize>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Err(error) => Answer::Refused(format!("this is no request: {error}")),
        Ok(request) => {
            let monitors = (request == Request::Monitor).then_some(monitors);
            let monitor = monitors.map(|monitors| Place::take(monitors, MONITORS_MAX));
            if let Some(None) = monitor {
                let reason = format!("{MONITORS_MAX} clients get events already");
                return write(stream, &Answer::Refused(reason));
            }
            let (reply, answered) = mpsc::channel();
            let gone = |_| io::Error::other("the daemon ends");
            ask.send(PendingRequest { request, reply })
                .map_err(|_| gone(()))?;
            handle.wake();
            match answered.recv().map_err(|_| gone(()))? {
                Reply::Answer(mut answer, view) => {
                    if let Some(view) = view {
                        view.complete(&mut answer);
                    }
                    answer
                }
                Reply::Events(all) => {
                    drop(place);
                    write(stream, &Answer::Monitoring)?;
                    return stream_events(stream, &all);
                }
            }
        }
    };
    write(stream, &answer)
}

fn write(mut stream: &UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut document = serde_json::to_vec(what).map_err(io::Error::other)?;
    document.push(b'\n');
    stream.write_all(&document)
}

/// Writes events until the daemon or the client ends.
fn stream_events(mut stream: &UnixStream, all: &mpsc::Receiver<TimedEvent>) -> io::Result<()> {
    stream.set_read_timeout(Some(GLANCE))?;
    loop {
        match all.recv_timeout(STEP) {
            Ok(event) => write(stream, &event)?,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => match stream.read(&mut [0]) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error),
            },
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Subscribes to the events of a daemon.
    ///
    /// # Errors
    /// As [`ask`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut request = serde_json::to_vec(&Request::Monitor).map_err(io::Error::other)?;
        request.push(b'\n');
        stream.write_all(&request)?;
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        match serde_json::from_str(&line) {
            Ok(Answer::Monitoring) => {}
            Ok(Answer::Refused(reason)) => return Err(io::Error::other(reason)),
            _ => return Err(io::Error::other("the daemon answers something else")),
        }
        lines.get_ref().set_read_timeout(None)?;
        Ok(Self(lines))
    }

    /// Waits for the next event; `None`: the daemon has ended, or this client read too slowly.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn wait(&mut self) -> io::Result<Option<TimedEvent>> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line)
            .map(Some)
            .map_err(io::Error::other)
    }
}

/// Sends a request to a daemon.
///
/// # Errors
/// No daemon listens at `path`, permission is denied, or the answer is invalid.
pub fn ask(path: &Path, request: impl Borrow<Request>) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request.borrow()).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut document = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut document)?;
    if document.is_empty() {
        return Err(io::Error::other(
            "the connection ended without an answer; it may have too many questions",
        ));
    }
    serde_json::from_slice(&document).map_err(io::Error::other)
}

/// The interval between checks whether the client is still connected, and the timeout of a write.
/// Ours.
const STEP: Duration = Duration::from_millis(500);
const GLANCE: Duration = Duration::from_millis(1);
/// Concurrent requests. Ours.
const REQUESTS_MAX: usize = 8;
/// Clients that get events. Ours.
const MONITORS_MAX: usize = 16;
/// The longest request is far shorter. Ours.
const QUESTION_BYTES_MAX: u64 = 4096;
/// Enough for several thousand neighbours. Ours.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How long a client waits for an answer. A daemon with a large change in progress, or a kernel
/// with many routes, takes a while. Ours.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use keiro_linux::epoll::Waker;

    use super::*;
    use crate::handle::Trigger;

    #[test]
    fn monitors_take_no_place_of_requests_and_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("egress.sock");
        let handle = Handle(Arc::new(Trigger {
            waker: Waker::new().unwrap(),
            stop: AtomicBool::new(false),
            reload: AtomicBool::new(false),
        }));
        let socket = ControlSocket::open(&path, handle).unwrap();
        let mut senders = Vec::new();
        let mut client = |request: Request| {
            let path = path.clone();
            let asking = thread::spawn(move || match request {
                Request::Monitor => Monitor::open(&path).map(Some),
                _ => ask(&path, request).map(|_| None),
            });
            while !asking.is_finished() {
                socket.accept();
                let Ok(asked) = socket.asked.recv_timeout(GLANCE) else {
                    continue;
                };
                let reply = match asked.request {
                    Request::Monitor => {
                        let (sender, all) = mpsc::sync_channel(1);
                        senders.push(sender);
                        Reply::Events(all)
                    }
                    _ => Reply::Answer(Answer::Refused("a test".to_owned()), None),
                };
                asked.reply.send(reply).unwrap();
            }
            asking.join().unwrap()
        };
        let monitors: Vec<_> = (0..MONITORS_MAX)
            .map(|_| client(Request::Monitor).unwrap())
            .collect();
        client(Request::Status).unwrap();
        let refused = client(Request::Monitor).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("events already"), "{refused}");
        client(Request::Status).unwrap();
        drop(monitors);
    }
}
