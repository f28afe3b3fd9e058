//! A content provider's network with two egress peers, after [egress fig. 7]:
//!
//! ```text
//!                          ┌── pa ── peer A ── ca ──┐
//!  server ── s0 ── a0 ── asbr                    client (fd00:c::1)
//!                          └── pb ── peer B ── cb ──┘
//! ```
//!
//! Every node is a namespace. Routing is as the provider's and the peers' ordinary routes would be, with peer
//! A as the best path.

use std::{
    fs, io,
    net::{Ipv6Addr, UdpSocket},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use keiro_linux::netns::Netns;

use crate::namespace::{Namespace, TIMEOUT};

pub(crate) const CLIENT: &str = "fd00:c::1";
/// The server's ordinary address.
pub(crate) const DEFAULT: &str = "fd00:5::1";

pub(crate) struct Network {
    pub(crate) server: Namespace,
    pub(crate) asbr: Namespace,
    pub(crate) peer_a: Namespace,
    pub(crate) peer_b: Namespace,
    pub(crate) client: Namespace,
}

/// The name of a namespace, removed when dropped.
struct Named(String);

impl Named {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let named = Self(format!("keiro-{}-e{number}", std::process::id()));
        assert!(named.netns("add"), "ip netns add {}", named.0);
        named
    }

    fn netns(&self, action: &str) -> bool {
        let status = Command::new("ip").args(["netns", action, &self.0]).status();
        status.is_ok_and(|status| status.success())
    }

    fn open(&self) -> Namespace {
        let namespace = Namespace(Arc::new(Netns::open(&self.0).expect("it was just made")));
        namespace.ip("link set lo up");
        namespace.sysctl("all/forwarding", "1");
        // Addresses are usable at once, without duplicate address detection.
        namespace.sysctl("default/accept_dad", "0");
        namespace.sysctl("default/seg6_enabled", "1");
        namespace.sysctl("all/seg6_enabled", "1");
        namespace
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.netns("delete");
    }
}

impl Network {
    pub(crate) fn new() -> Self {
        let names: [Named; 5] = std::array::from_fn(|_| Named::new());
        let [server, asbr, peer_a, peer_b, client] = names.each_ref().map(Named::open);
        let namespaces = [&server, &asbr, &peer_a, &peer_b, &client];
        let mut addresses = vec![(&server, DEFAULT.to_owned()), (&client, CLIENT.to_owned())];
        let mut link = |left: usize, name: &str, net: &str, right: usize, other: &str| {
            let peer = &names[right].0;
            namespaces[left].ip(&format!(
                "link add {name} type veth peer name {other} netns {peer}"
            ));
            for (namespace, name, host) in [(left, name, 1), (right, other, 2)] {
                let namespace = namespaces[namespace];
                namespace.ip(&format!("addr add {net}::{host}/64 dev {name} nodad"));
                namespace.ip(&format!("link set {name} up"));
                addresses.push((namespace, format!("{net}::{host}")));
            }
        };
        link(1, "a0", "fd00:1", 0, "s0");
        link(1, "pa", "fd00:a", 2, "p0");
        link(1, "pb", "fd00:b", 3, "p0");
        link(2, "c0", "fd00:ca", 4, "ca");
        link(3, "c0", "fd00:cb", 4, "cb");
        server.ip(&format!("addr add {DEFAULT}/128 dev s0 nodad"));
        server.ip(&format!("-6 route add default via fd00:1::1 src {DEFAULT}"));
        asbr.ip("-6 route add fd00:5::/64 via fd00:1::2");
        asbr.ip("-6 route add fd00:e::/64 via fd00:1::2");
        asbr.ip("-6 route add fd00:c::/64 via fd00:a::2");
        for (peer, net) in [(&peer_a, "a"), (&peer_b, "b")] {
            peer.ip(&format!("-6 route add default via fd00:{net}::1"));
            peer.ip(&format!("-6 route add fd00:c::/64 via fd00:c{net}::2"));
        }
        client.ip(&format!("addr add {CLIENT}/128 dev lo nodad"));
        client.ip(&format!("-6 route add default via fd00:ca::1 src {CLIENT}"));
        for (namespace, address) in addresses {
            namespace.wait_for(&address);
        }
        Self {
            server,
            asbr,
            peer_a,
            peer_b,
            client,
        }
    }

    /// Sends a packet from one of the server's addresses to the client, and waits until it has arrived or the
    /// server got an ICMP error.
    ///
    /// # Errors
    /// The server's kernel has no route.
    pub(crate) fn send(&self, from: &str) -> io::Result<Arrived> {
        self.send_and_wait(from, TIMEOUT)
    }

    /// Sends a packet without waiting for a result.
    pub(crate) fn send_in_vain(&self, from: &str) -> io::Result<Arrived> {
        self.send_and_wait(from, Duration::from_millis(300))
    }

    fn send_and_wait(&self, from: &str, patience: Duration) -> io::Result<Arrived> {
        let receiver = self.client.run(|| UdpSocket::bind((CLIENT, 0)).unwrap());
        receiver
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let sender = self.server.run(|| UdpSocket::bind((from, 0)).unwrap());
        sender.connect(receiver.local_addr().unwrap())?;
        let reported = |namespace: &Namespace| namespace.counter6("Icmp6InDestUnreachs");
        let (by, unreachable) = (self.forwarded(), reported(&self.server));
        sender.send(b"content")?;
        let deadline = Instant::now() + patience;
        loop {
            let arrived = receiver.recv(&mut [0; 100]).is_ok();
            let unreachable = reported(&self.server) > unreachable;
            if arrived || unreachable || Instant::now() > deadline {
                let after = self.forwarded();
                return Ok(Arrived {
                    arrived,
                    by: [after[0] - by[0], after[1] - by[1]],
                    unreachable,
                });
            }
        }
    }

    /// Bytes that peer A and peer B have sent to the client.
    pub(crate) fn sent_to_client(&self) -> [u64; 2] {
        [&self.peer_a, &self.peer_b].map(|peer| {
            let text = peer.run(|| fs::read_to_string("/proc/thread-self/net/dev"));
            let text = text.expect("the kernel's counters");
            let mut lines = text.lines();
            let line = lines.find_map(|line| line.trim().strip_prefix("c0:"));
            let mut words = line.expect("such an interface").split_whitespace();
            words
                .nth(8)
                .expect("such a counter")
                .parse()
                .expect("a number")
        })
    }

    /// Packets that peer A and peer B have forwarded.
    pub(crate) fn forwarded(&self) -> [u64; 2] {
        [&self.peer_a, &self.peer_b].map(|peer| peer.counter6("Ip6OutForwDatagrams"))
    }
}

/// Fate of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) arrived: bool,
    /// Number of packets forwarded by peer A and peer B.
    pub(crate) by: [u64; 2],
    /// The server got an error.
    pub(crate) unreachable: bool,
}

impl Namespace {
    /// A counter of `/proc/net/snmp6`.
    fn counter6(&self, name: &str) -> u64 {
        let text = self.run(|| fs::read_to_string("/proc/thread-self/net/snmp6"));
        let text = text.expect("the kernel's counters");
        let mut lines = text.lines().map(|line| line.split_whitespace());
        let value =
            lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next())?);
        value.expect("such a counter").parse().expect("a number")
    }

    /// Sets a parameter of `net.ipv6.conf`.
    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/net/ipv6/conf/{name}");
        let result = self.run(|| fs::write(&path, value));
        result.unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    pub(crate) fn interface(&self, name: &str) -> u32 {
        self.run(|| nix::net::if_::if_nametoindex(name).expect("such an interface"))
    }

    /// Waits until an IPv6 address can be bound and receives packets, which the kernel enables
    /// asynchronously.
    pub(crate) fn wait_for(&self, address: &str) {
        let bound: Ipv6Addr = address.parse().unwrap();
        let route = format!("local {address} ");
        crate::namespace::wait_until("the address works", || {
            self.run(|| UdpSocket::bind((bound, 0)).is_ok())
                && self.ip("-6 route show table local").contains(&route)
        });
    }
}
