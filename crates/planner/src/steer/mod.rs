//! Keeps a plan in force while paths and applications change.
//!
//! The way of a change: a path is sampled some ten times a second; [`TrackedPath`] says when it is
//! another path than that which was planned with, and whether it is one to go to ([`eligible_paths()`]);
//! [`plan_moves()`] then says who moves, with the hysteresis of
//! [`plan::Incumbent`](crate::plan::Incumbent), and [`BackupPaths`] where everybody would go if a path
//! died. Noise ends in the first step, gains not worth a move in the second.
//!
//! It knows no clock and no names: the gateway and the simulator drive it alike.

mod backup_paths;
mod hold_down;
mod level;
mod path_levels;
mod preferred_paths;
mod steering_plan;
mod tracked_path;

pub use backup_paths::BackupPaths;
pub use hold_down::{PathHoldDown, eligible_paths, probation_paths};
pub use level::{Floor, Floors, Level};
pub use path_levels::{PathLevels, PathSample};
pub use preferred_paths::PreferredPaths;
pub use steering_plan::{PlanMode, SteeredApp, SteeringPlan, placed_incumbent, plan_moves};
pub use tracked_path::{PathObservation, TrackedPath};
