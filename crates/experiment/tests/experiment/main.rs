//! Plans and their runners from outside: one file per subject.

mod parameters;
mod plans;
mod runners;
mod tenants;
mod transactions;
mod trials;
