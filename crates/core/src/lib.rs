//! The sans-IO protocol of Keiro's overlay.
#![forbid(unsafe_code)]
