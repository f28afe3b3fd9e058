//! The kernel's reports about subflows of an MPTCP connection (`include/uapi/linux/mptcp.h`, Linux 5.16 or
//! newer), and listeners that subflows can join.

use std::{
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd},
};

use socket2::{Domain, Protocol, Socket, Type};

const SOL_MPTCP: libc::c_int = 284;
const MPTCP_TCPINFO: libc::c_int = 2;
const MPTCP_SUBFLOW_ADDRS: libc::c_int = 3;

/// `TCP_ESTABLISHED` of the kernel's `net/tcp_states.h`.
const ESTABLISHED: u8 = 1;

/// Maximum of subflows in a report; the kernel allows eight in addition to the first.
const SUBFLOWS_MAX: usize = 16;

/// One subflow of an MPTCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subflow {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Whether its TCP connection is established.
    pub established: bool,
}

/// The subflows of a connected MPTCP socket.
///
/// # Errors
/// `ENOPROTOOPT` where the socket is plain TCP or has fallen back to it.
pub fn subflows(socket: &impl AsFd) -> io::Result<Vec<Subflow>> {
    let addresses = option::<Addresses>(socket, MPTCP_SUBFLOW_ADDRS)?;
    let states = option::<State>(socket, MPTCP_TCPINFO)?;
    // The two calls list the subflows in the same order. If one was added or removed between the calls, the
    // lists differ in length, and the surplus is left out.
    let subflow = |(addresses, state): (&Addresses, &State)| {
        Some(Subflow {
            local: addresses.local.address()?,
            remote: addresses.remote.address()?,
            established: state.0 == ESTABLISHED,
        })
    };
    Ok(addresses.iter().zip(&states).filter_map(subflow).collect())
}

/// A non-blocking listener for joins to connections of any process: the kernel finds those by their token. It
/// also accepts connections that are not joins.
///
/// # Errors
/// The address is in use or not local, or the kernel has no MPTCP.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let protocol = Some(Protocol::from(libc::IPPROTO_MPTCP));
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, protocol)?;
    // A daemon that restarts can bind its port although old connections linger.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Backlog; while it is full, joins are refused as well. Ours.
const BACKLOG: i32 = 1024;

/// `struct mptcp_subflow_data`, before the array.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Header {
    size_subflow_data: u32,
    num_subflows: u32,
    size_kernel: u32,
    size_user: u32,
}

#[repr(C)]
struct Request<T> {
    header: Header,
    entries: [T; SUBFLOWS_MAX],
}

/// `struct mptcp_subflow_addrs`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Addresses {
    local: Storage,
    remote: Storage,
}

/// `struct __kernel_sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Storage([u8; 128]);

/// The first byte of `struct tcp_info`, `tcpi_state`; the kernel copies as much as is asked for.
#[repr(C)]
#[derive(Clone, Copy)]
struct State(u8);

impl Storage {
    fn address(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip = match libc::c_int::from(family) {
            libc::AF_INET => {
                let octets: [u8; 4] = bytes[4..8].try_into().ok()?;
                IpAddr::V4(Ipv4Addr::from(octets))
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = bytes[8..24].try_into().ok()?;
                IpAddr::V6(Ipv6Addr::from(octets))
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip.to_canonical(), port))
    }
}

/// Plain old data: integers and arrays of them, for which all bit patterns, all zero included,
/// are valid.
trait Plain: Copy {}
impl Plain for Addresses {}
impl Plain for State {}

fn option<T: Plain>(socket: &impl AsFd, name: libc::c_int) -> io::Result<Vec<T>> {
    // SAFETY: `Header` and every `Plain` are valid when all zero.
    let mut request: Request<T> = unsafe { mem::zeroed() };
    request.header.size_subflow_data = size_of::<Header>() as u32;
    request.header.size_user = size_of::<T>() as u32;
    let mut length = size_of::<Request<T>>() as libc::socklen_t;
    // SAFETY: the pointer and length describe `request`, which the kernel writes plain data into;
    // it goes no further than `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            SOL_MPTCP,
            name,
            (&raw mut request).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let count = usize::try_from(request.header.num_subflows).unwrap_or(usize::MAX);
    Ok(request.entries.into_iter().take(count).collect())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn plain_tcp_has_no_subflows() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(subflows(&listener).is_err());
    }

    #[test]
    fn addresses_are_read_in_both_families() {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&7000_u16.to_be_bytes());
        bytes[4..8].copy_from_slice(&[192, 0, 2, 1]);
        let address = Storage(bytes).address().unwrap();
        assert_eq!(address, "192.0.2.1:7000".parse().unwrap());
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[8..24].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        let address = Storage(bytes).address().unwrap();
        assert_eq!(address, "[2001:db8::1]:7000".parse().unwrap());
        assert_eq!(Storage([0; 128]).address(), None);
    }
}
