//! Goodput of one flow from the content server to a client over two transits: as plain TCP by the best path,
//! and as MPTCP with the EPE addresses. The links keep their rates or change them during the flow.

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use keiro_lab::Lab;
use keiro_linux::clock;
use keiro_units::Bandwidth;

use super::super::{
    Laboratory, PROGRESS_STEP,
    egress::{Arrival, Content, Flow, FlowStats, Provider, longest_gap},
    emulator_report,
};
use crate::{
    record,
    runner::Progress,
    trials::{Flows, Load, Pattern, Reflector, Transport, TrialOutcome, TrialRequest},
};

/// Share of a link's rate that is payload: 1360 bytes of TCP payload in a packet of 1514 bytes with Ethernet,
/// IPv6, TCP with timestamps, MPTCP and segment headers.
const PAYLOAD_SHARE: f64 = 0.9;
/// Block size at a constant rate: iperf3's, 128 KiB.
const BLOCK_BYTES: u64 = 131_072;
/// Time for adaptation after a change and after the start.
const ADAPTATION: Duration = Duration::from_secs(1);
/// Time limit of a transfer.
const BULK_MAX: Duration = Duration::from_secs(120);

impl Laboratory {
    pub(super) fn flows(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        flows: &Flows,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let (transport, load, pattern) = flows.cases().nth(request.case).context("a case")?;
        let provider = Provider::start(lab, Reflector::Frr, &self.programs.keiro)?;
        set(lab, [pattern.a.0, pattern.b.0])?;
        // Goodput over time is required only where rates change.
        let stats = pattern.then.as_ref().map(|_| {
            let interfaces = ["s1", "s2"];
            FlowStats::start(lab, &interfaces, &self.programs.keiro)
        });
        let stats = stats.transpose().with_context(|| provider.log_tail())?;
        lab.measure_from_now()?;
        let content = match load {
            Load::Cbr => Content::Rate(flows.cbr.0, BLOCK_BYTES),
            Load::Bulk => Content::Bytes(flows.bulk.of(request.quick).0.get()),
        };
        let time = flows.time.of(request.quick).0;
        let unix_begun = clock::unix_time();
        let flow = Flow::start(lab, transport, content)?;
        let (begun_ns, begun) = (flow.begun_ns, Instant::now());
        let mut change = pattern.then.as_ref();
        while !flow.has_ended() && (load == Load::Bulk || begun.elapsed() < time) {
            if begun.elapsed() > BULK_MAX {
                bail!("after {BULK_MAX:?} the transfer is not over");
            }
            if let Some(then) = change.take_if(|then| begun.elapsed() >= then.at(load)) {
                set(lab, [then.a.0, then.b.0])?;
            }
            thread::sleep(PROGRESS_STEP / 10);
            progress(&Progress {
                elapsed: begun.elapsed().min(request.extent.duration.0),
                applications: Vec::new(),
            });
        }
        let arrivals = flow.stop().with_context(|| provider.log_tail())?;
        let traces = stats.map(|stats| stats.stop(unix_begun)).transpose()?;
        let last = arrivals.last().context("nothing arrived")?.at_ns;
        let end_ns = match load {
            Load::Bulk => last,
            Load::Cbr => begun_ns + time.as_nanos() as u64,
        };
        let bytes: u64 = arrivals.iter().map(|arrival| arrival.bytes).sum();
        let seconds = (end_ns - begun_ns) as f64 / 1e9;
        let limit = match load {
            Load::Cbr => flows.cbr.0.as_bits_per_second() as f64,
            Load::Bulk => f64::INFINITY,
        };
        let links = Links {
            transport,
            pattern,
            load,
        };
        let worst = links.worst_second(&arrivals, begun_ns..end_ns, limit);
        let first = arrivals[0].at_ns;
        let mut values = vec![
            Some(bytes as f64 * 8.0 / 1e6 / seconds),
            worst,
            Some(longest_gap(&arrivals, first + 1, last + 1).ms()),
        ];
        let around = links.around_change(&arrivals, begun_ns..end_ns);
        values.extend(around.iter().flatten().copied());
        let void = around.and_then(|[before, _]| {
            let expected = links.carry([pattern.a.0, pattern.b.0]).min(limit) / 1e6;
            record::lacks_traffic("the flow", before.unwrap_or(0.0), expected)
        });
        Ok(TrialOutcome {
            values,
            durations_ms: Vec::new(),
            traces: traces.unwrap_or_default(),
            samples: Vec::new(),
            remarks: Vec::new(),
            void,
            emulator: emulator_report(lab)?,
        })
    }
}

/// Sets the rates of links a and b, in both directions.
fn set(lab: &Lab, rates: [Bandwidth; 2]) -> anyhow::Result<()> {
    for (link, rate) in ["a", "b"].into_iter().zip(rates) {
        lab.link(link)?.change(|config| config.rate = Some(rate))?;
    }
    Ok(())
}

/// The links that a flow has, and how they change.
struct Links<'a> {
    transport: Transport,
    pattern: &'a Pattern,
    load: Load,
}

impl Links<'_> {
    /// When they change, in ns after the beginning.
    fn changes(&self) -> Option<u64> {
        let then = self.pattern.then.as_ref()?;
        Some(then.at(self.load).as_nanos() as u64)
    }

    /// Payload that they carry at these rates, in bit/s. TCP has the best path only, which is over link a.
    fn carry(&self, [a, b]: [Bandwidth; 2]) -> f64 {
        let [a, b] = [a, b].map(|rate| rate.as_bits_per_second() as f64);
        PAYLOAD_SHARE
            * match self.transport {
                Transport::Tcp => a,
                Transport::Mptcp => a + b,
            }
    }

    /// Goodput before the change and from the end of adaptation on, in Mbit/s; `None` without a change, or
    /// for a time that the flow does not have.
    fn around_change(&self, arrivals: &[Arrival], time_ns: Range<u64>) -> Option<[Option<f64>; 2]> {
        let at = time_ns.start + self.changes()?;
        let adapts = ADAPTATION.as_nanos() as u64;
        let spans = [time_ns.start + adapts..at, at + adapts..time_ns.end];
        Some(spans.map(|span| {
            let of_span = arrivals
                .iter()
                .filter(|arrival| span.contains(&arrival.at_ns));
            let bytes: u64 = of_span.map(|arrival| arrival.bytes).sum();
            let ns = span.end.checked_sub(span.start).filter(|ns| *ns > 0)?;
            Some(bytes as f64 * 8e3 / ns as f64)
        }))
    }

    /// Goodput in the worst whole second, in percent of what its links carry then. Seconds of adaptation are
    /// left out; `None` if no others remain.
    fn worst_second(&self, arrivals: &[Arrival], time_ns: Range<u64>, limit: f64) -> Option<f64> {
        const SECOND: u64 = 1_000_000_000;
        let (changes, pattern) = (self.changes(), self.pattern);
        let adapts = ADAPTATION.as_nanos() as u64;
        let seconds = (time_ns.end - time_ns.start) / SECOND;
        let share = |second: u64| {
            let (from, to) = (second * SECOND, (second + 1) * SECOND);
            let adapting = changes.is_some_and(|at| to > at && from < at + adapts) || from < adapts;
            if adapting {
                return None;
            }
            let rates = match (changes, &pattern.then) {
                (Some(at), Some(then)) if from >= at => [then.a.0, then.b.0],
                _ => [pattern.a.0, pattern.b.0],
            };
            let carries = self.carry(rates).min(limit);
            let in_second = arrivals.iter().filter(|arrival| {
                let at = arrival.at_ns.saturating_sub(time_ns.start);
                (from..to).contains(&at)
            });
            let bytes: u64 = in_second.map(|arrival| arrival.bytes).sum();
            Some(bytes as f64 * 8.0 / carries * 100.0)
        };
        (0..seconds).filter_map(share).reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn the_worst_second_is_relative_to_the_capacity_then() {
        let plan = Plan::find("egress/scenario2")
            .unwrap()
            .trials()
            .unwrap()
            .clone();
        let crate::trials::Trial::Flows(flows) = &plan.trial else {
            panic!("flows");
        };
        let pattern = &flows.patterns[0];
        assert_eq!(pattern.name(), "30/15 to 15/15");
        let arrivals: Vec<Arrival> = (0..10)
            .map(|second| Arrival {
                at_ns: second * 1_000_000_000 + 5,
                // Second 4 is adaptation and has no data.
                bytes: if [0, 4].contains(&second) {
                    0
                } else {
                    3_000_000
                },
            })
            .collect();
        let limit = 25e6;
        let links = |transport| Links {
            transport,
            pattern,
            load: Load::Cbr,
        };
        let worst = |transport| links(transport).worst_second(&arrivals, 0..10_000_000_000, limit);
        assert_eq!(worst(Transport::Mptcp), Some(24.0 / 25.0 * 100.0));
        // The best path alone carries 25 and then 13.5 Mbit/s.
        assert_eq!(worst(Transport::Tcp), Some(24.0 / 25.0 * 100.0));
        let around = links(Transport::Mptcp).around_change(&arrivals, 0..10_000_000_000);
        assert_eq!(around, Some([Some(24.0), Some(24.0)]));
        let short = links(Transport::Mptcp).around_change(&arrivals, 0..5_000_000_000);
        assert_eq!(short, Some([Some(24.0), None]));
    }
}
