//! Results in rows, and their targets.

use std::{fmt, time::Duration};

use crate::{
    Times,
    program::{Kind, Memory},
    stream::Family,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) family: Family,
    /// Whether routes are installed in the kernel.
    pub(crate) kernel: bool,
    pub(crate) neighbours: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// Until all neighbours' routes have arrived.
    pub(crate) announced_in: Times,
    /// Until the last neighbour's routes are removed after it withdrew them one by one.
    pub(crate) withdrawn_in: Times,
    /// Until they are removed after the loss of its session.
    pub(crate) lost_in: Times,
    /// With all neighbours' routes.
    pub(crate) memory: Memory,
}

impl Case {
    pub(crate) const ALL: [Self; 5] = [
        Self::new(Family::Vpn, false, 1),
        Self::new(Family::Vpn, false, 3),
        Self::new(Family::Vpn, true, 1),
        Self::new(Family::Vpn, true, 3),
        Self::new(Family::Unicast, true, 1),
    ];

    const fn new(family: Family, kernel: bool, neighbours: u8) -> Self {
        Self {
            family,
            kernel,
            neighbours,
        }
    }

    /// Whether a program supports the case: only Keiro installs VPN routes with SIDs in a kernel without VRF
    /// devices.
    pub(crate) fn is_for(self, kind: Kind) -> bool {
        kind == Kind::Keiro || !self.kernel || self.family == Family::Unicast
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            Family::Vpn => "vpn",
            Family::Unicast => "unicast",
        };
        let place = if self.kernel { "kernel" } else { "table" };
        f.pad(&format!("{family}-{place}-{}", self.neighbours))
    }
}

impl Figures {
    pub(crate) const HEAD: &str = "case              program  in table s  in kernel s  withdrawn s  lost s  resident MB  peak MB";

    pub(crate) fn row(&self, case: Case, kind: Kind) -> String {
        let table = seconds(self.announced_in.table);
        let kernel = seconds(self.announced_in.kernel);
        let (withdrawn, lost) = (
            seconds(gone(self.withdrawn_in)),
            seconds(gone(self.lost_in)),
        );
        let (resident, peak) = (mb(self.memory.resident_kib), mb(self.memory.peak_kib));
        format!(
            "{case:<16}  {kind:<7}  {table:>10}  {kernel:>11}  {withdrawn:>11}  {lost:>6}  \
             {resident:>11.0}  {peak:>7.0}"
        )
    }

    /// The median of each figure by itself.
    pub(crate) fn median(all: &[Self]) -> Self {
        let times = |of: fn(&Self) -> Times| Times {
            table: middle(all.iter().filter_map(|one| of(one).table)),
            kernel: middle(all.iter().filter_map(|one| of(one).kernel)),
        };
        let memory = |of: fn(&Memory) -> u64| middle(all.iter().map(|one| of(&one.memory)));
        Self {
            announced_in: times(|one| one.announced_in),
            withdrawn_in: times(|one| one.withdrawn_in),
            lost_in: times(|one| one.lost_in),
            memory: Memory {
                resident_kib: memory(|memory| memory.resident_kib).unwrap_or_default(),
                peak_kib: memory(|memory| memory.peak_kib).unwrap_or_default(),
            },
        }
    }
}

/// Targets of Keiro's medians with 200,000 routes per neighbour, and their results.
pub(crate) fn asked(all: &[(Case, Kind, Vec<Figures>)], routes: u32) -> Vec<String> {
    if routes != ASKED_ROUTES {
        return vec![format!(
            "nothing is asked with other than {ASKED_ROUTES} routes"
        )];
    }
    let of = |name: &str| {
        let mut found = all.iter();
        let found = found.find(|(case, kind, _)| *kind == Kind::Keiro && case.to_string() == name);
        found.map(|(_, _, figures)| Figures::median(figures))
    };
    let in_seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let table = of("vpn-table-1");
    let kernel = of("vpn-kernel-1");
    let three = of("vpn-kernel-3");
    let rows = [
        (
            "one neighbour, in table",
            table.map(|f| in_seconds(f.announced_in.table)),
            1.0,
            "s",
        ),
        (
            "one neighbour, memory",
            table.map(|f| Some(mb(f.memory.peak_kib))),
            150.0,
            "MB",
        ),
        (
            "one neighbour, memory with kernel",
            kernel.map(|f| Some(mb(f.memory.peak_kib))),
            150.0,
            "MB",
        ),
        (
            "one neighbour, in kernel",
            kernel.map(|f| in_seconds(f.announced_in.kernel)),
            4.0,
            "s",
        ),
        (
            "one neighbour lost, out of kernel",
            kernel.map(|f| in_seconds(f.lost_in.kernel)),
            0.5,
            "s",
        ),
        (
            "one of three lost, out of kernel",
            three.map(|f| in_seconds(f.lost_in.kernel)),
            0.5,
            "s",
        ),
    ];
    let lines = rows.into_iter().filter_map(|(what, measured, most, unit)| {
        let measured = measured??;
        let verdict = if measured <= most {
            "reached"
        } else {
            "missed"
        };
        Some(format!(
            "{what}: {measured:.2} {unit}, asked <= {most} {unit}: {verdict}"
        ))
    });
    lines.collect()
}

/// Out of where it counts.
fn gone(times: Times) -> Option<Duration> {
    times.kernel.or(times.table)
}

fn middle<T: Ord>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    all.sort();
    let at = all.len() / 2;
    all.into_iter().nth(at)
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
}

fn mb(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

const ASKED_ROUTES: u32 = 200_000;
