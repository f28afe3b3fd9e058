//! Runs trials in the laboratory: two gateways, a line between them, and the traffic.
//!
//! All but [`shares`], [`scale`], [`routes`], [`flows`] and [`isps`] use the topology of
//! `aggregation/topology`, with the line's rate and delay as the trial says.

mod bulk;
mod clients;
mod flows;
mod isps;
mod routes;
mod scale;
mod shares;
mod spacing;

use keiro_control::units::Text;
use keiro_lab::Lab;
use keiro_units::Bandwidth;

use super::{
    Laboratory, built_in_topology,
    gateways::Program,
    transactions::{Addresses, WAN, keiro::Keiro},
};
use crate::{
    runner::Progress,
    transactions::TransactionTransport,
    trials::{Trial, TrialOutcome, TrialRequest, TrialRunner, Trials},
};

impl TrialRunner for Laboratory {
    fn missing(&self, trials: &Trials, case: usize) -> Option<String> {
        match &trials.trial {
            Trial::Routes(routes) => routes::missing(*routes.reflectors.get(case)?),
            _ => None,
        }
    }

    fn run(
        &mut self,
        request: &TrialRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let topology = built_in_topology(&request.trials.topology)?;
        let lab = self.lab(&topology, request.seed)?;
        let outcome = match &request.trials.trial {
            Trial::Bulk(bulk) => self.bulk(&lab, request, bulk, progress),
            Trial::Clients(clients) => self.clients(&lab, request, clients, progress),
            Trial::Spacing(spacing) => self.spacing(&lab, request, spacing, progress),
            Trial::Shares(shares) => self.shares(&lab, request, shares, progress),
            Trial::Scale(scale) => self.scale(&lab, request, scale, progress),
            Trial::Flows(flows) => self.flows(&lab, request, flows, progress),
            Trial::Isps(isps) => self.isps(&lab, request, isps, progress),
            Trial::Routes(routes) => self.routes(&lab, request, routes, progress),
        }?;
        lab.down()?;
        Ok(outcome)
    }
}

impl Laboratory {
    /// A pair of gateways with default settings and this path rate; waits until the path is up.
    fn pair(&self, lab: &Lab, addresses: &Addresses, rate: Bandwidth) -> anyhow::Result<Keiro> {
        let rate = Text(rate).to_string();
        Keiro::start_at(
            &rate,
            TransactionTransport::Keiro,
            lab,
            addresses,
            Program::anywhere(&self.programs.keiro),
        )
    }
}

/// Sets the line's rate, in both directions.
fn set_rate(lab: &Lab, rate: Bandwidth) -> anyhow::Result<()> {
    lab.link(WAN)?.change(|config| config.rate = Some(rate))?;
    Ok(())
}

/// Converts bit/s to Mbit/s.
fn megabits(bits_per_second: f64) -> f64 {
    bits_per_second / 1e6
}
