//! A server with a fake gateway, and a client of it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use keiro_web::{Access, Listen, Options, SocketName, Token, serve};

use crate::fake::FakeGateway;

/// A server, and the gateway that it asks.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) gateway: Option<FakeGateway>,
    pub(crate) directory: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a server answers.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .next()
    }
}

impl Served {
    pub(crate) fn start() -> Self {
        Self::with_token(None)
    }

    pub(crate) fn with_token(token: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let gateway = FakeGateway::start(&socket);
        let token = token.map(|token| {
            let file = directory.path().join("token");
            std::fs::write(&file, token).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&file, mode).unwrap();
            Token::load(&file).unwrap()
        });
        let listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let options = Options {
            access: Access::new(&listen, token, None).unwrap(),
            listen,
            sockets: vec![SocketName {
                name: Some("tokyo".into()),
                path: socket,
            }],
            egress: vec![directory.path().join("egress.sock")],
            hosts: Vec::new(),
        };
        let (sender, receiver) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    served = serve(options, |address| sender.send(address.unwrap()).unwrap()) => panic!("{served:?}"),
                    _ = stopped => {},
                }
            });
        });
        Self {
            address: receiver.recv().unwrap(),
            gateway: Some(gateway),
            directory,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn gateway(&self) -> &FakeGateway {
        self.gateway.as_ref().expect("the gateway runs")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    /// The page at `/tokyo/` and `place`.
    pub(crate) fn page(&self, place: &str) -> String {
        let reply = self.get(&format!("/tokyo/{place}"));
        assert_eq!(reply.status, 200, "{place}: {}", reply.body);
        reply.body
    }

    pub(crate) fn get(&self, address: &str) -> Reply {
        self.send(&format!(
            "GET {address} HTTP/1.1\r\nHost: {}\r\nAccept: text/html\r\nConnection: close\r\n\r\n",
            self.address
        ))
    }

    /// A form, with further header lines.
    pub(crate) fn post(&self, address: &str, headers: &str, body: &str) -> Reply {
        self.send(&format!(
            "POST {address} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            self.address,
            body.len()
        ))
    }

    /// A request as it is.
    pub(crate) fn send(&self, request: &str) -> Reply {
        let mut stream = self.connect();
        // A server that refuses may close before it has read all.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {text}"));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let body = match head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked")
        {
            true => unchunked(body),
            false => body.to_owned(),
        };
        Reply {
            status: status.unwrap_or_else(|| panic!("no status: {head}")),
            head: head.to_owned(),
            body,
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn unchunked(body: &str) -> String {
    let mut rest = body;
    let mut whole = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        if length == 0 {
            break;
        }
        whole.push_str(&after[..length]);
        rest = after[length..].trim_start_matches("\r\n");
    }
    whole
}

impl Served {
    /// Whether a page is served, where connections may be refused.
    pub(crate) fn send_or_none(&self) -> bool {
        let mut stream = self.connect();
        let request = "GET /tokyo/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut answer = Vec::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut answer);
        answer.starts_with(b"HTTP/1.1 200")
    }
}
