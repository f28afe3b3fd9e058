//! Gives up privileges for good: the user, capabilities, and the ability to regain them.
//!
//! [`RunAs::give_up`] does all of it for a process, before its first thread, so that every thread has as little.
//! [`reduce_thread`] takes more from one thread.

use std::{ffi::CString, fmt, fs, io};

use caps::{CapSet, Capability as Cap, CapsHashSet};
use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::{Uid, User, geteuid, getgrouplist, setgroups, setresgid, setresuid},
};

use crate::secret_memory;

mod files;

pub use files::FileError;

/// The user that daemons run as unless another is named.
pub const DEFAULT_USER: &str = "keiro";

/// A capability that a daemon may need after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// CAP_NET_ADMIN: devices, routes, rules, and receive buffers above `net.core.rmem_max`.
    NetAdmin,
    /// CAP_NET_BIND_SERVICE: ports below 1024.
    NetBindService,
    /// CAP_BPF: reading the maps of BPF programs, before Linux 5.19.
    Bpf,
}

/// The user that a daemon is to run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunAs {
    /// The present one.
    Present,
    /// Another one: the process is root's now.
    User(Account),
}

/// A user with its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: String,
    uid: u32,
    gid: u32,
    /// Including `gid`.
    groups: Vec<u32>,
}

/// Why a process cannot run as a user. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error("there is no user `{0}`; `useradd --system --shell /usr/sbin/nologin {0}` makes it")]
    Unknown(String),
    #[error("only root may run as another user; start this as root, or leave out --user {0}")]
    NotRoot(String),
    #[error("user `{name}` cannot be looked up: {source}")]
    System { name: String, source: io::Error },
}

/// Why privileges were not given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Threads that run already would keep theirs.
    #[error("{0} threads run already, and would keep their privileges")]
    Threads(usize),
    #[error("cannot become user `{name}`: {source}")]
    User { name: String, source: io::Error },
    #[error("cannot give up capabilities: {0}")]
    Capabilities(io::Error),
    #[error("cannot keep memory out of core files: {0}")]
    Memory(io::Error),
}

impl RunAs {
    /// The user of this name, to which only root can change; `None`: [`DEFAULT_USER`] where the process is root's
    /// and there is that user, else the present one.
    ///
    /// # Errors
    /// See [`UserError`].
    pub fn choose(name: Option<&str>) -> Result<Self, UserError> {
        let found = Account::named(name.unwrap_or(DEFAULT_USER))?;
        let uid = geteuid();
        match (found, name) {
            (Some(account), _) if account.uid == uid.as_raw() => Ok(Self::Present),
            (Some(account), _) if uid.is_root() => Ok(Self::User(account)),
            (Some(_), Some(name)) => Err(UserError::NotRoot(name.to_owned())),
            (None, Some(name)) => Err(UserError::Unknown(name.to_owned())),
            (_, None) => Ok(Self::Present),
        }
    }

    /// Whether the process goes on as root.
    pub fn stays_root(&self) -> bool {
        *self == Self::Present && geteuid().is_root()
    }

    /// Makes the process this user's, and leaves it only those capabilities of `keep` that it has. New threads,
    /// and programs that it starts, get no more. Its memory is not written to core files, nor read by other
    /// processes of that user: what was set before, a change of the user or of capabilities may have undone.
    ///
    /// Returns the remaining capabilities.
    ///
    /// # Errors
    /// See [`PrivilegeError`]; the process must end then.
    pub fn give_up(&self, keep: &[Capability]) -> Result<Vec<Capability>, PrivilegeError> {
        let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads > 1 {
            return Err(PrivilegeError::Threads(threads));
        }
        if let Self::User(account) = self {
            drop_bounding_set(keep).map_err(PrivilegeError::Capabilities)?;
            account.enter().map_err(|source| PrivilegeError::User {
                name: account.name.clone(),
                source,
            })?;
        }
        let left = reduce_thread(keep).map_err(PrivilegeError::Capabilities)?;
        refuse_new_privileges().map_err(PrivilegeError::Capabilities)?;
        secret_memory::protect().map_err(PrivilegeError::Memory)?;
        Ok(left)
    }
}

impl Account {
    /// `None`: there is no such user.
    fn named(name: &str) -> Result<Option<Self>, UserError> {
        let failed = |source: nix::Error| UserError::System {
            name: name.to_owned(),
            source: source.into(),
        };
        let user = match User::from_name(name) {
            // getpwnam_r(3): not found, as where there is no /etc/passwd.
            Ok(None) | Err(Errno::ENOENT | Errno::ESRCH) => return Ok(None),
            Ok(Some(user)) => user,
            Err(error) => return Err(failed(error)),
        };
        let c_name = CString::new(name).map_err(|_| UserError::Unknown(name.to_owned()))?;
        let groups = getgrouplist(&c_name, user.gid).map_err(failed)?;
        Ok(Some(Self {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect(),
        }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Changes user and groups; permitted capabilities stay.
    fn enter(&self) -> io::Result<()> {
        let gid = nix::unistd::Gid::from_raw(self.gid);
        let uid = Uid::from_raw(self.uid);
        let groups: Vec<_> = self
            .groups
            .iter()
            .map(|group| nix::unistd::Gid::from_raw(*group))
            .collect();
        setgroups(&groups)?;
        setresgid(gid, gid, gid)?;
        // Else a change from root clears the permitted set.
        keep_capabilities(true)?;
        setresuid(uid, uid, uid)?;
        keep_capabilities(false)
    }
}

/// Whether a user of this number may run daemons of Keiro: root, the present user, or [`DEFAULT_USER`].
pub fn is_trusted(uid: u32) -> bool {
    uid == 0
        || uid == geteuid().as_raw()
        || Account::named(DEFAULT_USER).is_ok_and(|user| user.is_some_and(|user| user.uid == uid))
}

/// Lets threads of this process, which may be no longer root's then, ask for a real-time priority up to
/// `priority`.
///
/// # Errors
/// The hard limit is lower, and the process may not raise it.
pub fn allow_realtime(priority: u8) -> io::Result<()> {
    let priority = u64::from(priority);
    let (soft, hard) = getrlimit(Resource::RLIMIT_RTPRIO)?;
    if soft >= priority {
        return Ok(());
    }
    Ok(setrlimit(
        Resource::RLIMIT_RTPRIO,
        priority,
        hard.max(priority),
    )?)
}

/// Whether the calling thread has it now.
pub fn has(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability.raw()).unwrap_or(false)
}

/// Reduces the calling thread's capabilities to those of `keep` that it has, also for threads that it starts
/// later. Call it in every thread, because capabilities are per thread.
///
/// Returns the remaining ones.
///
/// # Errors
/// The kernel refuses; the resulting capabilities are undefined then.
pub fn reduce_thread(keep: &[Capability]) -> io::Result<Vec<Capability>> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed)?;
    let left: Vec<Capability> = keep
        .iter()
        .copied()
        .filter(|capability| permitted.contains(&capability.raw()))
        .collect();
    let set: CapsHashSet = left.iter().map(|capability| capability.raw()).collect();
    // The bounding set first, because that takes CAP_SETPCAP, which the next steps drop.
    drop_bounding_set(&left)?;
    caps::clear(None, CapSet::Ambient).map_err(failed)?;
    // Effective capabilities must be permitted, and a change of the user may have cleared the former.
    let effective = caps::read(None, CapSet::Effective).map_err(failed)?;
    let remaining: CapsHashSet = effective.intersection(&set).copied().collect();
    caps::set(None, CapSet::Effective, &remaining).map_err(failed)?;
    caps::set(None, CapSet::Permitted, &set).map_err(failed)?;
    caps::set(None, CapSet::Effective, &set).map_err(failed)?;
    caps::clear(None, CapSet::Inheritable).map_err(failed)?;
    Ok(left)
}

/// Gives up one capability of the calling thread, which is one of a daemon that needs it elsewhere. A refusal is logged.
pub fn drop_in_thread(capability: Capability) {
    let drop = |set| caps::drop(None, set, capability.raw()).map_err(failed);
    if let Err(error) = drop(CapSet::Effective).and_then(|()| drop(CapSet::Permitted)) {
        tracing::warn!(%error, "a thread keeps a capability");
    }
}

/// Gives up all capabilities of the calling thread, which is one of a daemon that needs none. A refusal is logged.
pub fn give_up_in_thread() {
    if let Err(error) = reduce_thread(&[]) {
        tracing::warn!(%error, "a thread keeps its capabilities");
    }
}

/// Removes all capabilities but `keep` from the bounding set, where that is permitted.
fn drop_bounding_set(keep: &[Capability]) -> io::Result<()> {
    if !caps::has_cap(None, CapSet::Effective, Cap::CAP_SETPCAP).unwrap_or(false) {
        return Ok(());
    }
    for capability in caps::read(None, CapSet::Bounding).map_err(failed)? {
        if !keep.iter().any(|kept| kept.raw() == capability) {
            caps::drop(None, CapSet::Bounding, capability).map_err(failed)?;
        }
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: caps::errors::CapsError) -> io::Error {
    io::Error::other(error.to_string())
}

/// Prevents programs started by this thread or its children from gaining privileges (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// None is known.
pub fn refuse_new_privileges() -> io::Result<()> {
    set_process_option(libc::PR_SET_NO_NEW_PRIVS, 1)
}

fn keep_capabilities(keep: bool) -> io::Result<()> {
    set_process_option(libc::PR_SET_KEEPCAPS, libc::c_ulong::from(keep))
}

fn set_process_option(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    let none: libc::c_ulong = 0;
    // SAFETY: takes integers only.
    match unsafe { libc::prctl(option, value, none, none, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Capability {
    const fn raw(self) -> Cap {
        match self {
            Self::NetAdmin => Cap::CAP_NET_ADMIN,
            Self::NetBindService => Cap::CAP_NET_BIND_SERVICE,
            Self::Bpf => Cap::CAP_BPF,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.raw(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduced_thread_keeps_only_what_it_asked_for_and_had() {
        std::thread::spawn(|| {
            let had = has(Capability::NetAdmin);
            let left = reduce_thread(&[Capability::NetAdmin]).unwrap();
            assert_eq!(left.contains(&Capability::NetAdmin), had);
            assert_eq!(has(Capability::NetAdmin), had);
            assert!(reduce_thread(&[]).unwrap().is_empty());
            assert!(!has(Capability::NetAdmin) && !has(Capability::NetBindService));
            assert!(reduce_thread(&[Capability::NetAdmin]).unwrap().is_empty());
            refuse_new_privileges().unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_process_with_threads_does_not_give_up_privileges() {
        // The test's own thread is not the first.
        let refused = RunAs::Present.give_up(&[]).unwrap_err();
        assert!(matches!(refused, PrivilegeError::Threads(2..)), "{refused}");
    }

    #[test]
    fn a_user_is_chosen_by_name() {
        let unknown = RunAs::choose(Some("no-such-user")).unwrap_err();
        assert!(
            unknown.to_string().contains("useradd --system"),
            "{unknown}"
        );
        let present = User::from_uid(geteuid()).unwrap().unwrap();
        assert_eq!(RunAs::choose(Some(&present.name)).unwrap(), RunAs::Present);
        let nobody = RunAs::choose(Some("nobody"));
        match geteuid().is_root() {
            true => assert!(matches!(nobody, Ok(RunAs::User(user)) if user.uid != 0)),
            false => assert!(matches!(nobody, Err(UserError::NotRoot(_)))),
        }
    }
}
