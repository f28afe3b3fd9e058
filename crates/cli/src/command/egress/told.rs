//! What the daemons of the egress suite answer, as text.

use keiro_egress::status::{
    ComparisonStatus, Evidence, Explanation, KernelRoute, PathStatus, PeerInKernel, PeerStatus,
    PrefixMode, PrefixStatus, Reloaded, Status,
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
    let comparison = status.comparison.as_ref().map(comparison);
    let comparison = comparison.unwrap_or_default();
    format!(
        "{role}, AS {asn}, {router_id}: {destinations} destinations, {refused} changes refused\n\
         {kernel}\n{rpki}{rejected}\n{}\n{}{comparison}",
        neighbours(status),
        peers(&status.peers)
    )
}

/// Multipath against single path.
fn comparison(told: &ComparisonStatus) -> String {
    let ComparisonStatus {
        prefixes,
        single_path,
        trial,
        counted,
        decisions,
        ..
    } = told;
    let mut text = format!(
        "\nmultipath against single path: {prefixes} client prefixes, {single_path} of them single-path, \
         {trial} tried again; {counted} connections counted, {decisions} decisions\n"
    );
    if !told.shown.is_empty() {
        text.push_str(&prefixes_of(&told.shown).to_string());
    }
    let hidden = prefixes - told.shown.len();
    if hidden > 0 {
        text.push_str(&format!("and {hidden} more\n"));
    }
    text
}

fn prefixes_of(shown: &[PrefixStatus]) -> Table {
    let mut table = Table::new(&[
        "clients",
        "now",
        "single path>",
        "Mbit/s>",
        "multipath>",
        "Mbit/s>",
        "loses>",
        "at least>",
        "at most>",
        "judged at>",
    ]);
    for one in shown {
        // While nothing is compared, what was decided by.
        let of = match one.mode {
            PrefixMode::SinglePath => one.decided.as_ref().unwrap_or(&one.evidence),
            _ => &one.evidence,
        };
        table.row([
            one.prefix.to_string(),
            mode(one),
            of.single_connections.to_string(),
            or_none(of.single_bits_per_second.map(mbit)),
            of.multipath_connections.to_string(),
            or_none(of.multipath_bits_per_second.map(mbit)),
            or_none(of.loss_permille.map(percent)),
            or_none(of.loss_low_permille.map(percent)),
            or_none(of.loss_high_permille.map(percent)),
            or_none(one.next_look),
        ]);
    }
    table
}

fn mode(one: &PrefixStatus) -> String {
    match (one.mode, one.again_seconds) {
        (PrefixMode::Multipath, _) => "multipath".to_owned(),
        (PrefixMode::Trial, _) => "half multipath, on trial".to_owned(),
        (PrefixMode::SinglePath, None) => "single path".to_owned(),
        (PrefixMode::SinglePath, Some(seconds)) => format!("single path, tried in {seconds} s"),
    }
}

fn mbit(bits_per_second: u64) -> String {
    format!("{:.1}", bits_per_second as f64 / 1e6)
}

fn percent(permille: i64) -> String {
    format!("{:.1} %", permille as f64 / 10.0)
}

/// Why a client prefix stands as it does.
fn compared(one: &PrefixStatus) -> String {
    let said = |of: &Evidence| {
        let interval = of.loss_low_permille.zip(of.loss_high_permille);
        let loss = match (of.loss_permille, interval) {
            (Some(loss), Some((low, high))) => format!(
                ": multipath loses {} ({} to {})",
                percent(loss),
                percent(low),
                percent(high)
            ),
            _ => String::new(),
        };
        let goodput = |bits: Option<u64>| bits.map_or(NONE.to_owned(), mbit);
        format!(
            "{} single-path connections of {} Mbit/s, {} multipath ones of {} Mbit/s{loss}",
            of.single_connections,
            goodput(of.single_bits_per_second),
            of.multipath_connections,
            goodput(of.multipath_bits_per_second),
        )
    };
    let mut text = format!("\nclients of {}: {}\n", one.prefix, mode(one));
    if let Some(next) = one.next_look {
        text.push_str(&format!("now {}; judged at {next}\n", said(&one.evidence)));
    }
    if let Some(decided) = &one.decided {
        text.push_str(&format!("decided by {}\n", said(decided)));
    }
    text
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
            neighbour.advertised.to_string(),
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
    if kernel.vrf == Some(false) {
        missing.push("no VRF");
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
        ("egress peers added", &reloaded.peers_added),
        ("egress peers removed", &reloaded.peers_removed),
        ("egress peers changed", &reloaded.peers_changed),
        ("other for connections that begin now", &reloaded.sections),
    ];
    let lines = lines.into_iter().filter(|(_, names)| !names.is_empty());
    let lines: Vec<String> = lines
        .map(|(what, names)| format!("{what}: {}\n", names.join(", ")))
        .collect();
    let rpki = reloaded.vrps.map(|vrps| format!("RPKI: {vrps} payloads\n"));
    match lines.is_empty() {
        true => format!("nothing is another\n{}", rpki.unwrap_or_default()),
        false => lines.concat() + &rpki.unwrap_or_default(),
    }
}

pub(super) fn explanation(told: &Explanation) -> String {
    let mut text = match told.prefix {
        Some(prefix) if told.paths.iter().all(|path| !path.reachable) => format!(
            "{}: no best path; none to {prefix} is considered\n",
            told.asked
        ),
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
            (Some(prefix), None) if peer.paths.iter().all(|path| !path.reachable) => {
                format!("{prefix} is announced, but its next hop cannot be reached")
            }
            (Some(prefix), None) => format!("{prefix} is announced, but has no segment yet"),
            (None, _) => "it does not announce it; what is sent there is unreachable".to_owned(),
        };
        text.push_str(&format!("\negress peer {}{from}: {leads}\n", peer.name));
        text.push_str(&paths(&peer.paths));
        if let Some(kernel) = &peer.kernel {
            text.push_str(&in_kernel(kernel));
        }
    }
    for one in &told.compared {
        text.push_str(&compared(one));
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
            _ if !path.reachable => "no: its next hop cannot be reached".to_owned(),
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

#[cfg(test)]
mod tests {
    use keiro_egress::status::PeerExplanation;

    use super::*;

    fn prefix(mode: PrefixMode) -> PrefixStatus {
        let decided = Evidence {
            single_connections: 20,
            single_bits_per_second: Some(25_486_723),
            multipath_connections: 21,
            multipath_bits_per_second: Some(6_504_904),
            loss_permille: Some(745),
            loss_low_permille: Some(446),
            loss_high_permille: Some(882),
        };
        PrefixStatus {
            prefix: "2001:db8:1::/48".parse().unwrap(),
            mode,
            again_seconds: (mode == PrefixMode::SinglePath).then_some(90),
            evidence: Evidence {
                single_connections: 3,
                ..Evidence::default()
            },
            next_look: (mode != PrefixMode::SinglePath).then_some(20),
            decided: Some(decided),
        }
    }

    #[test]
    fn a_client_prefix_is_told_with_what_it_was_decided_by() {
        let told = compared(&prefix(PrefixMode::SinglePath));
        assert_eq!(
            told,
            "\nclients of 2001:db8:1::/48: single path, tried in 90 s\n\
             decided by 20 single-path connections of 25.5 Mbit/s, 21 multipath ones of 6.5 Mbit/s: \
             multipath loses 74.5 % (44.6 % to 88.2 %)\n"
        );
        let told = compared(&prefix(PrefixMode::Trial));
        let now =
            "now 3 single-path connections of - Mbit/s, 0 multipath ones of - Mbit/s; judged at 20";
        assert!(told.contains(now), "{told}");
    }

    #[test]
    fn paths_that_are_not_considered_are_not_called_the_best() {
        let path = PathStatus {
            from: Some("transit-a".to_owned()),
            distinguisher: None,
            next_hop: "2001:db8:99::1".parse().unwrap(),
            segment: None,
            as_path: vec![65001],
            local_pref: 100,
            med: None,
            origin: "igp".to_owned(),
            rpki: None,
            stale: false,
            reachable: false,
            loses_to: None,
        };
        let prefix = Some("2001:db8:1::/48".parse().unwrap());
        let peer = PeerExplanation {
            name: "transit-a".to_owned(),
            address: None,
            prefix,
            via: None,
            paths: vec![path.clone()],
            kernel: None,
        };
        let told = explanation(&Explanation {
            asked: "2001:db8:1::7/128".parse().unwrap(),
            prefix,
            paths: vec![path],
            kernel: None,
            peers: vec![peer],
            compared: Vec::new(),
        });
        for part in [
            "2001:db8:1::7/128: no best path; none to 2001:db8:1::/48 is considered\n",
            "egress peer transit-a: 2001:db8:1::/48 is announced, but its next hop cannot be reached\n",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn prefixes_are_rows_and_the_rest_a_number() {
        let told = comparison(&ComparisonStatus {
            prefixes: 9,
            single_path: 1,
            trial: 1,
            forgotten: 0,
            counted: 44,
            decisions: 2,
            shown: vec![prefix(PrefixMode::SinglePath), prefix(PrefixMode::Trial)],
        });
        for part in [
            "9 client prefixes, 1 of them single-path, 1 tried again; 44 connections counted, 2 decisions",
            "74.5 %",
            "single path, tried in 90 s",
            "half multipath, on trial",
            "and 7 more",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
