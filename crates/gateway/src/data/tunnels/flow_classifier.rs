//! The classifier of a tenant's flows, with the gateway's clock.

use std::time::Duration;

use keiro_core::Instant;
use keiro_ip::{
    Header,
    builtin_classes::{BuiltInClass, Classification, Count, FlowClassifier, FlowFigures, Sorting},
    flow::FlowSeed,
};

pub(super) struct TenantFlowClassifier {
    began: Instant,
    classifier: FlowClassifier,
}

/// What was sorted, in numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassificationFigures {
    /// By class (`None`: no class) and kind of evidence.
    pub(crate) counts: Vec<(Option<BuiltInClass>, &'static str, Count)>,
    pub(crate) unread_handshakes: u64,
    /// The largest ones of the last minute; empty where they were not asked for.
    pub(crate) largest: Vec<FlowFigures>,
}

/// Flows that are shown. Ours: what a screen has room for.
const LARGEST_MAX: usize = 16;
const SHOWN_TIME: Duration = Duration::from_secs(60);

impl TenantFlowClassifier {
    /// That of a tenant, which knows what `before` knew. `None`: nothing is sorted.
    pub(super) fn of(
        now: Instant,
        sorting: &Sorting,
        before: Option<Self>,
        seed: &FlowSeed,
    ) -> Option<Self> {
        if !sorting.has_classes && sorting.patterns.is_empty() {
            return None;
        }
        let Some(mut of) = before else {
            return Some(Self {
                began: now,
                classifier: FlowClassifier::new(*seed, sorting.clone()),
            });
        };
        of.classifier.set_sorting(sorting.clone());
        Some(of)
    }

    pub(super) fn on_packet(
        &mut self,
        now: Instant,
        header: &Header,
        packet: &[u8],
        packets: u64,
    ) -> Classification {
        let now = now.saturating_duration_since(self.began);
        self.classifier.on_packet(now, header, packet, packets)
    }

    /// The flows only `with_flows`: all that are known are looked at.
    pub(super) fn figures(&self, now: Instant, with_flows: bool) -> ClassificationFigures {
        let since = now.saturating_duration_since(self.began);
        let since = since.saturating_sub(SHOWN_TIME);
        let largest = with_flows.then(|| self.classifier.largest_flows(since, LARGEST_MAX));
        ClassificationFigures {
            counts: self.classifier.counts().collect(),
            unread_handshakes: self.classifier.unread_handshakes(),
            largest: largest.unwrap_or_default(),
        }
    }
}
