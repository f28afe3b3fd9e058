//! Speakers that exchange messages in memory, and recorded messages of other implementations.

mod malformed;
mod network;
mod policies;
mod replay;
mod restarts;
mod routes;
mod sessions;
mod updates;
