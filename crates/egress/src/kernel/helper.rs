//! Listeners at EPE addresses, for servers that listen at one address alone: a client that joins a connection
//! at an address where nobody listens is refused. What is no join is reset.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
};

use keiro_linux::{mptcp, tcp};

use super::KernelError;

/// Listeners; joins are the kernel's matter.
#[derive(Debug)]
pub(super) struct Helper {
    ports: Vec<u16>,
    listeners: Vec<(Ipv6Addr, TcpListener)>,
}

impl Helper {
    /// At these addresses, which are there, and ports, in the calling thread's namespace.
    pub(super) fn open(
        addresses: &[Ipv6Addr],
        ports: impl IntoIterator<Item = u16>,
    ) -> Result<Self, KernelError> {
        let mut helper = Self {
            ports: ports.into_iter().collect(),
            listeners: Vec::new(),
        };
        helper.set(addresses)?;
        Ok(helper)
    }

    /// At these addresses from now on.
    pub(super) fn set(&mut self, addresses: &[Ipv6Addr]) -> Result<(), KernelError> {
        self.listeners.retain(|(own, _)| addresses.contains(own));
        let there: Vec<Ipv6Addr> = self.listeners.iter().map(|(own, _)| *own).collect();
        for own in addresses.iter().filter(|own| !there.contains(own)) {
            for port in &self.ports {
                let address = SocketAddr::from((*own, *port));
                let listener = mptcp::listen(address);
                let failed = |source| KernelError::Helper { address, source };
                self.listeners.push((*own, listener.map_err(failed)?));
            }
        }
        Ok(())
    }

    /// Becomes readable when somebody has connected.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|(_, listener)| listener.as_fd())
    }

    /// Resets what has been accepted, some at a time.
    pub(super) fn refuse(&self) {
        for (_, listener) in &self.listeners {
            for _ in 0..REFUSED_AT_ONCE {
                match listener.accept() {
                    Ok((stream, from)) => {
                        tracing::debug!(%from, "no join: an EPE address is for nothing else");
                        tcp::reset(stream);
                    }
                    // Gone before it was accepted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    // Nobody, or the system is short of something: later.
                    Err(_) => break,
                }
            }
        }
    }
}

/// Of one listener, before others' turn. Ours.
const REFUSED_AT_ONCE: usize = 64;
