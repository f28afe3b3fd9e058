//! What IPv6 and QUIC need, over an underlay that drops what is longer than 1280 bytes and says nothing.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use crate::{
    gateways::{Gateways, echo, tenant},
    harness::{eventually, finish},
};

const HOSTS: [&str; 2] = ["a", "b"];
const RULES: &str = "add table inet small; \
     add chain inet small in { type filter hook prerouting priority -300; }; \
     add rule inet small in udp dport 7600 meta length > 1280 drop";

fn bound(gateways: &Gateways, own: usize, address: &str) -> UdpSocket {
    let address = SocketAddr::new(address.parse().expect("an address"), 0);
    let host = gateways.lab.host(HOSTS[own]).expect("a host");
    let socket = host.run(|| UdpSocket::bind(address).expect("bound"));
    let socket = socket.expect("entered");
    let wait = Some(Duration::from_millis(100));
    socket.set_read_timeout(wait).expect("set");
    socket
}

/// Packets that are too long make gateway `own` find out what the path carries.
fn await_small_path(gateways: &Gateways, own: usize) {
    let to = SocketAddr::new(site_address(1 - own, true), 9);
    let socket = bound(gateways, own, "::");
    eventually("the path is found to be small", || {
        // Once the sender knows, it sends fragments.
        let _ = socket.send_to(&[0; 1350], to);
        let paths = gateways.ask(own, &["show", "path"])?;
        (paths[0]["mtu_bytes"] == 1280).then_some(())
    });
}

fn site_address(own: usize, v6: bool) -> IpAddr {
    let site = own + 1;
    let text = match v6 {
        true => format!("fd00:{site}::1"),
        false => format!("10.{site}.0.1"),
    };
    text.parse().expect("an address")
}

fn icmp_errors(gateways: &Gateways, own: usize) -> Option<u64> {
    gateways.tenant(own, "blue")["icmp_error_packets"].as_u64()
}

#[test]
fn packets_of_1280_bytes_and_quic_pass_an_underlay_of_1280_bytes() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    for name in HOSTS {
        let host = gateways.lab.host(name).expect("a host");
        let mut command = host.command("nft");
        finish(command.arg(RULES), b"").expect_code(0);
    }
    for own in [0, 1] {
        await_small_path(&gateways, own);
    }
    let before = icmp_errors(&gateways, 0);
    for v6 in [true, false] {
        let headers = if v6 { 48 } else { 28 };
        for longest in [1222, 1223, 1279, 1280] {
            let bytes = longest - headers;
            let host = gateways.lab.host("a").expect("a host");
            let answered = host.run(|| echo(site_address(1, v6), bytes, None));
            let answered = answered.expect("entered");
            assert_eq!(answered, Some(bytes), "{longest} bytes, IPv6: {v6}");
        }
        // A first packet of QUIC (RFC 9000 §14).
        let server = bound(&gateways, 1, &site_address(1, v6).to_string());
        let client = bound(&gateways, 0, &site_address(0, v6).to_string());
        let hello: Vec<u8> = (0..1200).map(|at| (at % 251) as u8).collect();
        let to = server.local_addr().expect("bound");
        eventually("a first packet of QUIC arrives", || {
            client.send_to(&hello, to).expect("sent");
            let mut packet = [0; 1500];
            let (length, _) = server.recv_from(&mut packet).ok()?;
            (packet[..length] == hello).then_some(())
        });
    }
    assert_eq!(icmp_errors(&gateways, 0), before, "nothing is too long");
}
