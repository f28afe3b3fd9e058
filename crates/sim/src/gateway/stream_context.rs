//! What streams see of their gateway.

use keiro_core::{Endpoint, PeerId};
use keiro_units::Instant;

use super::log::Log;

/// The core as seen in one turn.
pub(super) struct StreamContext<'a> {
    pub(super) now: Instant,
    pub(super) incarnation: u32,
    pub(super) peer: PeerId,
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) log: &'a mut Log,
}
