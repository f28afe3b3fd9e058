//! Planning from a configuration alone, for those who ask before anything runs.

use keiro_control::{
    config::{Config, Found, PathIndex, PathOrigin, Peer, PeerIndex},
    protocol::{ErrorResponse, PlanSnapshot, WhatIf},
};

use crate::{
    planning::{
        PlanMode, PlannerInput, PlanningProblem, forecast::ForecastState, what_if::suppose,
    },
    show::plan_snapshot,
};

/// What the gateway would plan if every path were up and nothing had been measured.
///
/// Paths without `delay` count as having none, applications without `length` or `interval` as
/// sending next to nothing. Nothing is in force, so nothing changes.
///
/// # Errors
/// What in `what_if` cannot be supposed.
pub fn plan_of(config: &Config, what_if: &[WhatIf]) -> Result<PlanSnapshot, ErrorResponse> {
    let config = &config.resolved(&Found::default());
    let mut input = PlannerInput::default();
    for (number, peer) in config.peers.iter().enumerate() {
        let leads_there = |path: &PathIndex| {
            let is_further = matches!(config[*path].origin, PathOrigin::Further(_));
            reaches(*path, peer) && (!is_further || peer.further_paths.contains(path))
        };
        let paths = (0..config.paths.len()).map(PathIndex).filter(leads_there);
        input
            .up
            .extend(paths.map(|path| ((path, PeerIndex(number)), None)));
    }
    let forecast_state = ForecastState::default();
    let answer = |config: &Config, input: &PlannerInput| {
        PlanningProblem::new(config, input).answer(config, PlanMode::FromScratch, &forecast_state)
    };
    let supposed = suppose(config, &input, what_if)?;
    let then = answer(&supposed.config, &supposed.input);
    let newly_unmet = match what_if.is_empty() {
        true => Vec::new(),
        false => supposed.newly_unmet(&answer(config, &input), &then),
    };
    Ok(PlanSnapshot {
        changes: 0,
        newly_unmet,
        without_effect: supposed.without_effect,
        ..plan_snapshot(&supposed.config, &then, &input.now, &input.shared)
    })
}

/// A peer without any endpoint comes to us, over whichever path it likes.
fn reaches(path: PathIndex, peer: &Peer) -> bool {
    peer.endpoints.is_empty() || peer.endpoints.contains_key(&path)
}
