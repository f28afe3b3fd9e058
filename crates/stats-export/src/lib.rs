//! What `keiro_stats` declares, in the forms in which it leaves a daemon: JSON ([`Stats`]),
//! OpenMetrics ([`openmetrics`]), and the schema and tables of the documentation
//! ([`documentation`]).
//!
//! `keiro_stats` itself stays without serialisation, because `keiro-core` depends on it.

#[cfg(feature = "documentation")]
pub mod documentation;
mod json;
#[cfg(feature = "openmetrics")]
pub mod openmetrics;

pub use self::json::Stats;
