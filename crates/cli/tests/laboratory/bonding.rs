//! Applications that use two links at once: one TCP connection as a stream, and one and several as IP packets.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    carried_connection::CarriedConnection,
    harness::eventually,
    links::{FAR, HOSTS, NEAR},
    pair::{Pair, Setup},
};

const APP: &str = "bytes";
const BYTES: usize = 20_000_000;

/// The application at tokyo (0) or osaka (1).
fn app(own: usize) -> String {
    let peer = HOSTS[1 - own];
    let end = CarriedConnection::end_of(APP, own);
    format!(
        "[[app]]\nname = \"{APP}\"\nclass = \"stream\"\npeer = \"{peer}\"\npaths = \"spread\"\n{end}"
    )
}

#[test]
fn one_connection_is_carried_by_both_links() {
    let pair = Pair::start(&Setup {
        more: [app(0), app(1)],
        ..Setup::of(&[NEAR, FAR])
    });
    let CarriedConnection { mut near, mut far } = CarriedConnection::open(&pair);
    let byte = |number: usize| (number % 251) as u8;
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
            near.write_all(&bytes).expect("the connection stays");
        });
        let mut arrived = Vec::new();
        far.read_to_end(&mut arrived).expect("the connection stays");
        assert!(arrived.iter().copied().eq((0..BYTES).map(byte)));
    });
    let mbit = BYTES as f64 * 8e-6 / begun.elapsed().as_secs_f64();
    let shown = pair.tokyo.ask(&["show", "app", APP]).expect_code(0).stdout;
    println!("{mbit:.0} Mbit/s over two links of 50\n{shown}");
    assert!(shown.contains("spread over all that are up: "), "{shown}");
    let app = pair.tokyo.app(APP);
    for link in [NEAR, FAR] {
        let spread = app["spread"].as_array().expect("a list");
        let path = spread.iter().find(|path| path["path"] == link.name);
        let sent = path.and_then(|path| path["sent_bytes"].as_u64());
        assert!(sent.is_some_and(|sent| sent > BYTES as u64 / 5), "{app:#}");
    }
}

/// A tenant whose IP packets are spread, at tokyo (0) or osaka (1).
fn tenant(own: usize) -> String {
    let (here, there) = (own + 1, 2 - own);
    let peer = HOSTS[1 - own];
    format!(
        "[[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"{peer}\"\npaths = \"spread\"\n\
         [tenant.blue]\nid = 1\ndevice = \"t-blue\"\naddresses = [\"10.{here}.0.1/32\"]\n\
         prefixes = [\"10.{here}.0.0/24\"]\n\
         [tenant.blue.peer.{peer}]\nprefixes = [\"10.{there}.0.0/24\"]\napp = \"ip\"\n"
    )
}

/// Eight connections send until both links have carried much of them, which a link of their own would not.
#[test]
fn connections_of_a_tenant_share_both_links() {
    const CONNECTIONS: usize = 8;
    const EACH: u64 = 1_000_000;
    let pair = Pair::start(&Setup {
        more: [tenant(0), tenant(1)],
        ..Setup::of(&[NEAR, FAR])
    });
    let host = |name: &str| pair.lab.host(name).expect("a host");
    let listener = eventually("the tenant's address is there", || {
        let bound = host("osaka").run(|| TcpListener::bind("10.2.0.1:5021"));
        bound.expect("in the host").ok()
    });
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            let near = host("tokyo").run(|| TcpStream::connect("10.2.0.1:5021"));
            let mut near = near.expect("in the host").expect("it is accepted");
            let (mut far, _) = listener.accept().expect("it arrives");
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    near.write_all(&[7; 16_000]).expect("the connection stays");
                }
            });
            scope.spawn(move || io::copy(&mut far, &mut io::sink()));
        }
        let sent = || -> Option<Vec<u64>> {
            let app = pair.tokyo.app("ip");
            let spread = app["spread"].as_array()?.iter();
            spread.map(|path| path["sent_bytes"].as_u64()).collect()
        };
        eventually("both links carry them", || {
            sent().filter(|sent| sent.len() == 2 && sent.iter().all(|sent| *sent > EACH))
        });
        is_over.store(true, Ordering::Relaxed);
    });
    let app = pair.tokyo.app("ip");
    println!("after {:?}: {:#}", begun.elapsed(), app["spread"]);
}

/// One connection of the kernel's TCP sends until more arrives in two seconds than a link carries, in order.
#[test]
fn one_connection_of_a_tenant_has_more_than_a_link() {
    const WINDOW: Duration = Duration::from_secs(2);
    const LINK_MBIT: f64 = 50.0;
    let pair = Pair::start(&Setup {
        more: [tenant(0), tenant(1)],
        ..Setup::of(&[NEAR, FAR])
    });
    let host = |name: &str| pair.lab.host(name).expect("a host");
    let listener = eventually("the tenant's address is there", || {
        let bound = host("osaka").run(|| TcpListener::bind("10.2.0.1:5021"));
        bound.expect("in the host").ok()
    });
    let near = host("tokyo").run(|| TcpStream::connect("10.2.0.1:5021"));
    let mut near = near.expect("in the host").expect("it is accepted");
    let (mut far, _) = listener.accept().expect("it arrives");
    let (is_over, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (is_over, arrived) = (&is_over, &arrived);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                near.write_all(&[7; 16_000]).expect("the connection stays");
            }
        });
        scope.spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok(len @ 1..) = far.read(&mut buffer) {
                arrived.fetch_add(len as u64, Ordering::Relaxed);
            }
        });
        let mut window = (Instant::now(), 0);
        let mbit = eventually("more than a link carries arrives", || {
            let (since, before) = window;
            let took = since.elapsed();
            if took < WINDOW {
                return None;
            }
            let now = arrived.load(Ordering::Relaxed);
            window = (Instant::now(), now);
            let mbit = (now - before) as f64 * 8e-6 / took.as_secs_f64();
            println!("{mbit:.0} Mbit/s");
            (mbit > LINK_MBIT).then_some(mbit)
        });
        is_over.store(true, Ordering::Relaxed);
        println!("{mbit:.0} Mbit/s of one connection over two links of 50");
    });
    println!("{:#}", pair.tokyo.app("ip")["spread"]);
    let shown = pair.osaka.ask(&["show", "tenant", "blue", "--json"]);
    let shown = shown.expect_code(0).stdout;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    println!("{:#}", shown[0]["peers"][0]);
    let held = &shown[0]["peers"][0]["held_packets"];
    assert!(held.as_u64() > Some(0), "{shown:#}");
}
