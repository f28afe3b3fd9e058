//! The keys of a session, one epoch after another.

use keiro_units::Instant;

use super::{ConfirmedEpoch, HandshakeOffer};
use crate::{
    config::TimingConfig,
    crypto::{KeyLimits, KeyUse, PacketKeys},
    wire::Features,
};

/// Epochs kept at once: the one in use, its predecessors for packets on the way, and those of
/// handshakes that crossed. The oldest is forgotten first.
const EPOCHS_MAX: usize = 6;

/// One pair of keys.
pub(crate) struct Epoch {
    /// Ours: comes in the packets to us.
    pub(crate) local_index: u32,
    /// Theirs: goes into the packets to them.
    pub(crate) remote_index: u32,
    pub(crate) keys: PacketKeys,
    /// The peer's incarnation that agreed on it.
    pub(crate) incarnation: u64,
    /// What we named in its handshake.
    pub(crate) ours: HandshakeOffer,
    /// What the peer grants from its beginning, if it is a new incarnation.
    pub(crate) credit: u64,
    /// What both sides understand.
    pub(crate) features: Features,
    pub(crate) since: Instant,
    pub(crate) initiator: bool,
    /// The peer is known to have it too: it may be used for sending.
    pub(crate) confirmed: bool,
    pub(crate) used: KeyUse,
    pub(crate) limits: KeyLimits,
}

impl Epoch {
    /// When it may not be used any more.
    fn ends_at(&self, timing: &TimingConfig) -> Instant {
        match self.is_used_up() {
            true => self.since,
            false => self.since + timing.reject_after,
        }
    }

    /// No further packet may be sealed with it, however young it is.
    pub(crate) fn is_used_up(&self) -> bool {
        self.used.is_used_up(&self.limits)
    }

    /// It may be used, in either direction.
    pub(crate) fn is_usable(&self, now: Instant, timing: &TimingConfig) -> bool {
        now < self.ends_at(timing)
    }

    /// What its first use means to the session.
    pub(crate) fn confirmation(&self) -> ConfirmedEpoch {
        ConfirmedEpoch {
            incarnation: self.incarnation,
            ours: self.ours,
            credit: self.credit,
        }
    }
}

/// Epochs that have ended.
pub(crate) struct EndedEpochs {
    /// Their local indices.
    pub(crate) gone: Vec<u32>,
    /// The one that was in use is among them: there is none to send with.
    pub(crate) is_current_gone: bool,
}

/// All epochs of one session, oldest first.
#[derive(Default)]
pub(crate) struct KeyRing {
    epochs: Vec<Epoch>,
    pub(crate) agreed_total: u64,
}

impl KeyRing {
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.epochs.len() <= EPOCHS_MAX, "key epochs are bounded");
        assert!(
            self.epochs.len() as u64 <= self.agreed_total,
            "every key epoch was agreed"
        );
    }

    /// Adds an epoch; the local indices that are no longer in use.
    pub(crate) fn push(&mut self, epoch: Epoch) -> Vec<u32> {
        self.agreed_total += 1;
        let current = self.current().map(|current| current.local_index);
        self.epochs.push(epoch);
        let mut gone = Vec::new();
        // The one in use is never the oldest of `EPOCHS_MAX`: handshakes that are answered but never
        // confirmed come after it, and only the newest of those can still be confirmed.
        while self.epochs.len() > EPOCHS_MAX {
            let position = self
                .epochs
                .iter()
                .position(|old| Some(old.local_index) != current)
                .expect("more than one epoch");
            gone.push(self.epochs.remove(position).local_index);
        }
        gone
    }

    /// Erases the epochs that have ended, so that a key that leaks later opens little.
    pub(crate) fn on_timeout(&mut self, now: Instant, timing: &TimingConfig) -> EndedEpochs {
        let current = self.current().map(|current| current.local_index);
        let mut gone: Vec<u32> = self
            .epochs
            .extract_if(.., |epoch| !epoch.is_usable(now, timing))
            .map(|epoch| epoch.local_index)
            .collect();
        let is_current_gone = current.is_some_and(|current| gone.contains(&current));
        if is_current_gone {
            // An earlier one is not used again.
            let confirmed = self.epochs.extract_if(.., |epoch| epoch.confirmed);
            gone.extend(confirmed.map(|epoch| epoch.local_index));
        }
        EndedEpochs {
            gone,
            is_current_gone,
        }
    }

    /// When the next epoch ends; `None`: there is none.
    pub(crate) fn ends_at(&self, timing: &TimingConfig) -> Option<Instant> {
        self.epochs.iter().map(|epoch| epoch.ends_at(timing)).min()
    }

    /// Packets may be sealed now.
    pub(crate) fn may_seal(&self, now: Instant, timing: &TimingConfig) -> bool {
        self.current()
            .is_some_and(|epoch| epoch.is_usable(now, timing))
    }

    pub(crate) fn by_index(&mut self, local_index: u32) -> Option<&mut Epoch> {
        self.epochs
            .iter_mut()
            .find(|epoch| epoch.local_index == local_index)
    }

    /// The newest epoch that both sides have.
    pub(crate) fn current(&self) -> Option<&Epoch> {
        self.epochs.iter().rev().find(|epoch| epoch.confirmed)
    }

    pub(crate) fn current_mut(&mut self) -> Option<&mut Epoch> {
        self.epochs.iter_mut().rev().find(|epoch| epoch.confirmed)
    }

    /// Forgets the epochs of other incarnations of either side.
    pub(crate) fn retain_incarnations(&mut self, incarnation: u64, ours: u64) -> Vec<u32> {
        let is_other =
            |epoch: &Epoch| (epoch.incarnation, epoch.ours.incarnation) != (incarnation, ours);
        let gone = self.epochs.extract_if(.., |epoch| is_other(epoch));
        gone.map(|epoch| epoch.local_index).collect()
    }

    /// Takes an epoch out: its keys are not to be used any more.
    pub(crate) fn remove(&mut self, local_index: u32) -> Option<Epoch> {
        let mut epochs = self.epochs.iter();
        let at = epochs.position(|epoch| epoch.local_index == local_index)?;
        Some(self.epochs.remove(at))
    }

    /// When the keys have to be changed. The side that began the present epoch does it; the
    /// other one waits a quarter longer, in case that side cannot.
    pub(crate) fn rekey_at(&self, timing: &TimingConfig) -> Option<Instant> {
        let epoch = self.current()?;
        if epoch.used.is_worn(&epoch.limits) {
            return Some(epoch.since);
        }
        let rekey_after = if epoch.initiator {
            timing.rekey_after
        } else {
            timing.rekey_after * 5 / 4
        };
        Some(epoch.since + rekey_after)
    }
}
