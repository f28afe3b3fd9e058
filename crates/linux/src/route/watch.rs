//! Whether links, addresses, routes or rules of a network namespace changed.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use crate::netlink_groups::NetlinkGroups;

/// Receives a notification for every change of links, addresses, routes and rules of the namespace in which
/// it was opened. It does not report what changed: list the entries for that.
#[derive(Debug)]
pub struct RouteWatch(NetlinkGroups);

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
        NetlinkGroups::join(libc::NETLINK_ROUTE, &GROUPS).map(Self)
    }

    /// Whether anything changed since the last call. Does not block.
    ///
    /// # Errors
    /// Notifications from the kernel have ended.
    pub fn changed(&mut self) -> io::Result<bool> {
        self.0.changed()
    }
}

impl AsFd for RouteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
