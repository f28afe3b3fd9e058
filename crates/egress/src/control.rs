//! The control socket: one question, a line of JSON, and its answer.
//!
//! A thread for each question reads it, has the daemon's thread answer from what it knows, and adds
//! what the kernel has, which may take longer than neighbours should wait.

use std::{
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

use ipnet::IpNet;
use keiro_linux::unix;
use serde::{Deserialize, Serialize};

use crate::{
    daemon::Handle,
    kernel::View,
    status::{Explanation, Happening, Reloaded, Status},
};

/// What a daemon is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// How it is.
    Status,
    /// What it knows of a prefix.
    Explain(IpNet),
    /// What happens from now on. Answer: [`Answer::Monitoring`], then a [`Happening`] per line until the caller
    /// or the daemon ends the connection.
    Monitor,
    /// Read the configuration file again.
    Reload,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// How it is.
    Status(Box<Status>),
    /// What it knows of the prefix.
    Explanation(Box<Explanation>),
    /// Happenings follow.
    Monitoring,
    /// Another configuration is in force.
    Reloaded(Box<Reloaded>),
    /// The question is not understood; why.
    Refused(String),
}

/// What is told to the daemon's thread's askers.
pub(crate) enum Reply {
    /// An answer, to which the kernel's part is added.
    Answer(Answer, Option<View>),
    /// Happenings, until the daemon ends.
    Happenings(mpsc::Receiver<Happening>),
}

/// The socket.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    asked: mpsc::Receiver<Asked>,
    ask: mpsc::Sender<Asked>,
    handle: Handle,
    under_way: Arc<AtomicUsize>,
}

/// A question that waits for the daemon's thread.
pub(crate) struct Asked {
    pub(crate) question: Question,
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
            under_way: Arc::default(),
        })
    }

    /// Takes everybody who has connected; the questions come later, with a wake.
    pub(crate) fn accept(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // Beyond it somebody who asks too much sees the connection end.
            if self.under_way.fetch_add(1, Ordering::AcqRel) >= UNDER_WAY_MAX {
                self.under_way.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let (ask, handle) = (self.ask.clone(), self.handle.clone());
            let under_way = Arc::clone(&self.under_way);
            let serving = thread::Builder::new().name("control".to_owned());
            let spawned = serving.spawn(move || {
                if let Err(error) = serve(&stream, &ask, &handle) {
                    tracing::debug!(%error, "a question was not answered");
                }
                under_way.fetch_sub(1, Ordering::AcqRel);
            });
            if spawned.is_err() {
                self.under_way.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// A question that waits; `None`: there is none.
    pub(crate) fn take(&self) -> Option<Asked> {
        self.asked.try_recv().ok()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Gone already, or not ours to remove: either way nothing is left to do.
        let _ = fs::remove_file(&self.path);
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn serve(stream: &UnixStream, ask: &mpsc::Sender<Asked>, handle: &Handle) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Err(error) => Answer::Refused(format!("this is no question: {error}")),
        Ok(question) => {
            let (reply, answered) = mpsc::channel();
            let gone = |_| io::Error::other("the daemon ends");
            ask.send(Asked { question, reply }).map_err(|_| gone(()))?;
            handle.wake();
            match answered.recv().map_err(|_| gone(()))? {
                Reply::Answer(mut answer, view) => {
                    if let Some(view) = view {
                        view.complete(&mut answer);
                    }
                    answer
                }
                Reply::Happenings(all) => {
                    write(stream, &Answer::Monitoring)?;
                    return tell(stream, &all);
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

/// Until the daemon ends, or nobody listens any more.
fn tell(mut stream: &UnixStream, all: &mpsc::Receiver<Happening>) -> io::Result<()> {
    stream.set_read_timeout(Some(GLANCE))?;
    loop {
        match all.recv_timeout(STEP) {
            Ok(happening) => write(stream, &happening)?,
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

/// Happenings of a daemon, from now on.
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Asks a daemon for them.
    ///
    /// # Errors
    /// As [`ask`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut question = serde_json::to_vec(&Question::Monitor).map_err(io::Error::other)?;
        question.push(b'\n');
        stream.write_all(&question)?;
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

    /// The next one; `None`: the daemon has ended, or somebody read too slowly. Waits.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn wait(&mut self) -> io::Result<Option<Happening>> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line)
            .map(Some)
            .map_err(io::Error::other)
    }
}

/// Asks a daemon.
///
/// # Errors
/// Nobody listens at `path`, the caller may not ask, or the answer is none.
pub fn ask(path: &Path, question: Question) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(&question).map_err(io::Error::other)?;
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

/// Between two looks whether somebody still listens, and how long one takes. Ours.
const STEP: Duration = Duration::from_millis(500);
const GLANCE: Duration = Duration::from_millis(1);
/// Questions at once. Ours.
const UNDER_WAY_MAX: usize = 8;
/// The longest question is far shorter. Ours.
const QUESTION_BYTES_MAX: u64 = 4096;
/// Several thousand neighbours. Ours.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// How long an answer is waited for: a daemon that works on a large change, or a kernel with many routes, answers later
/// than at once. Ours.
pub const PATIENCE: Duration = Duration::from_secs(30);
