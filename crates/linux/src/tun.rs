//! TUN devices: network interfaces whose packets a process reads and writes.
//!
//! Where the kernel can, packets come and go with a virtio-net header (`linux/virtio_net.h`), which
//! lets one of them stand for up to 64 KiB of a flow; `keiro-ip`'s `offload` cuts them and puts
//! them together. Addresses and routes are [`crate::route`]'s.

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

/// The longest that one read gives: a virtio-net header, an IPv6 header, 65,535 bytes. A shorter
/// buffer loses the rest of a packet.
pub const READ_BYTES_MAX: usize = VNET_HEADER_BYTES + 40 + 65_535;

/// What precedes each packet of a device with [`Offloads::vnet_header`], in bytes.
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

/// What device is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunOptions {
    /// The interface's name, 1 to 15 bytes.
    pub name: String,
    /// How many descriptors share its packets, by flow; 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Use checksum and segmentation offloads, as far as the kernel has them.
    pub offloads: bool,
    /// Whether the device is to be made or to be there.
    pub existing: Existing,
}

/// Whether a device is to be made or to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is made, and goes when its last queue is closed. One that is there is left alone.
    Refuse,
    /// It was made persistent by the administrator (`ip tuntap add`), and stays.
    Require,
}

/// What packets of a device may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Each packet read or written has a virtio-net header before it.
    pub vnet_header: bool,
    /// Packets may have unfinished checksums, and large TCP packets are read and written.
    pub tcp: bool,
    /// Large UDP packets are, too: Linux 6.2 and later.
    pub udp: bool,
}

/// A TUN device. Unless it was there before, it goes when this and all queues taken from it are
/// dropped.
#[derive(Debug)]
pub struct Tun {
    name: String,
    index: u32,
    offloads: Offloads,
    queues: Vec<TunQueue>,
    /// In the device's namespace, wherever the thread that asks is.
    control: OwnedFd,
}

/// One descriptor of a device, nonblocking; waited for with [`crate::epoll::Epoll`].
#[derive(Debug)]
pub struct TunQueue {
    descriptor: OwnedFd,
}

/// What has become of a device's interface since it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It is up.
    Up,
    /// It was set down: the kernel gives and takes no packets.
    Down,
    /// It has another name now. Packets go on; what names the interface does not find it.
    Renamed {
        /// What it is called.
        name: String,
    },
    /// It is not in this namespace: removed, or moved to another one.
    Absent,
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// No interface can have that name.
    #[error(
        "`{name}` cannot be an interface's name: 1 to 15 bytes without `/`, `:`, `%` or spaces"
    )]
    Name {
        /// The name asked for.
        name: String,
    },
    /// The number of queues is impossible.
    #[error("{queues} queues; 1 to {QUEUES_MAX} are possible")]
    Queues {
        /// The number asked for.
        queues: usize,
    },
    /// The kernel has no TUN devices.
    #[error("there are no TUN devices here ({DEVICE}: {source}); load the kernel's `tun` module")]
    Unsupported {
        /// The system's error.
        source: io::Error,
    },
    /// The process may not make or open it.
    #[error("not permitted to open TUN device `{name}`; CAP_NET_ADMIN or root is needed")]
    NotPermitted {
        /// The name asked for.
        name: String,
    },
    /// An interface of that name is there, or the TUN device is in use.
    #[error(
        "interface `{name}` is there already or in use by another process (`ip link show {name}`)"
    )]
    Taken {
        /// The name asked for.
        name: String,
    },
    /// There is no device of that name, and none was to be made.
    #[error("there is no TUN device `{name}` (`ip tuntap add {name} mode tun` makes one)")]
    Missing {
        /// The name asked for.
        name: String,
    },
    /// The device that is there is of another kind.
    #[error(
        "interface `{name}` is no TUN device, or was made for another number of queues \
         (`ip tuntap add {name} mode tun multi_queue` for more than one)"
    )]
    Unfit {
        /// The name asked for.
        name: String,
    },
    /// The namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// Anything else.
    #[error("cannot {action} TUN device `{name}`: {source}")]
    System {
        /// The name asked for.
        name: String,
        /// What failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a packet was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum TunFault {
    /// The device was removed. Nothing works any more; it may be made again.
    #[error("the TUN device was removed")]
    Gone,
    /// The device is there and not up.
    #[error("the TUN device is down")]
    Down,
    /// The kernel takes no such packet: malformed, or an offload that it does not have.
    #[error("the kernel refuses the packet")]
    Refused,
    /// Anything else, no memory for instance.
    #[error("TUN device: {0}")]
    System(io::Error),
}

impl Tun {
    /// Makes or opens a device in the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of [`TunError`]; nothing is left behind.
    pub fn open(options: &TunOptions) -> Result<Self, TunError> {
        let name = &options.name;
        judge(options)?;
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

    /// Makes or opens a device in `netns`; the calling thread stays where it is, and may use the
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

    /// The interface's number, which [`crate::route`] asks for.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What its packets may be.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Its queues; none after [`Self::take_queues`].
    pub fn queues(&self) -> &[TunQueue] {
        &self.queues
    }

    /// Gives the queues away, to other threads for instance.
    pub fn take_queues(&mut self) -> Vec<TunQueue> {
        std::mem::take(&mut self.queues)
    }

    /// Sets the longest IP packet that the kernel sends into the device, in bytes: 68 to 65,535,
    /// and 1,280 at least if it is to have IPv6.
    ///
    /// # Errors
    /// Out of that range, the device is gone, or CAP_NET_ADMIN is missing.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), TunError> {
        let set = || {
            let mtu = i32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            let mut request = request(&self.name_now()?)?;
            request.ifr_ifru.ifru_mtu = mtu;
            self.control(libc::SIOCSIFMTU, &mut request)
        };
        set().map_err(|source| self.error("set the MTU of", source))
    }

    /// The longest IP packet that the kernel sends into the device, in bytes.
    ///
    /// # Errors
    /// The device is gone.
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

    /// Sets the device up: the kernel sends and takes packets from here on.
    ///
    /// # Errors
    /// The device is gone, or CAP_NET_ADMIN is missing.
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

    /// What has become of the interface.
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

    /// By its number, which stays when it is renamed.
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
    /// Reads one packet, with its virtio-net header if the device has them, and gives its length
    /// in bytes; `None`: none waits. [`READ_BYTES_MAX`] is enough for any.
    ///
    /// # Errors
    /// The device is gone, mostly.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, TunFault> {
        match nix::unistd::read(&self.descriptor, buffer) {
            Ok(length) => Ok(Some(length)),
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(None),
            // What the kernel says to a reader while it removes the device; the buffer is good.
            Err(nix::Error::EFAULT) => Err(TunFault::Gone),
            Err(error) => Err(fault(error)),
        }
    }

    /// Writes one packet, after its virtio-net header if the device has them. `false`: there is no
    /// room at present, and nothing was written.
    ///
    /// # Errors
    /// The device is gone or down, or does not take such a packet.
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

fn judge(options: &TunOptions) -> Result<(), TunError> {
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
        // An interface of another kind, or of another number of queues.
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

/// Asks for all offloads, then for those that older kernels have. They are the device's, not the
/// queue's.
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
    fn a_missing_device_is_told_and_not_made() {
        let error = Tun::open(&options("keiro-none")).unwrap_err();
        assert!(matches!(error, TunError::Missing { .. }), "{error}");
        assert_eq!(index_of("keiro-none"), None);
    }
}
