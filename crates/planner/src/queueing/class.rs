//! Applications as the queue sees them, and the work that several of them bring.

use std::time::Duration;

use super::{
    Spread,
    lattice::Lattice,
    poisson::{self, Stream},
    traffic,
};

/// An application's messages as the queue sees them.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// Messages of the mean length.
    pub(super) stream: Stream,
    /// The same work as streams of some lengths that vary as much; `stream` if none do.
    pub(super) parts: Vec<Stream>,
    /// How much longer than the mean a message takes, each as likely, in s; empty if none does.
    pub(super) longer: Vec<f64>,
    /// By what waiting is multiplied for intervals that are not exponential.
    pub(super) waits: f64,
    /// `None`: after all that have one.
    pub(super) latency_target: Option<Duration>,
}

/// Lengths, each as likely, that stand for lengths that vary.
const LENGTHS: usize = 256;

/// Lengths that are taken together to save work, `rising` being all: the shorter half, half of
/// the rest, and so on, because the longest make the tails.
pub(super) fn length_groups(rising: &[f64]) -> Vec<&[f64]> {
    let (mut parts, mut rest) = (Vec::new(), rising);
    while rest.len() > 2 {
        let (part, longer) = rest.split_at(rest.len() / 2);
        parts.push(part);
        rest = longer;
    }
    parts.push(rest);
    parts
}

/// What is to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    Mean,
    Everything,
}

impl Class {
    /// Lets lengths vary: a Poisson stream falls into Poisson streams, one for each length.
    pub(super) fn vary(&mut self, spread: Spread) {
        if spread == Spread::NONE {
            return;
        }
        let lengths = traffic::values(self.stream.service, spread, LENGTHS);
        self.longer = lengths.iter().map(|l| l - self.stream.service).collect();
        // Fewer streams for the lattice: neighbours together, with their mean square kept.
        self.parts = length_groups(&lengths)
            .into_iter()
            .map(|chunk| {
                let count = chunk.len() as f64;
                let mean = chunk.iter().sum::<f64>() / count;
                let square = chunk.iter().map(|l| l * l).sum::<f64>() / count;
                // A stream of this length and rate has the chunk's work and second moment.
                let service = square / mean;
                let share = count / lengths.len() as f64;
                Stream {
                    rate: self.stream.rate * share * mean / service,
                    service,
                }
            })
            .collect();
    }
}

pub(super) fn streams_where(
    classes: &[Class],
    feeds: impl Fn(Option<Duration>) -> bool,
) -> Vec<Stream> {
    classes
        .iter()
        .filter(|class| feeds(class.latency_target))
        .flat_map(|class| class.parts.iter().copied())
        .collect()
}

/// `None` where the load is not below one.
pub(super) fn stable_lattice(points: usize, streams: &[Stream]) -> Option<Lattice> {
    let load = poisson::load(streams);
    (load < 1.0)
        .then(|| Lattice::new(points, streams))
        .flatten()
}
