//! Discrete-event simulator that runs core endpoints in virtual time.
#![forbid(unsafe_code)]
