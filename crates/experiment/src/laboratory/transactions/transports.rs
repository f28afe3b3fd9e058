//! Transports from the clients to the server.
//!
//! A transport is an address to which clients connect ([`OpenTransport::entry`]), and what carries their data
//! from there. To add one, extend [`Transport`], name its requirements in [`missing`], and open it in
//! [`open`].

use std::{fs, net::SocketAddr, path::Path};

use keiro_lab::Lab;

use super::{Addresses, Laboratory, keiro::Keiro, open_transport::OpenTransport, relays::Relays};
use crate::{
    laboratory::gateways::{Placement, Program},
    transactions::TransactionTransport,
};

/// Direct connections; the kernel forwards packets.
#[derive(Debug)]
struct Direct {
    server: SocketAddr,
}

impl OpenTransport for Direct {
    fn entry(&self) -> SocketAddr {
        self.server
    }
}

/// Congestion control of the TCP connections. It makes no difference between relays and their neighbours,
/// because nothing is lost there.
pub(super) fn congestion(transport: TransactionTransport) -> &'static str {
    match transport {
        TransactionTransport::TcpBbr => "bbr",
        _ => "cubic",
    }
}

/// Why a transport cannot be measured here, and what to try; `None` if it can.
pub(super) fn missing(transport: TransactionTransport, peers: Option<&Path>) -> Option<String> {
    let congestion = congestion(transport);
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let available = available.unwrap_or_default();
    if !available
        .split_ascii_whitespace()
        .any(|one| one == congestion)
    {
        return Some(format!(
            "the kernel has no congestion control `{congestion}`; try `modprobe tcp_{congestion}`"
        ));
    }
    match (transport, peers) {
        (
            TransactionTransport::TcpLossless
            | TransactionTransport::TcpCubic
            | TransactionTransport::TcpBbr,
            _,
        )
        | (
            TransactionTransport::Keiro
            | TransactionTransport::KeiroOff
            | TransactionTransport::KeiroFixed
            | TransactionTransport::KeiroFixedController,
            _,
        ) => None,
        (
            TransactionTransport::UdpLossless
            | TransactionTransport::Kcp
            | TransactionTransport::QuicShared
            | TransactionTransport::QuicEach,
            None,
        ) => Some(
            "the program of benches/transaction-peers was not given; build it and say --peers"
                .to_owned(),
        ),
        (
            TransactionTransport::UdpLossless
            | TransactionTransport::Kcp
            | TransactionTransport::QuicShared
            | TransactionTransport::QuicEach,
            Some(program),
        ) => (!program.is_file()).then(|| format!("there is no program {}", program.display())),
    }
}

/// Opens a transport. Its processes run in the hosts of `lab`; `placements` are the CPUs and priorities at
/// gateways A and B.
pub(super) fn open(
    transport: TransactionTransport,
    lab: &Lab,
    addresses: &Addresses,
    laboratory: &Laboratory,
    placements: [Placement; 2],
) -> anyhow::Result<Box<dyn OpenTransport>> {
    Ok(match transport {
        TransactionTransport::TcpLossless
        | TransactionTransport::TcpCubic
        | TransactionTransport::TcpBbr => Box::new(Direct {
            server: addresses.server,
        }),
        TransactionTransport::Keiro
        | TransactionTransport::KeiroOff
        | TransactionTransport::KeiroFixed
        | TransactionTransport::KeiroFixedController => {
            let program = Program::placed(&laboratory.programs.keiro, placements);
            Box::new(Keiro::start(transport, lab, addresses, program)?)
        }
        TransactionTransport::UdpLossless
        | TransactionTransport::Kcp
        | TransactionTransport::QuicShared
        | TransactionTransport::QuicEach => {
            let program = laboratory.peers.as_deref();
            Box::new(Relays::start(
                transport.name(),
                lab,
                addresses,
                program,
                placements,
            )?)
        }
    })
}
