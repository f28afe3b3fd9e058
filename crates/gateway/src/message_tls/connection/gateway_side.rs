//! The side of the message socket: one end of a pair of Unix sockets.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
};

use keiro_linux::epoll::{Epoll, Interest};

use super::super::token;
use crate::data::epoll_registration::{EpollRegistration, interest};

pub(super) struct GatewaySide {
    stream: UnixStream,
    watch: EpollRegistration,
    number: u64,
    /// Nothing more goes to the message socket.
    finished: bool,
    /// Nothing more comes from it.
    ended: bool,
}

impl GatewaySide {
    pub(super) fn new(epoll: &Epoll, number: u64, stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let watch = EpollRegistration::new(Interest::Read);
        watch.begin(epoll, &stream, token::gateway(number))?;
        Ok(Self {
            stream,
            watch,
            number,
            finished: false,
            ended: false,
        })
    }

    /// Writes from the front of `bytes` what there is room for; whether all of it.
    pub(super) fn write(&mut self, bytes: &mut Vec<u8>) -> bool {
        let mut written = 0;
        while written < bytes.len() {
            match self.stream.write(&bytes[written..]) {
                Ok(count) if count > 0 => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It has closed: reading shows why.
                _ => {
                    written = bytes.len();
                    self.finished = true;
                }
            }
        }
        bytes.drain(..written);
        bytes.is_empty()
    }

    /// Bytes that came; 0: none now, or it has ended.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> usize {
        loop {
            match self.stream.read(bytes) {
                Ok(0) => self.ended = true,
                Ok(count) => return count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.ended = true,
            }
            return 0;
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The client sends nothing more. Outcomes still come. Whether this is new.
    pub(super) fn finish(&mut self) -> bool {
        let is_new = !std::mem::replace(&mut self.finished, true);
        if is_new {
            // Fails only if the other end has closed.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        is_new
    }

    pub(super) fn on_hangup(&mut self) {
        self.watch.hang_up();
    }

    pub(super) fn update_interest(
        &mut self,
        epoll: &Epoll,
        reads: bool,
        writes: bool,
    ) -> io::Result<()> {
        let wanted = interest(reads && !self.ended, writes);
        if self.ended {
            self.watch.hang_up();
        }
        self.watch
            .update(epoll, &self.stream, token::gateway(self.number), wanted)
    }
}
