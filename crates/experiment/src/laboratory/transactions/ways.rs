//! The ways from the clients to the server.
//!
//! A way is where clients connect ([`OpenWay::entry`]) and what leads on from there. To add one: a
//! [`Way`], what it needs in [`missing`], and how it is opened in [`open`].

use std::{fmt, fs, net::SocketAddr, path::Path};

use keiro_lab::Lab;

use super::{Addresses, Laboratory, keiro::Keiro, relays::Relays};
use crate::{
    laboratory::gateways::{Place, Program},
    transactions::Way,
};

/// A way that is open until it is dropped.
pub(in crate::laboratory) trait OpenWay: fmt::Debug {
    /// Where clients connect to reach the server.
    fn entry(&self) -> SocketAddr;

    /// What it said last, for an error.
    fn last_words(&self) -> String {
        "transactions could not be carried".to_owned()
    }

    /// Makes sure that it was there until now, and closes it.
    ///
    /// # Errors
    /// What ended it before.
    fn close(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// The kernel routes packets from clients to server.
#[derive(Debug)]
struct Straight {
    server: SocketAddr,
}

impl OpenWay for Straight {
    fn entry(&self) -> SocketAddr {
        self.server
    }
}

/// What ends of TCP connections use. Those between relays and their neighbours lose nothing, so
/// that it is the same whatever they use.
pub(super) fn congestion(way: Way) -> &'static str {
    match way {
        Way::TcpBbr => "bbr",
        _ => "cubic",
    }
}

/// Why a way cannot be measured here, and what to try; `None` if it can.
pub(super) fn missing(way: Way, peers: Option<&Path>) -> Option<String> {
    let congestion = congestion(way);
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
    match (way, peers) {
        (Way::TcpLossless | Way::TcpCubic | Way::TcpBbr, _)
        | (Way::Keiro | Way::KeiroOff | Way::KeiroFixed | Way::KeiroFixedController, _) => None,
        (Way::UdpLossless | Way::Kcp | Way::QuicShared | Way::QuicEach, None) => Some(
            "the program of benches/transaction-peers was not given; build it and say --peers"
                .to_owned(),
        ),
        (Way::UdpLossless | Way::Kcp | Way::QuicShared | Way::QuicEach, Some(program)) => {
            (!program.is_file()).then(|| format!("there is no program {}", program.display()))
        }
    }
}

/// Opens a way; what it starts runs in the hosts of `lab`, at gateway A and B in these places.
pub(super) fn open(
    way: Way,
    lab: &Lab,
    addresses: &Addresses,
    laboratory: &Laboratory,
    places: [Place; 2],
) -> anyhow::Result<Box<dyn OpenWay>> {
    Ok(match way {
        Way::TcpLossless | Way::TcpCubic | Way::TcpBbr => Box::new(Straight {
            server: addresses.server,
        }),
        Way::Keiro | Way::KeiroOff | Way::KeiroFixed | Way::KeiroFixedController => {
            let program = Program {
                keiro: &laboratory.programs.keiro,
                places: Some(places),
            };
            Box::new(Keiro::start(way, lab, addresses, program)?)
        }
        Way::UdpLossless | Way::Kcp | Way::QuicShared | Way::QuicEach => {
            let program = laboratory.peers.as_deref();
            Box::new(Relays::start(way.name(), lab, addresses, program, places)?)
        }
    })
}
