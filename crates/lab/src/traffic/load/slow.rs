//! Makes a program a slow receiver: it runs only briefly at a time, and its socket has a small buffer.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use keiro_linux::{
    process::{SIGCONT, SIGSTOP},
    realtime,
};
use socket2::SockRef;

use super::PRIORITY;
use crate::lab::Process;

/// Parameters of a slow receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowness {
    /// Mean time per packet, if `room` packets are always waiting.
    pub each: Duration,
    /// Capacity of its socket in small packets.
    pub room: u32,
}

/// A program that is slowed down until this is dropped.
///
/// It is stopped for the time that `room` packets take it, and then runs until it has read the packets that
/// arrived meanwhile. As for every socket, the packets' memory counts, so that long packets need more room,
/// though less than in proportion to their length.
#[derive(Debug)]
pub struct SlowReceiver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    socket: UdpSocket,
    usual_buffer_bytes: usize,
}

/// The kernel's accounting of a packet of up to some 600 bytes behind a veth device: a kilobyte, and the
/// packet's descriptor.
const PACKET_BYTES: usize = 1280;

/// How long the program runs at a time. Ours: enough to read a hundred packets and to answer.
const AWAKE: Duration = Duration::from_millis(2);

impl SlowReceiver {
    /// Slows down `process` in reading from its UDP socket bound to `address`.
    ///
    /// # Errors
    /// It has no such socket; its descriptors, the buffer or a thread are not available.
    pub fn start(process: &Process, address: SocketAddr, slow: Slowness) -> io::Result<Self> {
        let socket = process.udp_socket(address)?;
        let socket = socket.ok_or_else(|| {
            let what = format!("process {} has no UDP socket at {address}", process.id());
            io::Error::other(what)
        })?;
        let usual_buffer_bytes = SockRef::from(&socket).recv_buffer_size()?;
        let room_bytes = slow.room as usize * PACKET_BYTES;
        let stop = Arc::new(AtomicBool::new(false));
        let mut slow_receiver = Self {
            stop: Arc::clone(&stop),
            thread: None,
            socket,
            usual_buffer_bytes,
        };
        slow_receiver.set_buffer(room_bytes)?;
        let process = process.clone();
        let asleep = (slow.each * slow.room).saturating_sub(AWAKE);
        let thread = thread::Builder::new().name("slow-receiver".into());
        slow_receiver.thread = Some(thread.spawn(move || hold_up(&process, asleep, &stop))?);
        Ok(slow_receiver)
    }

    fn set_buffer(&self, bytes: usize) -> io::Result<()> {
        // The kernel doubles the requested size, and returns the doubled one. Without privileges a buffer may
        // have been larger than can be requested.
        nix::sys::socket::setsockopt(
            &self.socket,
            nix::sys::socket::sockopt::RcvBufForce,
            &(bytes / 2),
        )
        .map_err(io::Error::from)
    }
}

impl Drop for SlowReceiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Err(error) = self.set_buffer(self.usual_buffer_bytes) {
            tracing::warn!(%error, "a receiver's buffer stays small");
        }
    }
}

/// Until it is stopped; finally the program runs.
fn hold_up(process: &Process, asleep: Duration, stop: &AtomicBool) {
    // Without real-time priority, the program is stopped for longer.
    let _ = realtime::schedule_fifo(PRIORITY);
    while !stop.load(Ordering::Relaxed) && process.signal(SIGSTOP).is_ok() {
        thread::sleep(asleep);
        if process.signal(SIGCONT).is_err() {
            return;
        }
        thread::sleep(AWAKE);
    }
}
