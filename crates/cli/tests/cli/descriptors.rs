//! A gateway with few descriptors, beside a peer that makes it open as many as it can: it still answers on its
//! control socket, and another peer keeps what it has and gets more.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    gateway::{Gateway, free, path},
    harness::{LIMIT, Site, eventually},
};

/// The hub's limit of open files; 64 of them are its reserve.
const FILES_MAX: u32 = 256;
/// Flows and connections that the hostile peer asks for.
const ASKED: usize = 300;

/// A server of datagrams that are sent back, and where each came from.
fn echo() -> (SocketAddr, Arc<Mutex<BTreeSet<SocketAddr>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let address = socket.local_addr().expect("its address");
    let sources = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&sources);
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            seen.lock().expect("unpoisoned").insert(from);
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    (address, sources)
}

/// A server that sends back the first byte of each connection, and keeps all open.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming().flatten() {
            let mut of = stream.try_clone().expect("a descriptor");
            thread::spawn(move || {
                let mut byte = [0];
                if of.read_exact(&mut byte).is_ok() {
                    let _ = of.write_all(&byte);
                }
            });
            open.push(stream);
        }
    });
    address
}

/// A datagram and a stream application of a spoke, and their lines at each end.
struct Apps {
    name: &'static str,
    udp: SocketAddr,
    tcp: SocketAddr,
}

impl Apps {
    fn at_spoke(&self) -> String {
        let Self { name, udp, tcp } = self;
        format!(
            "[[app]]\nname = \"{name}-udp\"\nclass = \"datagram\"\npeer = \"hub\"\n\
             [[listener]]\napp = \"{name}-udp\"\nudp = \"{udp}\"\n\
             [[app]]\nname = \"{name}-tcp\"\nclass = \"stream\"\npeer = \"hub\"\n\
             [[listener]]\napp = \"{name}-tcp\"\ntcp = \"{tcp}\"\n"
        )
    }

    fn at_hub(&self, udp: SocketAddr, tcp: SocketAddr) -> String {
        let name = self.name;
        format!(
            "[[app]]\nname = \"{name}-udp\"\nclass = \"datagram\"\npeer = \"{name}\"\n\
             [[forward]]\napp = \"{name}-udp\"\nudp = \"{udp}\"\nallow_local = true\n\
             [[app]]\nname = \"{name}-tcp\"\nclass = \"stream\"\npeer = \"{name}\"\n\
             [[forward]]\napp = \"{name}-tcp\"\ntcp = \"{tcp}\"\nallow_local = true\n"
        )
    }

    /// A client of the datagram application.
    fn client(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket.connect(self.udp).expect("connected");
        let wait = Some(Duration::from_millis(500));
        socket.set_read_timeout(wait).expect("set");
        socket
    }

    /// One byte there and back over a new connection.
    fn has_connection(&self) -> Option<()> {
        let mut stream = TcpStream::connect(self.tcp).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        stream.write_all(b"x").ok()?;
        stream.read_exact(&mut [0]).ok()
    }
}

fn is_answered(client: &UdpSocket) -> Option<()> {
    client.send(b"x").ok()?;
    client.recv(&mut [0; 8]).ok().map(|_| ())
}

fn app(hub: &Gateway, name: &str) -> Option<Value> {
    let ran = hub.ask(&["show", "app", name, "--json"]);
    let apps: Value = serde_json::from_str(&ran.stdout).ok()?;
    Some(apps[0].clone())
}

#[test]
fn a_peer_that_uses_up_descriptors_takes_them_neither_from_the_control_socket_nor_from_others() {
    keiro_linux::limit::raise_open_files();
    let sites = [Site::new(), Site::new(), Site::new()];
    let [at_hub, at_hostile, at_honest] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(free);
    let [hub_key, hostile_key, honest_key] = [0, 1, 2].map(|own| sites[own].public_key());
    let apps = |name, ip| Apps {
        name,
        udp: free(ip),
        tcp: free(ip),
    };
    let (hostile, honest) = (apps("hostile", "127.0.0.2"), apps("honest", "127.0.0.3"));
    let (flooded, _) = echo();
    let (echoing, sources) = echo();
    let peer = |name: &str, key: &str, at: SocketAddr| {
        format!(
            "[[peer]]\nname = \"{name}\"\npublic_key = \"{key}\"\nendpoints = {{ near = \"{at}\" }}\n"
        )
    };
    let texts = [
        sites[0].gateway("hub")
            + &path("near", at_hub)
            + &peer("hostile", &hostile_key, at_hostile)
            + &peer("honest", &honest_key, at_honest)
            + &hostile.at_hub(flooded, server())
            + &honest.at_hub(echoing, server()),
        sites[1].gateway("hostile")
            + &path("near", at_hostile)
            + &peer("hub", &hub_key, at_hub)
            + &hostile.at_spoke(),
        sites[2].gateway("honest")
            + &path("near", at_honest)
            + &peer("hub", &hub_key, at_hub)
            + &honest.at_spoke(),
    ];
    let [hub_site, hostile_site, honest_site] = sites;
    let hub = Gateway::start_with_files(hub_site, &texts[0], FILES_MAX);
    let _spokes = [
        Gateway::start(hostile_site, &texts[1]),
        Gateway::start(honest_site, &texts[2]),
    ];
    let client = honest.client();
    eventually("the honest peer is served", || is_answered(&client));
    let before = sources.lock().expect("unpoisoned").clone();

    // Flows first, as many as it gets, and then connections.
    let flows: Vec<UdpSocket> = (0..ASKED).map(|_| hostile.client()).collect();
    eventually("flows are refused", || {
        flows.iter().for_each(|flow| drop(flow.send(b"x")));
        let refused = app(&hub, "hostile-udp")?["forward"]["refused_packets"].as_u64()?;
        (refused > 0).then_some(())
    });
    let connections: Vec<_> = (0..ASKED)
        .map(|_| TcpStream::connect(hostile.tcp))
        .collect();
    eventually("connections are refused", || {
        let forward = app(&hub, "hostile-tcp")?["tcp_forward"].clone();
        (forward["refused_connections"].as_u64()? > 0).then_some(())
    });

    // The control socket serves as many as its reserve has.
    let control = hub.site.path("control.sock");
    let others: Vec<UnixStream> = (0..32)
        .map(|_| UnixStream::connect(&control).expect("accepted"))
        .collect();
    hub.ask(&["status"]).expect_code(0);
    drop(others);
    is_answered(&client).expect("the honest peer keeps its flow");
    assert_eq!(*sources.lock().expect("unpoisoned"), before, "and its port");
    let another = honest.client();
    eventually("it gets another flow", || is_answered(&another));
    eventually("and a connection", || honest.has_connection());
    let refused = |name: &str, forward: &str, count: &str| {
        let app = app(&hub, name).expect("an answer");
        app[forward][count].as_u64().expect("a count")
    };
    assert_eq!(refused("honest-udp", "forward", "refused_packets"), 0);
    let of_honest = refused("honest-tcp", "tcp_forward", "refused_connections");
    assert_eq!(of_honest, 0);
    drop((flows, connections));
}
