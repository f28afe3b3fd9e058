//! Fair shares between tenants, edge to edge, and how fair they are `[fairness]`.

pub mod aimd;
mod i2vfc;
mod index;
mod keiro;
pub mod law;
pub mod shares;

pub use index::{jain, weighted_index};
