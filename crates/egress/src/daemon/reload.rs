//! Configuration changes at run time: a new file is read completely and then used, or rejected
//! without any effect.
//!
//! A thread reads it, since a file with ROAs takes seconds. Sessions with removed neighbours end,
//! and those whose session parameters changed restart. Policies are applied to the running
//! sessions.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
};

use keiro_bgp::{
    rib::NeighbourId,
    speaker::{Input, NeighbourConfig},
};
use keiro_linux::privilege;
use sd_notify::NotifyState;

use super::{Daemon, Handle, Role, events::warn_of_defaults, now};
use crate::{
    config::{ConfigError, Neighbour, SpeakerConfig},
    control::{Answer, Reply},
    forwarding::ForwardingError,
    status::{DaemonEvent, Reloaded},
};

/// The source of the configuration, and reads in progress.
pub(crate) struct Reloading<C> {
    /// `None`: there is no file.
    pub(crate) path: Option<PathBuf>,
    under_way: Option<UnderWay<C>>,
    /// Requests that arrived after the read began, and so need another one.
    again: Option<Vec<mpsc::Sender<Reply>>>,
    /// Why the last one was rejected.
    pub(crate) rejected: Option<String>,
}

struct UnderWay<C> {
    loaded: mpsc::Receiver<Result<C, ConfigError>>,
    askers: Vec<mpsc::Sender<Reply>>,
}

/// Wakes the event loop when dropped.
struct Waking(Handle);

impl Drop for Waking {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// What a new configuration means for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The session stays; policies may differ.
    Stays(NeighbourId),
    /// Same address, but the session restarts.
    Restarts(NeighbourId),
    New,
}

impl<C> Default for Reloading<C> {
    fn default() -> Self {
        Self {
            path: None,
            under_way: None,
            again: None,
            rejected: None,
        }
    }
}

impl<R: Role> Daemon<R> {
    /// Starts to read the configuration again.
    pub(crate) fn reload(&mut self, askers: Vec<mpsc::Sender<Reply>>) {
        if self.reloading.under_way.is_some() {
            self.reloading.again.get_or_insert_default().extend(askers);
            return;
        }
        let Some(path) = self.reloading.path.clone() else {
            return self.reject(
                askers,
                "this daemon has its configuration from no file".into(),
            );
        };
        // Has no effect unless systemd started the daemon.
        if let Ok(time) = NotifyState::monotonic_usec_now() {
            let _ = sd_notify::notify(&[NotifyState::Reloading, time]);
        }
        let (result, loaded) = mpsc::channel();
        let handle = self.handle();
        let reading = thread::Builder::new().name("reload".to_owned());
        let spawned = reading.spawn(move || {
            privilege::give_up_in_thread();
            // Also wakes the event loop if loading panics.
            let _waking = Waking(handle);
            let result = result;
            // The daemon may have ended meanwhile.
            let _ = result.send(R::load(&path));
        });
        match spawned {
            Ok(_) => self.reloading.under_way = Some(UnderWay { loaded, askers }),
            Err(error) => {
                self.reject(askers, format!("it cannot be read: {error}"));
                let _ = sd_notify::notify(&[NotifyState::Ready]);
            }
        }
    }

    /// Uses a configuration that was read.
    pub(crate) fn finish_reload(&mut self) {
        let Some(under_way) = &self.reloading.under_way else {
            return;
        };
        let loaded = match under_way.loaded.try_recv() {
            Err(mpsc::TryRecvError::Empty) => return,
            Err(mpsc::TryRecvError::Disconnected) => Err("the thread that reads it ended".into()),
            Ok(loaded) => loaded.map_err(|error| error.to_string()),
        };
        let askers = self.reloading.under_way.take().map(|it| it.askers);
        let askers = askers.unwrap_or_default();
        match loaded.and_then(|config| self.adopt(config)) {
            Ok(reloaded) => self.accept(askers, reloaded),
            Err(reason) => self.reject(askers, reason),
        }
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        if let Some(askers) = self.reloading.again.take() {
            self.reload(askers);
        }
    }

    fn accept(&mut self, askers: Vec<mpsc::Sender<Reply>>, reloaded: Reloaded) {
        self.reloading.rejected = None;
        for line in &reloaded.needs_restart {
            tracing::warn!("reload: {line}");
        }
        let names = |names: &[String]| names.join(", ");
        tracing::info!(
            added = names(&reloaded.added),
            removed = names(&reloaded.removed),
            restarted = names(&reloaded.restarted),
            changed = names(&reloaded.changed),
            peers_added = names(&reloaded.peers_added),
            peers_removed = names(&reloaded.peers_removed),
            peers_changed = names(&reloaded.peers_changed),
            sections = names(&reloaded.sections),
            "reloaded"
        );
        for asker in askers {
            let answer = Answer::Reloaded(Box::new(reloaded.clone()));
            let _ = asker.send(Reply::Answer(answer, None));
        }
        self.notify_monitors(&DaemonEvent::Reloaded(reloaded));
    }

    fn reject(&mut self, askers: Vec<mpsc::Sender<Reply>>, reason: String) {
        tracing::error!("reload refused, everything stays as it was: {reason}");
        for asker in askers {
            let _ = asker.send(Reply::Answer(Answer::Refused(reason.clone()), None));
        }
        self.notify_monitors(&DaemonEvent::ConfigRejected {
            reason: reason.clone(),
        });
        self.reloading.rejected = Some(reason);
    }

    /// # Errors
    /// Why it cannot be used; nothing has changed then.
    fn adopt(&mut self, mut config: R::Config) -> Result<Reloaded, String> {
        let needs_restart = self.role.keep(&mut config)?;
        let new = R::neighbours_of(&config);
        let fates = self.fates(&new, &config);
        let added = fates.iter().filter(|fate| **fate == Fate::New).count();
        if self.neighbours.len() + added > usize::from(u16::MAX) {
            return Err("more than 65,535 neighbours".to_owned());
        }
        if let Err(reason) = self.connections.sign(&new) {
            // Neighbours before the failing one have new keys already; restore the old ones, which
            // worked before.
            let _ = self.connections.sign(self.neighbours.iter().flatten());
            return Err(reason);
        }
        // Nothing fails from here on.
        let mut reloaded = Reloaded {
            needs_restart,
            vrps: R::speaker_of(&config).vrps.as_ref().map(|vrps| vrps.len()),
            ..self.role.differs(&config)
        };
        let removed = self.stop_others(&fates, &mut reloaded);
        let ids = self.numbers(&fates, &removed);
        let vrps = R::speaker_of(&config).vrps.clone();
        let before = self.policies(&fates);
        let forwarding = &mut *self.forwarding;
        let (inputs, mut errors) = self.role.adopt(config, &ids, &self.speaker, forwarding);
        let own = self.role.own_distinguishers();
        self.speaker.watch_distinguishers(own);
        for ((neighbour, fate), id) in new.into_iter().zip(&fates).zip(&ids) {
            self.put(neighbour, *fate, *id, &before, &mut reloaded);
        }
        self.forget_drained();
        self.set_vrps(vrps);
        self.end_record(&reloaded, !inputs.is_empty());
        self.inputs.extend(inputs);
        if let Err(reason) = self.configure_bfd() {
            let what = "BFD with some neighbours".to_owned();
            errors.push(ForwardingError { what, reason });
        }
        self.report_errors(&errors);
        let refused = errors.iter().take(REFUSED_SHOWN);
        reloaded.refused = refused.map(ToString::to_string).collect();
        if let Err(error) = self.watch_forwarding() {
            tracing::error!(%error, "cannot watch the kernel any more; changes by others go unnoticed");
        }
        let starts = fates.iter().zip(&ids);
        let starts = starts.filter(|(fate, _)| !matches!(fate, Fate::Stays(_)));
        self.inputs.extend(starts.map(|(_, id)| Input::Start(*id)));
        self.turn();
        Ok(reloaded)
    }

    fn fates(&self, new: &[Neighbour], config: &R::Config) -> Vec<Fate> {
        let fate = |neighbour: &Neighbour| {
            let mut known = self.neighbours.iter().enumerate();
            let found = known.find_map(|(place, known)| {
                let known = known.as_ref()?;
                let id = NeighbourId(place as u16);
                (known.address == neighbour.address).then_some((id, known))
            });
            match found {
                None => Fate::New,
                Some((id, known)) => {
                    let other = !same_terms(known, neighbour) || self.role.is_other(id, config);
                    match other {
                        true => Fate::Restarts(id),
                        false => Fate::Stays(id),
                    }
                }
            }
        };
        new.iter().map(fate).collect()
    }

    /// Ends sessions with removed or restarted neighbours; returns the numbers of the removed ones.
    fn stop_others(&mut self, fates: &[Fate], reloaded: &mut Reloaded) -> BTreeSet<NeighbourId> {
        let is = |fate: Fate| fates.contains(&fate);
        let there = self.neighbours.iter().enumerate();
        let there = there.filter_map(|(place, one)| {
            let name = one.as_ref()?.name.clone();
            Some((NeighbourId(place as u16), name))
        });
        let mut removed = BTreeSet::new();
        let stopped: Vec<_> = there.filter(|(id, _)| !is(Fate::Stays(*id))).collect();
        for (id, name) in stopped {
            self.inputs.push_back(Input::Stop(id));
            self.links.forget(id);
            match is(Fate::Restarts(id)) {
                true => reloaded.restarted.push(name),
                false => {
                    reloaded.removed.push(name);
                    removed.insert(id);
                }
            }
        }
        self.turn();
        for id in &removed {
            self.neighbours[usize::from(id.0)] = None;
            self.connections.set(*id, None);
        }
        removed
    }

    /// Assigns numbers to the new neighbours; numbers of removed ones are reused.
    fn numbers(&self, fates: &[Fate], removed: &BTreeSet<NeighbourId>) -> Vec<NeighbourId> {
        let before = self.neighbours.iter().enumerate();
        let free = before.filter(|(_, one)| one.is_none());
        let free: BTreeSet<NeighbourId> = free
            .map(|(place, _)| NeighbourId(place as u16))
            .chain(removed.iter().copied())
            .collect();
        let beyond = (self.neighbours.len()..).map(|place| NeighbourId(place as u16));
        let mut unused = free.into_iter().chain(beyond);
        fates
            .iter()
            .map(|fate| match fate {
                Fate::Stays(id) | Fate::Restarts(id) => *id,
                Fate::New => unused.next().expect("numbers do not end"),
            })
            .collect()
    }

    /// The new policies of neighbours that stay.
    fn policies(&self, fates: &[Fate]) -> Vec<(NeighbourId, NeighbourConfig)> {
        let of = |fate: &Fate| match fate {
            Fate::Stays(id) => Some((*id, self.speaker_config(*id)?)),
            _ => None,
        };
        fates.iter().filter_map(of).collect()
    }

    pub(super) fn speaker_config(&self, id: NeighbourId) -> Option<NeighbourConfig> {
        let neighbour = self.neighbours[usize::from(id.0)].as_ref()?;
        let neighbour = Neighbour {
            drain: self.is_drained(id),
            ..neighbour.clone()
        };
        let mut own = neighbour.speaker_config();
        own.track_routes = self.role.tracks_routes(id);
        Some(own)
    }

    /// Adds a neighbour to speaker and sockets.
    fn put(
        &mut self,
        neighbour: Neighbour,
        fate: Fate,
        id: NeighbourId,
        before: &[(NeighbourId, NeighbourConfig)],
        reloaded: &mut Reloaded,
    ) {
        let name = neighbour.name.clone();
        self.connections.set(id, Some(&neighbour));
        let place = usize::from(id.0);
        let is_known = place < self.neighbours.len();
        let known = self.neighbours.get(place).and_then(Option::as_ref);
        let has_other_bfd = known.is_some_and(|known| known.bfd != neighbour.bfd);
        match is_known {
            true => self.neighbours[place] = Some(neighbour),
            false => self.neighbours.push(Some(neighbour)),
        }
        let config = self.speaker_config(id).expect("it was just put there");
        match fate {
            Fate::Stays(_) => {
                let has_others = before.iter().all(|(of, old)| *of != id || *old != config);
                if has_others {
                    self.speaker.set_policies(now(), id, config);
                }
                if has_others || has_other_bfd {
                    reloaded.changed.push(name);
                }
            }
            Fate::Restarts(_) => self.speaker.replace_neighbour(id, config),
            Fate::New => {
                self.neighbours[place].iter().for_each(warn_of_defaults);
                reloaded.added.push(name);
                match is_known {
                    true => self.speaker.replace_neighbour(id, config),
                    false => _ = self.speaker.add_neighbour(config),
                }
            }
        }
    }

    fn set_vrps(&mut self, vrps: Option<Arc<keiro_bgp::rpki::Vrps>>) {
        self.speaker.set_vrps(vrps.clone().unwrap_or_default());
        self.config.vrps = vrps;
    }

    /// A recording covers only one configuration.
    fn end_record(&mut self, reloaded: &Reloaded, originates: bool) {
        let sessions = [
            &reloaded.added,
            &reloaded.removed,
            &reloaded.restarted,
            &reloaded.changed,
        ];
        let same = sessions.iter().all(|names| names.is_empty());
        if self.record.is_some() && (!same || originates || self.config.vrps.is_some()) {
            tracing::warn!("recording ends: the configuration is another one");
            self.record = None;
        }
    }
}

/// Errors returned to the client that asked for the reload. Ours; all are logged.
const REFUSED_SHOWN: usize = 20;

/// Whether all session parameters are the same.
fn same_terms(old: &Neighbour, new: &Neighbour) -> bool {
    let key = |one: &Neighbour| {
        let times = (one.hold_time, one.graceful_restart);
        let flags = (
            one.passive,
            one.add_path,
            one.one_hop,
            one.extended_messages,
        );
        (one.address, one.port, one.asn, times, flags, one.local)
    };
    key(old) == key(new) && old.families == new.families && old.md5 == new.md5
}

/// Keeps values of both roles that cannot change at run time, and reports them.
pub(crate) fn keep_speaker(
    old: &SpeakerConfig,
    new: &mut SpeakerConfig,
) -> Result<Vec<String>, String> {
    if new.asn != old.asn {
        return Err(needs("asn", &old.asn));
    }
    if new.router_id != old.router_id {
        return Err(needs("router_id", &old.router_id));
    }
    let mut lines = Vec::new();
    keep_value("listen", &old.listen, &mut new.listen, &mut lines);
    let socket = &mut new.control_socket;
    keep_value("control_socket", &old.control_socket, socket, &mut lines);
    Ok(lines)
}

/// Peers without a configured table keep the one they have, even if others are now listed before
/// them; new ones get an unused table. Takes peers by key, with their tables and whether these are
/// configured.
pub(crate) fn keep_tables<'a, K: PartialEq>(
    known: impl Iterator<Item = (K, u32, bool)>,
    new: impl Iterator<Item = (K, &'a mut u32, bool)>,
) {
    let known: Vec<_> = known.collect();
    let new: Vec<_> = new.collect();
    let said = new.iter().filter(|(_, _, said)| *said);
    let mut taken: BTreeSet<u32> = said.map(|(_, table, _)| **table).collect();
    let mut open = Vec::new();
    for (key, table, _) in new.into_iter().filter(|(_, _, said)| !said) {
        let before = known.iter().find(|(of, _, said)| *of == key && !said);
        match before {
            Some((_, before, _)) if taken.insert(*before) => *table = *before,
            _ => open.push(table),
        }
    }
    // Tables of removed peers are free again, so the search is short.
    for table in open {
        while !taken.insert(*table) {
            *table += 1;
        }
    }
}

/// The error for a value that needs a restart.
pub(crate) fn needs(key: &str, old: &dyn std::fmt::Display) -> String {
    format!("{key}: it is {old} as long as the daemon runs; restart it for another one")
}

/// Restores a value that needs a restart, and reports it.
pub(crate) fn keep_value<T: Clone + PartialEq>(
    key: &str,
    old: &T,
    new: &mut T,
    lines: &mut Vec<String>,
) {
    if old != new {
        new.clone_from(old);
        lines.push(format!("{key}: the new value takes effect after a restart"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_tables_stay_with_their_peers() {
        let keep = |known: &[(&str, u32, bool)], new: &[(&str, u32, bool)]| -> Vec<u32> {
            let mut tables: Vec<u32> = new.iter().map(|one| one.1).collect();
            let of = new.iter().zip(&mut tables);
            keep_tables(
                known.iter().copied(),
                of.map(|(one, table)| (one.0, table, one.2)),
            );
            tables
        };
        let known = [("a", 10, false), ("b", 11, false), ("c", 99, true)];
        // The first is gone.
        assert_eq!(keep(&known, &[("b", 10, false), ("c", 99, true)]), [11, 99]);
        // A new one comes first, and the others keep theirs.
        let more = [("d", 10, false), ("a", 11, false), ("b", 12, false)];
        assert_eq!(keep(&known, &more), [12, 10, 11]);
        // A configured table wins; what was configured before no longer counts.
        let said = [("a", 50, true), ("c", 11, false), ("b", 12, false)];
        assert_eq!(keep(&known, &said), [50, 12, 11]);
        assert_eq!(keep(&known, &[("e", 11, true), ("b", 11, false)]), [11, 12]);
    }
}
