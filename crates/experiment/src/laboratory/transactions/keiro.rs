//! Transport over Keiro: a TCP listener in the clients' gateway, a forward in the server's.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use anyhow::Context;
use keiro_control::PublicKey;
use keiro_lab::Lab;

use super::{Addresses, GATEWAY_A, GATEWAY_B, open_transport::OpenTransport};
use crate::{
    laboratory::gateways::{
        Gateway, Program, ensure_running, gateway_table, log_tail, start_pair, stop_all,
        wait_for_path,
    },
    transactions::TransactionTransport,
};

/// A pair of gateways, ended and reaped when dropped.
#[derive(Debug)]
pub(in crate::laboratory) struct Keiro {
    entry: SocketAddr,
    gateways: [Gateway; 2],
    /// Keys, configurations, sockets and logs; removed with this value.
    _directory: tempfile::TempDir,
}

/// Path rate of the gateways: that of the line.
const RATE: &str = "100Mbit";
/// Latency target of the application. Ours: the path itself takes 0.5 ms.
const LATENCY_TARGET: &str = "5ms";

impl Keiro {
    pub(super) fn start(
        transport: TransactionTransport,
        lab: &Lab,
        addresses: &Addresses,
        program: Program<'_>,
    ) -> anyhow::Result<Self> {
        Self::start_at(RATE, transport, lab, addresses, program)
    }

    /// Starts gateways with this path rate, in configuration syntax.
    pub(in crate::laboratory) fn start_at(
        rate: &str,
        transport: TransactionTransport,
        lab: &Lab,
        addresses: &Addresses,
        program: Program<'_>,
    ) -> anyhow::Result<Self> {
        let hosts = [GATEWAY_A, GATEWAY_B];
        let (directory, gateways) = start_pair(lab, hosts, program, |own, home, peer_key| {
            configuration(transport, rate, own, home, peer_key, addresses)
        })?;
        let keiro = Self {
            entry: addresses.listener,
            gateways,
            _directory: directory,
        };
        wait_for_path(&keiro.gateways).with_context(|| keiro.log_tail())?;
        Ok(keiro)
    }

    /// The gateway of the clients' side, then that of the server's.
    pub(in crate::laboratory) fn gateways(&self) -> &[Gateway; 2] {
        &self.gateways
    }
}

impl OpenTransport for Keiro {
    fn entry(&self) -> SocketAddr {
        self.entry
    }

    fn log_tail(&self) -> String {
        log_tail(&self.gateways)
    }

    fn close(&mut self) -> anyhow::Result<()> {
        ensure_running(&self.gateways).with_context(|| self.log_tail())
    }
}

impl Drop for Keiro {
    fn drop(&mut self) {
        stop_all(&self.gateways);
    }
}

/// The configuration of gateway A (`own` = 0) or B (`own` = 1).
fn configuration(
    transport: TransactionTransport,
    rate: &str,
    own: usize,
    home: &Path,
    peer_key: &PublicKey,
    addresses: &Addresses,
) -> anyhow::Result<String> {
    let overlay = [addresses.overlay_a, addresses.overlay_b];
    let name = ["a", "b"];
    let mut text = gateway_table(name[own], home);
    text.push_str(match transport {
        TransactionTransport::KeiroOff => "[aggregation]\nmode = \"off\"\n",
        TransactionTransport::KeiroFixed => {
            "[aggregation]\nmode = \"fixed\"\ncontroller = \"none\"\n"
        }
        TransactionTransport::KeiroFixedController => {
            "[aggregation]\nmode = \"fixed\"\ncontroller = \"table2\"\n"
        }
        _ => "",
    });
    writeln!(text, "[[path]]")?;
    writeln!(text, "name = \"wan\"\nlocal = \"{}\"", overlay[own])?;
    writeln!(text, "rate = \"{rate}\"")?;
    writeln!(text, "[[peer]]\nname = \"{}\"", name[1 - own])?;
    writeln!(text, "public_key = \"{peer_key}\"")?;
    writeln!(text, "endpoints = {{ wan = \"{}\" }}", overlay[1 - own])?;
    writeln!(text, "[[app]]\nname = \"transactions\"\nclass = \"stream\"")?;
    writeln!(
        text,
        "peer = \"{}\"\nlatency_target = \"{LATENCY_TARGET}\"",
        name[1 - own]
    )?;
    if own == 0 {
        // On all addresses, because clients come over two links.
        let port = addresses.listener.port();
        writeln!(text, "[[listener]]\napp = \"transactions\"")?;
        writeln!(text, "tcp = \"0.0.0.0:{port}\"")?;
    } else {
        writeln!(text, "[[forward]]\napp = \"transactions\"")?;
        writeln!(text, "tcp = \"{}\"", addresses.server)?;
    }
    Ok(text)
}
