//! What the core has measured of an application's traffic, in the planner's terms.

use std::time::Duration;

use keiro_control::config::Class;
use keiro_core::Instant;
use keiro_model::workload::Workload;

use crate::data::messages::tag::TAG_BYTES;

/// A measured mean or 99th percentile counts from this many messages on.
pub(crate) const MEASURED_MIN: u64 = 100;
/// Shortest interval that is planned with.
pub(crate) const INTERVAL_MIN: Duration = Duration::from_micros(1);

/// Whether the application has stopped sending.
pub(crate) fn has_stopped(measured: &Workload, now: Instant) -> bool {
    now.saturating_duration_since(measured.last_made) > measured.silence_max()
}

/// Mean message length in bytes, without the tag that messages carry over the overlay.
pub(crate) fn body_bytes(class: Class, measured: &Workload) -> f64 {
    match class {
        Class::Message => measured.length_bytes - TAG_BYTES as f64,
        Class::Datagram | Class::Stream => measured.length_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_of_many_intervals_and_a_minute_is_the_end() {
        let stopped = |interval: Duration, silent: Duration| {
            let measured = Workload {
                count: 100,
                length_bytes: 1000.0,
                length_variation: 0.0,
                interval,
                interval_variation: 1.0,
                together: 0.1,
                last_made: Instant::ZERO,
            };
            has_stopped(&measured, Instant::ZERO + silent)
        };
        let seconds = Duration::from_secs;
        assert!(!stopped(Duration::from_millis(10), seconds(60)));
        assert!(stopped(Duration::from_millis(10), seconds(61)));
        assert!(!stopped(seconds(10), seconds(200)));
        assert!(stopped(seconds(10), seconds(201)));
    }
}
