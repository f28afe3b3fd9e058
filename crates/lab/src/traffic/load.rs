//! Load on a host's receive path: bursts of datagrams, faster than the host processes them.
//!
//! A burst is sent from the CPU to which the host's [`ReceiveQueue`] is bound, by a thread with higher
//! priority. The queue is served only when the burst is over. Packets that do not fit into the device's ring
//! meanwhile are lost, as on a server whose CPU is busy. [`ReceiveCounters`] of both ends show how many.
//!
//! The other load is a slow receiver: a [`SlowReceiver`] does not read its socket in time.

mod counters;
mod queue;
mod slow;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use keiro_linux::realtime::{self, FifoPriority};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::TrafficError;
use crate::lab::{Host, LabError};

pub use counters::{DeviceCounters, ReceiveCounters};
pub use queue::ReceiveQueue;
pub use slow::{SlowReceiver, Slowness};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The destination, where a [`Sink`] receives.
    pub target: SocketAddr,
    /// Datagrams in a burst.
    pub burst: u32,
    /// Mean interval from start to start of bursts. Each is drawn between 0.5 and 1.5 times this, so that no
    /// periodic traffic keeps step with it.
    pub every: Duration,
    /// Size of a datagram.
    pub datagram_bytes: usize,
    /// The sending CPU, counted from 0: that of the receiver's [`ReceiveQueue`].
    pub cpu: usize,
}

/// A running load; stopped when dropped.
#[derive(Debug)]
pub struct RunningLoad {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

/// Receives and discards datagrams at a UDP port until it is dropped: the load's own receiver, like iperf's.
///
/// Its receive buffer is small, so that it overflows with the host's ring and the host's own counters show
/// the load: drops of a veth device's ring are counted at the sender's end only. Drops of the sink itself
/// affect nothing else.
#[derive(Debug)]
pub struct Sink {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Priority below the measurement and its subject, above ordinary threads; ours.
const PRIORITY: FifoPriority = FifoPriority::new(5).unwrap();

/// Seed of the times of bursts. Ours.
const SEED: u64 = 2020;

/// Period of checking whether a sink should end.
const LOOK: Duration = Duration::from_millis(50);

/// The kernel doubles it and fills it with some 80 small datagrams, fewer than a ring has. Ours.
const SINK_BUFFER_BYTES: usize = 32 << 10;

/// The largest UDP payload over IPv4 (RFC 768, RFC 791).
const DATAGRAM_BYTES_MAX: usize = 65_507;

impl RunningLoad {
    /// Starts to send from `host`.
    ///
    /// # Errors
    /// A socket, CPU or thread is not available.
    pub fn start(host: &Host, load: Load) -> Result<Self, TrafficError> {
        let socket = host
            .run(|| bind_any(load.target))
            .map_err(LabError::from)?
            .map_err(TrafficError::System)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("load".into())
            .spawn(move || send(&socket, &load, &stopped))
            .map_err(TrafficError::System)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Stops, and returns the number of datagrams sent.
    ///
    /// # Errors
    /// The error that ended it early.
    pub fn stop(mut self) -> Result<u64, TrafficError> {
        self.join().map_err(TrafficError::System)
    }

    fn join(&mut self) -> io::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the load's thread panicked")),
            None => Ok(0),
        }
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

impl Sink {
    /// Binds `address` of `host`.
    ///
    /// # Errors
    /// The address or a thread is not available.
    pub fn start(host: &Host, address: SocketAddr) -> Result<Self, TrafficError> {
        let bind = || {
            let socket = UdpSocket::bind(address)?;
            socket2::SockRef::from(&socket).set_recv_buffer_size(SINK_BUFFER_BYTES)?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok(socket)
        };
        let socket =
            host.run(bind)
                .map_err(LabError::from)?
                .map_err(|source| TrafficError::Connect {
                    to: address,
                    source,
                })?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("load-sink".into())
            .spawn(move || {
                let mut datagram = [0; 2048];
                while !stopped.load(Ordering::Relaxed) {
                    // A timeout to check the flag, or an irrelevant ICMP error.
                    let _ = socket.recv(&mut datagram);
                }
            })
            .map_err(TrafficError::System)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bind_any(target: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match target {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
    };
    socket.connect(target)?;
    Ok(socket)
}

fn send(socket: &UdpSocket, load: &Load, stop: &AtomicBool) -> io::Result<u64> {
    let mut cpus = CpuSet::new();
    cpus.set(load.cpu)?;
    sched_setaffinity(Pid::from_raw(0), &cpus)?;
    // Without the priority the queue keeps up, which the counters show.
    let _ = realtime::schedule_fifo(PRIORITY);
    let datagram = vec![0; load.datagram_bytes.min(DATAGRAM_BYTES_MAX)];
    let mut random = ChaCha12Rng::seed_from_u64(SEED);
    let mut sent = 0;
    let mut due = std::time::Instant::now();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..load.burst {
            match socket.send(&datagram) {
                Ok(_) => sent += 1,
                // The last one may not have reached the sink.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        due += load
            .every
            .mul_f64(0.5 + f64::from(random.next_u32()) / f64::from(u32::MAX));
        let left = due.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            // Bursts must never take the CPU completely.
            due = std::time::Instant::now() + load.every / 2;
        }
        thread::sleep(left.max(load.every / 2));
    }
    Ok(sent)
}
