//! The mathematics from outside: one file per subject.

mod adaptive;
mod aggregation;
mod aggregation_properties;
mod aggregation_spacing;
mod fairness;
mod fairness_bench;
mod fit;
