//! Measurements: one TCP transfer, small datagrams at increasing rates, and idle round trips.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use keiro_lab::Lab;
use socket2::{Domain, Socket, Type};

use crate::tunnel::Tunnel;

/// One round of one tunnel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Goodput of one TCP connection, bit/s.
    pub(crate) tcp: f64,
    /// Processor time of both ends' programs for 2^30 bytes of it, in seconds.
    pub(crate) cpu_per_gib: f64,
    /// Datagrams of 64 bytes per second of which at most 1 % are lost.
    pub(crate) small: f64,
    /// Processor time of both ends' programs for each, in seconds.
    pub(crate) cpu_per_small: f64,
    /// Median of idle round trips, in seconds.
    pub(crate) round_trip: f64,
}

const PATIENCE: Duration = Duration::from_secs(20);
const SMALL: usize = 64;
/// Permitted loss at the highest rate: like RFC 2544 for frame loss, but not zero.
const LOSS_MAX: f64 = 0.01;
const ROUND_TRIPS: usize = 500;

impl Measured {
    pub(crate) const HEAD: &str =
        "tunnel         TCP Gbit/s  CPU s/GiB  64 B kpps  CPU us each  RTT us";

    pub(crate) fn row(&self, name: &str) -> String {
        format!(
            "{name:<13} {:>11.2} {:>10.2} {:>10.0} {:>12.2} {:>7.0}",
            self.tcp / 1e9,
            self.cpu_per_gib,
            self.small / 1e3,
            self.cpu_per_small * 1e6,
            self.round_trip * 1e6,
        )
    }

    /// The median of each figure by itself.
    pub(crate) fn median(all: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = all.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self {
            tcp: of(|m| m.tcp),
            cpu_per_gib: of(|m| m.cpu_per_gib),
            small: of(|m| m.small),
            cpu_per_small: of(|m| m.cpu_per_small),
            round_trip: of(|m| m.round_trip),
        }
    }

    pub(crate) fn beside(&self, other: &Self) -> String {
        format!(
            "TCP {:.2} x, CPU per GiB {:.2} x, small {:.2} x, CPU each {:.2} x, round trip {:.2} x",
            self.tcp / other.tcp,
            self.cpu_per_gib / other.cpu_per_gib,
            self.small / other.small,
            self.cpu_per_small / other.cpu_per_small,
            self.round_trip / other.round_trip,
        )
    }
}

/// Waits until a datagram arrives.
pub(crate) fn await_echo(lab: &Lab, tunnel: &Tunnel) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Ok(found) = round_trips(lab, tunnel, 1, Duration::from_millis(200))
            && !found.is_empty()
        {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("nothing comes through within {PATIENCE:?}")
}

pub(crate) fn measure(lab: &Lab, tunnel: &Tunnel, length: Duration) -> anyhow::Result<Measured> {
    let mut idle = round_trips(lab, tunnel, ROUND_TRIPS, Duration::from_secs(1))?;
    idle.sort();
    let round_trip = idle.get(idle.len() / 2).context("no round trip")?;
    let (bytes, took, cpu) = transfer(lab, tunnel, length)?;
    let (small, cpu_per_small) = small_packets(lab, tunnel)?;
    Ok(Measured {
        tcp: bytes as f64 * 8.0 / took.as_secs_f64(),
        cpu_per_gib: cpu / (bytes as f64 / f64::from(1 << 30)),
        small,
        cpu_per_small,
        round_trip: round_trip.as_secs_f64(),
    })
}

/// Processor time of the tunnel's programs so far, in seconds.
fn cpu(tunnel: &Tunnel) -> anyhow::Result<f64> {
    // USER_HZ, which is 100 in every ABI that Rust runs on (proc(5), times(2)).
    const TICKS_PER_SECOND: f64 = 100.0;
    let mut all = 0.0;
    for one in &tunnel.processes {
        let stat = fs::read_to_string(format!("/proc/{}/stat", one.id()))?;
        // proc(5): after the name in brackets, fields 14 and 15 are utime and stime.
        let rest = stat.rsplit_once(')').context("/proc/PID/stat")?.1;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        for field in &fields[11..13] {
            all += field.parse::<f64>()? / TICKS_PER_SECOND;
        }
    }
    Ok(all)
}

/// A socket of host a or b in the tunnel.
fn bound(lab: &Lab, host: usize, address: Ipv4Addr) -> anyhow::Result<UdpSocket> {
    let host = lab.host(["a", "b"][host])?;
    let socket = host.run(|| -> std::io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        // As much as a server that means it would ask for.
        socket.set_recv_buffer_size(4 << 20)?;
        socket.bind(&SocketAddr::from((address, 0)).into())?;
        Ok(socket.into())
    })??;
    Ok(socket)
}

/// The round trips of single datagrams, one after the other, a millisecond apart.
fn round_trips(
    lab: &Lab,
    tunnel: &Tunnel,
    count: usize,
    patience: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let near = bound(lab, 0, tunnel.addresses[0])?;
    let far = bound(lab, 1, tunnel.addresses[1])?;
    near.connect(far.local_addr()?)?;
    near.set_read_timeout(Some(patience))?;
    far.set_read_timeout(Some(Duration::from_millis(50)))?;
    let done = AtomicBool::new(false);
    let mut found = Vec::with_capacity(count);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 2048];
            while !done.load(Ordering::Relaxed) {
                if let Ok((length, from)) = far.recv_from(&mut bytes) {
                    let _ = far.send_to(&bytes[..length], from);
                }
            }
        });
        let mut bytes = [0; 2048];
        for _ in 0..count {
            let sent = Instant::now();
            if near.send(&[0; 56]).is_ok() && near.recv(&mut bytes).is_ok() {
                found.push(sent.elapsed());
            }
            thread::sleep(Duration::from_millis(1));
        }
        done.store(true, Ordering::Relaxed);
    });
    Ok(found)
}

/// One TCP connection from a to b: bytes, duration, and processor time.
fn transfer(lab: &Lab, tunnel: &Tunnel, length: Duration) -> anyhow::Result<(u64, Duration, f64)> {
    let to = SocketAddr::from((tunnel.addresses[1], 0));
    let listener = lab.host("b")?.run(|| TcpListener::bind(to))??;
    let to = listener.local_addr()?;
    let from = SocketAddr::from((tunnel.addresses[0], 0));
    let mut stream = lab.host("a")?.run(|| -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        Ok(socket.into())
    })??;
    let (mut accepted, _) = listener.accept()?;
    accepted.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The first second is slow start.
    let warm = Duration::from_secs(1);
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            let chunk = vec![7; 1 << 18];
            let began = Instant::now();
            while began.elapsed() < warm + length && stream.write_all(&chunk).is_ok() {}
        });
        let reader = scope.spawn(|| -> std::io::Result<()> {
            let mut chunk = vec![0; 1 << 18];
            loop {
                match accepted.read(&mut chunk)? {
                    0 => return Ok(()),
                    length => {
                        received.fetch_add(length as u64, Ordering::Relaxed);
                    }
                }
            }
        });
        thread::sleep(warm);
        let (bytes, at, before) = (
            received.load(Ordering::Relaxed),
            Instant::now(),
            cpu(tunnel)?,
        );
        thread::sleep(length.saturating_sub(Duration::from_millis(200)));
        let (bytes, took) = (received.load(Ordering::Relaxed) - bytes, at.elapsed());
        let used = cpu(tunnel)? - before;
        reader.join().expect("the reader does not panic")?;
        Ok((bytes, took, used))
    })
}

/// The highest rate of small datagrams with hardly any loss, and the cost of each at that rate.
fn small_packets(lab: &Lab, tunnel: &Tunnel) -> anyhow::Result<(f64, f64)> {
    const FIRST: f64 = 20_000.0;
    const STEP: f64 = 1.25;
    const LAST: f64 = 1_500_000.0;
    const HALVINGS: usize = 3;
    let mut best = (0.0, 0.0);
    // The offered rate at the best result, and one that was too high.
    let (mut low, mut high) = (FIRST / STEP, None);
    let mut attempt = |rate: f64| -> anyhow::Result<bool> {
        // Too much loss may be the machine's fault.
        for _ in 0..2 {
            let (sent, arrived, took, used) = at_rate(lab, tunnel, rate)?;
            let reached = sent as f64 / took.as_secs_f64();
            let share = 1.0 - arrived as f64 / sent.max(1) as f64;
            if share <= LOSS_MAX {
                if reached > best.0 {
                    best = (reached, used / arrived.max(1) as f64);
                }
                // The sender itself may have reached its limit.
                return Ok(reached >= 0.95 * rate);
            }
        }
        Ok(false)
    };
    while high.is_none() && low * STEP < LAST {
        match attempt(low * STEP)? {
            true => low *= STEP,
            false => high = Some(low * STEP),
        }
    }
    if let Some(mut high) = high {
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            match attempt(middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
    }
    Ok(best)
}

/// Datagrams sent and received in a second at `rate`, with duration and processor time.
fn at_rate(lab: &Lab, tunnel: &Tunnel, rate: f64) -> anyhow::Result<(u64, u64, Duration, f64)> {
    const LENGTH: Duration = Duration::from_secs(1);
    /// Period of sending what is due.
    const TICK: Duration = Duration::from_micros(100);
    let near = bound(lab, 0, tunnel.addresses[0])?;
    let far = bound(lab, 1, tunnel.addresses[1])?;
    near.connect(far.local_addr()?)?;
    far.set_read_timeout(Some(Duration::from_millis(300)))?;
    let before = cpu(tunnel)?;
    let (sent, arrived, took) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut bytes = [0; 2048];
            let mut count = 0;
            // Ends if nothing has arrived for a while.
            loop {
                match far.recv(&mut bytes) {
                    Ok(_) => count += 1,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return count,
                }
            }
        });
        let began = Instant::now();
        let mut sent: u64 = 0;
        while began.elapsed() < LENGTH {
            let due = (began.elapsed().as_secs_f64() * rate) as u64;
            while sent < due {
                // A full device queue loses it, like a real one.
                let _ = near.send(&[0; SMALL]);
                sent += 1;
            }
            thread::sleep(TICK);
        }
        let took = began.elapsed();
        (
            sent,
            receiver.join().expect("the receiver does not panic"),
            took,
        )
    });
    Ok((sent, arrived, took, cpu(tunnel)? - before))
}
