//! Notifications from multicast groups of netlink, of which only their being there counts.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, recv, setsockopt, sockopt::RcvBuf};

/// Size of the receive buffer. One notification is as good as a thousand, and the kernel makes none for a
/// full socket, which saves work while another program changes much. Ours.
const QUEUE_BYTES: usize = 16 << 10;

/// Notifications read at once; more do not fit into the buffer.
const DRAINED_MAX: u32 = 1024;

/// A member of multicast groups, in the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct NetlinkGroups {
    descriptor: OwnedFd,
}

impl NetlinkGroups {
    /// `protocol`: `NETLINK_ROUTE` or another. `groups`: their numbers, 1 to 32.
    ///
    /// # Errors
    /// No netlink socket is available, or a capability is missing.
    pub(crate) fn join(protocol: libc::c_int, groups: &[u32]) -> io::Result<Self> {
        // SAFETY: takes three integers and gives a new descriptor or -1.
        let descriptor = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                protocol,
            )
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        setsockopt(&descriptor, RcvBuf, &QUEUE_BYTES)?;
        let groups = groups.iter().fold(0, |all, group| all | 1 << (group - 1));
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Self { descriptor })
    }

    /// Whether a notification has come since the last call. Does not block.
    ///
    /// # Errors
    /// Notifications from the kernel have ended.
    pub(crate) fn changed(&mut self) -> io::Result<bool> {
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

impl AsFd for NetlinkGroups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
