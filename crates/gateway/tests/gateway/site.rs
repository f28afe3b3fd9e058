//! Two gateways in one process, on loopback addresses of this process's own.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use keiro_control::{
    PrivateKey, PublicKey,
    config::Name,
    message_socket::{
        Ack, Message, Role,
        client::{AckReader, Connection, MessageReader, MessageWriter},
    },
    protocol::{AppSnapshot, EventKind, Request, Response, StatusSnapshot, client::Client},
};
use keiro_gateway::{Gateway, Handle, Options};
use keiro_lab::host_noise::{NoiseAllowance, retry_until_undisturbed};
use tempfile::TempDir;

/// Longest wait for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Site {
    pub(crate) directory: TempDir,
    pub(crate) address: Ipv4Addr,
    pub(crate) public_key: PublicKey,
    /// How it is started.
    pub(crate) options: Options,
    running: Option<(Handle, JoinHandle<anyhow::Result<()>>)>,
}

/// Two that know each other: two paths, applications `M` (messages), `D` (datagrams).
pub(crate) struct Pair {
    pub(crate) a: Site,
    pub(crate) b: Site,
}

impl Site {
    /// A site that is not running: `name` is a single letter.
    pub(crate) fn new(name: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix(&format!("keiro-{name}"))
            .tempdir()
            .unwrap();
        let address = fresh_address();
        let mut secret = [0x42; 32];
        secret[..4].copy_from_slice(&address.octets());
        let key_file = directory.path().join("private.key");
        fs::write(
            &key_file,
            PrivateKey::from_bytes(secret).to_base64().as_str(),
        )
        .unwrap();
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
        let public = keiro_core::PrivateKey::from_bytes(secret).public_key();
        Self {
            directory,
            address,
            public_key: PublicKey::from_bytes(*public.as_bytes()),
            options: Options::default(),
            running: None,
        }
    }

    /// Where a file of this site is.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `[gateway]` and two paths.
    pub(crate) fn gateway(&self, name: &str, more: &str) -> String {
        let file = |name: &str| self.file(name).display().to_string();
        format!(
            r#"
[gateway]
name = "{name}"
private_key_file = "{}"
control_socket = "{}"
message_socket = "{}"
state_directory = "{}"
{more}
[[path]]
name = "p1"
local = "{ip}:7001"
rate = "200Mbit"
mtu_max = "1500B"
[[path]]
name = "p2"
local = "{ip}:7002"
rate = "200Mbit"
mtu_max = "1500B"
"#,
            file("private.key"),
            file("control.sock"),
            file("message.sock"),
            self.directory.path().display(),
            ip = self.address,
        )
    }

    /// `[[peer]]` for `other`; with its addresses only if we are to begin.
    pub(crate) fn peer(name: &str, other: &Self, begins: bool) -> String {
        let endpoints = match begins {
            true => format!(
                "endpoints = {{ p1 = \"{ip}:7001\", p2 = \"{ip}:7002\" }}",
                ip = other.address
            ),
            false => String::new(),
        };
        format!(
            "[[peer]]\nname = \"{name}\"\npublic_key = \"{}\"\n{endpoints}\n",
            other.public_key
        )
    }

    pub(crate) fn write(&self, config: &str) {
        fs::write(self.file("gateway.toml"), config).unwrap();
    }

    /// Starts it with what was written.
    pub(crate) fn start(&mut self) {
        let gateway = self.try_start().unwrap_or_else(|error| panic!("{error:#}"));
        let handle = gateway.handle();
        let thread = thread::spawn(move || gateway.serve(None));
        self.running = Some((handle, thread));
    }

    pub(crate) fn try_start(&self) -> anyhow::Result<Gateway> {
        Gateway::start(&self.file("gateway.toml"), &self.options)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.running.as_ref().expect("it runs").0
    }

    /// Stops it and waits for its end.
    pub(crate) fn stop(&mut self) {
        if let Some((handle, thread)) = self.running.take() {
            handle.stop();
            thread.join().unwrap().unwrap();
        }
    }

    pub(crate) fn client(&self) -> Client<UnixStream> {
        let stream = UnixStream::connect(self.file("control.sock")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client::new(stream)
    }

    pub(crate) fn ask(&self, request: &Request) -> Response {
        self.client()
            .request(request)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn status(&self) -> StatusSnapshot {
        match self.ask(&Request::Status {}) {
            Response::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn app(&self, name: &str) -> AppSnapshot {
        match self.ask(&Request::ShowApp {
            name: Some(name.into()),
        }) {
            Response::Apps { mut apps } => apps.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn reload(&self) -> Response {
        self.ask(&Request::Reload {})
    }

    /// Waits until `paths` paths to peers are up.
    pub(crate) fn wait_up(&self, paths: u64) {
        wait_for("paths to come up", || self.status().paths_up == paths);
    }

    pub(crate) fn sender(&self, app: &str) -> Sender {
        let connection = self.connect(Role::Send, app);
        Sender {
            acks: AckReader::new(connection.try_clone().unwrap()),
            writer: MessageWriter::new(connection),
        }
    }

    pub(crate) fn receiver(&self, app: &str) -> MessageReader<Connection> {
        MessageReader::new(self.connect(Role::Receive, app))
    }

    pub(crate) fn connect(&self, role: Role, app: &str) -> Connection {
        let app = Name::new(app).unwrap();
        let connection = Connection::unix(&self.file("message.sock"), role, &app).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        connection
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some((handle, thread)) = self.running.take() {
            handle.stop();
            let ended = thread.join();
            if !thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

impl Pair {
    /// Both up, `a` begins. `apps_a` and `apps_b` are appended to the configurations.
    pub(crate) fn new(apps_a: &str, apps_b: &str) -> Self {
        let (mut a, mut b) = (Site::new("a"), Site::new("b"));
        a.write(&Self::config_a(&a, &b, apps_a));
        b.write(&Self::config_b(&a, &b, apps_b));
        b.start();
        a.start();
        a.wait_up(2);
        b.wait_up(2);
        Self { a, b }
    }

    pub(crate) fn config_a(a: &Site, b: &Site, more: &str) -> String {
        format!("{}{}{more}", a.gateway("a", ""), Site::peer("b", b, true))
    }

    pub(crate) fn config_b(a: &Site, b: &Site, more: &str) -> String {
        format!("{}{}{more}", b.gateway("b", ""), Site::peer("a", a, false))
    }
}

/// Hands messages over and waits for what became of them.
pub(crate) struct Sender {
    pub(crate) writer: MessageWriter<Connection>,
    pub(crate) acks: AckReader<Connection>,
}

impl Sender {
    pub(crate) fn send(&mut self, id: u64, body: &[u8]) {
        self.writer.send(id, body).unwrap();
    }

    pub(crate) fn ack(&mut self) -> Ack {
        self.acks.next_ack().unwrap().expect("the gateway goes on")
    }
}

pub(crate) fn next(receiver: &mut MessageReader<Connection>) -> Message {
    receiver
        .next_message()
        .unwrap()
        .expect("the gateway goes on")
}

/// The first event that `wanted` takes; others come in between whenever the network likes.
pub(crate) fn next_event<T>(
    monitor: &mut Client<UnixStream>,
    wanted: impl Fn(EventKind) -> Option<T>,
) -> T {
    loop {
        if let Some(event) = wanted(monitor.next_event().unwrap().kind) {
            return event;
        }
    }
}

pub(crate) fn app(name: &str, class: &str, peer: &str) -> String {
    format!("[[app]]\nname = \"{name}\"\nclass = \"{class}\"\npeer = \"{peer}\"\n")
}

/// A body that differs from others of its length.
pub(crate) fn body(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

pub(crate) use keiro_testing::wait_until as wait_for;

/// Does once more what a pause of the machine itself has spoiled, and says aloud where every time was so: on
/// loopback a path is given up after 80 ms of silence, and applications leave it.
///
/// # Panics
/// With what was not so on a machine that did not pause.
pub(crate) fn undisturbed(test: &str, once: impl FnMut() -> Result<(), String>) {
    const ALLOWANCE: NoiseAllowance = NoiseAllowance {
        // A quarter of what a path may be silent for: an answer takes several threads that wake up.
        processor: Duration::from_millis(20),
        // A plan is written several times before it is in force, which may take a second.
        disk: Some(Duration::from_millis(100)),
    };
    match retry_until_undisturbed(ALLOWANCE, LIMIT, once, Result::is_ok) {
        Ok(done) => done.unwrap_or_else(|what| panic!("{what}")),
        Err(disturbed) => disturbed.skip_test(test),
    }
}

/// For [`undisturbed`]: what has to hold where the machine does not pause.
pub(crate) fn expect(holds: bool, what: impl std::fmt::Debug) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(format!("{what:?}")),
    }
}

/// A loopback address that no other test of this machine uses.
fn fresh_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // 127.0.0.0/16 is left to others.
    Ipv4Addr::new(127, 1 + high % 254, low, number)
}

/// As a [`SocketAddr`](std::net::SocketAddr)'s text.
pub(crate) fn at(address: Ipv4Addr, port: u16) -> String {
    format!("{}:{port}", IpAddr::V4(address))
}

/// Whether a file is there.
pub(crate) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
