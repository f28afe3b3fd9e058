//! Records of runs: one per message, and the lateness of the emulator.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{figure::csv_text, row::Source, setup::Setup};

/// One message, from its sending to its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRecord {
    /// Index of the application in the setup.
    pub application: usize,
    /// Sequence number among the application's messages of this run, from 0.
    pub sequence: u64,
    /// Scheduled time in ns since the run began, even if the sender handed the message over late.
    pub made_ns: u64,
    /// Arrival of its last byte in ns since the run began; `None` if it never arrived.
    pub received_ns: Option<u64>,
    pub length: u64,
}

impl MessageRecord {
    /// Delay in ms; infinite for a message that never arrived.
    pub fn delay_ms(&self) -> f64 {
        match self.received_ns {
            Some(received) => received.saturating_sub(self.made_ns) as f64 / 1e6,
            None => f64::INFINITY,
        }
    }
}

/// Lateness of the link emulator's packets against its own schedule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EmulatorReport {
    pub packets: u64,
    /// Median lateness in µs.
    pub lateness_p50_us: f64,
    /// 99th percentile of the lateness in µs; the run is void above [`LATENESS_VOID_US`].
    pub lateness_p99_us: f64,
    /// The greatest lateness in µs.
    pub lateness_max_us: f64,
    /// Whether idle processors polled instead of halting.
    pub cpus_awake: bool,
}

/// A run is void if the emulator's lateness at the 99th percentile exceeds this, in µs.
pub const LATENESS_VOID_US: f64 = 200.0;

impl EmulatorReport {
    /// Whether the run is void.
    pub fn is_void(&self) -> bool {
        self.lateness_p99_us.is_nan() || self.lateness_p99_us > LATENESS_VOID_US
    }
}

/// One run of one variant.
#[derive(Clone, Debug)]
pub struct Run {
    /// The round, from 0.
    pub round: u32,
    /// The seed of the arrivals.
    pub seed: u64,
    /// All messages, including those of the warm-up.
    pub records: Vec<MessageRecord>,
    /// `None` in the simulator.
    pub emulator: Option<EmulatorReport>,
    /// How often it was repeated because the emulator was late.
    pub repeats: u32,
}

impl Run {
    /// Whether it is still void after its repeats.
    pub fn is_void(&self) -> bool {
        self.emulator.is_some_and(|e| e.is_void())
    }
}

/// All runs of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    /// Runs by source and variant, in the order of their rounds.
    pub runs: BTreeMap<(Source, usize), Vec<Run>>,
    /// Remarks for the reader, such as that a source was not available.
    pub notes: Vec<String>,
}

impl Measurement {
    pub fn runs(&self, source: Source, variant: usize) -> &[Run] {
        self.runs.get(&(source, variant)).map_or(&[], Vec::as_slice)
    }

    /// Whether a run of this variant is void, which voids all its values.
    pub fn is_void(&self, source: Source, variant: usize) -> bool {
        self.runs(source, variant).iter().any(Run::is_void)
    }

    /// Delays in ms of an application's counted messages, in batches.
    ///
    /// Each run is cut into [`parts`] of equal time. Runs are independent of each other; parts of one run
    /// nearly so, because a part is much longer than the correlation of a queue.
    pub fn batches(
        &self,
        source: Source,
        variant: usize,
        application: usize,
        window: &Window,
    ) -> Vec<Vec<f64>> {
        let runs = self.runs(source, variant);
        let parts = parts(runs.len());
        let mut batches = vec![Vec::new(); runs.len() * parts];
        for (run, batches) in runs.iter().zip(batches.chunks_mut(parts)) {
            for record in run.records.iter().filter(|r| r.application == application) {
                if let Some(part) = window.part(record.made_ns, parts) {
                    batches[part].push(record.delay_ms());
                }
            }
        }
        batches
    }

    /// Messages that never arrived, of all applications, warm-up included.
    pub fn undelivered(&self, source: Source, variant: usize) -> usize {
        let records = self.runs(source, variant).iter().flat_map(|r| &r.records);
        records.filter(|r| r.received_ns.is_none()).count()
    }

    /// Every message as CSV.
    pub fn csv(&self, setup: &Setup) -> String {
        let mut csv =
            "source,variant,round,application,sequence,made_ns,received_ns,length_bytes\n"
                .to_owned();
        for ((source, variant), runs) in &self.runs {
            let source = if *source == Source::Lab { "lab" } else { "sim" };
            let variant = csv_text(&setup.variants[*variant].name);
            for run in runs {
                for r in &run.records {
                    let application = csv_text(&setup.applications[r.application].name);
                    let received = r.received_ns.map(|ns| ns.to_string()).unwrap_or_default();
                    csv.push_str(&format!(
                        "{source},{variant},{},{application},{},{},{received},{}\n",
                        run.round, r.sequence, r.made_ns, r.length
                    ));
                }
            }
        }
        csv
    }
}

/// The part of a run in which messages count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Messages made before this are warm-up.
    pub from: Duration,
    /// The end of the schedule.
    pub to: Duration,
}

impl Window {
    /// Index of the part, out of `parts` of equal length, in which a message sent at `made_ns` falls; `None`
    /// outside the window.
    pub(crate) fn part(&self, made_ns: u64, parts: usize) -> Option<usize> {
        let (from, to) = (self.from.as_nanos(), self.to.as_nanos());
        let made = u128::from(made_ns);
        if made < from || made >= to {
            return None;
        }
        let part = (made - from) * parts as u128 / (to - from);
        usize::try_from(part).ok().filter(|part| *part < parts)
    }
}

/// Number of parts into which each of `runs` runs is cut to have at least [`BATCHES_MIN`] batches.
pub fn parts(runs: usize) -> usize {
    BATCHES_MIN.div_ceil(runs.max(1))
}

/// Fewer batches make Student's t wide. Ours, after the usual advice of 10 to 30.
pub const BATCHES_MIN: usize = 10;

/// Why an event shows nothing about traffic that was not there before it; `None` if it was. In Mbit/s.
pub(crate) fn lacks_traffic(what: &str, had: f64, expected: f64) -> Option<String> {
    (had < expected * TRAFFIC_MIN).then(|| {
        format!(
            "before the event {what} had {had:.2} Mbit/s of {expected:.2}; the event shows nothing"
        )
    })
}

/// Share of the expected traffic without which an event shows nothing. Ours: what works has far more, what
/// does not has far less.
const TRAFFIC_MIN: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(application: usize, made_ms: u64, delay_ms: Option<u64>) -> MessageRecord {
        MessageRecord {
            application,
            sequence: 0,
            made_ns: made_ms * 1_000_000,
            received_ns: delay_ms.map(|d| (made_ms + d) * 1_000_000),
            length: 1,
        }
    }

    fn measurement(runs: Vec<Vec<MessageRecord>>) -> Measurement {
        let runs = runs
            .into_iter()
            .map(|records| Run {
                round: 0,
                seed: 0,
                records,
                emulator: None,
                repeats: 0,
            })
            .collect();
        Measurement {
            runs: BTreeMap::from([((Source::Lab, 0), runs)]),
            notes: Vec::new(),
        }
    }

    const WINDOW: Window = Window {
        from: Duration::from_secs(1),
        to: Duration::from_secs(11),
    };

    #[test]
    fn warm_up_is_not_counted() {
        let m = measurement(vec![vec![
            record(0, 999, Some(5)),
            record(0, 1000, Some(7)),
            record(0, 10_999, Some(9)),
            record(0, 11_000, Some(11)),
        ]]);
        let batches = m.batches(Source::Lab, 0, 0, &WINDOW);
        assert_eq!(batches.len(), BATCHES_MIN);
        assert_eq!(batches.concat(), vec![7.0, 9.0]);
        assert_eq!((batches[0].len(), batches[9].len()), (1, 1));
    }

    #[test]
    fn ten_runs_are_ten_batches_and_one_run_is_ten() {
        assert_eq!(
            (parts(12), parts(10), parts(9), parts(2), parts(1)),
            (1, 1, 2, 5, 10)
        );
    }

    #[test]
    fn a_message_that_never_arrived_has_an_infinite_delay() {
        let m = measurement(vec![vec![record(0, 2000, None), record(1, 2000, Some(1))]]);
        assert_eq!(m.undelivered(Source::Lab, 0), 1);
        assert_eq!(
            m.batches(Source::Lab, 0, 0, &WINDOW).concat(),
            vec![f64::INFINITY]
        );
    }

    #[test]
    fn a_late_emulator_voids_the_run() {
        let report = |p99| EmulatorReport {
            packets: 1,
            lateness_p50_us: 10.0,
            lateness_p99_us: p99,
            lateness_max_us: p99,
            cpus_awake: true,
        };
        assert!(!report(200.0).is_void());
        assert!(report(200.1).is_void());
        assert!(report(f64::NAN).is_void());
    }
}
