//! Netlink as bytes: a blocking socket, and messages with attributes.
//!
//! For messages without types in `netlink-packet-route` (nexthop objects, generic netlink), and where
//! hundreds of thousands of messages are sent at once. The modules that use it define the messages.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, getsockname, recvmsg, sendto};

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: acknowledges success, too. Failures are always acknowledged.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP`.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_REPLACE`.
pub(crate) const REPLACE: u16 = 0x100;
/// `NLM_F_EXCL`.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;

/// `NLM_F_DUMP_INTR`: the listed entries changed meanwhile.
const CHANGED: u16 = 0x10;
/// `NLM_F_CAPPED`: the request is not repeated in the answer.
const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow.
const EXPLAINED: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`.
const MESSAGE: u16 = 1;

/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;

/// The kernel sends at most 32 KiB at once (`NLMSG_GOODSIZE` and `max_recvmsg_len`).
const RECEIVE_BYTES: usize = 64 * 1024;

/// Room for the answers to a batch of which every message failed.
const QUEUE_BYTES: libc::c_int = 4 << 20;

/// Maximum of retries of a list that changed while it was read.
const TRIES: u32 = 5;

/// The kernel answers at once; this bounds the wait for a lost answer.
const ANSWER_SECONDS: u8 = 5;

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// Attribute type without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const KIND: u16 = 0x3fff;

const HEADER_BYTES: usize = 16;

/// A netlink socket of the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// A message of the kernel's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    flags: u16,
    pub(crate) sequence: u32,
    /// For a notification: the port of the socket that caused it.
    pub(crate) port: u32,
    /// Everything behind the netlink header.
    pub(crate) body: &'a [u8],
}

/// A refusal, with the kernel's explanation if there is one.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: io::Error,
    pub(crate) words: Option<String>,
}

/// Messages to be sent as one datagram.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Start of the message that is being written.
    start: usize,
}

/// Start of a nested attribute.
#[must_use]
pub(crate) struct Nest(usize);

impl Socket {
    /// Opens a socket of `protocol`, `NETLINK_ROUTE` for instance.
    pub(crate) fn open(protocol: libc::c_int) -> io::Result<Self> {
        // SAFETY: takes three integers and gives a new descriptor or -1.
        let descriptor = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                protocol,
            )
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // Without a port of its own the socket would not receive the kernel's own notifications.
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let socket = Self {
            descriptor,
            sequence: 0,
            buffer: vec![0; RECEIVE_BYTES],
        };
        let timeout = libc::timeval {
            tv_sec: ANSWER_SECONDS.into(),
            tv_usec: 0,
        };
        socket.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)?;
        // Only CAP_NET_ADMIN permits more than the system's maximum.
        if socket
            .set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE_BYTES)
            .is_err()
        {
            socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, &QUEUE_BYTES)?;
        }
        // The kernel filters lists, not this process: a table may have a million routes.
        let options = [
            libc::NETLINK_GET_STRICT_CHK,
            libc::NETLINK_CAP_ACK,
            libc::NETLINK_EXT_ACK,
        ];
        for option in options {
            socket.set_option::<libc::c_int>(libc::SOL_NETLINK, option, &1)?;
        }
        Ok(socket)
    }

    /// Receives the notifications of a multicast group from now on.
    pub(crate) fn join(&self, group: u32) -> io::Result<()> {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group)
    }

    /// The port that the kernel assigned to this socket.
    pub(crate) fn port(&self) -> io::Result<u32> {
        let address: NetlinkAddr = getsockname(self.descriptor.as_raw_fd())?;
        Ok(address.pid())
    }

    /// Sequence numbers of the answers to the next `count` messages; returns the first.
    pub(crate) fn reserve(&mut self, count: usize) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count as u32);
        first
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let kernel = NetlinkAddr::new(0, 0);
        let sent = sendto(
            self.descriptor.as_raw_fd(),
            bytes,
            &kernel,
            MsgFlags::empty(),
        )?;
        debug_assert_eq!(sent, bytes.len());
        Ok(())
    }

    /// Sends one request and waits for its acknowledgement.
    pub(crate) fn change(
        &mut self,
        kind: u16,
        flags: u16,
        write: impl FnOnce(&mut Batch),
    ) -> Result<(), Refusal> {
        let mut batch = Batch::default();
        let sequence = self.reserve(1);
        batch.begin(kind, REQUEST | ACK | flags, sequence);
        write(&mut batch);
        batch.finish();
        self.send(batch.bytes())?;
        loop {
            for message in self.receive(false)? {
                if let Some(answer) = message.answer()
                    && message.sequence == sequence
                {
                    return answer;
                }
            }
        }
    }

    /// Requests a list, or a single entry without [`DUMP`]. Passes every message of the answer to `each`;
    /// calls `restart` and begins again if the list changed meanwhile.
    pub(crate) fn list<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        write: impl Fn(&mut Batch),
        mut each: impl FnMut(&mut T, Message<'_>),
    ) -> Result<T, Refusal> {
        for _ in 0..TRIES {
            let mut found = T::default();
            let mut batch = Batch::default();
            let sequence = self.reserve(1);
            batch.begin(kind, REQUEST | ACK | flags, sequence);
            write(&mut batch);
            batch.finish();
            self.send(batch.bytes())?;
            if self.listed(sequence, |message| each(&mut found, message))? {
                return Ok(found);
            }
        }
        Err(io::Error::other("it changes faster than it can be read").into())
    }

    /// Whether it was complete, that is, did not change while it was read.
    fn listed(
        &mut self,
        sequence: u32,
        mut each: impl FnMut(Message<'_>),
    ) -> Result<bool, Refusal> {
        let mut same = true;
        loop {
            for message in self.receive(false)? {
                if message.sequence != sequence {
                    continue;
                }
                same &= message.flags & CHANGED == 0;
                match message.answer() {
                    Some(Ok(())) => return Ok(same),
                    Some(Err(refusal)) => return Err(refusal),
                    None => each(message),
                }
            }
        }
    }

    /// The messages of one datagram. Messages that are not from the kernel are ignored. With `at_once`, none
    /// if none has arrived.
    pub(crate) fn receive(&mut self, at_once: bool) -> io::Result<Messages<'_>> {
        let flags = match at_once {
            true => MsgFlags::MSG_DONTWAIT,
            false => MsgFlags::empty(),
        };
        let length = loop {
            let mut parts = [io::IoSliceMut::new(&mut self.buffer)];
            let descriptor = self.descriptor.as_raw_fd();
            let received = recvmsg::<NetlinkAddr>(descriptor, &mut parts, None, flags);
            match received.map(|message| (message.bytes, message.address)) {
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) if at_once => break 0,
                Err(nix::Error::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
                Ok((length, Some(from))) if from.pid() == 0 => break length,
                Ok(_) => {}
            }
        };
        Ok(Messages(&self.buffer[..length]))
    }

    fn set_option<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: the value is live and as long as is said; the kernel copies it.
        let result = unsafe {
            libc::setsockopt(
                self.descriptor.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The messages of a datagram.
#[derive(Clone, Debug)]
pub(crate) struct Messages<'a>(&'a [u8]);

#[cfg(test)]
impl<'a> Messages<'a> {
    /// The datagram did not come from the kernel.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header = self.0.get(..HEADER_BYTES)?;
        let word = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let bytes = word(0) as usize;
        let body = self.0.get(HEADER_BYTES..bytes)?;
        let message = Message {
            kind: half(4),
            flags: half(6),
            sequence: word(8),
            port: word(12),
            body,
        };
        self.0 = self.0.get(bytes.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    }
}

impl<'a> Message<'a> {
    /// The result of a request; `None` for other messages.
    pub(crate) fn answer(&self) -> Option<Result<(), Refusal>> {
        if self.kind != ERROR && self.kind != DONE {
            return None;
        }
        let number = self
            .body
            .first_chunk()
            .map_or(0, |c| i32::from_ne_bytes(*c));
        if number == 0 {
            return Some(Ok(()));
        }
        let error = io::Error::from_raw_os_error(number.wrapping_neg());
        Some(Err(Refusal {
            error,
            words: self.words(),
        }))
    }

    /// The kernel's explanation (`NETLINK_EXT_ACK`).
    fn words(&self) -> Option<String> {
        if self.flags & EXPLAINED == 0 {
            return None;
        }
        let skip = match (self.kind, self.flags & CAPPED != 0) {
            (DONE, _) => 4,
            (_, true) => 4 + HEADER_BYTES,
            (_, false) => {
                let bytes: [u8; 4] = *self.body.get(4..)?.first_chunk()?;
                4 + (u32::from_ne_bytes(bytes) as usize).next_multiple_of(4)
            }
        };
        let mut attributes = attributes(self.body.get(skip..)?);
        let (_, text) = attributes.find(|&(kind, _)| kind == MESSAGE)?;
        let text = text.strip_suffix(&[0]).unwrap_or(text);
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// The family's header of `N` bytes, and the attributes behind it.
    pub(crate) fn split<const N: usize>(&self) -> Option<(&'a [u8; N], Attributes<'a>)> {
        let header = self.body.first_chunk()?;
        Some((header, attributes(self.body.get(N..)?)))
    }
}

/// Attributes, as kind and value.
#[derive(Clone, Debug)]
pub(crate) struct Attributes<'a>(&'a [u8]);

pub(crate) fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes(bytes)
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header: [u8; 4] = *self.0.first_chunk()?;
        let bytes = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND;
        let value = self.0.get(4..bytes)?;
        self.0 = self.0.get(bytes.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

pub(crate) fn u8_of(value: &[u8]) -> Option<u8> {
    value.first().copied()
}

pub(crate) fn u16_of(value: &[u8]) -> Option<u16> {
    value.first_chunk().map(|c| u16::from_ne_bytes(*c))
}

pub(crate) fn u32_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|c| u32::from_ne_bytes(*c))
}

impl Batch {
    /// Begins a message; [`Self::finish`] ends it.
    pub(crate) fn begin(&mut self, kind: u16, flags: u16, sequence: u32) {
        self.start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
    }

    /// Writes the family's header.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let bytes = (4 + value.len()) as u16;
        self.bytes.extend(bytes.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Begins a nested attribute.
    pub(crate) fn nest(&mut self, kind: u16) -> Nest {
        let nest = Nest(self.bytes.len());
        self.attribute(kind | NESTED, &[]);
        nest
    }

    pub(crate) fn end(&mut self, Nest(start): Nest) {
        let bytes = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&bytes.to_ne_bytes());
    }

    pub(crate) fn finish(&mut self) {
        let bytes = (self.bytes.len() - self.start) as u32;
        self.bytes[self.start..self.start + 4].copy_from_slice(&bytes.to_ne_bytes());
        self.pad();
    }

    /// Requests an acknowledgement of the message that was written last.
    pub(crate) fn acknowledge_last(&mut self) {
        let at = self.start + 6;
        let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) | ACK;
        self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { error, words: None }
    }
}

impl Refusal {
    /// Whether the error has this number.
    pub(crate) fn is(&self, number: i32) -> bool {
        self.error.raw_os_error() == Some(number)
    }

    /// One error whose text includes the kernel's explanation.
    pub(crate) fn into_io(self) -> io::Error {
        match self.words {
            Some(words) => io::Error::new(self.error.kind(), format!("{words} ({})", self.error)),
            None => self.error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_values_round_trip() {
        let mut batch = Batch::default();
        batch.begin(24, REQUEST, 7);
        batch.raw(&[1, 2, 3, 4]);
        batch.u32(15, 300);
        let nest = batch.nest(22);
        batch.attribute(5, &[9, 9, 9]);
        batch.end(nest);
        batch.finish();
        batch.begin(25, REQUEST, 8);
        batch.finish();
        batch.acknowledge_last();
        let all: Vec<_> = Messages(batch.bytes()).collect();
        assert_eq!(all.len(), 2);
        let (header, attributes_) = all[0].split::<4>().unwrap();
        assert_eq!(
            (all[0].kind, all[0].sequence, header),
            (24, 7, &[1, 2, 3, 4])
        );
        let found: Vec<_> = attributes_.collect();
        assert_eq!(found[0], (15, &300_u32.to_ne_bytes()[..]));
        assert_eq!(found[1].0, 22);
        assert_eq!(attributes(found[1].1).next(), Some((5, &[9, 9, 9][..])));
        assert_eq!(all[1].flags, REQUEST | ACK);
    }

    #[test]
    fn cut_messages_and_attributes_end_the_list() {
        let mut batch = Batch::default();
        batch.begin(24, REQUEST, 7);
        batch.u32(15, 300);
        batch.finish();
        for length in 0..batch.bytes().len() {
            assert!(Messages(&batch.bytes()[..length]).next().is_none());
        }
        assert!(
            attributes(&[2, 0, 1, 0]).next().is_none(),
            "shorter than its header"
        );
        assert!(
            attributes(&[9, 0, 1, 0, 5]).next().is_none(),
            "longer than there is"
        );
    }
}

/// Messages as the kernel would send them, for tests of modules that read them.
#[cfg(test)]
pub(crate) mod test {
    use super::{Batch, Message, Messages};

    pub(crate) fn message(kind: u16, header: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut batch = Batch::default();
        batch.begin(kind, 0, 1);
        batch.raw(header);
        for (kind, value) in attributes {
            batch.attribute(*kind, value);
        }
        batch.finish();
        batch.bytes().to_vec()
    }

    /// What `read` makes of a message, and that no part of the message makes it panic.
    pub(crate) fn parsed<T>(bytes: &[u8], read: impl Fn(&Message<'_>) -> T) -> T {
        for length in 0..bytes.len() {
            // Shorter than it says.
            Messages::of(&bytes[..length]).for_each(|message| drop(read(&message)));
            let mut cut = bytes[..length].to_vec();
            if let Some(says) = cut.first_chunk_mut() {
                *says = (length as u32).to_ne_bytes();
            }
            Messages::of(&cut).for_each(|message| drop(read(&message)));
        }
        let message = Messages::of(bytes).next().expect("whole");
        read(&message)
    }
}
