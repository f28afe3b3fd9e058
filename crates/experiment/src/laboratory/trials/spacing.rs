//! Bandwidth estimates of the gateways while many clients send little.

use anyhow::Context;
use keiro_control::protocol::PathSnapshot;
use keiro_lab::{
    Lab,
    traffic::transactions::{Clients as Connections, Server, Transactions},
};
use keiro_units::Bandwidth;

use super::{
    super::{
        Laboratory, emulator_report,
        transactions::{Addresses, CLIENTS, carry_plan, open_transport::OpenTransport},
    },
    megabits, set_rate,
};
use crate::{
    runner::Progress,
    trials::{Spacing, TrialOutcome, TrialRequest},
};

/// A gateway's estimate of the line towards the other.
struct SpacingResults {
    megabits: Option<f64>,
    error: Option<f64>,
    is_from_copies: bool,
    words: String,
}

impl Laboratory {
    pub(super) fn spacing(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        spacing: &Spacing,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let case = spacing.cases().nth(request.case);
        let (load, bandwidth) = case.context("the plan has no such case")?;
        let addresses = Addresses::of(lab)?;
        set_rate(lab, bandwidth)?;
        let server = lab.host("server")?;
        let server = Server::start(server, addresses.server, load.message.0, None, None)?;
        let rate = bandwidth.as_bits_per_second() as f64 * spacing.rate_factor;
        let mut pair = self.pair(
            lab,
            &addresses,
            Bandwidth::from_bits_per_second(rate as u64),
        )?;
        let measured = (|| {
            let host = lab.host(CLIENTS[0])?;
            let clients = Connections::connect(&[host], spacing.clients, pair.entry(), None)?;
            let plan = Transactions {
                per_second: load.per_second,
                round_trips: 1,
                message: load.message.0,
                seed: request.seed,
                duration: request.extent.duration.0,
                drain: request.extent.drain.0,
                cpu: None,
            };
            carry_plan(lab, &plan, clients, progress)?;
            let [a, b] = pair.gateways();
            anyhow::Ok([
                SpacingResults::of(&a.paths()?, bandwidth),
                SpacingResults::of(&b.paths()?, bandwidth),
            ])
        })();
        let [out, back] = measured.with_context(|| pair.log_tail())?;
        let emulator = emulator_report(lab)?;
        pair.close()?;
        server.stop()?;
        let worst = out.error.zip(back.error).map(|(out, back)| out.max(back));
        let copies = [&out, &back].iter().filter(|t| t.is_from_copies).count();
        Ok(TrialOutcome {
            values: vec![
                out.megabits,
                back.megabits,
                out.error,
                back.error,
                worst,
                Some(copies as f64 * 50.0),
            ],
            durations_ms: Vec::new(),
            traces: Vec::new(),
            samples: Vec::new(),
            remarks: vec![format!("out {}; back {}", out.words, back.words)],
            void: None,
            emulator,
        })
    }
}

impl SpacingResults {
    fn of(paths: &[PathSnapshot], bandwidth: Bandwidth) -> Self {
        let aggregation = paths.iter().find_map(|path| path.aggregation.as_ref());
        let bits = aggregation.and_then(|a| a.stats.bandwidth);
        let source = aggregation.and_then(|a| a.bandwidth_source.clone());
        let source = source.unwrap_or_default();
        let trains = paths.iter().find_map(|path| path.capacity.as_ref());
        let mbit = bits.map(|bits| megabits(bits.as_bits_per_second() as f64));
        let line = megabits(bandwidth.as_bits_per_second() as f64);
        let shown = |value: Option<f64>| match value {
            Some(value) => format!("{value:.2} Mbit/s"),
            None => "nothing".to_owned(),
        };
        let trains = trains.map(|c| megabits(c.rate.as_bits_per_second() as f64));
        Self {
            megabits: mbit,
            error: mbit.map(|mbit| 100.0 * (mbit / line - 1.0).abs()),
            is_from_copies: source == "copies",
            words: format!(
                "{} from {}, trains {}, {}",
                shown(mbit),
                if source.is_empty() {
                    "nothing"
                } else {
                    &source
                },
                shown(trains),
                parameters(aggregation)
            ),
        }
    }
}

fn parameters(aggregation: Option<&keiro_control::protocol::AggregationSnapshot>) -> String {
    aggregation.map_or_else(String::new, |a| {
        format!(
            "S {} B, I {} ms, N {}",
            a.stats.size_bytes,
            a.stats.interval.as_secs_f64() * 1e3,
            a.stats.copies
        )
    })
}
