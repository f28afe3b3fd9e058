//! The side of the client: TCP and TLS.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use keiro_core::Instant;
use keiro_linux::{
    epoll::{Epoll, Interest},
    tcp,
};
use rustls::{ServerConfig, ServerConnection};

use super::super::token;
use crate::data::epoll_registration::{EpollRegistration, interest};

/// Bytes for the client that wait, before TLS and in it each.
const TO_CLIENT_MAX: usize = 64 << 10;
/// Bytes that are read of a client after its refusal before others have their turn.
const DISCARDED_PER_TURN: usize = 16 << 10;

pub(super) struct TlsSide {
    /// `None` only while it is dropped.
    stream: Option<TcpStream>,
    tls: ServerConnection,
    watch: EpollRegistration,
    number: u64,
    /// What does not fit into TLS's own buffer.
    to_client: Vec<u8>,
    /// The client sends nothing more.
    ended: bool,
    /// A close notice has been queued.
    finished: bool,
    /// When the client last took something, or nothing waited.
    progress: Instant,
}

/// Why nothing more comes.
pub(super) enum Ended {
    /// What came is not TLS, or of a client that does not trust the certificate.
    Broken(String),
    /// The connection is gone.
    Gone,
}

impl TlsSide {
    pub(super) fn new(
        now: Instant,
        number: u64,
        stream: TcpStream,
        config: Arc<ServerConfig>,
        epoll: &Epoll,
    ) -> io::Result<Self> {
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(TO_CLIENT_MAX));
        let watch = EpollRegistration::new(Interest::Read);
        watch.begin(epoll, &stream, token::client(number))?;
        Ok(Self {
            stream: Some(stream),
            tls,
            watch,
            number,
            to_client: Vec::new(),
            ended: false,
            finished: false,
            progress: now,
        })
    }

    /// Appends what the client has sent, at most `bytes_max`. `false`: nothing now.
    pub(super) fn read(&mut self, bytes_max: usize, to: &mut Vec<u8>) -> Result<bool, Ended> {
        if self.read_plaintext(bytes_max, to)? {
            return Ok(true);
        }
        let Some(stream) = &mut self.stream else {
            return Err(Ended::Gone);
        };
        if self.ended {
            return Ok(false);
        }
        // An end counts once all before it was read: `read_plaintext` finds it.
        match self.tls.read_tls(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Ended::Gone),
        }
        match self.tls.process_new_packets() {
            Ok(_) => {}
            Err(error) => return Err(Ended::Broken(error.to_string())),
        }
        self.read_plaintext(bytes_max, to)?;
        Ok(true)
    }

    fn read_plaintext(&mut self, bytes_max: usize, to: &mut Vec<u8>) -> Result<bool, Ended> {
        let before = to.len();
        to.resize(before + bytes_max, 0);
        let read = self.tls.reader().read(&mut to[before..]);
        to.truncate(before + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => {
                self.ended = true;
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            // Ended without a close notice; the framing shows whether something is missing.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.ended = true;
                Ok(false)
            }
            Err(_) => Err(Ended::Gone),
        }
    }

    /// Reads on and forgets it.
    pub(super) fn discard(&mut self) {
        let mut bytes = [0; DISCARDED_PER_TURN];
        if let Some(stream) = &mut self.stream {
            match stream.read(&mut bytes) {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.ended = true,
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Queues bytes for the client.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.to_client.extend_from_slice(bytes);
    }

    /// Queues a close notice behind what waits.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// The same, once.
    pub(super) fn close(&mut self, now: Instant) {
        if !self.finished {
            self.finished = true;
            self.write(now);
        }
    }

    /// More would wait than may.
    pub(super) fn is_full(&self) -> bool {
        !self.to_client.is_empty()
    }

    pub(super) fn has_to_write(&self) -> bool {
        !self.to_client.is_empty() || self.tls.wants_write()
    }

    /// Writes what the client takes; `false` if it is gone.
    pub(super) fn write(&mut self, now: Instant) -> bool {
        loop {
            while !self.to_client.is_empty() {
                match self.tls.writer().write(&self.to_client) {
                    Ok(0) => break,
                    Ok(count) => drop(self.to_client.drain(..count)),
                    Err(_) => return false,
                }
            }
            if self.finished && self.to_client.is_empty() {
                self.tls.send_close_notify();
            }
            let Some(stream) = &mut self.stream else {
                return false;
            };
            if !self.tls.wants_write() {
                self.progress = now;
                return true;
            }
            match self.tls.write_tls(stream) {
                Ok(0) => return false,
                Ok(_) => self.progress = now,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    pub(super) fn stuck_for(&self, now: Instant) -> Duration {
        match self.has_to_write() {
            true => now.saturating_duration_since(self.progress),
            false => Duration::ZERO,
        }
    }

    pub(super) fn on_hangup(&mut self) {
        self.watch.hang_up();
    }

    pub(super) fn update_interest(&mut self, epoll: &Epoll, reads: bool) -> io::Result<()> {
        let writes = self.has_to_write();
        let Some(stream) = &self.stream else {
            return Ok(());
        };
        let key = token::client(self.number);
        self.watch
            .update(epoll, stream, key, interest(reads, writes))
    }
}

impl Drop for TlsSide {
    fn drop(&mut self) {
        // What was written still arrives; otherwise the client would see a reset instead of the reason.
        if let Some(stream) = self.stream.take() {
            tcp::close(stream);
        }
    }
}
