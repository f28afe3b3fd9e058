//! Unix sockets: listeners with a mode and a group, and credentials of the peer.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd},
        linux::net::SocketAddrExt,
        unix::{
            fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    sys::{
        socket::{getsockopt, sockopt},
        stat::{Mode, fchmod},
    },
    unistd::Group,
};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::privilege;

/// Backlog of the listener.
const BACKLOG: i32 = 64;

/// Why a local socket could not be opened. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A process listens on it.
    #[error("{}: a running process listens here; stop it first, or name another socket", .0.display())]
    InUse(PathBuf),
    /// The file exists and is not a socket.
    #[error("{}: exists and is no socket; move it away, or name another socket", .0.display())]
    NotASocket(PathBuf),
    /// The group does not exist.
    #[error("{}: there is no group `{group}`; `groupadd --system {group}` makes it", path.display())]
    NoSuchGroup { path: PathBuf, group: String },
    /// The socket cannot be given to the group.
    #[error("{}: cannot give the socket to group `{group}`: {source}; keiro must be in that group or be started as root", path.display())]
    Group {
        path: PathBuf,
        group: String,
        source: io::Error,
    },
    #[error("{}: cannot listen here: {source}; its directory must exist and be writable by the user keiro runs as", path.display())]
    System { path: PathBuf, source: io::Error },
}

/// Credentials of the other end of a local socket, at the time of its connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A lock that one process of a network namespace holds until it is dropped or the process ends.
///
/// It is a socket with an abstract name: the kernel keeps those per network namespace, and leaves nothing
/// behind.
#[derive(Debug)]
pub struct NamespaceLock {
    /// `None` if another user has the name, so that it proves nothing.
    _listener: Option<UnixListener>,
}

/// Why a [`NamespaceLock`] was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("process {pid} does that here already")]
    Held {
        /// Its number in this process's PID namespace.
        pid: i32,
    },
    /// The system refuses a socket.
    #[error("no lock: {0}")]
    System(#[from] io::Error),
}

impl NamespaceLock {
    /// Acquires the lock of this name in the calling thread's network namespace.
    ///
    /// Any user can bind abstract names. A user other than root, this process's and `keiro` cannot block it.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn take(name: &str) -> Result<Self, LockError> {
        let address = SocketAddr::from_abstract_name(name)?;
        let held = match UnixListener::bind_addr(&address) {
            Ok(listener) => {
                return Ok(Self {
                    _listener: Some(listener),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
            Err(error) => return Err(error.into()),
        };
        // Connecting does not block, because the backlog of a legitimate holder never fills.
        let Ok(stream) = UnixStream::connect_addr(&address) else {
            return Err(held.into());
        };
        let holder = PeerCredentials::of(&stream)?;
        match privilege::is_trusted(holder.uid) {
            true => Err(LockError::Held { pid: holder.pid }),
            false => Ok(Self { _listener: None }),
        }
    }
}

/// Listens at `path`: mode 0660, owned by `group` (`None`: that of the process), non-blocking.
///
/// A socket without a listener is replaced. The directory is created (0755) if only its last component is
/// missing.
///
/// # Errors
/// See [`ListenError`].
pub fn listen(path: &Path, group: Option<&str>) -> Result<UnixListener, ListenError> {
    let system = |source| ListenError::System {
        path: path.into(),
        source,
    };
    let group = group
        .map(|name| group_id(path, name).map(|gid| (name, gid)))
        .transpose()?;
    remove_stale(path)?;
    if let Some(parent) = path.parent()
        && !parent.exists()
    {
        fs::DirBuilder::new()
            .mode(0o755)
            .create(parent)
            .map_err(system)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(system)?;
    // Before bind, so that the file never has a wider mode (unix_bind_bsd uses the socket's).
    fchmod(&socket, Mode::from_bits_truncate(0o660)).map_err(|e| system(e.into()))?;
    let address = SockAddr::unix(path).map_err(system)?;
    socket.bind(&address).map_err(system)?;
    if let Some((name, gid)) = group {
        std::os::unix::fs::chown(path, None, Some(gid)).map_err(|source| ListenError::Group {
            path: path.into(),
            group: name.into(),
            source,
        })?;
    }
    // The umask may have removed the group's bits.
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(system)?;
    socket.listen(BACKLOG).map_err(system)?;
    socket.set_nonblocking(true).map_err(system)?;
    Ok(UnixListener::from(std::os::fd::OwnedFd::from(socket)))
}

/// The ID of a group.
///
/// # Errors
/// There is no such group.
fn group_id(path: &Path, name: &str) -> Result<u32, ListenError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        _ => Err(ListenError::NoSuchGroup {
            path: path.into(),
            group: name.into(),
        }),
    }
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let system = |source| ListenError::System {
        path: path.into(),
        source,
    };
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(system)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A full backlog would be EAGAIN, so there is a listener.
        Ok(_) => Err(ListenError::InUse(path.into())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(ListenError::InUse(path.into()))
        }
        Err(error) => Err(system(error)),
    }
}

impl PeerCredentials {
    /// The credentials of the other end of `stream`.
    ///
    /// # Errors
    /// It is not a connected Unix socket.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
        Ok(Self {
            pid: credentials.pid(),
            uid: credentials.uid(),
            gid: credentials.gid(),
            groups: peer_groups(stream)?,
        })
    }

    /// Whether it is in the group, by its effective or a supplementary one.
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Requests a send buffer of `bytes`; the system may grant less.
pub fn enlarge_send_buffer(socket: &impl AsFd, bytes: usize) {
    let _ = socket2::SockRef::from(socket).set_send_buffer_size(bytes);
}

/// The group that owns the socket file of a listener; `None` if the file is gone.
pub fn owning_group(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path)
        .ok()
        .map(|metadata| metadata.gid())
}

/// The effective user of this process.
pub fn effective_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn peer_groups(stream: &impl AsFd) -> io::Result<Vec<u32>> {
    // NGROUPS_MAX of Linux, the maximum.
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(groups.len() * size_of::<u32>())
            .map_err(|_| io::Error::from_raw_os_error(libc::ERANGE))?;
        // SAFETY: the buffer is valid for `bytes` bytes, and gid_t is a u32.
        let result = unsafe {
            libc::getsockopt(
                stream.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel returns their number, which cannot be less than requested.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("keiro-unix-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn socket_has_mode_0660_and_is_refused_while_it_lives() {
        let directory = directory("live");
        let path = directory.join("made/control.sock");
        let listener = listen(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o660);
        assert!(matches!(listen(&path, None), Err(ListenError::InUse(_))));
        drop(listener);
        let again = listen(&path, None).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (server, _) = again.accept().unwrap();
        let credentials = PeerCredentials::of(&server).unwrap();
        assert_eq!(credentials.pid, std::process::id() as i32);
        assert_eq!(credentials.uid, effective_uid());
        assert!(credentials.is_member(credentials.gid));
        assert_eq!(owning_group(&path), Some(credentials.gid));
        drop(client);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_lock_is_held_by_one_and_names_who_holds_it() {
        let name = format!("keiro-lock-{}", std::process::id());
        let held = NamespaceLock::take(&name).unwrap();
        let refused = NamespaceLock::take(&name).unwrap_err();
        let own = std::process::id() as i32;
        assert!(
            matches!(refused, LockError::Held { pid } if pid == own),
            "{refused}"
        );
        drop(held);
        NamespaceLock::take(&name).unwrap();
    }

    #[test]
    fn other_files_and_unknown_groups_are_left_alone() {
        let directory = directory("other");
        let path = directory.join("file");
        fs::write(&path, "kept").unwrap();
        assert!(matches!(
            listen(&path, None),
            Err(ListenError::NotASocket(_))
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        let fresh = directory.join("sock");
        let error = listen(&fresh, Some("keiro-no-such-group")).unwrap_err();
        assert!(matches!(error, ListenError::NoSuchGroup { .. }));
        assert!(!fresh.exists());
        let error = listen(&directory.join("a/b/c"), None).unwrap_err();
        assert!(
            error.to_string().contains("directory must exist"),
            "{error}"
        );
        fs::remove_dir_all(directory).unwrap();
    }
}
