//! The sorter of a tenant's flows, with the gateway's clock.

use std::time::Duration;

use keiro_core::Instant;
use keiro_ip::{
    Header,
    classes::{BuiltInClass, Count, DomainPattern, FlowFigures, Sorted, Sorter},
    flow::FlowSeed,
};

pub(super) struct FlowSorter {
    began: Instant,
    /// What it is for.
    sorts: bool,
    patterns: Vec<DomainPattern>,
    sorter: Sorter,
}

/// What was sorted, in numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SortedFigures {
    /// By class (`None`: no class) and kind of evidence.
    pub(crate) counts: Vec<(Option<BuiltInClass>, &'static str, Count)>,
    /// The largest ones of the last minute.
    pub(crate) largest: Vec<FlowFigures>,
}

/// Flows that are shown. Ours: what a screen has room for.
const LARGEST_MAX: usize = 16;
const SHOWN_TIME: Duration = Duration::from_secs(60);

impl FlowSorter {
    /// That of a tenant; what `before` knows stays if it is for the same. `None`: nothing is sorted.
    pub(super) fn of(
        now: Instant,
        sorts: bool,
        patterns: &[DomainPattern],
        before: Option<Self>,
        seed: &FlowSeed,
    ) -> Option<Self> {
        if !sorts && patterns.is_empty() {
            return None;
        }
        let before = before.filter(|of| of.sorts == sorts && of.patterns == patterns);
        Some(before.unwrap_or_else(|| Self {
            began: now,
            sorts,
            patterns: patterns.to_vec(),
            sorter: Sorter::new(*seed, sorts, patterns),
        }))
    }

    pub(super) fn on_packet(
        &mut self,
        now: Instant,
        header: &Header,
        packet: &[u8],
        packets: u64,
    ) -> Sorted {
        let now = now.saturating_duration_since(self.began);
        self.sorter.on_packet(now, header, packet, packets)
    }

    pub(super) fn figures(&self, now: Instant) -> SortedFigures {
        let since = now.saturating_duration_since(self.began);
        let since = since.saturating_sub(SHOWN_TIME);
        SortedFigures {
            counts: self.sorter.counts().collect(),
            largest: self.sorter.largest_flows(since, LARGEST_MAX),
        }
    }
}
