//! Listeners on EPE addresses, for servers that listen on a single address: otherwise the kernel
//! would refuse a client that joins a connection from another address. Connections that are not
//! joins are reset.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
};

use keiro_linux::{mptcp, tcp};

use super::KernelError;

/// The listeners; the kernel handles joins by itself.
#[derive(Debug)]
pub(super) struct JoinListeners {
    ports: Vec<u16>,
    listeners: Vec<(IpAddr, TcpListener)>,
}

impl JoinListeners {
    /// Listens on these addresses and ports in the calling thread's namespace.
    pub(super) fn open(
        addresses: &[IpAddr],
        ports: impl IntoIterator<Item = u16>,
    ) -> Result<Self, KernelError> {
        let mut listeners = Self {
            ports: ports.into_iter().collect(),
            listeners: Vec::new(),
        };
        listeners.set(addresses)?;
        Ok(listeners)
    }

    pub(super) fn set(&mut self, addresses: &[IpAddr]) -> Result<(), KernelError> {
        self.listeners.retain(|(own, _)| addresses.contains(own));
        let there: Vec<IpAddr> = self.listeners.iter().map(|(own, _)| *own).collect();
        for own in addresses.iter().filter(|own| !there.contains(own)) {
            for port in &self.ports {
                let address = SocketAddr::from((*own, *port));
                let listener = mptcp::listen(address);
                let failed = |source| KernelError::JoinListener { address, source };
                self.listeners.push((*own, listener.map_err(failed)?));
            }
        }
        Ok(())
    }

    /// Readable when a connection was accepted.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|(_, listener)| listener.as_fd())
    }

    pub(super) fn refuse(&self) {
        for (_, listener) in &self.listeners {
            for _ in 0..REFUSED_AT_ONCE {
                match listener.accept() {
                    Ok((stream, from)) => {
                        tracing::debug!(%from, "no join: an EPE address is for nothing else");
                        tcp::reset(stream);
                    }
                    // The client gave up before it was accepted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    // No connection, or a temporary lack of resources: try later.
                    Err(_) => break,
                }
            }
        }
    }
}

/// Connections per listener and turn. Ours.
const REFUSED_AT_ONCE: usize = 64;
