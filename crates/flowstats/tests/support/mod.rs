//! Two network namespaces and a link whose packets are counted.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use keiro_flowstats::{Counter, Program};
use keiro_linux::netns::Netns;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const SID: &str = "fd00:51d::a";
pub(crate) const OVER_SEGMENT: &str = "fd00:d::1";
pub(crate) const PLAIN: &str = "fd00:1::2";

/// Two namespaces and a link: `s0`, where the packets are counted, and `r0`.
pub(crate) struct Pair {
    pub(crate) server: Arc<Netns>,
    pub(crate) client: Arc<Netns>,
}

/// A namespace's name, removed with this value.
struct Named(String);

impl Named {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let named = Self(format!("keiro-{}-f{number}", std::process::id()));
        run("ip", &format!("netns add {}", named.0));
        named
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.0])
            .status();
    }
}

fn run(program: &str, arguments: &str) {
    let status = Command::new(program)
        .args(arguments.split_whitespace())
        .status();
    assert!(status.expect("it runs").success(), "{program} {arguments}");
}

fn inside(netns: &Arc<Netns>, program: &str, arguments: &str) {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    netns.enter_on_exec(&mut command);
    assert!(
        command.status().expect("it runs").success(),
        "{program} {arguments}"
    );
}

impl Pair {
    pub(crate) fn new() -> Self {
        let names = [Named::new(), Named::new()];
        let [server, client] = names
            .each_ref()
            .map(|n| Arc::new(Netns::open(&n.0).unwrap()));
        let other = &names[1].0;
        inside(
            &server,
            "ip",
            &format!("link add s0 type veth peer name r0 netns {other}"),
        );
        Self { server, client }
    }

    /// Packets to [`OVER_SEGMENT`] go through [`SID`]. What leaves is cut to the link's size (every
    /// packet that is larger than `burst`) before
    /// the interface counts it, as a real one's hardware does before the wire.
    pub(crate) fn bring_up(&self, mode: &str) {
        let server = |text: &str| inside(&self.server, "ip", text);
        let client = |text: &str| inside(&self.client, "ip", text);
        inside(
            &self.server,
            "tc",
            "qdisc add dev s0 root tbf rate 2gbit burst 1514 limit 100000000",
        );
        self.client
            .run(|| {
                fs::write("/proc/sys/net/ipv6/conf/all/seg6_enabled", "1").unwrap();
                fs::write("/proc/sys/net/ipv6/conf/r0/seg6_enabled", "1").unwrap();
                fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
            })
            .unwrap();
        client("link set lo up");
        client(&format!("addr add {OVER_SEGMENT}/128 dev lo nodad"));
        client("addr add fd00:1::2/64 dev r0 nodad");
        client("link set r0 up");
        server("addr add fd00:1::1/64 dev s0 nodad");
        server("link set s0 up");
        client(&format!(
            "-6 route add {SID}/128 encap seg6local action End.DT6 table 255 dev r0"
        ));
        server("-6 route add fd00:51d::/48 via fd00:1::2");
        server(&format!(
            "-6 route add {OVER_SEGMENT}/128 encap seg6 mode {mode} segs {SID} dev s0"
        ));
    }

    /// Bytes and packets that `s0` has sent.
    pub(crate) fn sent(&self) -> (u64, u64) {
        let text = self
            .server
            .run(|| fs::read_to_string("/proc/thread-self/net/dev"));
        let text = text.unwrap().unwrap();
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("s0:"));
        let mut words = line.expect("s0 is there").split_whitespace().skip(8);
        let mut number = || words.next().unwrap().parse().unwrap();
        (number(), number())
    }

    /// A counter, and what the interface had sent when it was attached.
    pub(crate) fn counter(&self) -> (Counter, (u64, u64)) {
        self.counter_by(Program::This)
    }

    /// The same, by another program.
    pub(crate) fn counter_by(&self, program: Program<'_>) -> (Counter, (u64, u64)) {
        // Until the link has settled, what is sent gets lost between the two counts.
        wait_until("the link is up", || {
            let mut command = Command::new("ip");
            self.server
                .enter_on_exec(command.args(["link", "show", "s0"]));
            let output = command.output().unwrap().stdout;
            String::from_utf8_lossy(&output).contains("state UP")
        });
        let deadline = Instant::now() + PATIENCE;
        loop {
            let before = self.sent();
            let attach = || Counter::attach_program("s0", program);
            let counter = self.server.run(attach).unwrap().unwrap();
            if self.sent() == before {
                return (counter, before);
            }
            assert!(Instant::now() < deadline, "the interface is never quiet");
        }
    }

    /// Sends bytes over TCP and waits until the other side has them all.
    pub(crate) fn stream(&self, to: &str, bytes: usize) -> SocketAddr {
        self.stream_in_pieces(to, bytes, bytes)
    }

    /// The same, each piece as soon as it is written.
    pub(crate) fn stream_in_pieces(&self, to: &str, bytes: usize, piece: usize) -> SocketAddr {
        let to: Ipv6Addr = to.parse().unwrap();
        let listener = self
            .client
            .run(|| TcpListener::bind((to, 0)).unwrap())
            .unwrap();
        let address = listener.local_addr().unwrap();
        let reader = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut buffer = vec![0; 1 << 16];
            let mut all = 0;
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                all += count;
            }
            all
        });
        let mut stream = self
            .server
            .run(|| TcpStream::connect(address).unwrap())
            .unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in vec![7; bytes].chunks(piece) {
            stream.write_all(piece).unwrap();
        }
        let local = stream.local_addr().unwrap();
        drop(stream);
        assert_eq!(reader.join().unwrap(), bytes);
        local
    }

    pub(crate) fn datagrams(&self, to: &str, count: usize, bytes: usize) {
        let to: Ipv6Addr = to.parse().unwrap();
        let receiver = self
            .client
            .run(|| UdpSocket::bind((to, 0)).unwrap())
            .unwrap();
        let sender = self
            .server
            .run(|| UdpSocket::bind("[::]:0").unwrap())
            .unwrap();
        for _ in 0..count {
            sender
                .send_to(&vec![1; bytes], receiver.local_addr().unwrap())
                .unwrap();
        }
    }
}

pub(crate) use keiro_testing::wait_until;

pub(crate) use keiro_testing::has_root as is_root;
