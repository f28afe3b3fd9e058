//! Measures all sizes over all networks in interleaved rounds.

use anyhow::{Context, bail};
use keiro_units::ByteCount;

use super::Transfers;
use crate::{
    campaign::Status,
    plan::Plan,
    row::Source,
    runner::{Progress, Runner},
    setup::nearest,
};

#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// In the order in which they were made.
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) source: Option<Source>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transfer {
    /// Index of the network.
    pub(crate) network: usize,
    pub(crate) round: u32,
    pub(crate) size: ByteCount,
    /// `None` if it took longer than a run may take.
    pub(crate) seconds: Option<f64>,
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

/// # Errors
/// A transfer could not be carried out.
pub(crate) fn measure(
    runners: &mut [Box<dyn Runner + '_>],
    plan: &Plan,
    transfers: &Transfers,
    selected: &[usize],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let extent = plan.setup.extent(quick);
    let Some(runner) = runners.iter_mut().find_map(|runner| runner.transfers()) else {
        return Ok(Measured::default());
    };
    let source = runner.source();
    let mut measured = Measured {
        transfers: Vec::new(),
        source: Some(source),
    };
    let sizes = &transfers.networks.sizes;
    let total = f64::from(extent.rounds) * (selected.len() * sizes.len()) as f64;
    for round in 0..extent.rounds {
        for (place, size) in sizes.iter().enumerate() {
            for &network in selected {
                let shown = transfers.shown.iter().position(|known| *known == network);
                let variant = shown.context("the plan has no such network")?;
                watch(&Status {
                    fraction: measured.transfers.len() as f64 / total,
                    source,
                    setup: &plan.setup,
                    variant,
                    round,
                    repeat: 0,
                    run: &Progress::default(),
                });
                let of = &transfers.networks.networks[network];
                let seed = extent.seed_of(round).wrapping_mul(sizes.len() as u64);
                let seed = seed.wrapping_add(place as u64);
                let seconds = runner
                    .transfer(of, size.0, seed, extent.duration.0)
                    .with_context(|| format!("{}, {size}", of.name))?;
                measured.transfers.push(Transfer {
                    network,
                    round,
                    size: size.0,
                    seconds,
                });
            }
        }
    }
    Ok(measured)
}
