//! The mathematics from outside: one file per subject.

mod aggregation;
mod aggregation_spacing;
mod fairness;
mod fairness_bench;
mod fit;
mod forecasts;
mod incumbent;
mod paper;
mod planner;
mod planner_optimum;
mod properties;
mod queueing;
mod review;
mod steer;
