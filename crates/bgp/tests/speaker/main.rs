//! Speakers that talk to each other in memory, and recorded octets of others.

mod network;
mod replay;
mod routes;
mod sessions;
mod updates;
