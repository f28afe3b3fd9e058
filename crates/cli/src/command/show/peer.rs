//! `keiro show peer`.

use keiro_control::protocol::{PeerSnapshot, PeerState};

use super::{FieldList, Health, cell, known, listed, mark, seconds, word};
use crate::output::{
    Style, human,
    table::{Cell, Table},
};

pub(super) fn table(peers: &[PeerSnapshot], style: Style) -> String {
    let mut table = Table::new(&[
        "peer",
        "state",
        "paths up>",
        "last handshake>",
        "handshakes>",
        "dropped>",
        "public key",
    ]);
    for peer in peers {
        table.row([
            Cell::from(peer.name.as_str()),
            cell(style, &word(&peer.state), health(peer.state)),
            Cell::from(peer.stats.paths_up.to_string()),
            Cell::from(known(peer.stats.handshake_age, |age| {
                format!("{} ago", human::duration(age))
            })),
            Cell::from(peer.stats.handshakes_completed.to_string()),
            Cell::from(peer.dropped_packets.values().sum::<u64>().to_string()),
            Cell::from(peer.public_key.as_str()),
        ]);
    }
    listed(&table, "no peers are configured")
}

pub(super) fn text(peer: &PeerSnapshot, style: Style) -> String {
    let mut fields = FieldList::new(format!("peer {}", style.strong(&peer.name)));
    fields.add(
        "state",
        format!(
            "{} for {}: {}",
            mark(style, &word(&peer.state), health(peer.state)),
            seconds(peer.state_seconds),
            peer.why
        ),
    );
    if peer.direct {
        let how = "direct, passes no hub; `keiro show network` says how packets reach each site";
        fields.add("session", how.to_owned());
    }
    fields.add("public key", peer.public_key.clone());
    fields.add_stats("", &peer.stats.0);
    let dropped: Vec<String> = peer
        .dropped_packets
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{count} {}", reason.replace('_', " ")))
        .collect();
    fields.add(
        "dropped",
        if dropped.is_empty() {
            "nothing".to_owned()
        } else {
            dropped.join(", ")
        },
    );
    fields.text()
}

fn health(state: PeerState) -> Health {
    match state {
        PeerState::Up => Health::Good,
        PeerState::Down => Health::Bad,
        PeerState::Handshaking | PeerState::Unknown => Health::Neither,
    }
}
