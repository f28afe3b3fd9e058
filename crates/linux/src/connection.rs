//! A client's stream in an epoll set: input in pieces, buffered output.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::fd::AsFd,
};

use crate::epoll::{Epoll, Interest};

/// A non-blocking stream with its output buffer.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    token: u64,
    output: Vec<u8>,
    written: usize,
    reads: bool,
    interest: Interest,
}

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;

impl<S: Read + Write + AsFd> Connection<S> {
    /// Registers a stream that is already non-blocking.
    ///
    /// # Errors
    /// It cannot be added to the epoll set.
    pub fn new(epoll: &Epoll, token: u64, stream: S) -> io::Result<Self> {
        epoll.add(&stream, token, Interest::Read)?;
        Ok(Self {
            stream,
            token,
            output: Vec::new(),
            written: 0,
            reads: true,
            interest: Interest::Read,
        })
    }

    /// Reads once; `None` if the client has closed or is gone, empty if there is no data now.
    pub fn read<'a>(&mut self, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        buffer.resize(READ_BYTES, 0);
        match self.stream.read(buffer) {
            Ok(0) => None,
            Ok(count) => Some(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => Some(&[]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(&[]),
            Err(_) => None,
        }
    }

    /// Appends to the output buffer.
    pub fn push(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Bytes not yet written.
    pub fn waiting(&self) -> usize {
        self.output.len() - self.written
    }

    /// Writes as much as possible; `false` if the client is gone.
    pub fn flush(&mut self, epoll: &Epoll) -> bool {
        while self.waiting() > 0 {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return false,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        if self.waiting() == 0 {
            self.output.clear();
            self.output.shrink_to(READ_BYTES);
            self.written = 0;
        }
        self.update_interest(epoll);
        true
    }

    /// Whether the epoll set reports input; without, only room for output that waits, and the client's end.
    pub fn set_reading(&mut self, epoll: &Epoll, reads: bool) {
        self.reads = reads;
        self.update_interest(epoll);
    }

    fn update_interest(&mut self, epoll: &Epoll) {
        let interest = match (self.reads, self.waiting()) {
            (true, 0) => Interest::Read,
            (true, _) => Interest::ReadWrite,
            (false, 0) => Interest::None,
            (false, _) => Interest::Write,
        };
        if interest != self.interest && epoll.modify(&self.stream, self.token, interest).is_ok() {
            self.interest = interest;
        }
    }
}
