//! Asks for the addresses of host names in threads.

use std::{
    io,
    net::{IpAddr, ToSocketAddrs},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use keiro_control::config::HostName;
use keiro_linux::epoll::Waker;

/// Threads that ask. Ours: while DNS is down each question takes many seconds, and other names may be in files.
const THREADS: usize = 4;
/// Addresses of an answer that are looked at: the rest of a longer one is left out.
const ANSWER_MAX: usize = 64;
/// A stack for the system's resolver.
const STACK_BYTES: usize = 512 << 10;

/// Something that knows the addresses of names.
pub(crate) trait Resolve: Send + Sync + 'static {
    /// The IPv4 and IPv6 addresses of a host. It may wait.
    ///
    /// # Errors
    /// Why none are known.
    fn addresses(&self, host: &HostName) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver, with all that `/etc/nsswitch.conf` asks: files, DNS, and others.
#[derive(Debug)]
pub(crate) struct SystemResolver;

impl Resolve for SystemResolver {
    fn addresses(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
        // The port is not looked at.
        let found = (host.as_str(), 0).to_socket_addrs()?;
        Ok(found.map(|address| address.ip()).take(ANSWER_MAX).collect())
    }
}

/// What was found for a host, or why nothing was.
pub(crate) type Answer = (HostName, Result<Vec<IpAddr>, String>);

/// Threads that ask, and their answers.
#[derive(Debug)]
pub(crate) struct Resolver {
    questions: Sender<HostName>,
    answers: Receiver<Answer>,
}

impl Resolver {
    /// Starts the threads; `prepare` is called in each. `wake` is woken by every answer.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(
        resolve: impl Resolve,
        wake: &Arc<Waker>,
        prepare: impl Fn() + Send + Clone + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = channel();
        let (answered, answers) = channel();
        let (resolve, asked) = (Arc::new(resolve), Arc::new(Mutex::new(asked)));
        for number in 0..THREADS {
            let (resolve, asked) = (Arc::clone(&resolve), Arc::clone(&asked));
            let (answered, wake) = (answered.clone(), Arc::clone(wake));
            let prepare = prepare.clone();
            thread::Builder::new()
                .name(format!("resolver-{number}"))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    prepare();
                    while let Some(host) = next(&asked) {
                        let found = resolve.addresses(&host).map_err(|error| why(&error));
                        if answered.send((host, found)).is_err() {
                            return;
                        }
                        wake.wake();
                    }
                })?;
        }
        Ok(Self { questions, answers })
    }

    /// Asks for a host. An answer follows; there is one question for each name at most.
    pub(crate) fn ask(&self, host: HostName) {
        // Fails only when the threads have ended, and then nothing is answered.
        let _ = self.questions.send(host);
    }

    pub(crate) fn poll_answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

/// The next question; `None`: there will be no more.
fn next(asked: &Mutex<Receiver<HostName>>) -> Option<HostName> {
    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    asked.recv().ok()
}

/// Without what the standard library writes in front of each.
fn why(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text
        .strip_prefix("failed to lookup address information: ")
        .unwrap_or(&text);
    format!("its addresses are not known: {text}")
}
