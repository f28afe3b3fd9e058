//! A flow from the content server to a client, as plain TCP or MPTCP; records when data arrives.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use keiro_lab::Lab;
use keiro_linux::{
    clock,
    mptcp::subflows,
    mptcp_pm::{Limits, PathManager},
};
use keiro_units::Bandwidth;
use socket2::{Domain, Protocol, Socket, Type};

use super::{CLIENT_ADDRESS, CONTENT_ADDRESS};
use crate::trials::Transport;

/// What the server sends.
#[derive(Clone, Copy, Debug)]
pub(in crate::laboratory) enum Content {
    /// This many bytes, as fast as possible.
    Bytes(u64),
    /// A constant rate of payload in blocks of this many bytes, until stopped. Blocks that could not be sent
    /// in time are made up for.
    Rate(Bandwidth, u64),
}

pub(in crate::laboratory) struct Flow {
    stop: Arc<AtomicBool>,
    sending: JoinHandle<anyhow::Result<()>>,
    receiving: JoinHandle<anyhow::Result<Vec<Arrival>>>,
    connection: TcpStream,
    /// `None` refuses joins.
    _listener: TcpListener,
    /// CLOCK_MONOTONIC in ns.
    pub(in crate::laboratory) begun_ns: u64,
}

/// Payload that the client read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::laboratory) struct Arrival {
    /// CLOCK_MONOTONIC in ns.
    pub(in crate::laboratory) at_ns: u64,
    pub(in crate::laboratory) bytes: u64,
}

impl Flow {
    /// Connects the client to the server, which sends at once.
    pub(in crate::laboratory) fn start(
        lab: &Lab,
        transport: Transport,
        content: Content,
    ) -> anyhow::Result<Self> {
        let (server, client) = (lab.host("server")?, lab.host("client")?);
        // Listens at all addresses, because clients join at others than the one that they connect to.
        let listener = server.run(|| -> anyhow::Result<TcpListener> {
            let socket = socket(transport)?;
            socket.bind(&SocketAddr::from(([0_u16; 8], 0)).into())?;
            socket.listen(1)?;
            Ok(socket.into())
        })??;
        let to: SocketAddr = (CONTENT_ADDRESS, listener.local_addr()?.port()).into();
        let begun_ns = clock::monotonic_nanos();
        let sink = client.run(|| -> anyhow::Result<TcpStream> {
            PathManager::open()?.set_limits(Limits {
                accepted_addresses: 8,
                subflows: 8,
            })?;
            let socket = socket(transport)?;
            socket.bind(&SocketAddr::from((CLIENT_ADDRESS, 0)).into())?;
            socket.connect_timeout(&to.into(), CONNECT_WAIT)?;
            Ok(socket.into())
        })??;
        let (source, _) = listener.accept()?;
        source.set_write_timeout(Some(LOOK))?;
        sink.set_read_timeout(Some(LOOK))?;
        let stop = Arc::new(AtomicBool::new(false));
        let connection = source.try_clone()?;
        let (of_sender, of_receiver) = (Arc::clone(&stop), Arc::clone(&stop));
        Ok(Self {
            sending: thread::spawn(move || send(source, content, &of_sender)),
            receiving: thread::spawn(move || receive(sink, &of_receiver)),
            stop,
            connection,
            _listener: listener,
            begun_ns,
        })
    }

    /// Waits until the connection has this many subflows.
    pub(in crate::laboratory) fn wait_for_subflows(&self, count: usize) -> anyhow::Result<()> {
        let end = Instant::now() + CONNECT_WAIT;
        loop {
            let all = subflows(&self.connection).context("the kernel has no MPTCP here")?;
            let there = all.iter().filter(|one| one.established).count();
            if there >= count {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{there} subflows of {count}: {all:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether everything has been received.
    pub(in crate::laboratory) fn has_ended(&self) -> bool {
        self.receiving.is_finished()
    }

    /// Ends the flow and returns all data that the client has read.
    pub(in crate::laboratory) fn stop(self) -> anyhow::Result<Vec<Arrival>> {
        self.stop.store(true, Ordering::Release);
        let sent = self.sending.join();
        let received = self.receiving.join();
        sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        received.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn socket(transport: Transport) -> anyhow::Result<Socket> {
    let protocol = match transport {
        Transport::Tcp => Protocol::TCP,
        Transport::Mptcp => Protocol::from(IPPROTO_MPTCP),
    };
    Socket::new(Domain::IPV6, Type::STREAM, Some(protocol)).context("the kernel has no MPTCP")
}

fn send(mut source: TcpStream, content: Content, stop: &AtomicBool) -> anyhow::Result<()> {
    let chunk = vec![0; CHUNK_BYTES];
    let begun = Instant::now();
    let mut sent = 0_u64;
    while !stop.load(Ordering::Acquire) {
        let due = match content {
            Content::Bytes(all) => all,
            Content::Rate(rate, block) => {
                let all = rate.bytes_in_floor(begun.elapsed()).get();
                all - all % block
            }
        };
        let now = due.saturating_sub(sent).min(CHUNK_BYTES as u64) as usize;
        if now == 0 {
            if matches!(content, Content::Bytes(_)) {
                source.shutdown(Shutdown::Write)?;
                return Ok(());
            }
            thread::sleep(PACE);
            continue;
        }
        match source.write(&chunk[..now]) {
            Ok(count) => sent += count as u64,
            Err(error) if is_pause(error.kind()) => {}
            // The other end may have noticed the end first.
            Err(_) if stop.load(Ordering::Acquire) => {}
            Err(error) => return Err(error).context("the flow's sender"),
        }
    }
    Ok(())
}

fn receive(mut sink: TcpStream, stop: &AtomicBool) -> anyhow::Result<Vec<Arrival>> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut all = Vec::new();
    while !stop.load(Ordering::Acquire) {
        match sink.read(&mut chunk) {
            Ok(0) => return Ok(all),
            Ok(count) => all.push(Arrival {
                at_ns: clock::monotonic_nanos(),
                bytes: count as u64,
            }),
            Err(error) if is_pause(error.kind()) => {}
            Err(error) => bail!("the flow's receiver: {error}"),
        }
    }
    Ok(all)
}

fn is_pause(kind: ErrorKind) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    [Interrupted, TimedOut, WouldBlock].contains(&kind)
}

/// A time without data, by CLOCK_MONOTONIC in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::laboratory) struct Gap {
    pub(in crate::laboratory) from_ns: u64,
    pub(in crate::laboratory) to_ns: u64,
}

impl Gap {
    /// How long it was, in ms.
    pub(in crate::laboratory) fn ms(&self) -> f64 {
        self.to_ns.saturating_sub(self.from_ns) as f64 / 1e6
    }
}

/// The longest gap that ends between two instants, in ns. Silence until the end counts as a gap.
pub(in crate::laboratory) fn longest_gap(arrivals: &[Arrival], from_ns: u64, to_ns: u64) -> Gap {
    longest_gap_of(arrivals, from_ns, to_ns, to_ns)
}

/// The longest such gap among those that begin before `begun_ns`.
pub(in crate::laboratory) fn longest_gap_of(
    arrivals: &[Arrival],
    from_ns: u64,
    begun_ns: u64,
    to_ns: u64,
) -> Gap {
    let pairs = arrivals.windows(2).map(|pair| Gap {
        from_ns: pair[0].at_ns,
        to_ns: pair[1].at_ns,
    });
    let ended = pairs.filter(|gap| (from_ns..to_ns).contains(&gap.to_ns));
    let last = arrivals.iter().rev().find(|one| one.at_ns < to_ns);
    let silence = last.map(|last| Gap {
        from_ns: last.at_ns.max(from_ns),
        to_ns,
    });
    let all = ended.chain(silence).filter(|gap| gap.from_ns < begun_ns);
    all.max_by_key(|gap| gap.to_ns - gap.from_ns)
        .unwrap_or_default()
}

/// `IPPROTO_MPTCP` (`include/uapi/linux/in.h`).
const IPPROTO_MPTCP: i32 = 262;
/// Maximum of bytes read or written at once.
const CHUNK_BYTES: usize = 1 << 17;
/// Period of looking for blocks that are due.
const PACE: Duration = Duration::from_millis(1);
/// How often a transfer checks whether it is over.
const LOOK: Duration = Duration::from_millis(100);
const CONNECT_WAIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_where_it_ends_and_so_does_final_silence() {
        let at = |at_ns| Arrival { at_ns, bytes: 1 };
        let all = [at(10), at(50), at(60), at(75)];
        let gap = |from_ns, to_ns| Gap { from_ns, to_ns };
        assert_eq!(longest_gap(&all, 55, 80), gap(60, 75));
        assert_eq!(longest_gap(&all, 40, 80), gap(10, 50));
        assert_eq!(longest_gap(&all, 55, 200), gap(75, 200));
        assert_eq!(longest_gap(&[], 0, 10), gap(0, 0));
        assert_eq!(longest_gap_of(&all, 40, 55, 200), gap(10, 50));
        assert_eq!(longest_gap_of(&all, 55, 55, 200), gap(50, 60));
        assert_eq!(gap(1_000_000, 3_500_000).ms(), 2.5);
    }
}
