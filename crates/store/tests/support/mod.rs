//! A real etcd of the test's own, and waiting for what a worker tells.

use std::{
    cell::RefCell,
    fs::{self, File},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use keiro_store::{
    EtcdStore, Inputs, PlanStore, SiteView, Update, Worker,
    etcd::{EtcdOptions, TlsFiles, UserFile},
};
use tempfile::TempDir;

/// For everything that is waited for; far more than anything takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// An etcd of one member on loopback. It ends with the value, and with the thread that started it,
/// whatever happens to either.
pub(crate) struct Etcd {
    directory: TempDir,
    client: SocketAddr,
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

    fn scheme(&self) -> &'static str {
        match self
            .arguments
            .iter()
            .any(|a| a.ends_with("-tls") || a.starts_with("--cert-file"))
        {
            true => "https",
            false => "http",
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme(), self.client)
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

    pub(crate) fn options(&self, gateway: &str) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![self.url()],
            site: "site".into(),
            gateway: gateway.into(),
            time_to_live: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            tls: None::<TlsFiles>,
            user: None::<UserFile>,
        }
    }

    pub(crate) fn store(&self, gateway: &str) -> EtcdStore {
        EtcdStore::new(self.options(gateway)).expect("options are good")
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

pub(crate) fn inputs(gateway: &str, sequence: u64) -> Inputs {
    Inputs {
        gateway: gateway.into(),
        sequence,
        ..Inputs::default()
    }
}

/// A worker as a control thread uses it: woken, then polled until nothing is left.
pub(crate) struct Control {
    pub(crate) worker: Worker,
    woken: mpsc::Receiver<()>,
    view: RefCell<Arc<SiteView>>,
}

impl Control {
    pub(crate) fn start(store: impl PlanStore + 'static) -> Self {
        let (wake, woken) = mpsc::sync_channel(1);
        let wake = Box::new(move || {
            let _ = wake.try_send(());
        });
        let worker = Worker::start(Box::new(store), None, wake).expect("threads");
        let view = RefCell::default();
        Self {
            worker,
            woken,
            view,
        }
    }

    /// Takes updates until one gives a value.
    pub(crate) fn wait<T>(&self, what: &str, mut is_it: impl FnMut(&Update) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        let mut seen = Vec::new();
        loop {
            while let Some(update) = self.worker.poll() {
                if let Update::View(view) = &update {
                    *self.view.borrow_mut() = Arc::clone(view);
                }
                if let Some(found) = is_it(&update) {
                    return found;
                }
                seen.push(update);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.woken.recv_timeout(left).is_err() {
                panic!("no {what} came; instead: {seen:#?}");
            }
        }
    }

    /// Waits until what was seen last is so.
    pub(crate) fn wait_for_view(
        &self,
        what: &str,
        is_it: impl Fn(&SiteView) -> bool,
    ) -> Arc<SiteView> {
        let known = Arc::clone(&self.view.borrow());
        if is_it(&known) {
            return known;
        }
        self.wait(what, |update| match update {
            Update::View(view) if is_it(view) => Some(Arc::clone(view)),
            _ => None,
        })
    }

    pub(crate) fn wait_for_connection(&self) -> Option<Duration> {
        self.wait("connection", |update| match update {
            Update::Connected { lost_for } => Some(*lost_for),
            _ => None,
        })
    }

    pub(crate) fn wait_for_loss(&self) -> String {
        self.wait("loss", |update| match update {
            Update::Lost { reason } => Some(reason.clone()),
            _ => None,
        })
    }
}
