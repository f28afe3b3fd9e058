//! The link through its public interface.

mod behaviour;
mod properties;
mod recorded;
