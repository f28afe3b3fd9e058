//! The endpoint from outside: one file per behaviour.

mod batches;
mod cookies;
mod diagnosis;
mod drops;
mod duplicate_keys;
mod garbage;
mod hostile_peer;
mod key_limits;
mod pair;
mod recovery;
mod shared_sockets;
mod support;
mod tenants;
mod turns;
mod uplink;
mod versions;
mod wire_document;
