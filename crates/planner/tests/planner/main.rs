//! Forecasts and plans from outside: one file per subject.

mod estimate;
mod forecasts;
mod incumbent;
mod model_search;
mod paper;
mod planner;
mod planner_optimum;
mod properties;
mod queueing;
mod shared_line;
mod steer;
mod target_search;
mod workload;
