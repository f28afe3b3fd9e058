//! On which terms a path may be used: its role, what its bytes cost, and whether its budget is used up.
//!
//! Each end of a path has terms of its own, because each end may be on a line that is paid by volume.
//! [`PathTerms::with`] joins them: every byte is paid at both ends.

use std::fmt;

/// Whether a path is for all traffic or for what the others cannot serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathRole {
    #[default]
    Primary,
    /// It carries an application only while no primary path meets its needs.
    Backup,
}

/// What the bytes of a path cost: money per gigabyte (10^9 bytes) of IP packets in either direction, in millionths
/// of a unit of whatever currency the operator counts in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CostPerGb(u64);

/// The terms of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathTerms {
    pub role: PathRole,
    pub cost: CostPerGb,
    /// The budget of the month is used up: only keepalives remain, and applications that name the path.
    pub is_spent: bool,
}

/// What an application goes by where several paths would serve it; the less the better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price {
    pub role: PathRole,
    pub cost: CostPerGb,
}

/// More than any line costs. Ours.
const COST_MAX: u64 = 1_000_000_000_000;

impl CostPerGb {
    pub const ZERO: Self = Self(0);
    /// A million a gigabyte.
    pub const MAX: Self = Self(COST_MAX);

    /// A cost in units per gigabyte, to a millionth; `None`: it is negative, not a number, or more than
    /// [`CostPerGb::MAX`].
    pub fn new(units: f64) -> Option<Self> {
        let micros = (units * 1e6).round();
        let is_cost = (0.0..=COST_MAX as f64).contains(&micros) && units >= 0.0;
        is_cost.then_some(Self(micros as u64))
    }

    /// More than [`CostPerGb::MAX`] is taken for that.
    pub const fn from_micros(micros: u64) -> Self {
        match micros > COST_MAX {
            true => Self::MAX,
            false => Self(micros),
        }
    }

    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Units per gigabyte.
    pub fn get(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// What a path costs more than another one; zero: no more.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Two digits behind the point, as prices are written; more where they matter.
impl fmt::Display for CostPerGb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let digits = format!("{micros:06}");
        let digits = digits.trim_end_matches('0');
        f.pad(&format!("{whole}.{digits:0<2}"))
    }
}

impl PathTerms {
    /// A primary path that costs nothing: what a path is unless something else is configured.
    pub const FREE: Self = Self {
        role: PathRole::Primary,
        cost: CostPerGb::ZERO,
        is_spent: false,
    };

    /// The terms of a path with those of its other end.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            role: self.role.max(other.role),
            cost: CostPerGb::from_micros(self.cost.0 + other.cost.0),
            is_spent: self.is_spent || other.is_spent,
        }
    }

    /// What an application goes by.
    pub fn price(self) -> Price {
        Price {
            role: self.role,
            cost: self.cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(units: f64) -> CostPerGb {
        CostPerGb::new(units).unwrap()
    }

    #[test]
    fn costs_are_read_to_a_millionth_and_refused_beyond_reason() {
        for (units, text) in [
            (0.0, "0.00"),
            (3.5, "3.50"),
            (2.0, "2.00"),
            (0.125, "0.125"),
            (1e6, "1000000.00"),
        ] {
            assert_eq!(cost(units).to_string(), text);
        }
        for units in [-0.1, -1e-9, 1e6 + 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(CostPerGb::new(units), None, "{units}");
        }
        assert_eq!(CostPerGb::from_micros(u64::MAX), CostPerGb::MAX);
    }

    #[test]
    fn both_ends_of_a_path_count() {
        let backup = PathTerms {
            role: PathRole::Backup,
            cost: cost(2.0),
            is_spent: false,
        };
        let spent = PathTerms {
            cost: cost(1.5),
            is_spent: true,
            ..PathTerms::default()
        };
        let both = backup.with(spent);
        assert_eq!(both, spent.with(backup));
        assert_eq!((both.role, both.cost), (PathRole::Backup, cost(3.5)));
        assert!(both.is_spent);
        assert_eq!(backup.with(PathTerms::default()), backup);
    }

    #[test]
    fn any_primary_path_comes_before_any_backup() {
        let price = |role, units| Price {
            role,
            cost: cost(units),
        };
        let mut prices = [
            price(PathRole::Backup, 0.0),
            price(PathRole::Primary, 9.0),
            price(PathRole::Primary, 0.0),
        ];
        prices.sort();
        assert_eq!(prices[1], price(PathRole::Primary, 9.0));
        assert_eq!(prices[2].role, PathRole::Backup);
    }
}
