//! Clients' Internet service providers that differ: what TCP by the best path, several TCP connections
//! at once and MPTCP by both transits get to a client of each [egress §5.2, figs. 12 to 14].

use std::time::Duration;

use keiro_control::units::Text;
use keiro_units::{Bandwidth, ByteCount, Probability};
use serde::Deserialize;

use super::{Amount, Quantity, median};

/// Providers, each a case: every run carries data to a client in every way, one after the other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isps {
    /// How long each way carries data.
    pub time: Amount<Text<Duration>>,
    /// The providers.
    pub isp: Vec<Isp>,
}

/// A provider: how clients are reached by each transit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isp {
    /// The last part of its rows' names.
    pub name: String,
    /// By transit A, the best path.
    pub a: Line,
    /// By transit B.
    pub b: Line,
}

/// The way from a transit to a client, and back.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Towards the client.
    pub rate: Text<Bandwidth>,
    /// From the client; as towards it if absent.
    pub back: Option<Text<Bandwidth>>,
    /// One way, both ways.
    pub delay: Text<Duration>,
    /// Packets lost towards the client, behind the bottleneck and each by itself; none if absent.
    pub loss: Option<Text<Probability>>,
    /// What may wait for the bottleneck, both ways.
    pub buffer: Text<ByteCount>,
}

/// A way of carrying data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IspWay {
    /// So many TCP connections at once, by the best path.
    Tcp(usize),
    /// One MPTCP connection, by all paths.
    Mptcp,
}

impl IspWay {
    /// All of them, in the order in which they take turns; those of [egress fig. 14].
    pub const ALL: [Self; 6] = [
        Self::Tcp(1),
        Self::Mptcp,
        Self::Tcp(3),
        Self::Tcp(6),
        Self::Tcp(9),
        Self::Tcp(12),
    ];

    /// As what it goes, in figures.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Tcp(_) => "TCP, best path",
            Self::Mptcp => "MPTCP, all paths",
        }
    }

    /// How many connections, in figures.
    pub(super) fn connections(self) -> String {
        match self {
            Self::Tcp(count) => count.to_string(),
            Self::Mptcp => "MPTCP".to_owned(),
        }
    }
}

/// Goodput of every way in the order of [`IspWay::ALL`]; and what MPTCP gains on one TCP connection.
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
    fn every_way_has_a_quantity_in_its_place() {
        let names = IspWay::ALL.map(|way| match way {
            IspWay::Tcp(1) => "goodput tcp".to_owned(),
            IspWay::Tcp(count) => format!("goodput tcp-{count}"),
            IspWay::Mptcp => "goodput mptcp".to_owned(),
        });
        let told: Vec<&str> = QUANTITIES.iter().map(|quantity| quantity.name).collect();
        assert_eq!(told[..names.len()], names);
    }
}
