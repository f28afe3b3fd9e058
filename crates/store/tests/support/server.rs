//! A real etcd of the test's own.

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// For its start; far more than it takes.
const LIMIT: Duration = Duration::from_secs(60);

/// An etcd of one member on loopback. It ends with the value, and with the thread that started it,
/// whatever happens to either.
pub(crate) struct Etcd {
    directory: TempDir,
    pub(crate) client: SocketAddr,
    peer: SocketAddr,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Etcd {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| vec![])
    }

    /// With further arguments, made for its directory.
    pub(crate) fn start_with(arguments: impl Fn(&TempDir) -> Vec<String>) -> Self {
        // A port that was free may be taken before etcd has it.
        for _ in 0..5 {
            let directory = tempfile::tempdir().expect("a directory");
            let mut etcd = Self {
                arguments: arguments(&directory),
                directory,
                client: free(),
                peer: free(),
                child: None,
            };
            if etcd.run() {
                return etcd;
            }
        }
        panic!("etcd does not start, see above");
    }

    pub(crate) fn is_secure(&self) -> bool {
        let means_tls = |a: &String| a.ends_with("-tls") || a.starts_with("--cert-file");
        self.arguments.iter().any(means_tls)
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_secure() { "https" } else { "http" };
        format!("{scheme}://{}", self.client)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts it on what it left. Whether it serves.
    fn run(&mut self) -> bool {
        let log_path = self.path("log");
        let log = File::create(&log_path).expect("a log file");
        let (client, peer) = (self.url(), format!("http://{}", self.peer));
        let data = self.path("data");
        // It dies with this thread even where nothing can be cleaned up any more.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "etcd", "--name", "test"])
            .args(["--data-dir".as_ref(), data.as_os_str()])
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("setpriv of util-linux starts");
        self.child = Some(child);
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let child = self.child.as_mut().expect("it was started");
            if let Some(status) = child.try_wait().expect("its status") {
                let said = fs::read_to_string(&log_path).unwrap_or_default();
                if status.code() == Some(127) {
                    panic!(
                        "etcd is not installed: run `make setup`, or `apt-get install etcd-server`"
                    );
                }
                eprintln!("etcd ended with {status}: {said}");
                return false;
            }
            let said = fs::read_to_string(&log_path).unwrap_or_default();
            if said.contains("ready to serve client requests")
                && TcpStream::connect(self.client).is_ok()
            {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!(
            "etcd does not serve: {}",
            fs::read_to_string(&log_path).unwrap_or_default()
        );
    }

    /// Ends it at once, as a machine that fails.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child");
            child.wait().expect("its end");
        }
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        assert!(self.run(), "etcd starts again");
    }

    /// As a disk that was replaced.
    pub(crate) fn forget(&mut self) {
        self.kill();
        fs::remove_dir_all(self.path("data")).expect("its data go");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address")
}
