//! Keeps a plan in force while paths and applications change.
//!
//! The way of a change: a path is sampled some ten times a second; [`FollowedPath`] says when it is
//! another path than that which was planned with, and whether it is one to go to ([`choices()`]);
//! [`arrange()`] then says who moves, with the hysteresis of
//! [`plan::Incumbent`](crate::plan::Incumbent), and [`Refuges`] where everybody would go if a path
//! died. Noise ends in the first step, gains not worth a move in the second.
//!
//! It knows no clock and no names: the gateway and the simulator drive it alike.

mod arrange;
mod followed;
mod homes;
mod level;
mod path;
mod refuge;
mod trust;

pub use arrange::{Arrangement, Manner, Resident, arrange, seat};
pub use followed::{FollowedPath, Look};
pub use homes::Homes;
pub use level::{Floor, Floors, Level};
pub use path::{PathLevels, PathSample};
pub use refuge::Refuges;
pub use trust::{Standing, choices, spares};
