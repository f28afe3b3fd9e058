//! The edge daemon.
#![forbid(unsafe_code)]
