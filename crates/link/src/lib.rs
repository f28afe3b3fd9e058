//! One emulated link as a state machine, for the simulator and the emulator.
#![forbid(unsafe_code)]
