//! Real traffic of the kernel through segmentation and coalescing (GSO and GRO).

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use keiro_ip::{Header, checksum};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    forwarder::{Forwarder, LoopCounters, Settings, address},
    namespace::{TIMEOUT, is_root},
};

const MIB: usize = 1 << 20;
const WIDE: Settings = Settings {
    mtu: 1500,
    clamp: false,
};

/// Bytes that encode their position: repeated blocks would hide a segment in the wrong namespace.
fn fill(offset: usize, buffer: &mut [u8]) {
    for (index, word) in buffer.chunks_mut(8).enumerate() {
        let number = (offset / 8 + index) as u64;
        let bytes = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// Sends `bytes` from end `from` to the other over TCP and compares every one.
fn transfer(forwarder: &Forwarder, from: usize, v6: bool, bytes: usize) {
    const CHUNK: usize = 64 * 1024;
    let [sender, receiver] = [from, 1 - from].map(|end| &forwarder.ends[end].namespace);
    let to = address(1 - from, v6).parse::<IpAddr>().unwrap();
    let listener = receiver.run(|| TcpListener::bind(SocketAddr::new(to, 0)).unwrap());
    let to = listener.local_addr().unwrap();
    let stream = sender.run(|| TcpStream::connect_timeout(&to, TIMEOUT).unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let sending = thread::spawn(move || {
        let mut stream = stream;
        let mut chunk = vec![0; CHUNK];
        for offset in (0..bytes).step_by(CHUNK) {
            fill(offset, &mut chunk);
            stream.write_all(&chunk).unwrap();
        }
    });
    let (mut chunk, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    for offset in (0..bytes).step_by(CHUNK) {
        accepted.read_exact(&mut chunk).unwrap();
        fill(offset, &mut expected);
        assert!(
            chunk == expected,
            "bytes {offset} to {} differ",
            offset + CHUNK
        );
    }
    assert_eq!(accepted.read(&mut chunk).unwrap(), 0);
    sending.join().unwrap();
}

/// Stops forwarding and returns the counters.
fn assert_clean(forwarder: &mut Forwarder) -> LoopCounters {
    let counters = forwarder.end();
    assert_eq!(
        (counters.malformed, counters.write_errors),
        (0, 0),
        "{counters:?}"
    );
    for end in &forwarder.ends {
        for (group, name) in [
            ("Ip", "InHdrErrors"),
            ("Tcp", "InCsumErrors"),
            ("Udp", "InCsumErrors"),
            ("Icmp", "InCsumErrors"),
        ] {
            assert_eq!(end.namespace.counter(group, name), 0, "{group} {name}");
        }
    }
    counters
}

#[test]
fn tcp_arrives_intact_through_large_packets() {
    if !is_root("tcp_arrives_intact_through_large_packets") {
        return;
    }
    for v6 in [false, true] {
        let mut forwarder = Forwarder::start([true, true], [1500, 1500], WIDE);
        transfer(&forwarder, 0, v6, 64 * MIB);
        let counters = assert_clean(&mut forwarder);
        eprintln!("IPv{}: {counters:?}", if v6 { 6 } else { 4 });
        // Acknowledgements are single packets, data is not.
        assert!(counters.packets > 2 * counters.reads, "{counters:?}");
        assert!(counters.packets > 2 * counters.writes, "{counters:?}");
    }
}

/// The kernel checks every segment here, because none are coalesced.
#[test]
fn every_segment_is_judged_by_a_kernel_without_offloads() {
    if !is_root("every_segment_is_judged_by_a_kernel_without_offloads") {
        return;
    }
    for v6 in [false, true] {
        let mut forwarder = Forwarder::start([true, false], [1500, 1500], WIDE);
        transfer(&forwarder, 0, v6, 16 * MIB);
        transfer(&forwarder, 1, v6, 16 * MIB);
        assert_clean(&mut forwarder);
    }
}

#[test]
fn a_smaller_mtu_on_one_side_holds_for_both_directions() {
    if !is_root("a_smaller_mtu_on_one_side_holds_for_both_directions") {
        return;
    }
    for v6 in [false, true] {
        let mut forwarder = Forwarder::start([true, true], [1500, 1300], WIDE);
        transfer(&forwarder, 0, v6, 4 * MIB);
        transfer(&forwarder, 1, v6, 4 * MIB);
        let counters = assert_clean(&mut forwarder);
        assert_eq!(
            (counters.largest, counters.too_big),
            (1300, 0),
            "{counters:?}"
        );
    }
}

#[test]
fn packet_too_big_makes_the_kernel_send_smaller_ones() {
    if !is_root("packet_too_big_makes_the_kernel_send_smaller_ones") {
        return;
    }
    let narrow = Settings {
        mtu: 1400,
        clamp: false,
    };
    for v6 in [false, true] {
        let mut forwarder = Forwarder::start([true, true], [1500, 1500], narrow);
        transfer(&forwarder, 0, v6, 4 * MIB);
        let counters = assert_clean(&mut forwarder);
        assert!(
            counters.too_big > 0 && counters.largest == 1400,
            "{counters:?}"
        );
        let to = address(1, v6);
        let route = forwarder.ends[0].namespace.ip(&format!("route get {to}"));
        assert!(route.contains("mtu 1400"), "{route}");
    }
}

#[test]
fn a_clamped_handshake_needs_no_packet_too_big() {
    if !is_root("a_clamped_handshake_needs_no_packet_too_big") {
        return;
    }
    let clamped = Settings {
        mtu: 1400,
        clamp: true,
    };
    for v6 in [false, true] {
        let mut forwarder = Forwarder::start([true, true], [1500, 1500], clamped);
        transfer(&forwarder, 0, v6, 4 * MIB);
        transfer(&forwarder, 1, v6, 4 * MIB);
        let counters = assert_clean(&mut forwarder);
        assert_eq!(
            (counters.largest, counters.too_big),
            (1400, 0),
            "{counters:?}"
        );
    }
}

#[test]
fn large_udp_is_segmented_and_coalesced_without_moving_a_boundary() {
    if !is_root("large_udp_is_segmented_and_coalesced_without_moving_a_boundary") {
        return;
    }
    const BYTES: usize = 1200;
    const DATAGRAMS: usize = 40;
    for v6 in [false, true] {
        let mut forwarder = Forwarder::start([true, true], [1500, 1500], WIDE);
        let [sender, receiver] = [0, 1].map(|end: usize| {
            let own = SocketAddr::new(address(end, v6).parse().unwrap(), 0);
            forwarder.ends[end]
                .namespace
                .run(|| UdpSocket::bind(own).unwrap())
        });
        receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
        setsockopt(&sender, sockopt::UdpGsoSegment, &(BYTES as i32)).unwrap();
        let mut data = vec![0; BYTES * DATAGRAMS - 7];
        fill(0, &mut data);
        sender
            .send_to(&data, receiver.local_addr().unwrap())
            .unwrap();
        let mut datagram = vec![0; 65_536];
        for expected in data.chunks(BYTES) {
            let length = receiver.recv(&mut datagram).unwrap();
            assert!(datagram[..length] == *expected);
        }
        let counters = assert_clean(&mut forwarder);
        assert_eq!(counters.packets, DATAGRAMS as u64, "{counters:?}");
        if forwarder.ends[0].tun.offloads().udp {
            assert_eq!((counters.reads, counters.writes), (1, 1), "{counters:?}");
        }
    }
}

/// IPv4 datagrams that may be fragmented are fragmented on the way and reassembled by the kernel.
#[test]
fn a_fragmented_datagram_is_reassembled() {
    if !is_root("a_fragmented_datagram_is_reassembled") {
        return;
    }
    let narrow = Settings {
        mtu: 576,
        clamp: false,
    };
    let mut forwarder = Forwarder::start([true, true], [1500, 1500], narrow);
    let [sender, receiver] = [0, 1].map(|end: usize| {
        let own = SocketAddr::new(address(end, false).parse().unwrap(), 0);
        forwarder.ends[end].namespace.run(|| {
            // New sockets send without DF, so that packets are fragmented.
            std::fs::write("/proc/sys/net/ipv4/ip_no_pmtu_disc", "1").unwrap();
            UdpSocket::bind(own).unwrap()
        })
    });
    receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut data = vec![0; 4000];
    fill(0, &mut data);
    sender
        .send_to(&data, receiver.local_addr().unwrap())
        .unwrap();
    let mut datagram = vec![0; 65_536];
    let length = receiver.recv(&mut datagram).unwrap();
    assert!(datagram[..length] == data);
    assert_eq!(assert_clean(&mut forwarder).largest, 572);
}

/// An echo socket at end 0.
fn icmp_socket(forwarder: &Forwarder, v6: bool) -> Socket {
    let socket = forwarder.ends[0].namespace.run(|| match v6 {
        true => Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap(),
        false => Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap(),
    });
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    socket
}

fn echo_request(v6: bool, payload: &[u8]) -> Vec<u8> {
    let mut request = vec![if v6 { 128 } else { 8 }, 0, 0, 0, 0x12, 0x34, 0, 1];
    request.extend_from_slice(payload);
    if !v6 {
        // The kernel fills in the checksum of ICMPv6 only.
        let sum = checksum::Sum::default().bytes(&request).checksum();
        request[2..4].copy_from_slice(&sum);
    }
    request
}

/// The ICMP message of the first packet received with type `kind`, and its hop limit for IPv4.
fn receive(mut socket: &Socket, v6: bool, kind: u8) -> (Vec<u8>, Option<u8>) {
    let mut buffer = vec![0; 65_536];
    loop {
        let length = socket.read(&mut buffer).expect("an answer in time");
        let (message, hop_limit) = match v6 {
            true => (&buffer[..length], None),
            false => {
                let header = Header::parse(&buffer[..length]).unwrap();
                (&buffer[header.transport..length], Some(header.hop_limit))
            }
        };
        if message[0] == kind {
            return (message.to_vec(), hop_limit);
        }
    }
}

#[test]
fn ping_is_answered_over_one_hop_and_an_exhausted_hop_limit_is_reported() {
    if !is_root("ping_is_answered_over_one_hop_and_an_exhausted_hop_limit_is_reported") {
        return;
    }
    for v6 in [false, true] {
        let mut forwarder = Forwarder::start([true, true], [1500, 1500], WIDE);
        let to = SocketAddr::new(address(1, v6).parse().unwrap(), 0).into();
        let socket = icmp_socket(&forwarder, v6);
        for bytes in [0, 56, 1400, 4000] {
            let mut payload = vec![0; bytes];
            fill(bytes, &mut payload);
            let request = echo_request(v6, &payload);
            socket.send_to(&request, &to).unwrap();
            let (reply, hop_limit) = receive(&socket, v6, if v6 { 129 } else { 0 });
            assert_eq!(reply[4..], request[4..]);
            assert!(hop_limit.is_none_or(|left| left == 63), "{hop_limit:?}");
        }
        match v6 {
            true => socket.set_unicast_hops_v6(1).unwrap(),
            false => socket.set_ttl_v4(1).unwrap(),
        }
        let request = echo_request(v6, b"too far");
        socket.send_to(&request, &to).unwrap();
        let (reported, _) = receive(&socket, v6, if v6 { 3 } else { 11 });
        assert_eq!(reported[reported.len() - 7..], *b"too far");
        assert_clean(&mut forwarder);
    }
}
