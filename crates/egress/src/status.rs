//! What a daemon tells about itself: one JSON document to whoever connects to its control socket.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use keiro_bgp::session::State;
use keiro_linux::unix;
use serde::{Deserialize, Serialize};

/// A daemon as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// `asbr` or `egress`.
    pub role: String,
    /// Its AS.
    pub asn: u32,
    /// Its BGP identifier.
    pub router_id: Ipv4Addr,
    /// Destinations that it knows.
    pub destinations: usize,
    /// Connections from addresses of no neighbour, since it started.
    pub strangers: u64,
    /// Changes of forwarding that were refused, since it started.
    pub refused: u64,
    /// Its neighbours, egress peers first.
    pub neighbours: Vec<NeighbourStatus>,
    /// Egress peers.
    pub peers: Vec<PeerStatus>,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Where it is.
    pub address: IpAddr,
    /// Its AS.
    pub asn: u32,
    /// `idle`, `connecting`, `open_sent`, `open_confirm` or `established`.
    pub state: String,
    /// For how long the session has been up; `None`: it is not.
    pub up_seconds: Option<u64>,
    /// Routes taken from it, by family.
    pub routes: BTreeMap<String, usize>,
    /// Destinations that it was told.
    pub told: usize,
    /// How often the session came up.
    pub times_up: u64,
    /// Bad UPDATEs that cost routes.
    pub complaints: u64,
    /// Why the session was last down; `None`: it never was.
    pub last_error: Option<String>,
}

/// An egress peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its route target.
    pub rt: String,
    /// Its segment, where it is served; `None`: it is not, or elsewhere.
    pub sid: Option<Ipv6Addr>,
    /// The address whose connections leave by it, on a server.
    pub address: Option<Ipv6Addr>,
    /// Routes in its table.
    pub routes: usize,
}

/// The socket.
pub(crate) struct StatusSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl StatusSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, unix::ListenError> {
        Ok(Self {
            listener: unix::listen(path, None)?,
            path: path.to_owned(),
        })
    }

    /// Tells everybody who waits.
    pub(crate) fn answer(&self, status: impl Fn() -> Status) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            // A reader that does not read is not waited for.
            let told = stream.set_nonblocking(true).and_then(|()| {
                unix::enlarge_send_buffer(&stream, DOCUMENT_BYTES_MAX);
                let document = serde_json::to_vec(&status()).map_err(io::Error::other)?;
                stream.write_all(&document)
            });
            if let Err(error) = told {
                tracing::debug!(%error, "status was not told");
            }
        }
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        // Gone already, or not ours to remove: either way nothing is left to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl AsFd for StatusSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Asks a daemon.
///
/// # Errors
/// Nobody listens at `path`, the caller may not ask, or the answer is none.
pub fn ask(path: &Path) -> io::Result<Status> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut document = Vec::new();
    stream
        .take(DOCUMENT_BYTES_MAX as u64)
        .read_to_end(&mut document)?;
    serde_json::from_slice(&document).map_err(io::Error::other)
}

/// A state in the words of [`NeighbourStatus::state`].
pub(crate) fn word(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Connecting => "connecting",
        State::OpenSent => "open_sent",
        State::OpenConfirm => "open_confirm",
        State::Established => "established",
    }
}

/// Several thousand neighbours. Ours.
const DOCUMENT_BYTES_MAX: usize = 4 << 20;
/// A daemon that works on a large change answers later than at once. Ours.
const PATIENCE: Duration = Duration::from_secs(10);
