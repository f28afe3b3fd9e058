//! The daemon's side of [`crate::links`]: hears of changes, and ends sessions.

use keiro_bgp::{
    rib::NeighbourId,
    speaker::{Input, Speaker},
};
use keiro_linux::{
    epoll::{Epoll, Interest},
    interface,
    link_watch::LinkWatch,
};

use super::{Daemon, LINKS, Role};
use crate::{config::Neighbour, links::Watched};

impl<R: Role> Daemon<R> {
    /// Ends sessions whose link is down.
    pub(super) fn follow_links(&mut self) {
        let Some(watch) = &mut self.link_watch else {
            return;
        };
        if let Err(error) = watch.changed() {
            tracing::error!(%error, "changes of links are noticed no longer, until a restart");
            self.link_watch = None;
            return;
        }
        if self.links.is_empty() {
            return;
        }
        let Ok(now) = interface::list() else {
            return;
        };
        let count = self.neighbours.len() as u16;
        let (role, speaker, all) = (&self.role, &self.speaker, &self.neighbours);
        let of = |id| {
            watched(
                role,
                speaker,
                all[usize::from(id)].as_ref()?,
                NeighbourId(id),
            )
        };
        let watched: Vec<Watched<'_>> = (0..count).filter_map(of).collect();
        let changes = self.links.on_change(&watched, &now);
        self.links.check_invariants();
        for change in changes {
            let (peer, interface) = (self.name(change.id), &change.interface);
            match change.lost {
                Some(why) => tracing::warn!(peer, "interface {interface} {why}"),
                None => tracing::info!(peer, "interface {interface} is up again"),
            }
            self.inputs.push_back(change.input());
        }
    }

    /// Remembers the link of a session that came up.
    pub(super) fn note_link(&mut self, id: NeighbourId) {
        let neighbour = self.neighbours[usize::from(id.0)].as_ref();
        let watched = neighbour.and_then(|one| watched(&self.role, &self.speaker, one, id));
        let (Some(watched), Some(_)) = (watched, &self.link_watch) else {
            return;
        };
        if let Ok(links) = interface::list() {
            if self.links.is_down(id) {
                self.inputs.push_back(Input::LinkUp(id));
            }
            self.links.on_session_up(watched, &links);
        }
    }
}

/// A neighbour whose link matters; `None`: it is in this AS, where sessions survive a link.
fn watched<'a, R: Role>(
    role: &'a R,
    speaker: &Speaker,
    neighbour: &Neighbour,
    id: NeighbourId,
) -> Option<Watched<'a>> {
    let external = neighbour.asn != speaker.asn();
    external.then(|| Watched {
        id,
        address: neighbour.address,
        interface: role.interface_of(id),
        local: speaker.local_address(id),
    })
}

/// `None`: without netlink the end of a link shows when the hold time is over.
pub(super) fn watch(epoll: &Epoll) -> Option<LinkWatch> {
    let opened = LinkWatch::open().and_then(|watch| {
        epoll.add(&watch, LINKS, Interest::Read)?;
        Ok(watch)
    });
    let warned = opened.inspect_err(|error| {
        tracing::warn!(%error, "the end of a link is noticed only when the hold time is over");
    });
    warned.ok()
}
