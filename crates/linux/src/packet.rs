//! Ethernet frames of one interface (AF_PACKET): a receive ring shared with the kernel, which stamps every
//! frame, and batched sending that bypasses the queueing discipline.
//!
//! TPACKET_V2 and not V3, because V3 hands frames over in blocks and so delays single ones.

mod ring;

use std::{
    ffi::CString,
    io::{self, IoSlice},
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::Duration,
};

use ring::Ring;

/// Bytes of an Ethernet header without VLAN tag.
pub const ETHERNET_HEADER_BYTES: usize = 14;

/// Frames per `sendmmsg` call. Ours: enough to make the call's cost small, few enough that the last frame
/// does not wait long for the first.
pub const SEND_BATCH_MAX: usize = 32;

/// All protocols, in network byte order.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();

/// The frames of one interface.
#[derive(Debug)]
pub struct PacketSocket {
    descriptor: OwnedFd,
    ring: Ring,
    interface: String,
}

/// How a [`PacketSocket`] is opened.
#[derive(Clone, Copy, Debug)]
pub struct PacketOptions {
    /// Capacity of the ring in frames, rounded up to a power of two of at least 32. Frames that arrive while
    /// it is full are lost and counted.
    pub ring_frames: usize,
    /// Whether outgoing frames are captured as well.
    pub outgoing: bool,
}

/// A received frame. Dropping it frees its slot in the ring.
#[derive(Debug)]
pub struct Frame<'a> {
    slot: ring::Slot<'a>,
}

/// An 802.1Q or 802.1ad tag, which the kernel has removed from the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// The EtherType that announces the tag, 0x8100 in most cases.
    pub protocol: u16,
    /// Priority and VLAN number.
    pub control: u16,
}

/// Result of sending a batch.
#[derive(Debug, Default)]
pub struct Sent {
    /// Number of frames handed to the interface.
    pub sent: usize,
    pub failed: usize,
    /// Error of the last refused frame.
    pub error: Option<io::Error>,
}

/// Why an interface's frames are not available.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// There is no such interface in the thread's namespace.
    #[error("there is no interface `{interface}` in this network namespace")]
    NoInterface { interface: String },
    #[error("cannot open a packet socket on `{interface}`: root is needed (CAP_NET_RAW)")]
    Privileges { interface: String },
    /// The kernel refused a step.
    #[error("cannot {step} for the frames of `{interface}`: {source}")]
    Refused {
        interface: String,
        step: &'static str,
        source: io::Error,
    },
}

impl PacketSocket {
    /// Opens the frames of `interface` in the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, no CAP_NET_RAW, or no memory for the ring.
    pub fn open(interface: &str, options: PacketOptions) -> Result<Self, PacketError> {
        let (index, mtu) = index_and_mtu(interface)?;
        // Protocol 0: nothing is received before the ring exists and the socket is bound.
        // SAFETY: takes three integers and gives a new descriptor or -1.
        let descriptor =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(refused(interface, "open a packet socket")(
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let socket = descriptor.as_fd();

        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, version)
            .map_err(refused(interface, "choose TPACKET_V2"))?;
        let ignore = libc::c_int::from(!options.outgoing);
        set_option(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            ignore,
        )
        .map_err(refused(interface, "ignore outgoing frames"))?;
        set_option(socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)
            .map_err(refused(interface, "bypass the queueing discipline"))?;
        // Makes the kernel stamp a frame when the interface receives it, not when it is copied into the ring.
        set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
            .map_err(refused(interface, "have frames stamped"))?;

        let ring = Ring::new(socket, options.ring_frames, ETHERNET_HEADER_BYTES + mtu)
            .map_err(refused(interface, "make a receive ring"))?;
        bind(socket, index).map_err(refused(interface, "bind a packet socket"))?;
        Ok(Self {
            descriptor,
            ring,
            interface: interface.into(),
        })
    }

    /// The interface's name when it was opened.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The next frame, in order of arrival; `None` if there is none yet.
    ///
    /// Makes no system call: it looks into the ring.
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        self.ring.next_slot().map(|slot| Frame { slot })
    }

    /// Sends frames, each with its Ethernet header, in order and without waiting.
    ///
    /// A frame that the interface refuses is counted and left out; later ones are still sent.
    pub fn send(&self, frames: &[IoSlice<'_>]) -> Sent {
        let mut outcome = Sent::default();
        for batch in frames.chunks(SEND_BATCH_MAX) {
            let mut rest = batch;
            while !rest.is_empty() {
                match send_some(self.descriptor.as_fd(), rest) {
                    Ok(count) => {
                        outcome.sent += count;
                        rest = &rest[count..];
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        outcome.failed += 1;
                        outcome.error = Some(error);
                        rest = &rest[1..];
                    }
                }
            }
        }
        outcome
    }

    /// Frames lost because the ring was full, since the last call.
    ///
    /// # Errors
    /// None is known for an open socket.
    pub fn take_ring_drops(&self) -> io::Result<u64> {
        // SAFETY: all-zero bytes are a valid tpacket_stats, which holds two integers.
        let mut statistics: libc::tpacket_stats = unsafe { mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: both pointers are to live locals, and `length` is the size of the first.
        let result = unsafe {
            libc::getsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        match result {
            0 => Ok(u64::from(statistics.tp_drops)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The pending error of the socket, which is cleared; `None` if there is none.
    ///
    /// An interface that is set down or removed leaves one (`ENETDOWN`). Until it is read, the socket counts
    /// as ready.
    pub fn take_error(&self) -> Option<io::Error> {
        let mut code: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: both pointers are to live locals, and `length` is the size of the first.
        let result = unsafe {
            libc::getsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                (&raw mut code).cast(),
                &raw mut length,
            )
        };
        match (result, code) {
            (0, 0) => None,
            (0, code) => Some(io::Error::from_raw_os_error(code)),
            _ => Some(io::Error::last_os_error()),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Frame<'_> {
    /// Ethernet header and everything behind it; without its VLAN tag, see [`Self::vlan`].
    pub fn bytes(&self) -> &[u8] {
        self.slot.bytes()
    }

    /// Original length of the frame; greater than that of [`Self::bytes`] if it did not fit into the ring.
    pub fn original_len(&self) -> usize {
        self.slot.header().tp_len as usize
    }

    /// When the kernel received it: time since 1970 on the clock that may be set
    /// (CLOCK_REALTIME).
    pub fn stamp(&self) -> Duration {
        let header = self.slot.header();
        Duration::new(u64::from(header.tp_sec), header.tp_nsec)
    }

    /// The VLAN tag that preceded the frame's EtherType.
    pub fn vlan(&self) -> Option<VlanTag> {
        let header = self.slot.header();
        let has = |bit| header.tp_status & bit != 0;
        has(libc::TP_STATUS_VLAN_VALID).then(|| VlanTag {
            protocol: if has(libc::TP_STATUS_VLAN_TPID_VALID) {
                header.tp_vlan_tpid
            } else {
                libc::ETH_P_8021Q as u16
            },
            control: header.tp_vlan_tci,
        })
    }

    /// Whether its sender left the checksum to the hardware, so that the checksum inside is wrong and a
    /// forwarded copy would be dropped. [`crate::offload::disable_offloads`] prevents it.
    pub fn checksum_missing(&self) -> bool {
        self.slot.header().tp_status & libc::TP_STATUS_CSUMNOTREADY != 0
    }
}

/// One `sendmmsg` call; returns how many frames it took, at least one.
fn send_some(socket: BorrowedFd<'_>, frames: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: all-zero bytes are a valid mmsghdr: no address, no control data, no buffers.
    let mut messages: [libc::mmsghdr; SEND_BATCH_MAX] = unsafe { mem::zeroed() };
    for (message, frame) in messages.iter_mut().zip(frames) {
        // IoSlice has the layout of iovec on Unix; the kernel only reads from it.
        message.msg_hdr.msg_iov = std::ptr::from_ref(frame).cast::<libc::iovec>().cast_mut();
        message.msg_hdr.msg_iovlen = 1;
    }
    let count = frames.len().min(SEND_BATCH_MAX);
    // SAFETY: the first `count` messages point at as many buffers, which live beyond the call.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            count as libc::c_uint,
            // Of another type in another C library.
            libc::MSG_DONTWAIT as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer is to a live integer of the length given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bind(socket: BorrowedFd<'_>, index: libc::c_int) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_protocol = ALL_PROTOCOLS;
    address.sll_ifindex = index;
    // SAFETY: the pointer is to a live address of the length given.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Index and MTU of the interface.
fn index_and_mtu(interface: &str) -> Result<(libc::c_int, usize), PacketError> {
    let missing = || PacketError::NoInterface {
        interface: interface.into(),
    };
    let name = CString::new(interface).map_err(|_| missing())?;
    // SAFETY: the name is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(missing());
    }
    let mut request = crate::offload::request(interface).map_err(|_| missing())?;
    let socket = crate::offload::control_socket()
        .map_err(refused(interface, "open a socket to ask for the MTU"))?;
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU of a live ifreq.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if result != 0 {
        return Err(refused(interface, "ask for the MTU")(
            io::Error::last_os_error(),
        ));
    }
    // SAFETY: the call has just written this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok((
        index as libc::c_int,
        usize::try_from(mtu).unwrap_or_default(),
    ))
}

fn refused(interface: &str, step: &'static str) -> impl FnOnce(io::Error) -> PacketError {
    let interface = interface.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => PacketError::Privileges { interface },
        _ => PacketError::Refused {
            interface,
            step,
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_interface_is_named() {
        let options = PacketOptions {
            ring_frames: 32,
            outgoing: false,
        };
        for interface in ["keiro-none", "far-too-long-for-an-interface", "a\0b", ""] {
            let error = PacketSocket::open(interface, options).unwrap_err();
            assert!(matches!(&error, PacketError::NoInterface { interface: i } if i == interface));
        }
    }
}
