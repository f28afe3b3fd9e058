//! Notice when interfaces or addresses of this namespace change; [`interface`](crate::interface) lists them.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use crate::netlink::Socket;

/// Becomes readable when an interface or an address changes, appears or disappears.
#[derive(Debug)]
pub struct LinkWatch {
    socket: Socket,
}

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`.
const GROUPS: [u32; 3] = [1, 5, 9];

impl LinkWatch {
    /// For the calling thread's network namespace, from now on.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(libc::NETLINK_ROUTE)?;
        for group in GROUPS {
            socket.join(group)?;
        }
        Ok(Self { socket })
    }

    /// Whether something has changed since the last call. Does not block.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn changed(&mut self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            match self.socket.receive(true) {
                Ok(messages) => match messages.count() {
                    0 => return Ok(changed),
                    _ => changed = true,
                },
                // Notifications were lost: the buffer was full.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_watch_reports_no_initial_change() {
        let mut watch = LinkWatch::open().unwrap();
        assert!(watch.changed().is_ok());
    }
}
