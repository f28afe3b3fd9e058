//! Whether another host on a link has an IPv6 address: neighbour discovery (RFC 4861) for an address that
//! may be this host's own, which the kernel does not ask for.

use std::{
    io,
    net::{Ipv6Addr, SocketAddrV6},
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};

/// How long other hosts have to answer. A host that has the address answers at once (RFC 4861 §7.2.4); one
/// second is the retransmission time (§10).
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// ICMPv6 types.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The hop limit of neighbour discovery, which shows that a packet is from the link.
const HOPS: u32 = 255;
/// Packets that are read while waiting. Ours.
const READ_MAX: usize = 10_000;

/// Asks for an address on the link of an interface, for up to a second.
///
/// # Errors
/// No raw socket, which needs CAP_NET_RAW, or the interface has no link-local address.
pub fn is_at_another_host(interface: u32, address: Ipv6Addr) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
    socket.set_multicast_if_v6(interface)?;
    socket.set_multicast_hops_v6(HOPS)?;
    // This host may have the address too, and would answer itself.
    socket.set_multicast_loop_v6(false)?;
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(address.octets());
    let group = SocketAddrV6::new(solicited_node(address), 0, 0, interface);
    socket.send_to(&message, &group.into())?;
    let end = Instant::now() + ANSWER_TIME;
    for _ in 0..READ_MAX {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left))?;
        let mut buffer = [0; 64];
        let read = io::Read::read(&mut &socket, &mut buffer);
        match read {
            Ok(length) if is_answer(&buffer[..length], address) => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// RFC 4291 §2.7.1.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let low = u128::from(address) & 0xff_ffff;
    Ipv6Addr::from(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

/// The kernel has verified the checksum.
fn is_answer(message: &[u8], address: Ipv6Addr) -> bool {
    message.first() == Some(&ADVERTISEMENT) && message.get(8..24) == Some(&address.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_address() {
        let address: Ipv6Addr = "2001:db8::12:3456".parse().unwrap();
        assert_eq!(solicited_node(address).to_string(), "ff02::1:ff12:3456");
        let mut message = vec![ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0];
        message.extend(address.octets());
        assert!(is_answer(&message, address));
        assert!(!is_answer(&message, "2001:db8::1".parse().unwrap()));
        message[0] = SOLICITATION;
        assert!(!is_answer(&message, address));
        assert!(!is_answer(&message[..20], address));
        assert!(!is_answer(&[], address));
    }
}
