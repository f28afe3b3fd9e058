//! The columns of each table, with what is left out first on a narrow terminal.

use crate::table::Column;

const fn words(title: &'static str, rank: u8) -> Column {
    Column {
        title,
        is_number: false,
        rank,
    }
}

const fn number(title: &'static str, rank: u8) -> Column {
    Column {
        title,
        is_number: true,
        rank,
    }
}

/// In the order of `rows::app`.
pub(crate) const APPS: &[Column] = &[
    words("application", 0),
    words("met", 1),
    words("path", 1),
    number("target", 2),
    number("p99", 2),
    number("predicted", 3),
    number("margin", 3),
    number("sent", 4),
    number("received", 5),
    number("waiting", 6),
    number("p50", 7),
    words("peer", 8),
    words("class", 9),
    words("chosen by", 10),
];

/// In the order of `rows::path`.
pub(crate) const PATHS: &[Column] = &[
    words("path", 0),
    words("peer", 1),
    words("state", 1),
    number("rtt", 2),
    number("loss", 2),
    number("sent", 3),
    number("received", 4),
    number("capacity", 4),
    number("available", 6),
    number("jitter", 5),
    number("queued", 8),
    number("outages", 7),
    number("mtu", 9),
    words("why", 10),
];

/// In the order of `rows::tenant`.
pub(crate) const TENANTS: &[Column] = &[
    words("tenant", 0),
    words("device", 1),
    number("weight", 2),
    number("share", 2),
    number("from device", 3),
    number("to device", 3),
    number("dropped", 4),
    number("queued", 5),
    number("in flight", 6),
    words("peers", 7),
];

/// In the order of `rows::event`.
pub(crate) const EVENTS: &[Column] = &[
    words("time (UTC)", 0),
    words("event", 2),
    words("what happened", 1),
];
