//! Whether links, addresses, routes or rules of a network namespace changed.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, recv, setsockopt, sockopt::RcvBuf};

/// Receives a notification for every change of links, addresses, routes and rules of the namespace in which
/// it was opened. It does not report what changed: list the entries for that.
#[derive(Debug)]
pub struct RouteWatch {
    descriptor: OwnedFd,
}

/// Size of the receive buffer. One notification is as good as a thousand, and the kernel makes none for a
/// full socket, which saves work while a routing daemon changes many routes. Ours.
const QUEUE_BYTES: usize = 16 << 10;

/// Notifications read at once; more do not fit into the buffer.
const DRAINED_MAX: u32 = 1024;

const GROUPS: [u32; 7] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
];

impl RouteWatch {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> io::Result<Self> {
        // SAFETY: takes three integers and gives a new descriptor or -1.
        let descriptor = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                libc::NETLINK_ROUTE,
            )
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        setsockopt(&descriptor, RcvBuf, &QUEUE_BYTES)?;
        let groups = GROUPS.iter().fold(0, |all, group| all | 1 << (group - 1));
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Self { descriptor })
    }

    /// Whether anything changed since the last call. Does not block.
    ///
    /// # Errors
    /// Notifications from the kernel have ended.
    pub fn changed(&mut self) -> io::Result<bool> {
        let mut changed = false;
        for _ in 0..DRAINED_MAX {
            // A longer notification is truncated.
            match recv(self.descriptor.as_raw_fd(), &mut [0; 16], MsgFlags::empty()) {
                // ENOBUFS: there were more than fit into the buffer.
                Ok(_) | Err(nix::Error::ENOBUFS) => changed = true,
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(changed)
    }
}

impl AsFd for RouteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
