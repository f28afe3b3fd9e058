//! The pages as a browser gets them, over a control socket that answers what the tests want.

mod data;
#[path = "../fake/mod.rs"]
mod fake;
mod live;
mod refusals;
mod served;
