//! Where the kernel would send packets for an address: a next hop that BGP names need not be on a
//! link, and routes are not followed from one to another by the kernel.

use std::net::IpAddr;

use super::{EpeError, Reconciler, kernel};

/// The kernel's way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The router to which packets go first; `None`: the address is on a link of this host.
    pub gateway: Option<IpAddr>,
    /// The number of the interface by which they leave.
    pub interface: u32,
    /// The routing protocol number of who made the route.
    pub protocol: u8,
}

impl Reconciler {
    /// Asks the kernel for its way to `address` from none of this host's addresses in particular.
    /// `None`: there is no route, or the address is this host's own.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn way_to(&mut self, address: IpAddr) -> Result<Option<Way>, EpeError> {
        match self.kernel.way_to(address) {
            Ok(way) => Ok(way),
            Err(refusal) if kernel::NO_WAY.iter().any(|&number| refusal.is(number)) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }
}
