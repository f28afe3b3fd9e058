//! Fair shares between tenants, edge to edge `[fairness]`.

pub mod aimd;
mod i2vfc;
mod keiro;
pub mod law;
pub mod shares;
