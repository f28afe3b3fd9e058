//! Network-namespace laboratories, link emulator and traffic generators.
#![forbid(unsafe_code)]
