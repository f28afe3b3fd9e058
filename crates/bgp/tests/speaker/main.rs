//! Speakers that talk to each other in memory, and recorded octets of others.

mod network;
mod policies;
mod replay;
mod routes;
mod sessions;
mod updates;
