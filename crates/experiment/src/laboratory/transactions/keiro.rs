//! Keiro's own way: a TCP listener in the gateway of the clients, a forward in that of the server.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use anyhow::Context;
use keiro_control::PublicKey;
use keiro_lab::Lab;

use super::{Addresses, GATEWAY_A, GATEWAY_B, ways::OpenWay};
use crate::{
    laboratory::gateways::{
        Gateway, Program, end_all, gateway_table, last_words, make_sure_they_run, start_pair,
        until_a_path_is_up,
    },
    transactions::Way,
};

/// A pair of gateways, ended and reaped when dropped.
#[derive(Debug)]
pub(in crate::laboratory) struct Keiro {
    entry: SocketAddr,
    gateways: [Gateway; 2],
    /// Keys, configurations, sockets and logs; removed with this value.
    _directory: tempfile::TempDir,
}

/// What the gateways may send: as much as the line carries.
const RATE: &str = "100Mbit";
/// A transaction's message should be there after this; ours: the way takes half a millisecond.
const LATENCY_TARGET: &str = "5ms";

impl Keiro {
    pub(super) fn start(
        way: Way,
        lab: &Lab,
        addresses: &Addresses,
        program: Program<'_>,
    ) -> anyhow::Result<Self> {
        Self::start_at(RATE, way, lab, addresses, program)
    }

    /// With gateways that may send at `rate`, in a configuration's words.
    pub(in crate::laboratory) fn start_at(
        rate: &str,
        way: Way,
        lab: &Lab,
        addresses: &Addresses,
        program: Program<'_>,
    ) -> anyhow::Result<Self> {
        let hosts = [GATEWAY_A, GATEWAY_B];
        let (directory, gateways) = start_pair(lab, hosts, program, |own, home, peer_key| {
            configuration((way, rate), own, home, peer_key, addresses)
        })?;
        let keiro = Self {
            entry: addresses.listener,
            gateways,
            _directory: directory,
        };
        until_a_path_is_up(&keiro.gateways).with_context(|| keiro.last_words())?;
        Ok(keiro)
    }

    /// That of the clients' side, then that of the server's.
    pub(in crate::laboratory) fn gateways(&self) -> &[Gateway; 2] {
        &self.gateways
    }
}

impl OpenWay for Keiro {
    fn entry(&self) -> SocketAddr {
        self.entry
    }

    fn last_words(&self) -> String {
        last_words(&self.gateways)
    }

    fn close(&mut self) -> anyhow::Result<()> {
        make_sure_they_run(&self.gateways).with_context(|| self.last_words())
    }
}

impl Drop for Keiro {
    fn drop(&mut self) {
        end_all(&self.gateways);
    }
}

/// The configuration of gateway A (`own` 0) or B.
fn configuration(
    (way, rate): (Way, &str),
    own: usize,
    home: &Path,
    peer_key: &PublicKey,
    addresses: &Addresses,
) -> anyhow::Result<String> {
    let overlay = [addresses.overlay_a, addresses.overlay_b];
    let name = ["a", "b"];
    let mut text = gateway_table(name[own], home);
    text.push_str(match way {
        Way::KeiroOff => "[aggregation]\nmode = \"off\"\n",
        Way::KeiroFixed => "[aggregation]\nmode = \"fixed\"\ncontroller = \"none\"\n",
        Way::KeiroFixedController => "[aggregation]\nmode = \"fixed\"\ncontroller = \"table2\"\n",
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
        // On all addresses, for the clients come over two links.
        let port = addresses.listener.port();
        writeln!(text, "[[listener]]\napp = \"transactions\"")?;
        writeln!(text, "tcp = \"0.0.0.0:{port}\"")?;
    } else {
        writeln!(text, "[[forward]]\napp = \"transactions\"")?;
        writeln!(text, "tcp = \"{}\"", addresses.server)?;
    }
    Ok(text)
}
