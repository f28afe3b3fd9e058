//! A program that is too slow for what it receives: it runs for a moment at a time only, and little may wait at
//! its socket meanwhile.

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

/// How slow a receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowness {
    /// The time that a packet takes it on average, if `room` packets are always there.
    pub each: Duration,
    /// Small packets that may wait at its socket.
    pub room: u32,
}

/// A program that is slow in receiving, until this is dropped.
///
/// It is stopped for as long as `room` packets take it, and then runs until it has read what came
/// meanwhile. As with every socket, it is the packets' memory that is counted, so that long ones
/// take more room, though less than their bytes.
#[derive(Debug)]
pub struct SlowReceiver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    socket: UdpSocket,
    usual_buffer_bytes: usize,
}

/// What the kernel counts for a packet of up to some 600 bytes behind a veth device: a kilobyte, and
/// the packet's description.
const PACKET_BYTES: usize = 1280;

/// How long the program runs at a time. Ours: enough to read a hundred packets and to answer.
const AWAKE: Duration = Duration::from_millis(2);

impl SlowReceiver {
    /// Makes `process` slow in reading from its UDP socket bound to `address`.
    ///
    /// # Errors
    /// It has no such socket; its descriptors, the buffer or a thread cannot be had.
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
        // The kernel takes twice what is asked for, and returns that. A buffer may have been larger than what
        // is asked for without the right to.
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

/// Until it is stopped; the program runs in the end.
fn hold_up(process: &Process, asleep: Duration, stop: &AtomicBool) {
    // Where it may not have it, the program is stopped for longer.
    let _ = realtime::schedule_fifo(PRIORITY);
    while !stop.load(Ordering::Relaxed) && process.signal(SIGSTOP).is_ok() {
        thread::sleep(asleep);
        if process.signal(SIGCONT).is_err() {
            return;
        }
        thread::sleep(AWAKE);
    }
}
