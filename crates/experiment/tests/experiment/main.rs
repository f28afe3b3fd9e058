//! Plans and their runners through the public interface: one file per subject.

mod churn;
mod parameters;
mod plans;
mod runners;
mod tenants;
mod transactions;
mod transfers;
mod trials;
mod vary;
