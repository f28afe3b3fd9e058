//! When an endpoint has something to do.

use keiro_units::Instant;

/// When an endpoint has something to do if nothing arrives before, by what being late would cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// A waiting packet may leave: a late driver delays packets.
    pub departure: Option<Instant>,
    /// Everything else: acknowledgements, losses, challenges, what expires. Some microseconds do not matter.
    pub rest: Option<Instant>,
}

impl Timeouts {
    /// The first of both kinds; `None`: nothing is to be done.
    pub fn earliest(self) -> Option<Instant> {
        first(self.departure, self.rest)
    }

    /// What need not be punctual, alone.
    pub(crate) const fn of_rest(rest: Option<Instant>) -> Self {
        Self {
            departure: None,
            rest,
        }
    }

    /// The first of each kind.
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            departure: first(self.departure, other.departure),
            rest: first(self.rest, other.rest),
        }
    }
}

fn first(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
