//! Configuration schema, control protocol and metrics names.
#![forbid(unsafe_code)]
