//! How many hypothetical plans one viewer may look at at once.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::Remote;

/// Plans that each viewer looks at. A viewer is an address, and all who come by the Unix socket are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<Option<IpAddr>, usize>>>);

/// A viewer's place; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    viewer: Option<IpAddr>,
}

/// Pages of what is supposed that one viewer has open live or asks for at once. Ours: some tabs. A proxy's viewers are
/// one address.
pub(super) const TURNS_MAX: usize = 8;

impl Turns {
    /// `None`: the viewer has as many as it may.
    pub(super) fn begin(&self, Remote(viewer): Remote) -> Option<Turn> {
        let mut turns = self.lock();
        let count = turns.entry(viewer).or_default();
        if *count >= TURNS_MAX {
            return None;
        }
        *count += 1;
        Some(Turn {
            turns: self.clone(),
            viewer,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<IpAddr>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        if let Some(count) = turns.get_mut(&self.viewer) {
            *count -= 1;
            if *count == 0 {
                turns.remove(&self.viewer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_has_a_bounded_number_of_turns_whatever_others_have() {
        let turns = Turns::default();
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(|it| Remote(Some(it.into())));
        let mut taken: Vec<Turn> = (0..TURNS_MAX).filter_map(|_| turns.begin(one)).collect();
        assert_eq!(taken.len(), TURNS_MAX);
        assert!(turns.begin(one).is_none());
        assert!(turns.begin(other).is_some());
        taken.pop();
        assert!(turns.begin(one).is_some());
        drop(taken);
        assert!(
            turns.lock().is_empty(),
            "nothing is kept of a viewer that has gone"
        );
    }
}
