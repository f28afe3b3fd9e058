//! Resets connections after their last bytes are acknowledged. A reset at once would discard what
//! the kernel still holds of them.

use std::{net::TcpStream, time::Duration};

use keiro_core::Instant;
use keiro_linux::{epoll::Epoll, tcp};

use super::super::quota::QuotaGuard;

/// Connections that are still to be reset.
#[derive(Debug, Default)]
pub(super) struct DeferredResets(Vec<DeferredReset>);

#[derive(Debug)]
struct DeferredReset {
    socket: TcpStream,
    /// Unacknowledged bytes; and when they last became fewer.
    left: usize,
    moved_at: Instant,
    since: Instant,
    _share: Option<QuotaGuard>,
}

/// How long to wait while nothing is acknowledged, and in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResetTimeouts {
    pub(super) idle: Duration,
    pub(super) total: Duration,
}

/// Further connections are reset at once. Ours: each holds a descriptor that no stream counts.
const DEFERRED_MAX: usize = 256;

impl DeferredResets {
    /// Resets a connection, now or once its written bytes are acknowledged. Input is ignored.
    pub(super) fn reset(
        &mut self,
        now: Instant,
        epoll: &Epoll,
        socket: TcpStream,
        share: Option<QuotaGuard>,
    ) {
        let left = tcp::unacknowledged(&socket).unwrap_or(0);
        if left == 0 || self.0.len() >= DEFERRED_MAX {
            tcp::reset(socket);
            return;
        }
        // It may be unregistered already, after a hang-up.
        let _ = epoll.remove(&socket);
        self.0.push(DeferredReset {
            socket,
            left,
            moved_at: now,
            since: now,
            _share: share,
        });
    }

    /// Resets all at once.
    pub(super) fn end(&mut self) {
        self.0.drain(..).for_each(|one| tcp::reset(one.socket));
    }

    /// Resets connections that are fully acknowledged or timed out.
    pub(super) fn tick(&mut self, now: Instant, timeouts: ResetTimeouts) {
        let over = |deferred: &mut DeferredReset| {
            let left = tcp::unacknowledged(&deferred.socket).unwrap_or(0);
            // A connection whose other end is gone acknowledges nothing more.
            let is_gone = !matches!(deferred.socket.take_error(), Ok(None));
            if left != deferred.left {
                (deferred.left, deferred.moved_at) = (left, now);
            }
            let waited = |since| now.saturating_duration_since(since);
            left == 0
                || is_gone
                || waited(deferred.moved_at) >= timeouts.idle
                || waited(deferred.since) >= timeouts.total
        };
        for deferred in self.0.extract_if(.., over) {
            tcp::reset(deferred.socket);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Read, Write},
        net::{Ipv4Addr, TcpListener},
    };

    use keiro_linux::epoll::{Interest, ReadyList};

    use super::*;

    const TIMEOUTS: ResetTimeouts = ResetTimeouts {
        idle: Duration::from_secs(2),
        total: Duration::from_secs(30),
    };

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// A connection whose other end has not taken all that was written, how much that is, and its other end.
    fn full() -> (TcpStream, usize, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        let mut written = 0;
        loop {
            match socket.write(&[7; 65_536]) {
                Ok(count) => written += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    return (socket, written, other);
                }
            }
        }
    }

    #[test]
    fn reset_waits_until_the_client_has_read_everything() {
        let (socket, written, mut other) = full();
        let epoll = Epoll::new().unwrap();
        epoll.add(&socket, 7, Interest::Read).unwrap();
        let mut deferred_resets = DeferredResets::default();
        deferred_resets.reset(at(0), &epoll, socket, None);
        // As long as it lasts this would be reported over and over.
        other.write_all(b"more").unwrap();
        let mut ready = ReadyList::new(4);
        epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert!(ready.is_empty());
        deferred_resets.tick(at(100), TIMEOUTS);
        assert!(!deferred_resets.is_empty());
        other.read_exact(&mut vec![0; written]).unwrap();
        // What has been taken is acknowledged in a moment.
        let whole = Duration::MAX;
        while !deferred_resets.is_empty() {
            deferred_resets.tick(
                at(200),
                ResetTimeouts {
                    idle: whole,
                    total: whole,
                },
            );
            std::thread::yield_now();
        }
        let end = other.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn reset_does_not_wait_for_a_stalled_or_closed_client() {
        let epoll = Epoll::new().unwrap();
        let mut deferred_resets = DeferredResets::default();
        let (socket, _, _other) = full();
        deferred_resets.reset(at(0), &epoll, socket, None);
        deferred_resets.tick(at(1999), TIMEOUTS);
        assert!(!deferred_resets.is_empty());
        deferred_resets.tick(at(2000), TIMEOUTS);
        assert!(deferred_resets.is_empty());
        let (socket, _, other) = full();
        deferred_resets.reset(at(3000), &epoll, socket, None);
        tcp::reset(other);
        deferred_resets.tick(at(3001), TIMEOUTS);
        assert!(deferred_resets.is_empty());
    }

    #[test]
    fn deferred_resets_beyond_the_bound_happen_at_once() {
        let epoll = Epoll::new().unwrap();
        let mut deferred_resets = DeferredResets::default();
        let (socket, _, _other) = full();
        let copy = || DeferredReset {
            socket: socket.try_clone().unwrap(),
            left: 1,
            moved_at: at(0),
            since: at(0),
            _share: None,
        };
        let (another, _, mut other) = full();
        while deferred_resets.0.len() < DEFERRED_MAX {
            deferred_resets.0.push(copy());
        }
        deferred_resets.reset(at(0), &epoll, another, None);
        assert_eq!(deferred_resets.0.len(), DEFERRED_MAX);
        let end = other
            .read_to_end(&mut Vec::new())
            .map_err(|error| error.kind());
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset));
        deferred_resets.end();
        assert!(deferred_resets.is_empty());
    }
}
