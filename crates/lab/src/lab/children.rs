//! Programs started in hosts, and how they are stopped.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use keiro_linux::process::{PidFd, SIGKILL, SIGTERM};

/// A program running in a host. It is stopped with the laboratory, if not before.
///
/// Dropping this value leaves the program running until then.
#[derive(Clone, Debug)]
pub struct Process {
    child: Arc<Mutex<Child>>,
    handle: Arc<PidFd>,
}

impl Process {
    pub fn id(&self) -> i32 {
        self.handle.pid()
    }

    /// Its standard input, if it was piped and has not been taken.
    pub fn take_stdin(&self) -> Option<ChildStdin> {
        lock(&self.child).stdin.take()
    }

    /// Its standard output, if it was piped and has not been taken.
    pub fn take_stdout(&self) -> Option<ChildStdout> {
        lock(&self.child).stdout.take()
    }

    /// Its standard error, if it was piped and has not been taken.
    pub fn take_stderr(&self) -> Option<ChildStderr> {
        lock(&self.child).stderr.take()
    }

    /// Waits at most `timeout` for it to end; `None` if it still runs.
    ///
    /// # Errors
    /// The status is not available.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        self.handle.wait(timeout)?;
        lock(&self.child).try_wait()
    }

    /// Sends a signal, for example [`keiro_linux::process::SIGTERM`]; does nothing if it has ended.
    ///
    /// # Errors
    /// The system's error, unless the process has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // No thread can reap it while the lock is held, so the handle still means this process.
        match lock(&self.child).try_wait()? {
            Some(_) => Ok(()),
            None => self.handle.signal(signal),
        }
    }

    /// Its UDP socket that is bound to `address`, shared with it; `None` if it has none.
    ///
    /// # Errors
    /// The system's error, also if the process has ended.
    pub fn udp_socket(&self, address: SocketAddr) -> io::Result<Option<UdpSocket>> {
        self.handle.udp_socket(address)
    }

    /// Stops it: SIGTERM, and SIGKILL after `grace`.
    ///
    /// # Errors
    /// The status is not available.
    pub fn end(&self, grace: Duration) -> io::Result<ExitStatus> {
        self.signal(SIGTERM)?;
        if let Some(status) = self.wait(grace)? {
            return Ok(status);
        }
        self.signal(SIGKILL)?;
        lock(&self.child).wait()
    }
}

/// All programs started in one laboratory.
#[derive(Debug, Default)]
pub(crate) struct Children {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    running: Vec<Process>,
    /// No further program may be started.
    closed: bool,
}

impl Children {
    /// Takes over a program.
    pub(crate) fn adopt(&self, mut child: Child) -> io::Result<Process> {
        let handle = PidFd::open(child.id().cast_signed());
        let mut list = lock(&self.list);
        let handle = match handle {
            Ok(handle) if !list.closed => Arc::new(handle),
            refused => {
                child.kill()?;
                child.wait()?;
                let closed = io::Error::other("the laboratory was removed meanwhile");
                return Err(refused.err().unwrap_or(closed));
            }
        };
        let child = Arc::new(Mutex::new(child));
        let process = Process { child, handle };
        // The list is bounded by the running programs, however many are started one after the other.
        list.running
            .retain(|process| matches!(process.wait(Duration::ZERO), Ok(None)));
        list.running.push(process.clone());
        Ok(process)
    }

    /// Stops all that still run and reaps them. Nothing can be started after that.
    pub(crate) fn end_all(&self, grace: Duration) {
        let running = {
            let mut list = lock(&self.list);
            list.closed = true;
            std::mem::take(&mut list.running)
        };
        for process in &running {
            let _ = process.signal(SIGTERM);
        }
        let deadline = Instant::now() + grace;
        for process in &running {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Err(error) = process.end(left) {
                tracing::warn!(pid = process.id(), %error, "a program could not be ended");
            }
        }
    }
}

/// Stops processes that are not children of this one: SIGTERM, and SIGKILL after `grace`.
pub(crate) fn end_strays(strays: &[PidFd], grace: Duration) {
    let deadline = Instant::now() + grace;
    for signal in [SIGTERM, SIGKILL] {
        for stray in strays {
            // It may have ended meanwhile.
            let _ = stray.signal(signal);
        }
        let deadline = if signal == SIGKILL {
            Instant::now() + KILL_WAIT
        } else {
            deadline
        };
        let has_ended = |stray: &PidFd| {
            let left = deadline.saturating_duration_since(Instant::now());
            matches!(stray.wait(left), Ok(true))
        };
        if strays.iter().all(has_ended) {
            return;
        }
    }
}

/// Time for a killed process to vanish; ours: it cannot refuse, but may be in the kernel.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// A panic elsewhere must not keep programs from being stopped.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
