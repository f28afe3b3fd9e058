//! What the daemons of the egress suite answer, as text.

use keiro_egress::status::{
    Explanation, KernelRoute, PathStatus, PeerInKernel, PeerStatus, Reloaded, Status,
};

use crate::output::{human::NONE, table::Table};

pub(super) fn status(status: &Status) -> String {
    let Status {
        role,
        asn,
        router_id,
        destinations,
        refused,
        ..
    } = status;
    let kernel = match &status.kernel {
        None => "nothing is put into the kernel (--dry-run)".to_owned(),
        Some(kernel) => match &kernel.error {
            Some(error) => format!("kernel: not read: {error}"),
            None => {
                let guarded = match &kernel.guarded[..] {
                    [] => String::new(),
                    all => format!("; none are reached from {}", all.join(", ")),
                };
                format!(
                    "kernel: {} best paths, {} nexthop objects, {} segments{guarded}",
                    kernel.main_routes, kernel.nexthops, kernel.segments
                )
            }
        },
    };
    let rpki = status.vrps.map(|vrps| format!("RPKI: {vrps} payloads\n"));
    let rpki = rpki.unwrap_or_default();
    let rejected = status.config_rejected.as_ref();
    let rejected = rejected.map(|why| format!("the last reload was refused: {why}\n"));
    let rejected = rejected.unwrap_or_default();
    format!(
        "{role}, AS {asn}, {router_id}: {destinations} destinations, {refused} changes refused\n\
         {kernel}\n{rpki}{rejected}\n{}\n{}",
        neighbours(status),
        peers(&status.peers)
    )
}

fn neighbours(status: &Status) -> Table {
    let mut table = Table::new(&[
        "neighbour",
        "address",
        "AS>",
        "state",
        "up>",
        "routes>",
        "told>",
        "last down",
    ]);
    for neighbour in &status.neighbours {
        let up = neighbour.up_seconds;
        table.row([
            neighbour.name.clone(),
            neighbour.address.to_string(),
            neighbour.asn.to_string(),
            neighbour.state.clone(),
            up.map_or(NONE.to_owned(), |seconds| format!("{seconds} s")),
            neighbour.routes.values().sum::<usize>().to_string(),
            neighbour.told.to_string(),
            or_none(neighbour.last_error.as_ref()),
        ]);
    }
    table
}

fn peers(peers: &[PeerStatus]) -> Table {
    let mut table = Table::new(&[
        "egress peer",
        "target",
        "segment",
        "address",
        "routes>",
        "table>",
        "in kernel>",
        "way in",
        "subflows>",
    ]);
    for peer in peers {
        let kernel = peer.kernel.as_ref();
        table.row([
            peer.name.clone(),
            peer.rt.clone(),
            or_none(peer.sid),
            or_none(peer.address),
            peer.routes.to_string(),
            or_none(kernel.and_then(|kernel| kernel.table)),
            or_none(kernel.map(|kernel| kernel.routes)),
            kernel.map_or(NONE.to_owned(), |kernel| way_in(peer, kernel)),
            or_none(peer.subflows),
        ]);
    }
    table
}

/// What leads to a peer's table, and what is missing.
fn way_in(peer: &PeerStatus, kernel: &PeerInKernel) -> String {
    let mut missing = Vec::new();
    if kernel.table.is_some() && !kernel.closed {
        missing.push("open");
    }
    match peer.address.is_some() {
        true if !kernel.entered => missing.push("no rule"),
        true if !kernel.address => missing.push("no address"),
        false if !kernel.entered => missing.push("no segment"),
        true => return done("rule and address", &missing),
        false => return done("segment", &missing),
    }
    missing.join(", ")
}

fn done(what: &str, missing: &[&str]) -> String {
    match missing {
        [] => what.to_owned(),
        _ => format!("{what}, {}", missing.join(", ")),
    }
}

/// A line for each kind of change; none at all is one, too.
pub(super) fn reloaded(reloaded: &Reloaded) -> String {
    let lines = [
        ("added", &reloaded.added),
        ("removed", &reloaded.removed),
        ("sessions begun anew", &reloaded.restarted),
        ("other routes, sessions stay", &reloaded.changed),
    ];
    let lines = lines.into_iter().filter(|(_, names)| !names.is_empty());
    let lines: Vec<String> = lines
        .map(|(what, names)| format!("{what}: {}\n", names.join(", ")))
        .collect();
    let rpki = reloaded.vrps.map(|vrps| format!("RPKI: {vrps} payloads\n"));
    match lines.is_empty() {
        true => format!("no neighbour is another\n{}", rpki.unwrap_or_default()),
        false => lines.concat() + &rpki.unwrap_or_default(),
    }
}

pub(super) fn explanation(told: &Explanation) -> String {
    let mut text = match told.prefix {
        Some(prefix) => format!("{}: best path to {prefix}\n", told.asked),
        None => format!("{}: no best path; nobody announces it\n", told.asked),
    };
    text.push_str(&paths(&told.paths));
    if let Some(kernel) = &told.kernel {
        text.push_str(&in_kernel(kernel));
    }
    for peer in &told.peers {
        let from = peer.address.map(|address| format!(", from {address}"));
        let from = from.unwrap_or_default();
        let leads = match (&peer.prefix, &peer.via) {
            (Some(prefix), Some(via)) => format!("{prefix} {via}"),
            (Some(prefix), None) => format!("{prefix} is announced, but has no segment yet"),
            (None, _) => "it does not announce it; what is sent there is unreachable".to_owned(),
        };
        text.push_str(&format!("\negress peer {}{from}: {leads}\n", peer.name));
        text.push_str(&paths(&peer.paths));
        if let Some(kernel) = &peer.kernel {
            text.push_str(&in_kernel(kernel));
        }
    }
    text
}

fn paths(paths: &[PathStatus]) -> String {
    if paths.is_empty() {
        return String::new();
    }
    let asked = paths.iter().any(|path| path.rpki.is_some());
    let rpki = asked.then_some("RPKI");
    let columns = [
        "from",
        "next hop",
        "segment",
        "preference>",
        "AS path",
        "origin",
        "MED>",
    ];
    let columns: Vec<&str> = columns.into_iter().chain(rpki).chain(["chosen"]).collect();
    let mut table = Table::new(&columns);
    for path in paths {
        let from = path.from.as_deref().unwrap_or("ourselves");
        let asns: Vec<String> = path.as_path.iter().map(ToString::to_string).collect();
        let chosen = match &path.loses_to {
            None => "best".to_owned(),
            Some(step) => format!("no: the best has: {step}"),
        };
        let rpki = asked.then(|| or_none(path.rpki.as_ref()));
        let cells = [
            match &path.distinguisher {
                Some(rd) => format!("{from} ({rd})"),
                None => from.to_owned(),
            },
            path.next_hop.to_string(),
            or_none(path.segment),
            path.local_pref.to_string(),
            match asns.is_empty() {
                true => NONE.to_owned(),
                false => asns.join(" "),
            },
            path.origin.clone(),
            or_none(path.med),
        ];
        let chosen = match path.stale {
            true => format!("{chosen}, stale"),
            false => chosen,
        };
        table.row(cells.into_iter().chain(rpki).chain([chosen]));
    }
    table.to_string()
}

fn in_kernel(route: &KernelRoute) -> String {
    let table = match route.table {
        MAIN => "main".to_owned(),
        number => number.to_string(),
    };
    let says = match (&route.prefix, &route.by) {
        (Some(prefix), Some(by)) => format!("{prefix} {by}"),
        (Some(prefix), None) => format!("{prefix} by a nexthop object that is gone"),
        (None, _) if route.closed => "unreachable".to_owned(),
        (None, _) => "no route of Keiro's".to_owned(),
    };
    format!("kernel, table {table}: {says}\n")
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or(NONE.to_owned(), |value| value.to_string())
}

/// `RT_TABLE_MAIN`.
const MAIN: u32 = 254;
