//! One TCP connection over two links at once.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Instant,
};

use crate::{
    harness::LIMIT,
    links::{FAR, HOSTS, NEAR},
    pair::{Pair, Setup},
};

const APP: &str = "bytes";
/// Where the connection enters at tokyo and leaves at osaka.
const NEAR_END: &str = "127.0.0.1:5020";
const FAR_END: &str = "127.0.0.1:5021";
const BYTES: usize = 20_000_000;

/// The application at tokyo (0) or osaka (1).
fn app(own: usize) -> String {
    let peer = HOSTS[1 - own];
    let end = match own {
        0 => format!("[[listener]]\napp = \"{APP}\"\ntcp = \"{NEAR_END}\"\n"),
        _ => format!("[[forward]]\napp = \"{APP}\"\ntcp = \"{FAR_END}\"\nallow_local = true\n"),
    };
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
    let host = |name: &str| pair.lab.host(name).expect("a host");
    let listener = host("osaka").run(|| TcpListener::bind(FAR_END));
    let listener = listener.expect("in the host").expect("it listens");
    let near = host("tokyo").run(|| TcpStream::connect(NEAR_END));
    let mut near = near.expect("in the host").expect("it is accepted");
    let (mut far, _) = listener.accept().expect("it arrives");
    far.set_read_timeout(Some(LIMIT)).expect("a limit");
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
