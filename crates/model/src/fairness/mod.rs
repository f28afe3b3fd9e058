//! How evenly a bottleneck is shared, `[fairness]`.

mod index;

pub use index::{jain, weighted_index};
