//! A blocking netlink socket: one request at a time, with its acknowledgement or list.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage as Message;
use nix::sys::socket::{MsgFlags, NetlinkAddr, recvfrom, sendto};

use super::{RouteError, message::Request};

/// The kernel sends at most 32 KiB at once (`NLMSG_GOODSIZE` and `max_recvmsg_len`).
const RECEIVE_BYTES: usize = 64 * 1024;

/// Maximum of retries of a list that changed while it was read.
const TRIES: u32 = 5;

/// The kernel answers at once; this bounds the wait for a lost answer.
const ANSWER_SECONDS: u8 = 5;

#[derive(Debug)]
pub(super) struct Netlink {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: takes three integers and gives a new descriptor or -1.
        let descriptor = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::NETLINK_ROUTE,
            )
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let timeout = libc::timeval {
            tv_sec: ANSWER_SECONDS.into(),
            tv_usec: 0,
        };
        set_option(&descriptor, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)?;
        // The kernel filters lists, not this process: a table may have a million routes.
        let on: libc::c_int = 1;
        set_option(
            &descriptor,
            libc::SOL_NETLINK,
            libc::NETLINK_GET_STRICT_CHK,
            &on,
        )?;
        Ok(Self {
            descriptor,
            sequence: 0,
            buffer: vec![0; RECEIVE_BYTES],
        })
    }

    /// Sends a request that changes something, and waits for its acknowledgement.
    pub(super) fn change(&mut self, request: Request) -> io::Result<()> {
        let (message, flags) = request;
        self.acknowledged(message, flags).map(drop)
    }

    /// The answer to a request for one entry.
    pub(super) fn one(&mut self, message: Message) -> io::Result<Option<Message>> {
        self.acknowledged(message, 0)
    }

    fn acknowledged(&mut self, message: Message, flags: u16) -> io::Result<Option<Message>> {
        self.send(message, NLM_F_ACK | flags)?;
        let mut found = None;
        loop {
            for answer in self.receive()? {
                let answer = answer.map_err(io::Error::other)?;
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(found),
                            Some(_) => Err(error.to_io()),
                        };
                    }
                    NetlinkPayload::InnerMessage(message) => found = Some(message),
                    _ => {}
                }
            }
        }
    }

    /// The answer to a request for a list.
    pub(super) fn dump(&mut self, message: &Message) -> Result<Vec<Message>, RouteError> {
        for _ in 0..TRIES {
            if let Some(all) = self.dump_once(message.clone())? {
                return Ok(all);
            }
        }
        Err(RouteError::Answer(
            "it changes faster than it can be read".into(),
        ))
    }

    /// `None` if it changed while it was read.
    fn dump_once(&mut self, message: Message) -> Result<Option<Vec<Message>>, RouteError> {
        self.send(message, NLM_F_DUMP).map_err(RouteError::Socket)?;
        let mut all = Vec::new();
        let mut changed = false;
        loop {
            for answer in self.receive().map_err(RouteError::Socket)? {
                let answer = answer.map_err(RouteError::Answer)?;
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                changed |= answer.header.flags & NLM_F_DUMP_INTR != 0;
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => all.push(message),
                    NetlinkPayload::Done(done) if done.code == 0 => {
                        return Ok((!changed).then_some(all));
                    }
                    NetlinkPayload::Done(done) => {
                        let error = io::Error::from_raw_os_error(done.code.wrapping_neg());
                        return none_of_that_table(error).map(Some);
                    }
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return none_of_that_table(error.to_io()).map(Some);
                    }
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, message: Message, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let kernel = NetlinkAddr::new(0, 0);
        sendto(
            self.descriptor.as_raw_fd(),
            &bytes,
            &kernel,
            MsgFlags::empty(),
        )?;
        Ok(())
    }

    /// The messages of one datagram. Messages that are not from the kernel are ignored.
    fn receive(&mut self) -> io::Result<Vec<Result<NetlinkMessage<Message>, String>>> {
        let length = loop {
            let received = recvfrom::<NetlinkAddr>(self.descriptor.as_raw_fd(), &mut self.buffer);
            match received {
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
                Ok((length, Some(from))) if from.pid() == 0 => break length,
                Ok(_) => {}
            }
        };
        let mut rest = &self.buffer[..length];
        let mut all = Vec::new();
        while !rest.is_empty() {
            let message = NetlinkMessage::<Message>::deserialize(rest);
            // Messages begin at multiples of four bytes; a length of zero ends the list.
            let bytes = rest
                .first_chunk()
                .map_or(0, |length| u32::from_ne_bytes(*length) as usize);
            all.push(message.map_err(|error| error.to_string()));
            if bytes == 0 {
                break;
            }
            rest = rest.get(bytes.next_multiple_of(4)..).unwrap_or(&[]);
        }
        Ok(all)
    }
}

/// The kernel reports that a table without routes does not exist; the list is empty.
fn none_of_that_table(error: io::Error) -> Result<Vec<Message>, RouteError> {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH | libc::ENODEV) => Ok(Vec::new()),
        _ => Err(RouteError::Socket(error)),
    }
}

fn set_option<T>(
    descriptor: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value is live and as long as is said; the kernel copies it.
    let result = unsafe {
        libc::setsockopt(
            descriptor.as_raw_fd(),
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
