//! TUN devices: network interfaces whose packets a process reads and writes.
//!
//! If the kernel supports it, packets have a virtio-net header (`linux/virtio_net.h`), with which one packet
//! can stand for up to 64 KiB of a flow. `keiro-ip`'s `offload` segments and coalesces them. For addresses
//! and routes see [`crate::route`].

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};

use crate::{
    netns::{Netns, NetnsError},
    offload::{control_socket, request},
};

/// Maximum length of one read: a virtio-net header, an IPv6 header, 65,535 bytes. A shorter buffer loses the
/// rest of a packet.
pub const READ_BYTES_MAX: usize = VNET_HEADER_BYTES + 40 + 65_535;

/// Length of the header of each packet of a device with [`Offloads::vnet_header`], in bytes.
pub const VNET_HEADER_BYTES: usize = 10;

/// The kernel's bound (`MAX_TAP_QUEUES`).
pub const QUEUES_MAX: usize = 256;

const DEVICE: &str = "/dev/net/tun";

// From linux/if_tun.h.
const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;
const TUN_F_TSO_ECN: libc::c_uint = 0x08;
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;
const TCP_OFFLOADS: libc::c_uint = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
const UDP_OFFLOADS: libc::c_uint = TUN_F_USO4 | TUN_F_USO6;

/// Options of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunOptions {
    /// The interface's name, 1 to 15 bytes.
    pub name: String,
    /// Number of descriptors that share its packets, by flow; 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Use checksum and segmentation offloads that the kernel supports.
    pub offloads: bool,
    /// Whether to create the device or open an existing one.
    pub existing: Existing,
}

/// Whether to create a device or open an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Creates it; it is removed when its last queue is closed. An existing device is refused.
    Refuse,
    /// The administrator made it persistent (`ip tuntap add`), and it stays.
    Require,
}

/// Offloads of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Each packet read or written is preceded by a virtio-net header.
    pub vnet_header: bool,
    /// Packets may have unfinished checksums, and large TCP packets are read and written.
    pub tcp: bool,
    /// The same for large UDP packets: Linux 6.2 and later.
    pub udp: bool,
}

/// A TUN device. Unless it existed before, it is removed when this and all queues taken from it are dropped.
#[derive(Debug)]
pub struct Tun {
    name: String,
    index: u32,
    offloads: Offloads,
    queues: Vec<TunQueue>,
    /// A socket in the device's namespace, whatever that of the calling thread.
    control: OwnedFd,
}

/// A non-blocking descriptor of a device; wait for it with [`crate::epoll::Epoll`].
#[derive(Debug)]
pub struct TunQueue {
    descriptor: OwnedFd,
}

/// State of a device's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceState {
    Up,
    /// It was set down: the kernel passes no packets.
    Down,
    /// It was renamed. Packets still pass, but configuration by name does not find it.
    Renamed {
        /// The new name.
        name: String,
    },
    /// It is not in this namespace: removed, or moved to another one.
    Absent,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The name is invalid.
    #[error(
        "`{name}` cannot be an interface's name: 1 to 15 bytes without `/`, `:`, `%` or spaces"
    )]
    Name { name: String },
    /// The number of queues is out of range.
    #[error("{queues} queues; 1 to {QUEUES_MAX} are possible")]
    Queues { queues: usize },
    /// The kernel has no TUN devices.
    #[error("there are no TUN devices here ({DEVICE}: {source}); load the kernel's `tun` module")]
    Unsupported { source: io::Error },
    /// Missing privilege.
    #[error("not permitted to open TUN device `{name}`; CAP_NET_ADMIN or root is needed")]
    NotPermitted { name: String },
    /// An interface of that name exists, or the TUN device is in use.
    #[error(
        "interface `{name}` is there already or in use by another process (`ip link show {name}`)"
    )]
    Taken { name: String },
    /// There is no device of that name, and none was to be created.
    #[error("there is no TUN device `{name}` (`ip tuntap add {name} mode tun` makes one)")]
    Missing { name: String },
    /// The existing device is of another kind.
    #[error(
        "interface `{name}` is no TUN device, or was made for another number of queues \
         (`ip tuntap add {name} mode tun multi_queue` for more than one)"
    )]
    Unfit { name: String },
    /// The namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("cannot {action} TUN device `{name}`: {source}")]
    System {
        name: String,
        action: &'static str,
        source: io::Error,
    },
}

/// Why a packet was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum TunFault {
    /// The device was removed. It may be created again.
    #[error("the TUN device was removed")]
    Gone,
    /// The device exists and is not up.
    #[error("the TUN device is down")]
    Down,
    /// The kernel refuses the packet: malformed, or an offload that it does not support.
    #[error("the kernel refuses the packet")]
    Refused,
    /// Other errors, such as lack of memory.
    #[error("TUN device: {0}")]
    System(io::Error),
}

impl Tun {
    /// Creates or opens a device in the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of [`TunError`]; nothing is left behind.
    pub fn open(options: &TunOptions) -> Result<Self, TunError> {
        let name = &options.name;
        validate(options)?;
        let failed = |action| {
            move |source| TunError::System {
                name: name.clone(),
                action,
                source,
            }
        };
        if options.existing == Existing::Require && index_of(name).is_none() {
            return Err(TunError::Missing { name: name.clone() });
        }
        let features = features(&open_device(name)?).map_err(failed("ask the features of"))?;
        let vnet_header = options.offloads && features & libc::IFF_VNET_HDR as u32 != 0;
        let mut flags = libc::IFF_TUN | libc::IFF_NO_PI;
        if vnet_header {
            flags |= libc::IFF_VNET_HDR;
        }
        if options.queues > 1 {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        let mut queues = Vec::with_capacity(options.queues);
        for number in 0..options.queues {
            let is_new = number == 0 && options.existing == Existing::Refuse;
            let exclusive = if is_new { libc::IFF_TUN_EXCL } else { 0 };
            let descriptor = open_device(name)?;
            attach(&descriptor, name, flags | exclusive).map_err(|e| attach_error(name, e))?;
            queues.push(TunQueue { descriptor });
        }
        let offloads = match vnet_header {
            true => set_offloads(&queues[0].descriptor).map_err(failed("set offloads of"))?,
            false => Offloads::default(),
        };
        let index = index_of(name).ok_or_else(|| TunError::Missing { name: name.clone() })?;
        let control = control_socket().map_err(failed("get a socket for"))?;
        Ok(Self {
            name: name.clone(),
            index,
            offloads,
            queues,
            control,
        })
    }

    /// Creates or opens a device in `netns`; the calling thread stays in its namespace, and may use the
    /// device.
    ///
    /// # Errors
    /// Those of [`TunError`].
    pub fn open_in(netns: &Netns, options: &TunOptions) -> Result<Self, TunError> {
        netns.run(|| Self::open(options))?
    }

    /// The interface's name when it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface's index, for [`crate::route`].
    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Its queues; none after [`Self::take_queues`].
    pub fn queues(&self) -> &[TunQueue] {
        &self.queues
    }

    /// Moves the queues out, for example to other threads.
    pub fn take_queues(&mut self) -> Vec<TunQueue> {
        std::mem::take(&mut self.queues)
    }

    /// Sets the MTU in bytes: 68 to 65,535, and at least 1,280 for IPv6.
    ///
    /// # Errors
    /// Out of that range, the device is removed, or CAP_NET_ADMIN is missing.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), TunError> {
        let set = || {
            let mtu = i32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            let mut request = request(&self.name_now()?)?;
            request.ifr_ifru.ifru_mtu = mtu;
            self.control(libc::SIOCSIFMTU, &mut request)
        };
        set().map_err(|source| self.error("set the MTU of", source))
    }

    /// The MTU in bytes.
    ///
    /// # Errors
    /// The device is removed.
    pub fn mtu(&self) -> Result<u32, TunError> {
        let get = || {
            let mut request = request(&self.name_now()?)?;
            self.control(libc::SIOCGIFMTU, &mut request)?;
            // SAFETY: the call has just filled this member of the union.
            let mtu = unsafe { request.ifr_ifru.ifru_mtu };
            u32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
        };
        get().map_err(|source| self.error("ask the MTU of", source))
    }

    /// Sets the device up: the kernel passes packets from here on.
    ///
    /// # Errors
    /// The device is removed, or CAP_NET_ADMIN is missing.
    pub fn set_up(&self) -> Result<(), TunError> {
        let set = || {
            let mut request = request(&self.name_now()?)?;
            self.control(libc::SIOCGIFFLAGS, &mut request)?;
            // SAFETY: the call has just filled this member of the union.
            let flags = unsafe { request.ifr_ifru.ifru_flags };
            request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
            self.control(libc::SIOCSIFFLAGS, &mut request)
        };
        set().map_err(|source| self.error("set up", source))
    }

    /// The state of the interface.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn state(&self) -> io::Result<DeviceState> {
        let none =
            |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
        let look = || {
            let name = self.name_now()?;
            if name != self.name {
                return Ok(DeviceState::Renamed { name });
            }
            let mut request = request(&self.name)?;
            self.control(libc::SIOCGIFFLAGS, &mut request)?;
            // SAFETY: the call has just filled this member of the union.
            let flags = unsafe { request.ifr_ifru.ifru_flags };
            match flags & libc::IFF_UP as libc::c_short {
                0 => Ok(DeviceState::Down),
                _ => Ok(DeviceState::Up),
            }
        };
        match look() {
            Err(error) if none(&error) => Ok(DeviceState::Absent),
            found => found,
        }
    }

    /// By its index, which survives renaming.
    fn name_now(&self) -> io::Result<String> {
        // SAFETY: an all-zero ifreq is a valid one without a name.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index.cast_signed();
        self.control(libc::SIOCGIFNAME, &mut request)?;
        let name = request.ifr_name.iter().take_while(|byte| **byte != 0);
        let name: Vec<u8> = name.map(|byte| *byte as u8).collect();
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    fn control(&self, command: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: every command used here reads and writes one ifreq, which lives.
        let result =
            unsafe { libc::ioctl(self.control.as_raw_fd(), command as _, &raw mut *request) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn error(&self, action: &'static str, source: io::Error) -> TunError {
        let name = self.name.clone();
        match source.raw_os_error() {
            Some(libc::EPERM) => TunError::NotPermitted { name },
            Some(libc::ENODEV) => TunError::Missing { name },
            _ => TunError::System {
                name,
                action,
                source,
            },
        }
    }
}

impl TunQueue {
    /// Reads one packet, preceded by its virtio-net header if the device has them, and returns its length in
    /// bytes; `None` if none waits. [`READ_BYTES_MAX`] is enough for any.
    ///
    /// # Errors
    /// Usually that the device is removed.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, TunFault> {
        match nix::unistd::read(&self.descriptor, buffer) {
            Ok(length) => Ok(Some(length)),
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(None),
            // The kernel's error for a read during removal of the device; the buffer is valid.
            Err(nix::Error::EFAULT) => Err(TunFault::Gone),
            Err(error) => Err(fault(error)),
        }
    }

    /// Writes one packet, after its virtio-net header if the device has them. `false` if there is no room now
    /// and nothing was written.
    ///
    /// # Errors
    /// The device is removed or down, or refuses the packet.
    #[inline]
    pub fn write(&self, packet: &[u8]) -> Result<bool, TunFault> {
        loop {
            return match nix::unistd::write(&self.descriptor, packet) {
                Ok(_) => Ok(true),
                Err(nix::Error::EAGAIN) => Ok(false),
                Err(nix::Error::EINTR) => continue,
                Err(error) => Err(fault(error)),
            };
        }
    }
}

impl AsFd for TunQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn fault(error: nix::Error) -> TunFault {
    match error {
        nix::Error::EBADFD => TunFault::Gone,
        nix::Error::EIO => TunFault::Down,
        nix::Error::EINVAL | nix::Error::EMSGSIZE => TunFault::Refused,
        other => TunFault::System(other.into()),
    }
}

fn validate(options: &TunOptions) -> Result<(), TunError> {
    let name = &options.name;
    let is_odd = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b':' | b'%' | 0);
    let is_path = name == "." || name == "..";
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || is_path || name.bytes().any(is_odd) {
        return Err(TunError::Name { name: name.clone() });
    }
    let queues = options.queues;
    match queues {
        1..=QUEUES_MAX => Ok(()),
        _ => Err(TunError::Queues { queues }),
    }
}

fn open_device(name: &str) -> Result<OwnedFd, TunError> {
    let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    open(DEVICE, flags, Mode::empty()).map_err(|error| match error {
        nix::Error::ENOENT | nix::Error::ENODEV | nix::Error::ENXIO => TunError::Unsupported {
            source: error.into(),
        },
        nix::Error::EPERM | nix::Error::EACCES => TunError::NotPermitted { name: name.into() },
        _ => TunError::System {
            name: name.into(),
            action: "open a descriptor for",
            source: error.into(),
        },
    })
}

fn attach_error(name: &str, source: io::Error) -> TunError {
    let name = name.to_owned();
    match source.raw_os_error() {
        Some(libc::EPERM) => TunError::NotPermitted { name },
        Some(libc::EBUSY | libc::EEXIST) => TunError::Taken { name },
        // An interface of another kind, or with another number of queues.
        Some(libc::EINVAL) => TunError::Unfit { name },
        _ => TunError::System {
            name,
            action: "attach to",
            source,
        },
    }
}

fn features(descriptor: &OwnedFd) -> io::Result<u32> {
    let mut features: libc::c_uint = 0;
    // SAFETY: TUNGETFEATURES writes one unsigned int.
    let result = unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            libc::TUNGETFEATURES as _,
            &raw mut features,
        )
    };
    match result {
        0 => Ok(features),
        _ => Err(io::Error::last_os_error()),
    }
}

fn attach(descriptor: &OwnedFd, name: &str, flags: libc::c_int) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = flags as u16 as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives.
    let result = unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            libc::TUNSETIFF as _,
            &raw mut request,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Requests all offloads, and if refused those that older kernels support. They are set for the device, not
/// for the queue.
fn set_offloads(descriptor: &OwnedFd) -> io::Result<Offloads> {
    let set = |offloads: libc::c_uint| {
        // SAFETY: TUNSETOFFLOAD takes its flags as the argument itself.
        match unsafe {
            libc::ioctl(
                descriptor.as_raw_fd(),
                libc::TUNSETOFFLOAD as _,
                libc::c_ulong::from(offloads),
            )
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    for (flags, tcp, udp) in [
        (TCP_OFFLOADS | UDP_OFFLOADS, true, true),
        (TCP_OFFLOADS, true, false),
        (0, false, false),
    ] {
        match set(flags) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                return Ok(Offloads {
                    vnet_header: true,
                    tcp,
                    udp,
                });
            }
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

/// The number of the interface `name`; `None` if there is none.
fn index_of(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str) -> TunOptions {
        TunOptions {
            name: name.into(),
            queues: 1,
            offloads: true,
            existing: Existing::Require,
        }
    }

    #[test]
    fn names_that_no_interface_can_have_are_refused() {
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "tun%d",
            "a b",
            "sixteen-bytes-xx",
        ] {
            let error = Tun::open(&options(name)).unwrap_err();
            assert!(matches!(error, TunError::Name { .. }), "{name}: {error}");
        }
    }

    #[test]
    fn impossible_numbers_of_queues_are_refused() {
        for queues in [0, QUEUES_MAX + 1] {
            let options = TunOptions {
                queues,
                ..options("keiro-none")
            };
            assert!(matches!(Tun::open(&options), Err(TunError::Queues { .. })));
        }
    }

    #[test]
    fn a_missing_device_is_reported_and_not_created() {
        let error = Tun::open(&options("keiro-none")).unwrap_err();
        assert!(matches!(error, TunError::Missing { .. }), "{error}");
        assert_eq!(index_of("keiro-none"), None);
    }
}
