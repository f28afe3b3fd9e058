//! How many hypothetical plans one viewer may look at at once.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::Remote;

/// Plans that each viewer looks at. A viewer is an IPv4 address or an IPv6 /64, which one host may have; all who come
/// by the Unix socket are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<Option<IpAddr>, Viewer>>>);

#[derive(Debug, Default)]
struct Viewer {
    turns: usize,
    /// Held while a question is asked.
    asking: Arc<AsyncMutex<()>>,
}

/// A viewer's place; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    viewer: Option<IpAddr>,
    asking: Arc<AsyncMutex<()>>,
}

/// Pages of what is supposed that one viewer has open live or asks for at once. Ours: some tabs. A proxy's viewers are
/// one address.
pub(super) const TURNS_MAX: usize = 8;

impl Turns {
    /// `None`: the viewer has as many as it may.
    pub(super) fn begin(&self, Remote(viewer): Remote) -> Option<Turn> {
        let viewer = viewer.map(network);
        let mut turns = self.lock();
        let of_viewer = turns.entry(viewer).or_default();
        if of_viewer.turns >= TURNS_MAX {
            return None;
        }
        of_viewer.turns += 1;
        Some(Turn {
            turns: self.clone(),
            viewer,
            asking: Arc::clone(&of_viewer.asking),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<IpAddr>, Viewer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Waits for the answers to the viewer's other questions, so that only one of a viewer waits among those of others.
    pub(super) async fn ask(&self) -> AsyncMutexGuard<'_, ()> {
        self.asking.lock().await
    }
}

/// An IPv6 host takes as many addresses of its /64 as it likes.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        if let Some(of_viewer) = turns.get_mut(&self.viewer) {
            of_viewer.turns -= 1;
            if of_viewer.turns == 0 {
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

    #[test]
    fn a_network_of_an_ipv6_host_is_one_viewer() {
        let turns = Turns::default();
        let begin = |address: &str| turns.begin(Remote(Some(address.parse().unwrap())));
        let addresses = (0..TURNS_MAX).map(|host| format!("2001:db8:0:1::{host:x}"));
        let taken: Vec<Turn> = addresses.filter_map(|it| begin(&it)).collect();
        assert_eq!(taken.len(), TURNS_MAX);
        assert!(begin("2001:db8:0:1:ffff::1").is_none());
        assert!(begin("2001:db8:0:2::").is_some());
    }

    #[tokio::test]
    async fn one_question_of_a_viewer_is_asked_at_once() {
        let turns = Turns::default();
        let [one, other] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(|it| Remote(Some(it.into())));
        let [first, second] = [(); 2].map(|()| turns.begin(one).unwrap());
        let other = turns.begin(other).unwrap();
        let asking = first.ask().await;
        assert!(second.asking.try_lock().is_err());
        drop(other.ask().await);
        drop(asking);
        drop(second.ask().await);
    }
}
