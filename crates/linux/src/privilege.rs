//! Drops privileges: capabilities per thread, and the ability to regain them.

use std::{fmt, io};

use caps::{CapSet, Capability as Cap, CapsHashSet};

/// A capability that a gateway may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// CAP_NET_ADMIN: receive buffers above `net.core.rmem_max`.
    NetAdmin,
    /// CAP_NET_BIND_SERVICE: ports below 1024.
    NetBindService,
}

/// Whether the calling thread has it now.
pub fn has(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability.raw()).unwrap_or(false)
}

/// Reduces the calling thread's capabilities to those of `keep` that it has, also for threads that it starts
/// later. Call it in every thread, because capabilities are per thread.
///
/// Returns the remaining ones.
///
/// # Errors
/// The kernel refuses; the resulting capabilities are undefined then.
pub fn reduce_thread(keep: &[Capability]) -> io::Result<Vec<Capability>> {
    let failed = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed)?;
    let left: Vec<Capability> = keep
        .iter()
        .copied()
        .filter(|capability| permitted.contains(&capability.raw()))
        .collect();
    let set: CapsHashSet = left.iter().map(|capability| capability.raw()).collect();
    // The bounding set first, because that takes CAP_SETPCAP, which the next steps drop.
    if caps::has_cap(None, CapSet::Effective, Cap::CAP_SETPCAP).unwrap_or(false) {
        for capability in caps::read(None, CapSet::Bounding).map_err(failed)? {
            if !set.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability).map_err(failed)?;
            }
        }
    }
    caps::clear(None, CapSet::Ambient).map_err(failed)?;
    caps::set(None, CapSet::Effective, &set).map_err(failed)?;
    caps::set(None, CapSet::Permitted, &set).map_err(failed)?;
    caps::clear(None, CapSet::Inheritable).map_err(failed)?;
    Ok(left)
}

/// Prevents programs started by this thread or its children from gaining privileges (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// None is known.
pub fn refuse_new_privileges() -> io::Result<()> {
    // SAFETY: takes integers only.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Capability {
    const fn raw(self) -> Cap {
        match self {
            Self::NetAdmin => Cap::CAP_NET_ADMIN,
            Self::NetBindService => Cap::CAP_NET_BIND_SERVICE,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.raw(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduced_thread_keeps_only_what_it_asked_for_and_had() {
        std::thread::spawn(|| {
            let had = has(Capability::NetAdmin);
            let left = reduce_thread(&[Capability::NetAdmin]).unwrap();
            assert_eq!(left.contains(&Capability::NetAdmin), had);
            assert_eq!(has(Capability::NetAdmin), had);
            assert!(reduce_thread(&[]).unwrap().is_empty());
            assert!(!has(Capability::NetAdmin) && !has(Capability::NetBindService));
            assert!(reduce_thread(&[Capability::NetAdmin]).unwrap().is_empty());
            refuse_new_privileges().unwrap();
        })
        .join()
        .unwrap();
    }
}
