//! A file through a stream, after measuring the line's capacity.
//!
//! The **capacity** is the UDP payload per second that arrives while datagrams of the line's full size are
//! sent 10 % faster than it carries them. It is counted between the first and the last arrival, by the
//! kernel's receive time stamps. So it is the line's rate without IP and UDP headers, and after losses.
//!
//! The **file** is random bytes. The receiver hashes what arrives; the same bytes are generated again and
//! hashed afterwards. The time runs from the first write until the receiver has read the end.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use blake2::{Blake2b512, Digest};
use keiro_lab::{Host, Lab};
use keiro_linux::{
    epoll::{Epoll, Interest, ReadyList},
    realtime::{self, FifoPriority},
    udp::{BatchSocket, Purpose, ReceiveBuffers},
};
use keiro_units::Bandwidth;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::{
    super::{
        Laboratory, PROGRESS_STEP, emulator_report,
        transactions::{
            Addresses, CLIENTS, GATEWAY_A, GATEWAY_B, WAN, open_transport::OpenTransport,
        },
    },
    megabits,
};
use crate::{
    runner::Progress,
    trials::{Bulk, Direction, TrialOutcome, TrialRequest},
};

/// UDP payload of the line's largest packet: MTU 1500, less 20 bytes of IPv4 and 8 of UDP.
const DATAGRAM_BYTES: usize = 1472;

/// IP and TCP headers included.
const PACKET_BITS: f64 = 1500.0 * 8.0;

/// Rate of the probe relative to the line's.
const PROBE_EXCESS: f64 = 1.1;

/// Interval of the probe's bursts.
const PROBE_STEP: Duration = Duration::from_millis(1);

/// The probe's port; the gateways use another.
const PROBE_PORT: u16 = 7950;

/// Timeout of the receiver of the probe.
const PROBE_SILENCE: Duration = Duration::from_millis(500);

/// Bytes generated, written and read at once.
const CHUNK_BYTES: usize = 1 << 18;

/// Period of checking whether a transfer's time is over.
const LOOK: Duration = Duration::from_millis(200);

/// Real-time priority of the threads that generate and read the bytes, below the gateways and the emulator.
/// On a busy machine they would otherwise wait for a CPU, which would be measured as the line. Ours.
const PRIORITY: FifoPriority = FifoPriority::new(5).unwrap();

impl Laboratory {
    pub(super) fn bulk(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        bulk: &Bulk,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let addresses = Addresses::of(lab)?;
        let case = bulk.cases().nth(request.case);
        let (direction, round_trip) = case.context("the plan has no such case")?;
        lab.link(WAN)?.change(|config| {
            config.rate = Some(bulk.rate.0);
            config.delay = round_trip / 2;
        })?;
        let ends = match direction {
            Direction::Up => [
                (GATEWAY_A, addresses.overlay_a),
                (GATEWAY_B, addresses.overlay_b),
            ],
            Direction::Down => [
                (GATEWAY_B, addresses.overlay_b),
                (GATEWAY_A, addresses.overlay_a),
            ],
        };
        let [from, to] = [lab.host(ends[0].0)?, lab.host(ends[1].0)?];
        let to_address = SocketAddr::new(ends[1].1.ip(), PROBE_PORT);
        let carries = probe(from, to, to_address, bulk.rate.0, bulk.probe.0)?;
        let transfer = Transfer {
            server: lab.host("server")?,
            client: lab.host(CLIENTS[0])?,
            direction,
            bytes: bulk.file.of(request.quick).0.get(),
            seed: request.seed,
            limit: request.extent.duration.0,
        };
        let mut pair = self.pair(lab, &addresses, bulk.rate.0)?;
        lab.measure_from_now()?;
        let listener = transfer.listen(addresses.server)?;
        let carried = transfer.carry(&listener, pair.entry(), progress);
        let carried = carried.with_context(|| pair.log_tail())?;
        pair.close()?;
        let goodput = carried.received as f64 * 8.0 / carried.took.as_secs_f64().max(1e-9);
        let mut remarks = Vec::new();
        let expected = transfer.hash();
        let is_whole = carried.hash == expected && carried.received == transfer.bytes;
        if !is_whole {
            remarks.push(match carried.error {
                Some(error) => format!("{} bytes arrived: {error}", carried.received),
                None => format!("{} bytes arrived, and they are others", carried.received),
            });
        }
        Ok(TrialOutcome {
            values: vec![
                Some(megabits(goodput)),
                Some(megabits(carries)),
                Some(100.0 * goodput / carries),
                Some(f64::from(u8::from(!is_whole))),
            ],
            durations_ms: Vec::new(),
            traces: Vec::new(),
            samples: Vec::new(),
            remarks,
            void: None,
            emulator: emulator_report(lab)?,
        })
    }
}

/// Capacity of the line in bit/s of UDP payload.
fn probe(
    from: &Host,
    to: &Host,
    address: SocketAddr,
    rate: Bandwidth,
    time: Duration,
) -> anyhow::Result<f64> {
    let sink = to.run(|| BatchSocket::bind(address, Purpose::Path))??;
    let source = from.run(|| {
        let any = match address {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        io::Result::Ok(socket)
    })??;
    let ended = AtomicBool::new(false);
    let (first, last, bytes) = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            be_punctual();
            let sent = send_probe(&source, rate, time);
            ended.store(true, Ordering::Release);
            sent
        });
        let counting = scope.spawn(|| {
            be_punctual();
            count_probe(&sink, &ended)
        });
        match (sending.join(), counting.join()) {
            (Ok(sent), Ok(counted)) => sent.and(counted),
            (Err(panic), _) | (_, Err(panic)) => std::panic::resume_unwind(panic),
        }
    })
    .context("what the line carries could not be measured")?;
    let drops = sink.receive_drops()?;
    ensure!(
        drops == 0,
        "the probe's own socket lost {drops} packets: the machine is too busy to measure what the \
         line carries"
    );
    ensure!(
        last > first,
        "no more than one datagram of the probe arrived"
    );
    Ok(bytes as f64 * 8.0 * 1e9 / (last - first) as f64)
}

fn send_probe(socket: &UdpSocket, rate: Bandwidth, time: Duration) -> io::Result<()> {
    let datagram = [0; DATAGRAM_BYTES];
    let begun = Instant::now();
    let per_second = rate.as_bits_per_second() as f64 * PROBE_EXCESS / PACKET_BITS;
    let mut sent = 0_u64;
    while begun.elapsed() < time {
        let due = (begun.elapsed().as_secs_f64() * per_second) as u64;
        while sent < due {
            match socket.send(&datagram) {
                // A full send buffer means that the line is kept busy.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            sent += 1;
        }
        thread::sleep(PROBE_STEP);
    }
    Ok(())
}

/// First and last arrival in ns, and the payload bytes after the first.
fn count_probe(socket: &BatchSocket, ended: &AtomicBool) -> io::Result<(u64, u64, u64)> {
    let epoll = Epoll::new()?;
    epoll.add(socket, 0, Interest::Read)?;
    let mut ready = ReadyList::new(1);
    let mut buffers = ReceiveBuffers::new();
    let (mut first, mut last, mut bytes) = (None, 0, 0);
    let mut heard = Instant::now();
    while !ended.load(Ordering::Acquire) || heard.elapsed() < PROBE_SILENCE {
        epoll.wait(&mut ready, Some(LOOK))?;
        while socket.receive(&mut buffers, |received| {
            heard = Instant::now();
            last = received.received_at_nanos.max(last);
            match first {
                None => first = Some(received.received_at_nanos),
                Some(_) => bytes += received.data.len() as u64,
            }
        })? > 0
        {}
    }
    Ok((first.unwrap_or(last), last, bytes))
}

struct Transfer<'a> {
    server: &'a Host,
    client: &'a Host,
    direction: Direction,
    bytes: u64,
    seed: u64,
    /// The transfer is given up after this time.
    limit: Duration,
}

/// Result of a transfer.
struct Carried {
    received: u64,
    hash: [u8; 64],
    took: Duration,
    /// Why it ended early; `None` if complete.
    error: Option<io::Error>,
}

impl Transfer<'_> {
    fn listen(&self, address: SocketAddr) -> anyhow::Result<TcpListener> {
        let listener = self.server.run(|| TcpListener::bind(address))?;
        listener.with_context(|| format!("cannot listen at {address}"))
    }

    fn carry(
        &self,
        listener: &TcpListener,
        entry: SocketAddr,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Carried> {
        let client = self.client.run(|| TcpStream::connect(entry))??;
        let accepted = accept(listener, LOOK * 50).context("no connection to the server")?;
        let (source, sink) = match self.direction {
            Direction::Up => (client, accepted),
            Direction::Down => (accepted, client),
        };
        for stream in [&source, &sink] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_write_timeout(Some(LOOK))?;
        }
        let begun = Instant::now();
        let deadline = begun + self.limit;
        thread::scope(|scope| {
            let sending = scope.spawn(|| {
                be_punctual();
                self.send(source, deadline)
            });
            let receiving = scope.spawn(|| {
                be_punctual();
                receive(sink, deadline)
            });
            while !receiving.is_finished() {
                thread::sleep(PROGRESS_STEP);
                progress(&Progress {
                    elapsed: begun.elapsed().min(self.limit),
                    applications: Vec::new(),
                });
            }
            let joined = |panic| std::panic::resume_unwind(panic);
            let (received, hash, ended, error) = receiving.join().unwrap_or_else(joined);
            let sent = sending
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(Carried {
                received,
                hash,
                took: ended.saturating_duration_since(begun),
                error: error.or(sent.err()),
            })
        })
    }

    fn send(&self, mut stream: TcpStream, deadline: Instant) -> io::Result<()> {
        let mut result = Ok(());
        self.chunks(|chunk| {
            let mut left = chunk;
            while !left.is_empty() {
                match stream.write(left) {
                    Ok(written) => left = &left[written..],
                    Err(error) if is_pause(&error) && Instant::now() < deadline => {}
                    Err(error) => {
                        result = Err(error);
                        return false;
                    }
                }
            }
            true
        });
        result.and_then(|()| stream.shutdown(Shutdown::Write))
    }

    fn hash(&self) -> [u8; 64] {
        let mut hash = Blake2b512::new();
        self.chunks(|chunk| {
            hash.update(chunk);
            true
        });
        hash.finalize().into()
    }

    /// Generates the file; stops when `take` returns false.
    fn chunks(&self, mut take: impl FnMut(&[u8]) -> bool) {
        let mut random = ChaCha12Rng::seed_from_u64(self.seed);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut left = self.bytes;
        while left > 0 {
            let length = left.min(CHUNK_BYTES as u64) as usize;
            random.fill_bytes(&mut chunk[..length]);
            if !take(&chunk[..length]) {
                return;
            }
            left -= length as u64;
        }
    }
}

/// Stays an ordinary thread where real-time priority is not permitted.
fn be_punctual() {
    let _ = realtime::set_timer_slack(Duration::from_nanos(1));
    let _ = realtime::schedule_fifo(PRIORITY);
}

/// Bytes received, their hash, when the end was read, and the error that came instead.
fn receive(
    mut stream: TcpStream,
    deadline: Instant,
) -> (u64, [u8; 64], Instant, Option<io::Error>) {
    let mut hash = Blake2b512::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut received = 0;
    let error = loop {
        match stream.read(&mut chunk) {
            Ok(0) => break None,
            Ok(count) => {
                hash.update(&chunk[..count]);
                received += count as u64;
            }
            Err(error) if is_pause(&error) && Instant::now() < deadline => {}
            Err(error) => break Some(error),
        }
    };
    (received, hash.finalize().into(), Instant::now(), error)
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Accepts the next connection within about `limit`.
fn accept(listener: &TcpListener, limit: Duration) -> io::Result<TcpStream> {
    let epoll = Epoll::new()?;
    epoll.add(listener, 0, Interest::Read)?;
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + limit;
    let mut ready = ReadyList::new(1);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if is_pause(&error) && Instant::now() < deadline => {
                epoll.wait(&mut ready, Some(LOOK))?;
            }
            Err(error) => return Err(error),
        }
    }
}
