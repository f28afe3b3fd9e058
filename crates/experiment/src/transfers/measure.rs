//! Measures all sizes over all networks in interleaved rounds.

use anyhow::{Context, bail};
use keiro_units::ByteCount;

use super::{Networks, TransferOutcome, TransferRunner, Transfers};
use crate::{
    campaign::{Status, until_valid},
    plan::Plan,
    row::Source,
    runner::Progress,
    setup::{Extent, nearest},
};

#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// In the order in which they were made.
    pub(crate) transfers: Vec<Transfer>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transfer {
    pub(crate) source: Source,
    /// Index of the network.
    pub(crate) network: usize,
    pub(crate) round: u32,
    /// How often it was repeated because the emulator was late.
    pub(crate) repeats: u32,
    pub(crate) size: ByteCount,
    pub(crate) outcome: TransferOutcome,
}

impl Transfer {
    /// Whether the emulator was late in every repeat.
    pub(crate) fn is_void(&self) -> bool {
        self.outcome.is_void()
    }
}

/// The networks with these names; all that are shown if there are none.
pub(crate) fn select(transfers: &Transfers, names: &[String]) -> anyhow::Result<Vec<usize>> {
    let name = |network: usize| transfers.networks.networks[network].name.as_str();
    let known = || transfers.shown.iter().map(|&network| name(network));
    if let Some(wrong) = names
        .iter()
        .find(|name| known().all(|known| known != *name))
    {
        bail!("there is no network `{wrong}`{}", nearest(wrong, known()));
    }
    let is_selected =
        |network: &usize| names.is_empty() || names.iter().any(|n| n == name(*network));
    Ok(transfers
        .shown
        .iter()
        .copied()
        .filter(is_selected)
        .collect())
}

/// Measures in every source that there is.
///
/// # Errors
/// A transfer could not be carried out.
pub(crate) fn measure(
    runners: &mut [Box<dyn TransferRunner + '_>],
    plan: &Plan,
    transfers: &Transfers,
    selected: &[usize],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let total: usize = runners
        .iter()
        .map(|runner| Measuring::new(plan, transfers, selected, runner.source(), quick).count())
        .sum();
    let mut measured = Measured::default();
    for runner in runners {
        let measuring = Measuring::new(plan, transfers, selected, runner.source(), quick);
        measuring.carry_out(runner.as_mut(), total, &mut measured, watch)?;
    }
    Ok(measured)
}

/// What is measured in one source.
struct Measuring<'a> {
    plan: &'a Plan,
    transfers: &'a Transfers,
    selected: &'a [usize],
    source: Source,
    extent: &'a Extent,
    rounds: u32,
    /// Indices of the sizes.
    sizes: Vec<usize>,
}

impl<'a> Measuring<'a> {
    fn new(
        plan: &'a Plan,
        transfers: &'a Transfers,
        selected: &'a [usize],
        source: Source,
        quick: bool,
    ) -> Self {
        let extent = plan.setup.extent(quick);
        let (extent, rounds, sizes) = match (source, quick) {
            (Source::Lab, true) => (extent, 1, few(&transfers.networks)),
            (Source::Lab, false) => {
                let extent = transfers.networks.lab.as_ref().unwrap_or(extent);
                (extent, extent.rounds, all(&transfers.networks))
            }
            (Source::Sim, _) => (extent, extent.rounds, all(&transfers.networks)),
        };
        Self {
            plan,
            transfers,
            selected,
            source,
            extent,
            rounds,
            sizes,
        }
    }

    fn count(&self) -> usize {
        self.rounds as usize * self.sizes.len() * self.selected.len()
    }

    /// `total` is the number of transfers in all sources.
    fn carry_out(
        &self,
        runner: &mut dyn TransferRunner,
        total: usize,
        measured: &mut Measured,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<()> {
        let networks = &self.transfers.networks;
        for round in 0..self.rounds {
            for &place in &self.sizes {
                for &network in self.selected {
                    let shown = self.transfers.shown.iter();
                    let variant = shown.copied().position(|known| known == network);
                    let variant = variant.context("the plan has no such network")?;
                    let (of, size) = (&networks.networks[network], networks.sizes[place]);
                    let fraction = measured.transfers.len() as f64 / total as f64;
                    let seed = self.extent.seed_of(round);
                    let seed = seed.wrapping_mul(networks.sizes.len() as u64);
                    let seed = seed.wrapping_add(place as u64);
                    let once = |repeat| {
                        watch(&Status {
                            fraction,
                            source: self.source,
                            setup: &self.plan.setup,
                            variant,
                            round,
                            repeat,
                            run: &Progress::default(),
                        });
                        let limit = self.extent.duration.0;
                        let outcome = runner.transfer(of, size.0, seed, limit);
                        outcome.with_context(|| format!("{}, {size}", of.name))
                    };
                    let (outcome, repeats) = until_valid(once, TransferOutcome::is_void)?;
                    measured.transfers.push(Transfer {
                        source: self.source,
                        network,
                        round,
                        repeats,
                        size: size.0,
                        outcome,
                    });
                }
            }
        }
        Ok(())
    }
}

fn all(networks: &Networks) -> Vec<usize> {
    (0..networks.sizes.len()).collect()
}

/// Every second size, if enough for a line remain on each side of the split; else all.
fn few(networks: &Networks) -> Vec<usize> {
    let few: Vec<usize> = (0..networks.sizes.len()).step_by(QUICK_STEP).collect();
    let is_below = |place: &&usize| networks.sizes[**place].0 <= networks.split.0;
    let below = few.iter().filter(is_below).count();
    match below.min(few.len() - below) >= FIT_MIN {
        true => few,
        false => all(networks),
    }
}

/// In the laboratory a transfer takes its real time. Ours: a quick run of three networks takes two minutes.
const QUICK_STEP: usize = 2;

/// A line is fitted to that many transfers at least.
const FIT_MIN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_runs_of_the_laboratory_measure_fewer_sizes_on_both_sides() {
        let plan = Plan::find("latency-bandwidth/fig2").expect("a plan");
        let transfers = plan.transfers().expect("transfers");
        let count = |source, quick| Measuring::new(&plan, transfers, &[0], source, quick).count();
        assert_eq!(count(Source::Sim, true), 40);
        assert_eq!(count(Source::Lab, true), 10);
        assert_eq!(count(Source::Lab, false), 40);
        let mut networks = transfers.networks.clone();
        networks.sizes.truncate(18);
        assert_eq!(
            few(&networks).len(),
            18,
            "three transfers above the split are no line"
        );
    }
}
