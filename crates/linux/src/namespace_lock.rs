//! Locks between the processes of one network namespace.
//!
//! A lock is an abstract Unix socket: the kernel keeps their names apart for each network namespace and frees a
//! name when its process ends, however it ends. Any process may hold one, so a lock says that a process which
//! holds it still runs, and protects nothing.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

/// A lock that this process holds as long as this value exists.
#[derive(Debug)]
pub struct NamespaceLock {
    /// Nothing is read from it.
    _socket: UnixDatagram,
}

impl NamespaceLock {
    /// Takes the lock of this name in the calling thread's network namespace; `None`: another holder has it.
    ///
    /// # Errors
    /// The name has more than 107 bytes, or no socket is available.
    pub fn take(name: &str) -> io::Result<Option<Self>> {
        let address = SocketAddr::from_abstract_name(name)?;
        match UnixDatagram::bind_addr(&address) {
            Ok(socket) => Ok(Some(Self { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_locks_are_per_name_and_held_until_dropped() {
        let name = format!("keiro-test-{}", std::process::id());
        let other = format!("{name}-other");
        let held = NamespaceLock::take(&name).unwrap().expect("it is free");
        assert!(NamespaceLock::take(&name).unwrap().is_none());
        assert!(NamespaceLock::take(&other).unwrap().is_some());
        drop(held);
        assert!(NamespaceLock::take(&name).unwrap().is_some());
        assert!(NamespaceLock::take(&"x".repeat(200)).is_err());
    }
}
