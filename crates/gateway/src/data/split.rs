//! Split TCP connections of tenants: what both gateways agree on, and sockets with the addresses of others.
//!
//! The first packet of a connection waits at its client's gateway (`tunnels/held_syns.rs`) until the other gateway
//! is connected to the server (`streams/split.rs`). Each has a TCP connection of the kernel at its side, and a stream
//! is between them. `docs/wire-format.md` has the bytes.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use keiro_core::{AppId, TenantId};
use keiro_linux::{
    privilege::{self, Capability},
    tcp::TransparentSocket,
};

/// Source and destination of the packets of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlowAddresses {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

impl FlowAddresses {
    /// Of the packets of the other direction.
    pub(crate) fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
        }
    }
}

/// Packets that this machine's kernel takes as long as the rules are in place that lead them to it, with the numbers of
/// their connections. The far host knows nothing of these.
pub(crate) type SplitFlows = HashMap<FlowAddresses, u64>;

/// What the server's gateway writes first: its connection to the server is there.
pub(crate) const CONNECTED: u8 = 0;
/// The longest [`client_bytes`].
pub(crate) const CLIENT_BYTES_MAX: usize = 19;

const KIND_V4: u8 = 4;
const KIND_V6: u8 = 6;

/// The first port that a process may have without a privilege (`ip_unprivileged_port_start`): gateways connect to
/// servers from their clients' ports.
pub(crate) const CLIENT_PORT_MIN: u16 = 1024;

/// The application of a tenant's split connections, which is in no configuration.
pub(crate) fn app_of(tenant: TenantId) -> AppId {
    AppId::of_name(&format!("keiro.split.{}", tenant.0))
}

/// What the client's gateway writes first: the client's address.
pub(crate) fn client_bytes(client: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CLIENT_BYTES_MAX);
    match client.ip() {
        IpAddr::V4(address) => {
            bytes.push(KIND_V4);
            bytes.extend(address.octets());
        }
        IpAddr::V6(address) => {
            bytes.push(KIND_V6);
            bytes.extend(address.octets());
        }
    }
    bytes.extend(client.port().to_be_bytes());
    bytes
}

/// What a peer has written of a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientBytes {
    /// The address, and its length in bytes.
    Whole(SocketAddr, usize),
    Incomplete,
    Malformed,
}

/// Reads [`client_bytes`] at the beginning of `bytes`.
pub(crate) fn read_client(bytes: &[u8]) -> ClientBytes {
    let Some((kind, rest)) = bytes.split_first() else {
        return ClientBytes::Incomplete;
    };
    let (ip, rest): (IpAddr, &[u8]) = match *kind {
        KIND_V4 => match rest.split_first_chunk() {
            Some((octets, rest)) => (Ipv4Addr::from(*octets).into(), rest),
            None => return ClientBytes::Incomplete,
        },
        KIND_V6 => match rest.split_first_chunk() {
            Some((octets, rest)) => (Ipv6Addr::from(*octets).into(), rest),
            None => return ClientBytes::Incomplete,
        },
        _ => return ClientBytes::Malformed,
    };
    match rest.split_first_chunk() {
        Some((port, rest)) => {
            let client = SocketAddr::new(ip, u16::from_be_bytes(*port));
            ClientBytes::Whole(client, bytes.len() - rest.len())
        }
        None => ClientBytes::Incomplete,
    }
}

/// Sockets that may have the address of a client. Threads with a privilege make them, since the data thread has none.
pub(crate) struct TransparentSockets {
    v4: Receiver<TransparentSocket>,
    v6: Receiver<TransparentSocket>,
}

/// Sockets of each IP version that are kept ready. Ours: making one takes some ten microseconds.
const READY: usize = 64;
/// A thread that could not make one tries again after this time.
const RETRY: Duration = Duration::from_secs(1);

impl TransparentSockets {
    /// Starts the threads, which end with what is returned. To be called with CAP_NET_ADMIN, which they keep.
    pub(crate) fn start() -> Self {
        Self {
            v4: maker(false),
            v6: maker(true),
        }
    }

    /// `None`: there is none just now.
    pub(crate) fn take(&self, is_v6: bool) -> Option<TransparentSocket> {
        let ready = if is_v6 { &self.v6 } else { &self.v4 };
        ready.try_recv().ok()
    }
}

fn maker(is_v6: bool) -> Receiver<TransparentSocket> {
    let (sockets, ready) = sync_channel(READY);
    let version = if is_v6 { "v6" } else { "v4" };
    let made = thread::Builder::new()
        .name(format!("sockets-{version}"))
        .spawn(move || make(is_v6, &sockets));
    if let Err(error) = made {
        tracing::warn!(%error, "tcp = \"split\": connections of peers are refused");
    }
    ready
}

fn make(is_v6: bool, sockets: &SyncSender<TransparentSocket>) {
    if let Err(error) = privilege::reduce_thread(&[Capability::NetAdmin]) {
        tracing::debug!(%error, "a thread that makes sockets keeps its privileges");
    }
    let mut is_logged = false;
    loop {
        match TransparentSocket::new(is_v6) {
            Ok(socket) => {
                if sockets.send(socket).is_err() {
                    return;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::debug!(%error, is_v6, "tcp = \"split\": no transparent socket");
                }
                // Its end is noticed by the next socket; without one the thread ends with the process.
                thread::sleep(RETRY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_address_is_read_as_it_was_written_and_nothing_else_is() {
        for (client, length) in [("10.1.0.7:40001", 7), ("[fd00:1::7]:1", 19)] {
            let client: SocketAddr = client.parse().unwrap();
            let mut bytes = client_bytes(client);
            assert_eq!(bytes.len(), length);
            for end in 0..length {
                assert_eq!(read_client(&bytes[..end]), ClientBytes::Incomplete);
            }
            bytes.extend(b"GET /");
            assert_eq!(read_client(&bytes), ClientBytes::Whole(client, length));
            bytes[0] = 5;
            assert_eq!(read_client(&bytes), ClientBytes::Malformed);
        }
    }
}
