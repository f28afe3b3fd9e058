//! Fair shares between tenants, edge to edge, and how fair they are `[fairness]`.

pub mod aimd;
pub mod common_unit;
pub mod controller;
mod i2vfc;
mod index;
mod keiro;
mod loss_intervals;
pub mod shares;
mod unit;

pub use index::{jain, weighted_index};
