//! The link from outside.

mod behaviour;
mod properties;
