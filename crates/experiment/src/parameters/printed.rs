//! The controller of [aggregation table 2] as printed, to be compared with what the paper means.
//!
//! The printed recovery never shortens the longest interval again, and never enlarges a small size. It counts the
//! overflows of the receiver's whole system. [`Table2`] says what is meant.

use keiro_model::aggregation::{
    CustomController, Limits, Observation, Parameters, Reading, Recovery, Table2,
};

/// Table 2 as printed.
pub static TABLE2_PRINTED: CustomController = CustomController {
    name: "table2-printed",
    make: |limits, bandwidth| Ok(Box::new(Table2::<Printed>::new(limits, bandwidth)?)),
};

/// S rises if it is above its initial value or I is at its minimum; I falls if it is below its
/// maximum. Overflows are those of the whole system.
#[derive(Clone, Copy, Debug, Default)]
struct Printed;

impl Reading for Printed {
    fn overflows_per_second(seen: &Observation) -> f64 {
        seen.overflows_per_second()
    }

    fn recovery(current: &Parameters, limits: &Limits) -> Recovery {
        let at_min = current.interval() == limits.interval_min();
        Recovery {
            size_may_rise: current.size() > limits.initial().size() || at_min,
            interval_may_fall: current.interval() < limits.interval_max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keiro_model::aggregation::Controller;
    use keiro_units::{Bandwidth, ByteCount, Instant};

    use super::*;

    /// A second with so many overflows of the socket and of the rest of the system.
    fn second(socket_overflows: u64, system_overflows: u64) -> Observation {
        Observation {
            period: Duration::from_secs(1),
            socket_overflows,
            system_overflows,
            bandwidth: Bandwidth::from_mbit_per_second(1000),
            ..Observation::default()
        }
    }

    fn controller<R: Reading>() -> Table2<R> {
        Table2::new(Limits::default(), Bandwidth::from_mbit_per_second(1000)).unwrap()
    }

    #[test]
    fn every_cell_of_the_receivers_columns_as_printed() {
        // The initial size is 2048 B; intervals are from 500 us to 4 ms.
        for (size, interval_us, size_may_rise, interval_may_fall) in [
            // "I < maximum" does not hold at the maximum, "S > initial" not at or below it.
            (1024, 4000, false, false),
            (2048, 4000, false, false),
            // Above its initial value S rises for ever.
            (2304, 4000, true, false),
            (2304, 1000, true, true),
            // Below the maximum I falls.
            (1024, 2000, false, true),
            (2048, 1000, false, true),
            (1024, 500, true, true),
        ] {
            let interval = Duration::from_micros(interval_us);
            let current = Parameters::new(ByteCount::new(size), interval, 2).unwrap();
            let expected = Recovery {
                size_may_rise,
                interval_may_fall,
            };
            let found = Printed::recovery(&current, &Limits::default());
            assert_eq!(found, expected, "{current}");
        }
    }

    #[test]
    fn from_the_longest_interval_only_the_intended_reading_recovers() {
        let mut meant = controller::<keiro_model::aggregation::Meant>();
        let mut printed = controller::<Printed>();
        for overflows in [40, 0] {
            for _ in 0..100 {
                meant
                    .on_period(Instant::ZERO, &second(overflows, 0))
                    .unwrap();
                printed
                    .on_period(Instant::ZERO, &second(overflows, 0))
                    .unwrap();
            }
        }
        let us = |controller: &dyn Controller| controller.parameters().interval().as_micros();
        assert_eq!((us(&meant), us(&printed)), (500, 4000));
    }

    #[test]
    fn overflows_of_the_rest_of_the_system_move_the_printed_reading() {
        let mut printed = controller::<Printed>();
        let decision = printed.on_period(Instant::ZERO, &second(10, 1000)).unwrap();
        assert_eq!(decision.parameters.interval(), Duration::from_millis(2));
    }
}
