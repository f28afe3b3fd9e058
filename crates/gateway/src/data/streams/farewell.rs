//! Connections whose stream was reset when all that came before had been written to them: what the kernel
//! still holds of it would go with a reset at once, so each is reset when its other end has taken that.

use std::{net::TcpStream, time::Duration};

use keiro_core::Instant;
use keiro_linux::tcp;

/// Connections that are still to be reset.
#[derive(Debug, Default)]
pub(super) struct Farewells(Vec<Farewell>);

#[derive(Debug)]
struct Farewell {
    socket: TcpStream,
    /// Bytes that the other end has not acknowledged, and since when so many.
    left: usize,
    moved_at: Instant,
    since: Instant,
}

/// How long one waits whose other end takes nothing, and in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) quiet: Duration,
    pub(super) all: Duration,
}

impl Farewells {
    /// Resets a connection, now or behind what was written to it.
    pub(super) fn reset(&mut self, now: Instant, socket: TcpStream) {
        match tcp::unacknowledged(&socket) {
            Ok(left) if left > 0 => self.0.push(Farewell {
                socket,
                left,
                moved_at: now,
                since: now,
            }),
            _ => tcp::reset(socket),
        }
    }

    /// Resets those that have taken everything, or have been waited for long enough.
    pub(super) fn tick(&mut self, now: Instant, waits: Waits) {
        let over = |farewell: &mut Farewell| {
            let left = tcp::unacknowledged(&farewell.socket).unwrap_or(0);
            if left != farewell.left {
                (farewell.left, farewell.moved_at) = (left, now);
            }
            let waited = |since| now.saturating_duration_since(since);
            left == 0
                || waited(farewell.moved_at) >= waits.quiet
                || waited(farewell.since) >= waits.all
        };
        for farewell in self.0.extract_if(.., over) {
            tcp::reset(farewell.socket);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
