//! A problem in the units of the wire: messages as long as their packets are, and paths that carry
//! packets.
//!
//! Eq. 3 takes headers as nothing, and the planners take a message for as long as it is said to be.
//! On a loaded path five per cent decide what fits. So a gateway plans with the lengths that its
//! [`WireFormat`] gives, and loads are those of its forecasts.

use crate::{
    delay::{AppSpec, PathSpec},
    queueing::WireFormat,
};
use keiro_units::Bandwidth;

/// A planning problem with the lengths and bandwidths of the wire, headers included.
#[derive(Clone, Debug, PartialEq)]
pub struct WireLoadProblem {
    /// The paths, in their order; see [`WireLoadProblem::bandwidth`].
    pub paths: Vec<PathSpec>,
    /// The applications, in their order, with the lengths that their messages have on the wire.
    pub apps: Vec<AppSpec>,
    /// What is left of each path's bandwidth.
    shares: Vec<f64>,
}

impl WireLoadProblem {
    /// `apps` on `paths`, each of which has its format.
    ///
    /// An application has one length for all paths: that by the format with the least overhead.
    /// Where packets are longer, because they acknowledge, say, the path carries as much less as
    /// all applications together would take more there.
    ///
    /// # Panics
    ///
    /// If there is not one format for each path.
    pub fn new(paths: &[PathSpec], apps: &[AppSpec], formats: &[WireFormat]) -> Self {
        assert_eq!(paths.len(), formats.len(), "every path has its format");
        let least = formats
            .iter()
            .min_by_key(|format| format.overhead_per_packet());
        let Some(least) = least else {
            return Self {
                paths: Vec::new(),
                apps: apps.to_vec(),
                shares: Vec::new(),
            };
        };
        let load = |format: &WireFormat| -> f64 {
            let of_app = |app: &AppSpec| {
                let bytes = format.wire_length(app.length).get() as f64;
                bytes / app.interval.as_secs_f64().max(INTERVAL_MIN_S)
            };
            apps.iter().map(of_app).sum()
        };
        let whole = load(least);
        let shares: Vec<f64> = formats
            .iter()
            .map(|format| match format == least || apps.is_empty() {
                true => 1.0,
                false => (whole / load(format)).clamp(0.0, 1.0),
            })
            .collect();
        let on_path = |(path, share): (&PathSpec, &f64)| PathSpec {
            bandwidth: scaled(path.bandwidth, *share),
            ..*path
        };
        Self {
            paths: paths.iter().zip(&shares).map(on_path).collect(),
            apps: apps
                .iter()
                .map(|app| AppSpec {
                    length: least.wire_length(app.length),
                    ..*app
                })
                .collect(),
            shares,
        }
    }

    /// What a path has to carry in all, to carry `planned` of what is planned with.
    pub fn bandwidth(&self, path: usize, planned: Bandwidth) -> Bandwidth {
        scaled(planned, 1.0 / self.shares[path])
    }
}

/// An interval of nothing would make every load endless.
const INTERVAL_MIN_S: f64 = 1e-9;

fn scaled(bandwidth: Bandwidth, by: f64) -> Bandwidth {
    if by == 1.0 {
        return bandwidth;
    }
    Bandwidth::from_bits_per_second((bandwidth.as_bits_per_second() as f64 * by) as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use keiro_units::ByteCount;

    fn format(overhead: u64) -> WireFormat {
        WireFormat::new(ByteCount::new(1428), ByteCount::new(overhead)).unwrap()
    }

    fn app(bytes: u64, millis: u64) -> AppSpec {
        AppSpec {
            length: ByteCount::new(bytes),
            interval: Duration::from_millis(millis),
            latency_target: None,
        }
    }

    const PATH: PathSpec = PathSpec {
        bandwidth: Bandwidth::from_mbit_per_second(50),
        delay: Duration::from_millis(2),
    };

    #[test]
    fn lengths_are_those_of_the_packets() {
        let apps = [app(1_000_000, 200), app(100, 1)];
        let wire = WireLoadProblem::new(&[PATH; 2], &apps, &[format(72); 2]);
        let lengths: Vec<u64> = wire.apps.iter().map(|app| app.length.get()).collect();
        assert_eq!(lengths, [1_000_000 + 701 * 72, 172]);
        assert_eq!(wire.paths, [PATH; 2]);
        // The forecast's load, to the bit.
        assert_eq!(wire.apps[1].rate().as_bits_per_second(), 172 * 8_000);
    }

    #[test]
    fn a_path_with_longer_packets_carries_less() {
        let apps = [app(100, 1)];
        let wire = WireLoadProblem::new(&[PATH; 2], &apps, &[format(90), format(72)]);
        let carried = wire.paths[0].bandwidth.as_bits_per_second() as f64;
        assert!((carried / 50e6 - 172.0 / 190.0).abs() < 1e-6, "{carried}");
        assert_eq!(wire.paths[1], PATH);
        let whole = wire.bandwidth(0, wire.paths[0].bandwidth);
        assert!(whole.as_bits_per_second().abs_diff(50_000_000) <= 2);
    }

    #[test]
    fn nothing_is_planned_without_paths_or_applications() {
        assert_eq!(WireLoadProblem::new(&[], &[app(1, 0)], &[]).paths, []);
        let idle = WireLoadProblem::new(&[PATH; 2], &[], &[format(90), format(72)]);
        assert_eq!(idle.paths, [PATH; 2]);
        let endless = WireLoadProblem::new(&[PATH; 2], &[app(1, 0)], &[format(90), format(72)]);
        assert!(endless.paths[0].bandwidth < PATH.bandwidth);
    }
}
