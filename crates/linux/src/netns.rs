//! Named network namespaces: opening them, entering them with a thread or a new process, and finding the
//! processes inside.
//!
//! `ip netns` makes and removes namespaces. It also handles `/etc/netns` and the mount of `/sys`, which this
//! module does not: processes see the machine's `/sys/class/net`.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
};

use crate::process::PidFd;

/// Where iproute2 keeps its named namespaces, `NETNS_RUN_DIR` in its source.
pub const NETNS_DIRECTORY: &str = "/run/netns";

/// An open network namespace. It exists at least as long as this value, even if its name is removed.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
    id: NetnsId,
}

/// Identifies a namespace: device and inode number of the namespace's file.
///
/// The kernel may reuse a number after the namespace is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsId {
    /// The device of the kernel's namespace file system.
    pub device: u64,
    /// The inode number in it.
    pub inode: u64,
}

/// Why a namespace could not be used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// There is no namespace of that name.
    #[error("there is no network namespace `{name}` (`ip netns list` shows those that exist)")]
    Missing { name: String },
    /// The namespace exists but cannot be opened.
    #[error("cannot open network namespace `{name}`: {source}")]
    Open { name: String, source: io::Error },
    /// The thread may not enter it.
    #[error("cannot enter network namespace `{name}`: {source}; root is needed (CAP_SYS_ADMIN)")]
    Enter { name: String, source: io::Error },
    /// No thread could be started for it.
    #[error("cannot start a thread for network namespace `{name}`: {source}")]
    Thread { name: String, source: io::Error },
}

impl Netns {
    /// Opens the namespace that `ip netns add` made under `name`.
    ///
    /// # Errors
    /// [`NetnsError::Missing`] when there is none, [`NetnsError::Open`] otherwise.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        let open = || {
            let file = File::open(path_of(name))?;
            let metadata = file.metadata()?;
            let id = NetnsId {
                device: metadata.dev(),
                inode: metadata.ino(),
            };
            Ok((file, id))
        };
        let (file, id) = open().map_err(|source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => NetnsError::Missing { name: name.into() },
            _ => NetnsError::Open {
                name: name.into(),
                source,
            },
        })?;
        Ok(Self {
            name: name.into(),
            file,
            id,
        })
    }

    /// The name under which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which namespace this is.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Moves the calling thread into the namespace, for the rest of its life.
    ///
    /// Sockets and `/proc/thread-self/net` of this thread belong to the namespace from here on. Other threads
    /// of the process stay where they are.
    ///
    /// # Errors
    /// [`NetnsError::Enter`], mostly for lack of CAP_SYS_ADMIN.
    pub fn enter(&self) -> Result<(), NetnsError> {
        set_namespace(&self.file).map_err(|source| NetnsError::Enter {
            name: self.name.clone(),
            source,
        })
    }

    /// Runs `f` in a new thread inside the namespace and returns its result.
    ///
    /// A panic of `f` propagates to the caller.
    ///
    /// # Errors
    /// The thread cannot be started or cannot enter.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        thread::scope(|scope| {
            let thread = thread::Builder::new()
                .name(self.name.clone())
                .spawn_scoped(scope, || self.enter().map(|()| f()))
                .map_err(|source| NetnsError::Thread {
                    name: self.name.clone(),
                    source,
                })?;
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Makes `command` start its process inside the namespace, which `command` keeps open.
    pub fn enter_on_exec(self: &Arc<Self>, command: &mut Command) {
        let netns = Arc::clone(self);
        // SAFETY: the closure runs between fork and exec and makes one system call on a file that
        // it owns; it neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(move || set_namespace(&netns.file));
        }
    }

    /// The processes whose main thread is in the namespace.
    ///
    /// Does not find threads that entered it while their process is elsewhere. Each process is held by a
    /// descriptor that was checked after opening, so that a reused process number cannot be mistaken for it.
    pub fn processes(&self) -> Vec<PidFd> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|&pid| self.holds(pid))
            .filter_map(|pid| PidFd::open(pid).ok())
            .filter(|process| self.holds(process.pid()))
            .collect()
    }

    fn holds(&self, pid: i32) -> bool {
        fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|metadata| {
            metadata.dev() == self.id.device && metadata.ino() == self.id.inode
        })
    }
}

/// Whether a namespace of this name exists.
pub fn exists(name: &str) -> bool {
    path_of(name).exists()
}

fn path_of(name: &str) -> PathBuf {
    Path::new(NETNS_DIRECTORY).join(name)
}

fn set_namespace(file: &File) -> io::Result<()> {
    // SAFETY: setns takes no memory of ours; a descriptor that is no network namespace is refused.
    match unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_namespace_is_named() {
        let error = Netns::open("keiro-there-is-none").unwrap_err();
        assert!(matches!(error, NetnsError::Missing { .. }));
        assert!(error.to_string().contains("keiro-there-is-none"));
    }
}
