//! Answers of the egress suite's daemons as text.

use std::net::IpAddr;

use ipnet::IpNet;
use keiro_egress::{
    alarms::AlarmStatus,
    looking_glass::RouteStatus,
    stats::{EgressPeerStats, NeighbourStats},
    status::{
        ComparisonStatus, Explanation, GoodputComparison, KernelRoute, KernelStatus, PathStatus,
        PeerInKernel, PeerStatus, PrefixMode, PrefixStatus, Reloaded, Status, UnusedReason,
    },
};

use super::steering;
use crate::{
    command::figures,
    output::{human::NONE, table::Table},
};

pub(super) fn status(status: &Status) -> String {
    let rpki = status.vrps.map(rpki_line).unwrap_or_default();
    let rejected = status.config_rejected.as_ref();
    let rejected = rejected.map(|why| format!("the last reload was refused: {why}\n"));
    let rejected = rejected.unwrap_or_default();
    let comparison = status.comparison.as_ref().map(comparison);
    let comparison = comparison.unwrap_or_default();
    let steering = status.steering.as_ref().map(steering::status);
    let steering = steering.unwrap_or_default();
    format!(
        "{}, AS {}, {}: {}\n{}\n{rpki}{rejected}{}\n{}\n{}{}{comparison}{steering}",
        status.role,
        status.asn,
        status.router_id,
        figures::list(&status.stats.0),
        kernel_line(status.kernel.as_ref()),
        alarms(status),
        neighbours(status),
        bfd(status),
        peers(&status.peers)
    )
}

/// A line for each, since their texts are sentences.
fn alarms(status: &Status) -> String {
    let line = |alarm: &AlarmStatus| {
        let (subject, seconds) = (&alarm.subject, alarm.for_seconds);
        format!(
            "ALARM {} {subject}, for {seconds} s: {}\n",
            alarm.cause, alarm.text
        )
    };
    let further = status.further_alarms.iter();
    let further = further.map(|(cause, count)| format!("ALARM {cause}: and {count} more\n"));
    status.alarms.iter().map(line).chain(further).collect()
}

fn rpki_line(vrps: usize) -> String {
    format!("RPKI: {vrps} validated ROA payloads\n")
}

fn kernel_line(kernel: Option<&KernelStatus>) -> String {
    let Some(kernel) = kernel else {
        return "kernel: left unchanged (--dry-run)".to_owned();
    };
    if let Some(error) = &kernel.error {
        return format!("kernel: not read: {error}");
    }
    let guarded = match &kernel.guarded[..] {
        [] => String::new(),
        all => format!(", packets to segments are dropped on {}", all.join(", ")),
    };
    let differs = match kernel.differs {
        true => "; some of it is not there, see the log; --verify reads what is",
        false => "",
    };
    format!(
        "kernel: {} best paths, {} nexthop objects, {} segments{guarded}{differs}",
        kernel.main_routes, kernel.nexthops, kernel.segments
    )
}

/// Multipath against single path.
fn comparison(status: &ComparisonStatus) -> String {
    let mut text = format!(
        "\nmultipath against single path: {}\n",
        figures::list(&status.stats.0)
    );
    if !status.shown.is_empty() {
        text.push_str(&prefixes_of(&status.shown).to_string());
    }
    let hidden = status
        .stats
        .prefixes
        .saturating_sub(status.shown.len() as u64);
    if hidden > 0 {
        text.push_str(&format!("and {hidden} more\n"));
    }
    text
}

fn prefixes_of(shown: &[PrefixStatus]) -> Table {
    let mut table = Table::new(&[
        "clients",
        "mode",
        "single path>",
        "Mbit/s>",
        "multipath>",
        "Mbit/s>",
        "slower by>",
        "at least>",
        "at most>",
        "next test at>",
    ]);
    for one in shown {
        // In single-path mode nothing is compared: show the evidence of the decision.
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
        (PrefixMode::Trial, _) => "trial, half of the connections multipath".to_owned(),
        (PrefixMode::SinglePath, None) => "single path".to_owned(),
        (PrefixMode::SinglePath, Some(seconds)) => {
            format!("single path, multipath tried in {seconds} s")
        }
    }
}

fn mbit(bits_per_second: u64) -> String {
    format!("{:.1}", bits_per_second as f64 / 1e6)
}

fn percent(permille: i64) -> String {
    format!("{:.1} %", permille as f64 / 10.0)
}

/// The state of a client prefix and the evidence for it.
fn compared(one: &PrefixStatus) -> String {
    let mut text = format!("\nclients of {}: {}\n", one.prefix, mode(one));
    if let Some(next) = one.next_look {
        let evidence = evidence_text(&one.evidence);
        text.push_str(&format!(
            "evidence so far: {evidence}; next test at {next} connections of each\n"
        ));
    }
    if let Some(decided) = &one.decided {
        text.push_str(&format!("last decision: {}\n", evidence_text(decided)));
    }
    text
}

fn evidence_text(evidence: &GoodputComparison) -> String {
    let interval = evidence.loss_low_permille.zip(evidence.loss_high_permille);
    let loss = match (evidence.loss_permille, interval) {
        (Some(loss), Some((low, high))) => format!(
            ": multipath is slower by {} ({} to {})",
            percent(loss),
            percent(low),
            percent(high)
        ),
        _ => String::new(),
    };
    format!(
        "{} single-path connections at {} Mbit/s, {} multipath connections at {} Mbit/s{loss}",
        evidence.single_connections,
        or_none(evidence.single_bits_per_second.map(mbit)),
        evidence.multipath_connections,
        or_none(evidence.multipath_bits_per_second.map(mbit)),
    )
}

fn neighbours(status: &Status) -> Table {
    let mut headers: Vec<String> = ["neighbour", "address", "AS>", "state", "up for>", "routes>"]
        .map(str::to_owned)
        .into();
    headers.extend(figures::headers::<NeighbourStats>());
    headers.push("last down".to_owned());
    let mut table = Table::new(&headers);
    for neighbour in &status.neighbours {
        let up = neighbour.up_seconds.map(|seconds| format!("{seconds} s"));
        let mut row = vec![
            neighbour.name.clone(),
            neighbour.address.to_string(),
            neighbour.asn.to_string(),
            neighbour.state.clone(),
            or_none(up),
            neighbour.routes.values().sum::<usize>().to_string(),
        ];
        row.extend(figures::cells(&neighbour.stats.0));
        row.push(or_none(neighbour.last_error.as_ref()));
        table.row(row);
    }
    table
}

/// BFD sessions, and what was discarded of their packets.
fn bfd(status: &Status) -> String {
    let Some(discarded) = &status.bfd_discarded else {
        return String::new();
    };
    let mut table = Table::new(&[
        "BFD with",
        "state",
        "there",
        "sends every>",
        "down after>",
        "for>",
        "last down",
        "cannot send",
    ]);
    let milliseconds = |micros: u64| format!("{} ms", micros as f64 / 1e3);
    for neighbour in &status.neighbours {
        let Some(bfd) = &neighbour.bfd else { continue };
        table.row([
            neighbour.name.clone(),
            bfd.state.clone(),
            bfd.remote_state.clone(),
            or_none(bfd.send_interval_us.map(milliseconds)),
            or_none(bfd.detection_time_us.map(milliseconds)),
            format!("{} s", bfd.last_change_seconds),
            bfd.diagnostic.replace('_', " "),
            or_none(bfd.send_error.as_ref()),
        ]);
    }
    let counted = discarded.iter().filter(|(_, count)| **count > 0);
    let counted: Vec<String> = counted
        .map(|(reason, count)| format!("{} {count}", reason.replace('_', " ")))
        .collect();
    let discarded = match counted.is_empty() {
        true => String::new(),
        false => format!("BFD packets discarded: {}\n", counted.join(", ")),
    };
    format!("{table}{discarded}\n")
}

fn peers(peers: &[PeerStatus]) -> Table {
    let mut headers: Vec<String> = ["egress peer", "target", "segment", "address"]
        .map(str::to_owned)
        .into();
    headers.extend(figures::headers::<EgressPeerStats>());
    headers.extend(["table>", "entry"].map(str::to_owned));
    let mut table = Table::new(&headers);
    for peer in peers {
        let kernel = peer.kernel.as_ref();
        let mut row = vec![
            peer.name.clone(),
            peer.rt.clone(),
            segments(peer),
            addresses(peer),
        ];
        row.extend(figures::cells(&peer.stats.0));
        row.extend([
            or_none(kernel.and_then(|kernel| kernel.table)),
            or_none(kernel.map(|kernel| table_entry(peer, kernel))),
        ]);
        table.row(row);
    }
    table
}

/// The EPE addresses of both families.
fn addresses(peer: &PeerStatus) -> String {
    match (peer.address, peer.ipv4_address) {
        (Some(address), Some(ipv4)) => format!("{address}, {ipv4}"),
        (address, _) => or_none(address),
    }
}

/// The segment of most routes, and the number of others.
fn segments(peer: &PeerStatus) -> String {
    let answers = peer.segments.first().and_then(|most| most.answers);
    let answers = match answers {
        None => "",
        Some(true) => ", answers",
        Some(false) => ", SILENT",
    };
    let sid = or_none(peer.sid);
    match peer.segments.len() {
        0 | 1 => format!("{sid}{answers}"),
        all => format!("{sid}{answers} and {} more", all - 1),
    }
}

/// What leads to a peer's table, and what is missing.
fn table_entry(peer: &PeerStatus, kernel: &PeerInKernel) -> String {
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
        true => return with_missing("rule and address", &missing),
        false => return with_missing("segment", &missing),
    }
    missing.join(", ")
}

fn with_missing(what: &str, missing: &[&str]) -> String {
    match missing {
        [] => what.to_owned(),
        _ => format!("{what}, {}", missing.join(", ")),
    }
}

/// A line for each kind of change.
pub(super) fn reloaded(reloaded: &Reloaded) -> String {
    let lines = [
        ("added", &reloaded.added),
        ("removed", &reloaded.removed),
        ("sessions restarted", &reloaded.restarted),
        ("new policy, session kept", &reloaded.changed),
        ("egress peers added", &reloaded.peers_added),
        ("egress peers removed", &reloaded.peers_removed),
        ("egress peers changed", &reloaded.peers_changed),
        ("changed for new connections", &reloaded.sections),
    ];
    let lines = lines.into_iter().filter(|(_, names)| !names.is_empty());
    let lines: Vec<String> = lines
        .map(|(what, names)| format!("{what}: {}\n", names.join(", ")))
        .collect();
    let rpki = reloaded.vrps.map(rpki_line).unwrap_or_default();
    match lines.is_empty() {
        true => format!("no changes\n{rpki}"),
        false => lines.concat() + &rpki,
    }
}

pub(super) fn explanation(explanation: &Explanation) -> String {
    let mut text = match explanation.prefix {
        Some(prefix) if explanation.paths.iter().all(|path| !path.reachable) => format!(
            "{}: no best path, no next hop of a path to {prefix} can be reached\n",
            explanation.asked
        ),
        Some(prefix) => format!("{}: best path to {prefix}\n", explanation.asked),
        None => format!(
            "{}: no best path, no neighbour announces it\n",
            explanation.asked
        ),
    };
    text.push_str(&paths(&explanation.paths));
    if let Some(kernel) = &explanation.kernel {
        text.push_str(&in_kernel(kernel));
    }
    for peer in &explanation.peers {
        let address = match explanation.asked {
            IpNet::V4(_) => peer.ipv4_address.map(IpAddr::from),
            IpNet::V6(_) => peer.address.map(IpAddr::from),
        };
        let from = address.map(|address| format!(", from {address}"));
        let from = from.unwrap_or_default();
        let leads = match (&peer.prefix, &peer.via) {
            (Some(prefix), Some(via)) => format!("{prefix} {via}"),
            (Some(prefix), None) if peer.paths.iter().all(|path| !path.reachable) => {
                format!("{prefix} is announced, but its next hop cannot be reached")
            }
            (Some(prefix), None) => format!("{prefix} is announced, but has no segment yet"),
            (None, _) => not_in_table(peer.unused),
        };
        text.push_str(&format!("\negress peer {}{from}: {leads}\n", peer.name));
        text.push_str(&paths(&peer.paths));
        if let Some(kernel) = &peer.kernel {
            text.push_str(&in_kernel(kernel));
        }
    }
    for one in &explanation.not_advertised {
        let (to, what, why) = (&one.neighbour, &one.destination, &one.reason);
        text.push_str(&format!("\nnot advertised to {to}: {what}, {why}\n"));
    }
    for one in &explanation.compared {
        text.push_str(&compared(one));
    }
    for one in &explanation.steered {
        text.push_str(&steering::prefix(one));
    }
    text
}

/// Why a peer's table has no route.
fn not_in_table(unused: Option<UnusedReason>) -> String {
    match unused {
        None => "does not announce it, so packets for it are unreachable there".to_owned(),
        Some(UnusedReason::Ipv4) => {
            "no segment carries IPv4 to it (`ipv4 = true`), so IPv4 packets take the best path"
                .to_owned()
        }
        Some(UnusedReason::Silent { prefix, sid }) => format!(
            "{prefix} is announced, but its segment {sid} does not answer probes, so packets for it are unreachable there"
        ),
        Some(UnusedReason::NoSegment { prefix }) => format!(
            "{prefix} is announced without an SRv6 SID and not used, so packets for it are unreachable there"
        ),
    }
}

fn paths(paths: &[PathStatus]) -> String {
    if paths.is_empty() {
        return String::new();
    }
    let asked = paths.iter().any(|path| path.rpki.is_some());
    let rpki = asked.then_some("RPKI");
    let columns = [
        "neighbour",
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
        let from = path.from.as_deref().unwrap_or("local");
        let chosen = match &path.loses_to {
            _ if !path.reachable => "no, its next hop cannot be reached".to_owned(),
            None => "best".to_owned(),
            Some(step) => format!("no, the best path has: {step}"),
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
            as_path(&path.as_path),
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

/// Received routes.
pub(super) fn routes(routes: &[RouteStatus]) -> String {
    let mut table = Table::new(&[
        "prefix",
        "neighbour",
        "next hop",
        "segment",
        "targets",
        "preference>",
        "AS path",
        "used",
    ]);
    for route in routes {
        let path = &route.path;
        let from = path.from.as_deref().unwrap_or("local");
        let stale = if path.stale { ", stale" } else { "" };
        let used = match &route.unused {
            None => route.used_in.join(", "),
            Some(why) => format!("no: {why}"),
        };
        table.row([
            route.prefix.to_string(),
            match &path.distinguisher {
                Some(rd) => format!("{from} ({rd})"),
                None => from.to_owned(),
            },
            path.next_hop.to_string(),
            or_none(path.segment),
            match &route.targets[..] {
                [] => NONE.to_owned(),
                targets => targets.join(" "),
            },
            path.local_pref.to_string(),
            as_path(&path.as_path),
            format!("{used}{stale}"),
        ]);
    }
    table.to_string()
}

/// An AS path in a table: `64500 64501 ×3 64502`. Of a long one the beginning and the origin AS are
/// shown; JSON has all of it.
fn as_path(asns: &[u32]) -> String {
    let runs: Vec<&[u32]> = asns.chunk_by(|a, b| a == b).collect();
    let shown = |run: &&[u32]| match run {
        [asn] => asn.to_string(),
        run => format!("{} ×{}", run[0], run.len()),
    };
    let (first, last) = match runs.split_last() {
        None => return NONE.to_owned(),
        Some((last, first)) if first.len() > AS_RUNS_MAX => (&first[..AS_RUNS_MAX], last),
        Some((last, first)) => (first, last),
    };
    let mut parts: Vec<String> = first.iter().map(shown).collect();
    let hidden = &runs[first.len()..runs.len() - 1];
    if !hidden.is_empty() {
        let hidden: usize = hidden.iter().map(|run| run.len()).sum();
        parts.push(format!("… {hidden} more …"));
    }
    parts.push(shown(last));
    parts.join(" ")
}

fn in_kernel(route: &KernelRoute) -> String {
    let table = match route.table {
        MAIN => "main".to_owned(),
        number => number.to_string(),
    };
    let says = match (&route.prefix, &route.by) {
        (Some(prefix), Some(by)) => format!("{prefix} {by}"),
        (Some(prefix), None) => format!("{prefix}, its nexthop object is missing"),
        (None, _) if route.closed => "unreachable".to_owned(),
        (None, _) => "no route by Keiro".to_owned(),
    };
    format!("kernel, table {table}: {says}\n")
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or(NONE.to_owned(), |value| value.to_string())
}

/// AS numbers before the origin AS in a table, repeated ones counted once. Paths in the Internet are
/// rarely longer. Ours.
const AS_RUNS_MAX: usize = 12;
/// `RT_TABLE_MAIN`.
const MAIN: u32 = 254;

#[cfg(test)]
mod tests {
    use keiro_egress::{
        stats::ComparisonStats,
        status::{NotAdvertised, PeerExplanation},
    };
    use keiro_stats_export::Stats;

    use super::*;

    fn prefix(mode: PrefixMode) -> PrefixStatus {
        let decided = GoodputComparison {
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
            evidence: GoodputComparison {
                single_connections: 3,
                ..GoodputComparison::default()
            },
            next_look: (mode != PrefixMode::SinglePath).then_some(20),
            decided: Some(decided),
        }
    }

    #[test]
    fn a_client_prefix_is_shown_with_its_evidence() {
        let text = compared(&prefix(PrefixMode::SinglePath));
        assert_eq!(
            text,
            "\nclients of 2001:db8:1::/48: single path, multipath tried in 90 s\n\
             last decision: 20 single-path connections at 25.5 Mbit/s, 21 multipath connections at 6.5 Mbit/s: \
             multipath is slower by 74.5 % (44.6 % to 88.2 %)\n"
        );
        let text = compared(&prefix(PrefixMode::Trial));
        let now = "evidence so far: 3 single-path connections at - Mbit/s, 0 multipath connections at - Mbit/s; next test at 20";
        assert!(text.contains(now), "{text}");
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
            ipv4_address: None,
            prefix,
            via: None,
            paths: vec![path.clone()],
            unused: None,
            kernel: None,
        };
        let text = explanation(&Explanation {
            asked: "2001:db8:1::7/128".parse().unwrap(),
            prefix,
            paths: vec![path],
            kernel: None,
            peers: vec![peer],
            not_advertised: vec![NotAdvertised {
                neighbour: "reflector".to_owned(),
                destination: "65000:1 2001:db8:1::/48".to_owned(),
                reason: "its attributes are too long".to_owned(),
            }],
            compared: Vec::new(),
            steered: Vec::new(),
        });
        for part in [
            "\nnot advertised to reflector: 65000:1 2001:db8:1::/48, its attributes are too long\n",
            "2001:db8:1::7/128: no best path, no next hop of a path to 2001:db8:1::/48 can be reached\n",
            "egress peer transit-a: 2001:db8:1::/48 is announced, but its next hop cannot be reached\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn an_as_path_has_a_bounded_width_however_long_it_is() {
        let different: Vec<u32> = (4_200_000_000..).take(500).collect();
        let twice: Vec<u32> = different.iter().flat_map(|asn| [*asn; 2]).collect();
        for (asns, text) in [
            (vec![], "-"),
            (vec![65001], "65001"),
            (vec![65001, 65001, 65002], "65001 ×2 65002"),
            (vec![65001; 567], "65001 ×567"),
            ((1..=13).collect(), "1 2 3 4 5 6 7 8 9 10 11 12 13"),
            (
                (1..=14).collect(),
                "1 2 3 4 5 6 7 8 9 10 11 12 … 1 more … 14",
            ),
            (
                [vec![1; 300], (2..=13).collect(), vec![77; 200], vec![99; 5]].concat(),
                "1 ×300 2 3 4 5 6 7 8 9 10 11 12 … 201 more … 99 ×5",
            ),
        ] {
            assert_eq!(as_path(&asns), text);
        }
        for long in [different, twice] {
            let text = as_path(&long);
            assert!(text.chars().count() < 220, "{text}");
            assert!(text.contains(" more … "), "{text}");
        }
    }

    #[test]
    fn prefixes_are_rows_and_the_rest_a_number() {
        let text = comparison(&ComparisonStatus {
            stats: Stats(ComparisonStats {
                prefixes: 9,
                single_path_prefixes: 1,
                trial_prefixes: 1,
                forgotten_prefixes: 0,
                counted_connections: 44,
                decisions: 2,
            }),
            shown: vec![prefix(PrefixMode::SinglePath), prefix(PrefixMode::Trial)],
        });
        for part in [
            "prefixes 9, single path prefixes 1, trial prefixes 1, forgotten prefixes 0, counted connections 44, decisions 2",
            "74.5 %",
            "single path, multipath tried in 90 s",
            "trial, half of the connections multipath",
            "and 7 more",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
