//! `keiro-lab max-min`: max-min fair rates of flows over links.

use std::process::ExitCode;

use keiro_experiment::max_min::Allocation;

use super::Outcome;
use crate::{
    args,
    output::{self, table::Table},
};

pub(super) fn max_min(args: &args::MaxMin) -> Outcome {
    let allocation = Allocation::read(&args.file)?;
    if args.json {
        output::json(&allocation)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut flows = Table::new(&["flow", "weight", "demand", "rate", "per weight", "bound by"]);
    for flow in &allocation.flows {
        flows.row([
            flow.name.as_str(),
            &flow.weight.to_string(),
            &flow.demand_mbit.map_or_else(|| "-".to_owned(), shown),
            &shown(flow.rate_mbit),
            &shown(flow.rate_mbit / flow.weight),
            &flow.bound_by,
        ]);
    }
    output::text(flows)?;
    let mut links = Table::new(&["link", "capacity", "used"]);
    for link in &allocation.links {
        let (capacity, used) = (shown(link.capacity_mbit), shown(link.used_mbit));
        links.row([link.name.as_str(), &capacity, &used]);
    }
    output::text("")?;
    output::text(links)?;
    Ok(ExitCode::SUCCESS)
}

fn shown(mbit: f64) -> String {
    format!("{mbit:.3} Mbit/s")
}
