//! Clients' Internet service providers: goodput of a client by TCP over the best path, several TCP
//! connections at once, and MPTCP over both transits [egress §5.2, figs. 12 to 14].

use std::time::Duration;

use keiro_control::units::Text;
use keiro_units::{Bandwidth, ByteCount, Probability};
use serde::Deserialize;

use super::{Amount, Quantity, median};

/// The providers, each a case. Every run measures all transports, one after the other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isps {
    /// Duration of each transport.
    pub time: Amount<Text<Duration>>,
    pub isp: Vec<Isp>,
}

/// A provider: the lines from each transit to its clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isp {
    /// The last part of the names of its rows.
    pub name: String,
    /// Through transit A, the best path.
    pub a: Line,
    /// Through transit provider B.
    pub b: Line,
}

/// The line from a transit to a client, and back.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Rate towards the client.
    pub rate: Text<Bandwidth>,
    /// Rate from the client; by default the same as towards it.
    pub back: Option<Text<Bandwidth>>,
    /// One-way delay, in both directions.
    pub delay: Text<Duration>,
    /// Loss probability towards the client, behind the bottleneck and independent per packet; none by
    /// default.
    pub loss: Option<Text<Probability>>,
    /// Buffer of the bottleneck, in both directions.
    pub buffer: Text<ByteCount>,
}

/// Transport to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IspTransport {
    /// This many TCP connections at once, over the best path.
    Tcp(usize),
    /// One MPTCP connection over all paths.
    Mptcp,
}

impl IspTransport {
    /// All of [egress fig. 14], in the order in which they take turns.
    pub const ALL: [Self; 6] = [
        Self::Tcp(1),
        Self::Mptcp,
        Self::Tcp(3),
        Self::Tcp(6),
        Self::Tcp(9),
        Self::Tcp(12),
    ];

    /// Name of the transport, in figures.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Tcp(_) => "TCP, best path",
            Self::Mptcp => "MPTCP, all paths",
        }
    }

    /// Number of connections, in figures.
    pub(super) fn connections(self) -> String {
        match self {
            Self::Tcp(count) => count.to_string(),
            Self::Mptcp => "MPTCP".to_owned(),
        }
    }
}

/// Goodput of every transport in the order of [`IspTransport::ALL`], and the gain of MPTCP over one TCP
/// connection.
pub(super) const QUANTITIES: &[Quantity] = &[
    median("goodput tcp", "Mbit/s"),
    median("goodput mptcp", "Mbit/s"),
    median("goodput tcp-3", "Mbit/s"),
    median("goodput tcp-6", "Mbit/s"),
    median("goodput tcp-9", "Mbit/s"),
    median("goodput tcp-12", "Mbit/s"),
    median("gain", "%"),
];

impl Isps {
    /// Why they cannot be measured.
    pub(super) fn check(&self) -> Result<(), String> {
        let times = [self.time.run.0, self.time.quick.0];
        let lines = self.isp.iter().flat_map(|isp| [&isp.a, &isp.b]);
        let nothing = |line: &Line| {
            let rates = [line.rate.0, line.back.unwrap_or(line.rate).0];
            rates.contains(&Bandwidth::ZERO) || line.buffer.0 == ByteCount::ZERO
        };
        let bad = self.isp.is_empty() || times.iter().any(Duration::is_zero);
        match bad || lines.into_iter().any(nothing) {
            true => Err("[isps] needs a time, and providers with rates and buffers".to_owned()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_has_a_quantity_in_order() {
        let names = IspTransport::ALL.map(|transport| match transport {
            IspTransport::Tcp(1) => "goodput tcp".to_owned(),
            IspTransport::Tcp(count) => format!("goodput tcp-{count}"),
            IspTransport::Mptcp => "goodput mptcp".to_owned(),
        });
        let quantities: Vec<&str> = QUANTITIES.iter().map(|quantity| quantity.name).collect();
        assert_eq!(quantities[..names.len()], names);
    }
}
