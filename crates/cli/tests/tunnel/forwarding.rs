//! Gateways that forward for others: hosts of two tenants with the same addresses behind both.
//!
//! ```text
//! client-blue --- blue1          blue2 --- server-blue
//!                       a ===== b
//!  client-red --- red1           red2  --- server-red
//! ```

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use keiro_lab::Host;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    gateways::{Gateways, tenant},
    harness::{LIMIT, eventually},
};

const TOPOLOGY: &str = r#"
[host.a]
sysctl = { "net.ipv4.ip_forward" = 1 }

[host.b]
sysctl = { "net.ipv4.ip_forward" = 1 }

[host.client-blue]
routes = [{ to = "default", via = "10.1.0.254" }]

[host.server-blue]
routes = [{ to = "default", via = "10.2.0.254" }]

[host.client-red]

[host.server-red]

[link.wan]
a = { host = "a", addresses = ["192.0.2.1/24"] }
b = { host = "b", addresses = ["192.0.2.2/24"] }

[link.blue1]
a = { host = "client-blue", addresses = ["10.1.0.5/24"] }
b = { host = "a", addresses = ["10.1.0.254/24"] }

[link.blue2]
a = { host = "server-blue", addresses = ["10.2.0.5/24"] }
b = { host = "b", addresses = ["10.2.0.254/24"] }

# The addresses of blue, which a topology does not take twice, come later.
[link.red1]
a = { host = "client-red", addresses = ["172.16.1.5/24"] }
b = { host = "a", addresses = ["172.16.1.254/24"] }

[link.red2]
a = { host = "server-red", addresses = ["172.16.2.5/24"] }
b = { host = "b", addresses = ["172.16.2.254/24"] }
"#;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 5);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 5);
const PORT: u16 = 5004;

/// Both tenants, with tables of their own. Packets to the servers' port are of another application.
fn start() -> Gateways {
    start_with(|_, _, _| String::new())
}

/// The same with `more` of a tenant: by the gateway's number, the tenant's name and its number.
fn start_with(more: impl Fn(usize, &str, u32) -> String) -> Gateways {
    start_between(|_, _, _| String::new(), more)
}

/// The same with `keys` in the tenant's own table too.
fn start_between(
    keys_of: impl Fn(usize, &str, u32) -> String,
    more: impl Fn(usize, &str, u32) -> String,
) -> Gateways {
    let (keys_of, more) = (&keys_of, &more);
    let tenants = |own: usize| {
        let peer = ["b", "a"][own];
        let of = |name: &str, id: u32| {
            let (table, interface) = (100 + id, format!("{name}{}", own + 1));
            let keys = format!(
                "table = {table}\ninterfaces = [\"{interface}\"]\n{}",
                keys_of(own, name, id)
            );
            tenant(own, name, id, &keys)
                + &more(own, name, id)
                + &format!(
                    "[[tenant.{name}.rule]]\nprotocol = \"udp\"\ndestination_ports = {PORT}\n\
                     app = \"voice\"\n"
                )
        };
        of("blue", 1)
            + &of("red", 2)
            + &format!("[[app]]\nname = \"voice\"\nclass = \"datagram\"\npeer = \"{peer}\"\n")
    };
    let gateways = Gateways::start_in(TOPOLOGY, "400Mbit", tenants);
    for (own, here) in [(0, "10.1.0"), (1, "10.2.0")] {
        let site = own + 1;
        gateways.ip(own, &format!("address add {here}.254/24 dev red{site}"));
        // To its own networks a tenant's table is the administrator's.
        for (name, table) in [("blue", 101), ("red", 102)] {
            gateways.ip(
                own,
                &format!("route add {here}.0/24 dev {name}{site} table {table}"),
            );
        }
        let host = ["client-red", "server-red"][own];
        gateways.ip_of(host, &format!("address add {here}.5/24 dev red{site}"));
        gateways.ip_of(
            host,
            &format!("route add default via {here}.254 src {here}.5"),
        );
    }
    gateways
}

fn bound(host: &Host, address: SocketAddr) -> UdpSocket {
    let socket = host.run(|| UdpSocket::bind(address).expect("bound"));
    let socket = socket.expect("entered");
    let wait = Some(Duration::from_millis(200));
    socket.set_read_timeout(wait).expect("set");
    socket
}

/// A raw socket sees whole IPv4 packets.
fn raw(host: &Host, protocol: Protocol) -> Socket {
    let socket = host.run(|| Socket::new(Domain::IPV4, Type::RAW, Some(protocol)).expect("raw"));
    let socket = socket.expect("entered");
    let wait = Some(Duration::from_millis(200));
    socket.set_read_timeout(wait).expect("set");
    socket
}

#[test]
fn hosts_of_tenants_with_the_same_addresses_reach_their_own() {
    let gateways = start();
    let host = |name: &str| gateways.lab.host(name).expect("a host");
    // What comes late finds its socket: a missing socket would be reported by ICMP packets.
    let mut open = Vec::new();
    for name in ["blue", "red"] {
        let server = bound(host(&format!("server-{name}")), (SERVER, PORT).into());
        let client = bound(host(&format!("client-{name}")), (CLIENT, 0).into());
        eventually(
            "the server hears its client, and the client its server",
            || {
                client.send_to(name.as_bytes(), (SERVER, PORT)).ok()?;
                let mut buffer = [0; 64];
                let (length, from) = server.recv_from(&mut buffer).ok()?;
                assert_eq!(&buffer[..length], name.as_bytes());
                assert_eq!(from.ip(), CLIENT);
                server.send_to(b"heard", from).ok()?;
                let (length, from) = client.recv_from(&mut buffer).ok()?;
                assert_eq!(
                    (&buffer[..length], from.ip()),
                    (&b"heard"[..], SERVER.into())
                );
                Some(())
            },
        );
        open.push([server, client]);
    }
    // By the rule there, and to a port of its own back.
    for (app, peer) in [("voice", 0), ("ip", 1)] {
        let found = gateways
            .ask(peer, &["show", "app", app])
            .expect("an answer");
        let sent = found[0]["sent_messages"].as_u64();
        assert!(sent >= Some(2), "{found:#}");
    }
    let none = gateways.ask(0, &["show", "app", "ip"]).expect("an answer");
    assert_eq!(none[0]["sent_messages"], 0, "{none:#}");
}

/// Ports where the first tenant's clients enter; those of the second are one higher.
const UDP_LISTENER: u32 = 6000;
const TCP_LISTENER: u32 = 6100;

/// Applications with listeners and forwards of tenants.
fn entrances(own: usize, name: &str, id: u32) -> String {
    let peer = ["b", "a"][own];
    let mut text = String::new();
    for (kind, class, port) in [
        ("udp", "datagram", UDP_LISTENER + id),
        ("tcp", "stream", TCP_LISTENER + id),
    ] {
        let app = format!("{kind}-{name}");
        text += &format!("[[app]]\nname = \"{app}\"\nclass = \"{class}\"\npeer = \"{peer}\"\n");
        let (entry, address) = match own {
            0 => ("listener", format!("10.1.0.254:{port}")),
            _ => ("forward", format!("{SERVER}:{PORT}")),
        };
        text +=
            &format!("[[{entry}]]\napp = \"{app}\"\n{kind} = \"{address}\"\ntenant = \"{name}\"\n");
    }
    text
}

/// Both tenants' servers have one address: by the main table all would go to one of them.
#[test]
fn listeners_and_forwards_of_tenants_lead_to_their_own_hosts() {
    let gateways = start_with(entrances);
    let host = |name: &str| gateways.lab.host(name).expect("a host");
    for (name, id) in [("blue", 1), ("red", 2)] {
        let server = bound(host(&format!("server-{name}")), (SERVER, PORT).into());
        let client = bound(host(&format!("client-{name}")), (CLIENT, 0).into());
        let listener = format!("10.1.0.254:{}", UDP_LISTENER + id);
        eventually("the server answers its client's datagram", || {
            client.send_to(name.as_bytes(), &listener).ok()?;
            let mut buffer = [0; 64];
            let (length, from) = server.recv_from(&mut buffer).ok()?;
            assert_eq!(&buffer[..length], name.as_bytes());
            server.send_to(b"heard", from).ok()?;
            let (length, from) = client.recv_from(&mut buffer).ok()?;
            assert_eq!(&buffer[..length], b"heard");
            (from.to_string() == listener).then_some(())
        });
        let server = host(&format!("server-{name}"))
            .run(|| TcpListener::bind((SERVER, PORT)).expect("bound"))
            .expect("entered");
        let listener = format!("10.1.0.254:{}", TCP_LISTENER + id);
        let client = host(&format!("client-{name}"))
            .run(|| TcpStream::connect(&listener).expect("connected"))
            .expect("entered");
        server.set_nonblocking(true).expect("set");
        let (mut served, _) = eventually("the server has a connection", || server.accept().ok());
        served.set_nonblocking(false).expect("set");
        served.write_all(name.as_bytes()).expect("written");
        drop(served);
        let mut said = String::new();
        let wait = Some(LIMIT);
        client.set_read_timeout(wait).expect("set");
        (&client).read_to_string(&mut said).expect("read");
        assert_eq!(said, name);
        // In its own window, in both directions; IP packets it has none.
        for side in 0..2 {
            let tenant = gateways.tenant(side, name);
            let peer = &tenant["peers"][0];
            assert_eq!(peer["accepted_packets"], 0, "{tenant:#}");
            let path = &peer["paths"][0];
            assert!(path["sent_packets"].as_u64() >= Some(2), "{tenant:#}");
            assert!(path["window_bytes"].as_u64() > Some(0), "{tenant:#}");
        }
        let explained = gateways.ask(0, &["explain", &format!("tcp-{name}")]);
        let explained = explained.expect("an answer");
        let text = explained["text"].as_str().expect("a text");
        let whose = format!("It carries traffic of tenant {name}: weight 1, ");
        assert!(text.contains(&whose), "no `{whose}` in {text}");
    }
}

#[test]
fn a_sender_with_too_few_hops_learns_where_they_ended() {
    let gateways = start();
    let client = gateways.lab.host("client-blue").expect("a host");
    let icmp = raw(client, Protocol::ICMPV4);
    let sender = bound(client, (CLIENT, 0).into());
    let port = sender.local_addr().expect("bound").port();
    // The kernel at a is the first hop, the tunnel the second. That at b, the third, looks for the way
    // back in its main table, which has none.
    for hops in 1..=2 {
        sender.set_ttl(hops).expect("set");
        let before = hop_limit_drops(&gateways);
        eventually(&format!("a sender of {hops} hops is notified"), || {
            sender.send_to(b"far", (SERVER, PORT)).expect("sent");
            let mut packet = [0; 256];
            let length = (&icmp).read(&mut packet).ok()?;
            // ICMP type 11 with the packet's own headers in it, those of UDP last (RFC 792).
            let message = &packet[20..length];
            let is_ours = message.get(28..30) == Some(&port.to_be_bytes()[..]);
            (message.first() == Some(&11) && is_ours).then_some(())
        });
        let answered = hop_limit_drops(&gateways) - before;
        assert_eq!(
            answered > 0,
            hops == 2,
            "{hops} hops, {answered} answered by the gateway"
        );
    }
    let server = bound(
        gateways.lab.host("server-blue").expect("a host"),
        (SERVER, PORT).into(),
    );
    sender.set_ttl(4).expect("set");
    eventually("four are enough", || {
        sender.send_to(b"near", (SERVER, PORT)).expect("sent");
        let mut buffer = [0; 64];
        server.recv(&mut buffer).ok().filter(|length| *length == 4)
    });
}

fn hop_limit_drops(gateways: &Gateways) -> u64 {
    let tenant = gateways.tenant(0, "blue");
    let count = &tenant["dropped_packets"]["hop_limit"];
    count.as_u64().expect("a counter")
}

#[test]
fn a_mark_that_the_wan_makes_arrives_inside_and_dscp_stays() {
    let gateways = start();
    // As a router with a long queue would: CE for all that may be marked (RFC 3168 §5).
    let rules = "add table ip wan; \
                 add chain ip wan out { type filter hook output priority 0; }; \
                 add rule ip wan out udp dport 7600 ip ecn ect0 ip ecn set ce";
    let mut command = gateways.lab.host("a").expect("a host").command("nft");
    crate::harness::finish(command.arg(rules), b"").expect_code(0);
    let server = raw(
        gateways.lab.host("server-blue").expect("a host"),
        Protocol::UDP,
    );
    let client = gateways.lab.host("client-blue").expect("a host");
    let client = Socket::from(bound(client, (CLIENT, 0).into()));
    let to = SocketAddr::from((SERVER, PORT)).into();
    const EF: u32 = 46 << 2;
    for (sent, arrives) in [(EF, EF), (EF | 2, EF | 3)] {
        client.set_tos_v4(sent).expect("set");
        let end = std::time::Instant::now() + LIMIT;
        loop {
            assert!(std::time::Instant::now() < end, "nothing arrives");
            client.send_to(b"marked", &to).expect("sent");
            let mut packet = [0; 256];
            let Ok(length) = (&server).read(&mut packet) else {
                continue;
            };
            if length == 20 + 8 + 6 && u32::from(packet[1]) >> 2 == arrives >> 2 {
                let found = u32::from(packet[1]);
                // What was sent before with another one may still come.
                if found & 3 == 0 && arrives & 3 != 0 {
                    continue;
                }
                assert_eq!(found, arrives);
                break;
            }
        }
    }
    // One that may not be marked is dropped where its sender would not see the mark (RFC 6040 §4.2).
    let rule = "add rule ip wan out udp dport 7600 ip ecn set ce";
    let mut command = gateways.lab.host("a").expect("a host").command("nft");
    crate::harness::finish(command.arg(rule), b"").expect_code(0);
    client.set_tos_v4(EF).expect("set");
    eventually("it is dropped, and counted", || {
        client.send_to(b"dropped", &to).expect("sent");
        let tenant = gateways.tenant(1, "blue");
        let congested = tenant["dropped_packets"]["congested"].as_u64();
        (congested > Some(0)).then_some(())
    });
}

/// b's device has less room than a's, which b alone knows; nothing went that way before.
#[test]
fn the_first_syn_asks_for_segments_that_fit_the_way_back() {
    let narrow = |own: usize, _: &str, _: u32| match own {
        1 => "mtu = \"1280B\"\n".to_owned(),
        _ => String::new(),
    };
    let gateways = start_between(narrow, |_, _, _| String::new());
    let server = gateways.lab.host("server-blue").expect("a host");
    let syns = raw(server, Protocol::TCP);
    let client = gateways.lab.host("client-blue").expect("a host");
    let connecting = client.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("made");
        socket.set_nonblocking(true).expect("set");
        let _ = socket.connect(&SocketAddr::from((SERVER, PORT)).into());
        socket
    });
    let connecting = connecting.expect("entered");
    let asked = eventually("a SYN arrives", || {
        let mut packet = [0; 256];
        let length = (&syns).read(&mut packet).ok()?;
        let tcp = packet.get(20..length)?;
        let is_syn = tcp.get(13) == Some(&2) && tcp[2..4] == PORT.to_be_bytes();
        // The size is the first option that Linux writes.
        (is_syn && tcp[20..22] == [2, 4]).then(|| u16::from_be_bytes([tcp[22], tcp[23]]))
    });
    drop(connecting);
    assert_eq!(asked, 1280 - 40);
}
