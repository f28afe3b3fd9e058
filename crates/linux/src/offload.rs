//! Switches offloads of a network interface, without the `ethtool` program.

use std::{
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// Commands of the ethtool ioctl that set one feature, from `linux/ethtool.h`.
const FEATURES: [(u32, &str); 4] = [
    (0x17, "transmit checksums (ETHTOOL_STXCSUM)"),
    (0x1f, "TCP segmentation (ETHTOOL_STSO)"),
    (0x24, "segmentation (ETHTOOL_SGSO)"),
    GRO,
];

const GRO: (u32, &str) = (0x2c, "merging of received packets (ETHTOOL_SGRO)");

/// Why offloads could not be switched.
#[derive(Debug, thiserror::Error)]
#[error("cannot switch {feature} of interface `{interface}`: {source}")]
pub struct OffloadError {
    pub interface: String,
    /// Name of the offload.
    pub feature: &'static str,
    pub source: io::Error,
}

/// `struct ethtool_value` of `linux/ethtool.h`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Makes the kernel segment packets to the MTU and fill in their checksums before they enter `interface`, and
/// not merge packets that come out of it. Needed on both ends of a veth pair whose frames an emulated link
/// carries, above all the host's.
///
/// The interface is looked up in the calling thread's network namespace. Offloads that it does not support
/// count as switched off.
///
/// # Errors
/// There is no such interface, or CAP_NET_ADMIN is missing.
pub fn disable_offloads(interface: &str) -> Result<(), OffloadError> {
    let socket = control_socket().map_err(failed(interface, "anything"))?;
    for (command, feature) in FEATURES {
        match set(&socket, interface, command, 0) {
            Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                return Err(failed(interface, feature)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Enables GRO on `interface`. From then on a veth device receives through a ring of 256 packets, like a
/// network card, and drops packets that do not fit.
///
/// # Errors
/// There is no such interface, it has no GRO, or CAP_NET_ADMIN is missing.
pub fn enable_gro(interface: &str) -> Result<(), OffloadError> {
    let (command, feature) = GRO;
    control_socket()
        .and_then(|socket| set(&socket, interface, command, 1))
        .map_err(failed(interface, feature))
}

fn failed(interface: &str, feature: &'static str) -> impl FnOnce(io::Error) -> OffloadError {
    let interface = interface.to_owned();
    move |source| OffloadError {
        interface,
        feature,
        source,
    }
}

fn set(socket: &OwnedFd, interface: &str, command: u32, data: u32) -> io::Result<()> {
    let mut value = EthtoolValue { command, data };
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: SIOCETHTOOL reads the name and the ethtool_value behind the pointer, both live.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket for requests about interfaces of the calling thread's namespace.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes three integers and gives a new descriptor or -1.
    let descriptor =
        unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A request about `interface`; `ENODEV` if no interface can have this name.
pub(crate) fn request(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let name = interface.as_bytes();
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_interface_is_named() {
        for interface in ["keiro-none", "far-too-long-for-an-interface", ""] {
            let error = disable_offloads(interface).unwrap_err();
            assert_eq!(error.interface, interface);
            assert_eq!(error.source.raw_os_error(), Some(libc::ENODEV));
            let error = enable_gro(interface).unwrap_err();
            assert_eq!(error.source.raw_os_error(), Some(libc::ENODEV));
        }
    }
}
