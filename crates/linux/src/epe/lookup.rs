//! Resolves addresses by the kernel's routes: a BGP next hop need not be on-link, and the kernel does not
//! resolve routes recursively.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{EpeError, Reconciler, ResolvedRoute, kernel};

impl Reconciler {
    /// Looks up the route to `address` without a source address. `None` if there is no route, or the address
    /// is local.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn resolve(&mut self, address: IpAddr) -> Result<Option<ResolvedRoute>, EpeError> {
        match self.kernel.resolve(address) {
            Ok(resolved) => Ok(resolved),
            Err(refusal) if kernel::NO_ROUTE.iter().any(|&number| refusal.is(number)) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }
}

/// Resolves addresses by the main tables, ignoring routes of these protocols. Unreachable addresses are not
/// in the result.
///
/// The kernel has no such look-up, so this reads the whole main tables of the calling thread's network
/// namespace. Use a helper thread.
///
/// # Errors
/// The kernel does not answer, or its routes change faster than they can be read.
pub fn resolve_excluding(
    protocols: &[u8],
    asked: &BTreeSet<IpAddr>,
) -> Result<BTreeMap<IpAddr, ResolvedRoute>, EpeError> {
    let mut kernel = kernel::Kernel::open().map_err(EpeError::Kernel)?;
    let mut resolved = BTreeMap::new();
    for v6 in [false, true] {
        if asked.iter().any(|address| address.is_ipv6() == v6) {
            resolved.extend(kernel.resolve_excluding(protocols, asked, v6)?);
        }
    }
    Ok(resolved)
}
