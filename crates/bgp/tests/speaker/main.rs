//! Speakers that exchange messages in memory, and recorded messages of other implementations.

mod network;
mod policies;
mod replay;
mod routes;
mod sessions;
mod updates;
