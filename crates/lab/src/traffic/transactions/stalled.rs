//! A client that keeps sending requests and never reads a response.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use keiro_units::ByteCount;
use socket2::{Domain, Socket, Type};

use super::message::{HEADER_BYTES, Message};
use crate::{
    lab::{Host, LabError},
    traffic::TrafficError,
};

/// A stalled client, which keeps its connection until it is stopped.
#[derive(Debug)]
pub struct Stalled {
    written: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Period of its attempts once it can write no more.
const STEP: Duration = Duration::from_millis(10);

/// It counts as stuck after this long without a successful write.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// Its receive buffer, small so that responses stop early; the kernel's minimum is slightly larger.
const RECEIVE_BUFFER_BYTES: usize = 4096;

impl Stalled {
    /// Connects from `host` to `server` and begins to write messages of this length.
    ///
    /// # Errors
    /// [`TrafficError::Connect`], or that a host cannot be entered.
    pub fn start(host: &Host, server: SocketAddr, length: ByteCount) -> Result<Self, TrafficError> {
        let to = server;
        let stream = host
            .run(|| connect(server))
            .map_err(LabError::from)?
            .map_err(|source| TrafficError::Connect { to, source })?;
        let length = usize::try_from(length.get()).unwrap_or(usize::MAX);
        let written = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (counted, stopped) = (Arc::clone(&written), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("stalled-client".into())
            .spawn(move || write(&stream, length.max(HEADER_BYTES), &counted, &stopped))
            .map_err(TrafficError::System)?;
        Ok(Self {
            written,
            stop,
            thread: Some(thread),
        })
    }

    /// Waits until it can write no more; returns the bytes written until then.
    ///
    /// # Errors
    /// [`TrafficError::Transactions`] if it can still write after `limit`.
    pub fn wait_until_stuck(&self, limit: Duration) -> Result<u64, TrafficError> {
        let deadline = Instant::now() + limit;
        let mut seen = (0, Instant::now());
        loop {
            let written = self.written.load(Ordering::Relaxed);
            if written != seen.0 {
                seen = (written, Instant::now());
            }
            if written > 0 && seen.1.elapsed() >= STUCK_AFTER {
                return Ok(written);
            }
            if Instant::now() >= deadline {
                let what = format!("a client that reads nothing wrote {written} bytes");
                return Err(TrafficError::Transactions { what });
            }
            thread::sleep(STEP);
        }
    }

    /// Stops it; returns whether its connection existed until now.
    ///
    /// # Errors
    /// [`TrafficError::System`] if its thread panicked.
    pub fn stop(mut self) -> Result<bool, TrafficError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => {
                let error = io::Error::other("the stalled client's thread panicked");
                Err(TrafficError::System(error))
            }
            Some(Ok(result)) => Ok(result.is_ok()),
            None => Ok(true),
        }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn connect(server: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.set_tcp_nodelay(true)?;
    socket.connect(&server.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn write(
    mut stream: &Socket,
    length: usize,
    written: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut message = vec![0; length];
    let first = Message {
        client: u32::MAX,
        transaction: 0,
        exchange: 0,
    };
    first.write(&mut message);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        match stream.write(&message[sent..]) {
            Ok(count) => {
                sent = (sent + count) % length;
                written.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(STEP),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
