//! VRF devices of a server's egress peers. Rules and routes are the same with and without them.

use keiro_linux::vrf::{Vrf, VrfError, Vrfs};

use super::{Kernel, Peer, failed};
use crate::forwarding::ForwardingError;

impl Kernel {
    pub(super) fn make_vrfs(&mut self) -> Vec<ForwardingError> {
        let wanted = of(self.plan.peers.values());
        match make(&wanted) {
            Ok(()) => Vec::new(),
            Err(error) => {
                self.look_soon();
                vec![failed("a VRF device is missing".to_owned(), &error)]
            }
        }
    }

    /// Removes the devices of removed peers.
    pub(super) fn remove_vrfs(&mut self, gone: &[Peer]) -> Vec<ForwardingError> {
        if of(gone).is_empty() {
            return Vec::new();
        }
        let kept = of(self.plan.peers.values());
        match remove_others(&kept) {
            Ok(_) => Vec::new(),
            Err(error) => vec![failed("a VRF device stays".to_owned(), &error)],
        }
    }
}

/// The devices of peers.
pub(super) fn of<'a>(peers: impl IntoIterator<Item = &'a Peer>) -> Vec<Vrf> {
    peers.into_iter().filter_map(|peer| peer.vrf).collect()
}

/// Creates missing devices in the calling thread's namespace.
pub(super) fn make(wanted: &[Vrf]) -> Result<(), VrfError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut vrfs = Vrfs::open()?;
    for vrf in wanted {
        if vrfs.make(*vrf)? {
            tracing::info!(%vrf, table = vrf.table, "VRF device made");
        }
    }
    Ok(())
}

/// Removes Keiro's devices other than these; returns their number.
pub(super) fn remove_others(kept: &[Vrf]) -> Result<usize, VrfError> {
    Vrfs::open()?.remove_ours(kept)
}

/// The given devices that exist.
pub(super) fn present(wanted: &[Vrf]) -> Result<Vec<Vrf>, VrfError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let devices = Vrfs::open()?.devices()?;
    let is_there = |vrf: &&Vrf| {
        let mut devices = devices.iter();
        devices.any(|device| (device.name, device.table) == (vrf.name, Some(vrf.table)))
    };
    Ok(wanted.iter().filter(is_there).copied().collect())
}
