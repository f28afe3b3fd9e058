//! Keeps a plan in force while paths and applications change.
//!
//! How a change is handled: a path is sampled some ten times a second. [`TrackedPath`] detects when it
//! differs from the path that was planned with, whether it may be used ([`eligible_paths()`]), and whether it
//! loses more than an application tolerates ([`tolerable_paths()`]). Of those that are left, it takes one that costs more
//! only for a latency target ([`cheapest_paths()`]).
//! [`plan_moves()`] then chooses the moves, with the hysteresis of
//! [`plan::Incumbent`](crate::plan::Incumbent), and [`BackupPaths`] holds where applications would go if
//! a path failed. The first step filters noise, the second gains that are not worth a move.
//!
//! It has no clock and no names, so the gateway and the simulator drive it alike.

mod backup_paths;
mod change_detector;
mod cheapest;
mod hold_down;
mod loss_monitor;
mod path_estimate_tracker;
mod preferred_paths;
mod steering_plan;
mod tracked_path;

pub use backup_paths::BackupPaths;
pub use change_detector::{ChangeDetector, MinChange, MinChanges};
pub use cheapest::{CostRule, cheapest_paths};
pub use hold_down::{PathHoldDown, eligible_paths, probation_paths};
pub use loss_monitor::{LossMonitor, LossUnit, PathChoice, tolerable_paths};
pub use path_estimate_tracker::{PathEstimateTracker, path_queue, path_spec};
pub use preferred_paths::PreferredPaths;
pub use steering_plan::{PlanMode, SteeredApp, SteeringPlan, placed_incumbent, plan_moves};
pub use tracked_path::TrackedPath;

pub use keiro_model::observation::{PathObservation, PathSample};
