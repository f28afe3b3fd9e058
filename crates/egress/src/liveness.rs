//! Whether segments are alive, from the answers to probes through them.
//!
//! A segment that has answered and then does not is silent, and is avoided. One that has never answered is
//! not judged: the router at its end may drop probes without an answer. If all segments that ever answered
//! are silent, the fault is probably this host's, and none is avoided.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv6Addr,
    time::Duration,
};

use keiro_units::Instant;

/// Probes without an answer in a row after which a segment is silent. Ours.
pub(crate) const MISSED_MAX: u32 = 3;
/// Answers in a row after which it is alive again, so that a segment that loses packets is not taken up and
/// left all the time. Ours.
const ANSWERS_AGAIN: u32 = 5;

#[derive(Debug, Default)]
pub(crate) struct Liveness {
    segments: BTreeMap<Ipv6Addr, Segment>,
}

#[derive(Debug, Default)]
struct Segment {
    /// The last answer; `None`: there was none so far.
    answered: Option<Instant>,
    silent: bool,
    missed: u32,
    answers: u32,
}

impl Liveness {
    /// Forgets segments that are not probed any more.
    pub(crate) fn retain(&mut self, is_probed: impl Fn(&Ipv6Addr) -> bool) {
        self.segments.retain(|sid, _| is_probed(sid));
    }

    /// Takes the outcome of a probe.
    pub(crate) fn on_probed(&mut self, now: Instant, sid: Ipv6Addr, answered: bool) {
        let segment = self.segments.entry(sid).or_default();
        if answered {
            segment.answered = Some(now);
            segment.missed = 0;
            segment.answers = segment.answers.saturating_add(1);
            segment.silent &= segment.answers < ANSWERS_AGAIN;
            return;
        }
        segment.answers = 0;
        segment.missed = segment.missed.saturating_add(1);
        segment.silent |= segment.answered.is_some() && segment.missed >= MISSED_MAX;
    }

    /// Whether a segment answers; `None`: it never has.
    pub(crate) fn answers(&self, sid: &Ipv6Addr) -> Option<bool> {
        let segment = self.segments.get(sid)?;
        segment.answered.map(|_| !segment.silent)
    }

    /// Silent segments, with the time since their last answer.
    pub(crate) fn silent(&self, now: Instant) -> impl Iterator<Item = (Ipv6Addr, Duration)> + '_ {
        let silent = self.segments.iter().filter(|(_, segment)| segment.silent);
        silent.filter_map(move |(sid, segment)| Some((*sid, now - segment.answered?)))
    }

    /// Segments that must not be used.
    pub(crate) fn avoided(&self) -> BTreeSet<Ipv6Addr> {
        let mut judged = self.segments.values().filter(|it| it.answered.is_some());
        if judged.all(|segment| segment.silent) {
            return BTreeSet::new();
        }
        let silent = self.segments.iter().filter(|(_, segment)| segment.silent);
        silent.map(|(sid, _)| *sid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(1, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(1, 0, 0, 0, 0, 0, 0, 2);

    fn probed(liveness: &mut Liveness, sid: Ipv6Addr, answers: &[bool]) {
        for answered in answers {
            liveness.on_probed(Instant::ZERO, sid, *answered);
        }
    }

    #[test]
    fn a_segment_that_answered_is_avoided_when_it_stops_and_used_when_it_answers_again() {
        let mut liveness = Liveness::default();
        probed(&mut liveness, A, &[true]);
        probed(&mut liveness, B, &[true]);
        probed(&mut liveness, A, &[false, false]);
        assert_eq!(
            (liveness.answers(&A), liveness.avoided().len()),
            (Some(true), 0)
        );
        probed(&mut liveness, A, &[false]);
        assert_eq!(liveness.avoided(), BTreeSet::from([A]));
        probed(&mut liveness, A, &[true, true, true, true, false, true]);
        assert_eq!(liveness.avoided(), BTreeSet::from([A]), "it still loses");
        probed(&mut liveness, A, &[true; 4]);
        assert_eq!(liveness.avoided(), BTreeSet::new());
    }

    #[test]
    fn segment_that_never_answered_is_not_judged() {
        let mut liveness = Liveness::default();
        probed(&mut liveness, A, &[false; 100]);
        probed(&mut liveness, B, &[true]);
        assert_eq!((liveness.answers(&A), liveness.avoided().len()), (None, 0));
    }

    #[test]
    fn if_no_segment_answers_all_are_used() {
        let mut liveness = Liveness::default();
        for sid in [A, B] {
            probed(&mut liveness, sid, &[true, false, false, false]);
        }
        assert_eq!(liveness.silent(Instant::ZERO).count(), 2);
        assert_eq!(liveness.avoided(), BTreeSet::new());
        liveness.retain(|sid| *sid == A);
        assert_eq!(liveness.silent(Instant::ZERO).count(), 1);
    }
}
