//! What a transport carries over a recorded line: bulk data and the datagrams of a thin application.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_lab::Host;
use keiro_linux::{clock, realtime};
use socket2::{Domain, Socket, Type};

use super::super::gateways;

/// Bytes written and read at once.
const CHUNK_BYTES: usize = 1 << 16;
/// UDP payload of the thin application's datagrams.
const THIN_BYTES: usize = 200;
/// Datagrams that are kept of a run. Ours: an hour of a thousand per second.
const THIN_MAX: u64 = 3_600_000;
/// How often a transfer is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Time for a connection. Ours: a recorded line may stand still for seconds.
const CONNECT_WAIT: Duration = Duration::from_secs(20);

/// An open connection from source to sink.
pub(super) struct Bulk {
    source: TcpStream,
    sink: TcpStream,
}

/// What arrived of bulk data.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) received_bytes: u64,
    pub(super) remarks: Vec<String>,
}

impl Bulk {
    /// Connects to `to`; the connection arrives `at` the sink.
    pub(super) fn connect(
        [source, sink]: [&Host; 2],
        to: SocketAddr,
        at: SocketAddr,
        congestion_control: Option<&str>,
    ) -> anyhow::Result<Self> {
        let listener = sink.run(|| TcpListener::bind(at))?;
        let listener = listener.with_context(|| format!("cannot listen at {at}"))?;
        let source = source.run(|| -> anyhow::Result<TcpStream> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            if let Some(name) = congestion_control {
                socket
                    .set_tcp_congestion(name.as_bytes())
                    .with_context(|| format!("congestion control `{name}` cannot be used"))?;
            }
            socket.connect_timeout(&to.into(), CONNECT_WAIT)?;
            Ok(socket.into())
        })?;
        let source = source.with_context(|| format!("no connection to {to}"))?;
        let sink = accept(&listener).with_context(|| format!("no connection came to {at}"))?;
        source.set_write_timeout(Some(LOOK))?;
        sink.set_read_timeout(Some(LOOK))?;
        Ok(Self { source, sink })
    }

    /// Sends as fast as possible until `ends`, and counts what has arrived by then.
    pub(super) fn carry(self, ends: Instant) -> Ended {
        let Self { source, sink } = self;
        thread::scope(|scope| {
            let sending = scope.spawn(|| send(&source, ends));
            let mut ended = receive(&sink, ends);
            // The sender may wait for room that does not come any more.
            let _ = source.shutdown(Shutdown::Both);
            let sent = sending
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if let Err(error) = sent {
                ended.remarks.push(format!("sending ended early: {error}"));
            }
            ended
        })
    }
}

/// Accepts one connection within [`CONNECT_WAIT`].
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + CONNECT_WAIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if is_pause(&error) && Instant::now() < deadline => {
                thread::sleep(gateways::READY_STEP);
            }
            Err(error) => return Err(error),
        }
    }
}

fn send(mut source: &TcpStream, ends: Instant) -> io::Result<()> {
    let chunk = vec![0; CHUNK_BYTES];
    while Instant::now() < ends {
        match source.write(&chunk) {
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            // The receiver may have noticed the end first.
            Err(_) if Instant::now() + LOOK >= ends => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive(mut sink: &TcpStream, ends: Instant) -> Ended {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut ended = Ended::default();
    while Instant::now() < ends {
        match sink.read(&mut chunk) {
            Ok(0) => {
                ended
                    .remarks
                    .push("the connection was closed early".to_owned());
                break;
            }
            Ok(count) => ended.received_bytes += count as u64,
            Err(error) if is_pause(&error) => {}
            Err(error) => {
                ended
                    .remarks
                    .push(format!("receiving ended early: {error}"));
                break;
            }
        }
    }
    ended
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Sockets of a thin application: a datagram every so often, each with the time of its sending.
pub(super) struct Thin {
    source: UdpSocket,
    sink: UdpSocket,
}

impl Thin {
    /// Sends to `to`; datagrams arrive `at` the sink.
    pub(super) fn bind(
        [source, sink]: [&Host; 2],
        to: SocketAddr,
        at: SocketAddr,
    ) -> anyhow::Result<Self> {
        let sink = sink.run(|| UdpSocket::bind(at))?;
        let sink = sink.with_context(|| format!("cannot receive at {at}"))?;
        sink.set_read_timeout(Some(LOOK))?;
        let source = source.run(|| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            Ok(socket)
        })??;
        Ok(Self { source, sink })
    }

    /// One-way delays in ms of the datagrams that are sent until `ends` and received until `stop`.
    pub(super) fn carry(
        self,
        interval: Duration,
        begun: Instant,
        ends: Instant,
        stop: &AtomicBool,
    ) -> io::Result<Vec<Option<f64>>> {
        let Self { source, sink } = self;
        thread::scope(|scope| {
            let receiving = scope.spawn(|| collect(&sink, stop));
            let sent = make(&source, interval, begun, ends);
            let joined = receiving.join();
            let arrived = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let mut delays = vec![None; sent?];
            for (sequence, ms) in arrived {
                if let Some(place) = usize::try_from(sequence)
                    .ok()
                    .and_then(|s| delays.get_mut(s))
                {
                    *place = Some(ms);
                }
            }
            Ok(delays)
        })
    }
}

/// Sends the datagrams at their times; returns how many.
fn make(
    socket: &UdpSocket,
    interval: Duration,
    begun: Instant,
    ends: Instant,
) -> io::Result<usize> {
    let _ = realtime::set_timer_slack(Duration::from_nanos(1));
    let mut datagram = [0; THIN_BYTES];
    let mut sequence: u64 = 0;
    loop {
        let due = begun + interval.saturating_mul(u32::try_from(sequence).unwrap_or(u32::MAX));
        if due >= ends || sequence >= THIN_MAX {
            return Ok(sequence as usize);
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        datagram[..8].copy_from_slice(&sequence.to_be_bytes());
        datagram[8..16].copy_from_slice(&clock::monotonic_nanos().to_be_bytes());
        match socket.send(&datagram) {
            Ok(_) => {}
            // A full queue, or a gateway that refuses: the datagram is lost.
            Err(error) if is_pause(&error) || error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
        sequence += 1;
    }
}

/// Sequence numbers and one-way delays in ms of what arrives until `stop`.
fn collect(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<Vec<(u64, f64)>> {
    let mut arrived = Vec::new();
    let mut datagram = [0; THIN_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv(&mut datagram) {
            Ok(THIN_BYTES) if (arrived.len() as u64) < THIN_MAX => {
                let now = clock::monotonic_nanos();
                let word = |from: usize| {
                    let bytes = datagram[from..from + 8].try_into();
                    u64::from_be_bytes(bytes.expect("eight bytes"))
                };
                let delay_ns = now.saturating_sub(word(8));
                arrived.push((word(0), delay_ns as f64 / 1e6));
            }
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(arrived)
}
