//! One TCP connection that the gateways carry as a stream: it enters at tokyo and leaves at osaka.

use std::net::{TcpListener, TcpStream};

use crate::{harness::LIMIT, pair::Pair};

const NEAR_END: &str = "127.0.0.1:5020";
const FAR_END: &str = "127.0.0.1:5021";

pub(crate) struct CarriedConnection {
    /// The client's, at tokyo.
    pub(crate) near: TcpStream,
    /// The server's, at osaka.
    pub(crate) far: TcpStream,
}

impl CarriedConnection {
    /// What the configuration of tokyo (0) or osaka (1) has for it, as connections of this application.
    pub(crate) fn end_of(app: &str, own: usize) -> String {
        match own {
            0 => format!("[[listener]]\napp = \"{app}\"\ntcp = \"{NEAR_END}\"\n"),
            _ => format!("[[forward]]\napp = \"{app}\"\ntcp = \"{FAR_END}\"\nallow_local = true\n"),
        }
    }

    pub(crate) fn open(pair: &Pair) -> Self {
        let host = |name: &str| pair.lab.host(name).expect("a host");
        let listener = host("osaka").run(|| TcpListener::bind(FAR_END));
        let listener = listener.expect("in the host").expect("it listens");
        let near = host("tokyo").run(|| TcpStream::connect(NEAR_END));
        let near = near.expect("in the host").expect("it is accepted");
        let (far, _) = listener.accept().expect("it arrives");
        far.set_read_timeout(Some(LIMIT)).expect("a limit");
        Self { near, far }
    }
}
