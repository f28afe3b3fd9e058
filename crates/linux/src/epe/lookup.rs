//! Where the kernel would send packets for an address: a next hop that BGP names need not be on a
//! link, and routes are not followed from one to another by the kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

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

/// The ways that the main tables had to some addresses if no route of these routing protocols were in
/// them. An address to which nothing leads, or whose packets go nowhere, is not in the answer.
///
/// The kernel has no such question, so its whole main tables of the calling thread's network
/// namespace are read: whoever has other things to do asks in a thread of its own.
///
/// # Errors
/// The kernel does not answer, or its routes change faster than they can be read.
pub fn ways_beneath(
    protocols: &[u8],
    asked: &BTreeSet<IpAddr>,
) -> Result<BTreeMap<IpAddr, Way>, EpeError> {
    let mut kernel = kernel::Kernel::open().map_err(EpeError::Kernel)?;
    let mut ways = BTreeMap::new();
    for v6 in [false, true] {
        if asked.iter().any(|address| address.is_ipv6() == v6) {
            ways.extend(kernel.ways_beneath(protocols, asked, v6)?);
        }
    }
    Ok(ways)
}
