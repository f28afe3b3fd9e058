//! Every counter and gauge of the egress suite's daemons; `keiro_stats` says what derives from the
//! declarations. Client prefixes are no labels, since their number is not bounded.

keiro_stats::stats! {
    /// A daemon.
    pub struct EgressStats: "egress" [] {
        gauge destinations: count, "Destinations in the RIB";
        counter unknown_connections: connections, "BGP connections from addresses that belong to no neighbour";
        counter refused: count, "Changes of forwarding that failed";
        gauge raised_alarms: alarms, "Alarms that are raised";
        gauge earlier_routes: routes, "Routes of an earlier run in the kernel that no neighbour has announced to this one";
    }

    /// One BGP neighbour.
    pub struct NeighbourStats: "egress_neighbour" ["neighbour"] {
        gauge up: flag, "The session is established";
        gauge advertised: count, "Destinations advertised";
        gauge not_advertised: count, "Destinations that should be advertised and do not fit into a message, or the neighbour lacks a capability for";
        gauge stale_routes: routes, "Of its routes, those of its earlier session that it has not announced again";
        counter updates: updates, "UPDATEs received";
        gauge draining: flag, "Its routes are the last choice, by `drain` or `keiro egress drain`";
        counter times_up: count, "Times that the session came up";
        counter times_down: count, "Times that the established session ended";
        gauge since_down: [seconds], "Time since the session last ended; absent if it never did";
        counter malformed_updates: updates, "Malformed UPDATEs whose routes were treated as withdrawn";
        counter discarded_attributes: count, "Malformed attributes that were discarded, while their routes stayed";
        gauge bfd_up: [flag], "The BFD session is up; absent without BFD";
        counter bfd_failures: [count], "Times that the BFD session failed; absent without BFD";
    }

    /// One egress peer.
    pub struct EgressPeerStats: "egress_peer" ["peer"] {
        gauge routes: routes, "Routes in its table, as desired";
        gauge kernel_routes: [routes], "Routes in its table in the kernel; absent with --dry-run";
        gauge closed: [flag], "The table's last route is unreachable, so that nothing else is sent by the peer; absent with --dry-run";
        gauge segment: [flag], "It has a segment";
        gauge subflows: [subflows], "MPTCP subflows on its EPE address; absent where Keiro does not manage them";
        gauge draining_routes: [routes], "Routes that new connections avoid and others leave, since the peer is drained (RFC 8326); absent on a border router";
    }

    /// The comparison of multipath with single path, for all client prefixes.
    pub struct ComparisonStats: "egress_comparison" [] {
        gauge prefixes: prefixes, "Client prefixes compared";
        gauge single_path_prefixes: prefixes, "Of these, prefixes whose connections use a single path";
        gauge trial_prefixes: prefixes, "Of these, prefixes where multipath is tried again on half of the connections";
        counter forgotten_prefixes: prefixes, "Client prefixes dropped because of the limit";
        counter counted_connections: connections, "Connections whose goodput counted, single-path ones and others";
        counter decisions: decisions, "Decisions whether a client prefix uses multipath";
    }

    /// Steering of new connections, for all client prefixes.
    pub struct SteeringStats: "egress_steering" [] {
        gauge prefixes: prefixes, "Client prefixes measured";
        gauge steered_prefixes: prefixes, "Of these, prefixes whose new connections use a particular egress peer";
        gauge tested_prefixes: prefixes, "Of these, prefixes where a peer that seems better is tested";
        gauge waiting_prefixes: prefixes, "Of these, prefixes whose move is delayed by the limit of moves per minute";
        counter forgotten_prefixes: prefixes, "Client prefixes dropped because of the limit";
        counter counted_connections: connections, "Connections that ended and counted";
        counter uncounted_connections: connections, "Connections that ended and did not count, because the assignment of their prefix had changed";
        counter explored_connections: connections, "Of those counted, connections by another egress than that of their prefix";
        counter moves: moves, "Moves of client prefixes to an egress peer";
        counter reverts: moves, "Returns of client prefixes to the best path";
        counter lost_reports: count, "Times that reports of ended connections were lost, because there were more than the daemon reads";
    }
}

#[cfg(test)]
mod tests {
    use keiro_stats_export::documentation::{check_tables, reasons_table, stats_table};

    use super::*;

    #[test]
    fn the_page_lists_the_declared_figures() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/egress.md");
        check_tables(
            file,
            &[
                ("stats: EgressStats", stats_table::<EgressStats>()),
                ("stats: NeighbourStats", stats_table::<NeighbourStats>()),
                (
                    "reasons: Discards",
                    reasons_table(&keiro_bfd::Discards::REASONS),
                ),
                ("stats: EgressPeerStats", stats_table::<EgressPeerStats>()),
                ("stats: ComparisonStats", stats_table::<ComparisonStats>()),
                ("stats: SteeringStats", stats_table::<SteeringStats>()),
            ],
        );
    }
}
