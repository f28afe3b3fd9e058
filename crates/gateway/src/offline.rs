//! Planning from a configuration alone, for those who ask before anything runs.

use std::{collections::BTreeMap, time::Instant as Stopwatch};

use keiro_control::{
    config::{Config, Found, PathIndex, PathOrigin, Peer, PeerIndex},
    protocol::{ErrorResponse, PlanSnapshot, WhatIf},
};
use keiro_planning::{PlanMode, PlannerConfig, PlannerInput, Situation, forecast::ForecastState};

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
    let situation = Situation {
        config: &PlannerConfig::of(config),
        input: &input,
        forecast_state: &ForecastState::default(),
        plan_mode: PlanMode::FromScratch,
        now: &BTreeMap::new(),
    };
    let begun = Stopwatch::now();
    let plan = situation.plan_after(what_if)?;
    Ok(PlanSnapshot {
        changes: 0,
        planning_seconds: begun.elapsed().as_secs_f64(),
        ..plan
    })
}

/// A peer without any endpoint comes to us, over whichever path it likes.
fn reaches(path: PathIndex, peer: &Peer) -> bool {
    peer.endpoints.is_empty() || peer.endpoints.contains_key(&path)
}
