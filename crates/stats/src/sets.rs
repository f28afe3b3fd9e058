//! Every counter and gauge of the gateway's paths, sockets, peers, applications and tenants.

crate::stats! {
    /// One path to one peer. Rates and bytes count whole IP packets.
    pub struct PathStats: "path" ["path", "peer"] {
        gauge configured_rate: [bits_per_second], "Rate that the configuration allows, shared by all peers of the path; absent where none is configured";
        gauge pacing_rate: bits_per_second, "Rate at which packets leave now: the configured one, or the measured capacity if that is less; without a configured rate what the path was found to carry";
        gauge window_bytes: [bytes], "Bytes that may be in flight; absent where a rate is configured";
        gauge queue: [seconds], "How long the newest packets queued on the way; absent where a rate is configured";
        gauge target_queue: [seconds], "How long packets may queue on the way; absent where a rate is configured";
        gauge sent_rate: bits_per_second, "Sent in the last second";
        gauge cross_traffic: [bits_per_second], "What others than this gateway send over the bottleneck";
        gauge available: [bits_per_second], "Measured capacity less sent rate and cross traffic";
        gauge srtt: [seconds], "Smoothed round-trip time (RFC 9002 §5.3)";
        gauge rttvar: [seconds], "Mean deviation of the round-trip time (RFC 9002 §5.3)";
        gauge min_rtt: [seconds], "Smallest round-trip time since the path came up";
        gauge base_rtt: [seconds], "Smallest recent round-trip time without the time of own packets at the bottleneck";
        gauge jitter: [seconds], "Interarrival jitter towards the peer (RFC 3550 §6.4.1)";
        gauge delay_variation: [seconds], "Newest one-way delay to the peer above the smallest seen";
        gauge smoothed_delay_variation: [seconds], "Smoothed one-way delay to the peer above the smallest seen";
        gauge loss: [ratio], "Share of packets lost, of those sent in the last second, or of the last 50 in at most a minute";
        gauge mtu_bytes: bytes, "Largest IP packet that passes, found by probing";
        gauge in_flight_bytes: bytes, "Bytes sent and neither acknowledged nor lost";
        gauge queued_bytes: bytes, "Bytes that wait for the path";
        counter sent_packets: packets, "IP packets sent";
        counter sent_bytes: bytes, "Bytes of IP packets sent";
        counter received_packets: packets, "IP packets received and authenticated";
        counter received_bytes: bytes, "Bytes of IP packets received and authenticated";
        counter acked_packets: packets, "Packets that the peer acknowledged";
        counter lost_packets: packets, "Packets declared lost, spurious losses among them";
        counter spurious_lost_packets: packets, "Packets declared lost that were acknowledged later";
        counter retransmitted_bytes: bytes, "Bytes of messages and streams sent again";
        counter probe_bytes: bytes, "Bytes sent for measurement alone: packet trains' padding, and pings beyond keep-alives";
        gauge idle_month_bytes: [bytes], "What the path costs in 30 days while it carries no data, both directions, by what passed in the last ten minutes without data";
        counter received_ce_packets: packets, "Packets received with the ECN mark CE";
        counter acked_ce_packets: packets, "Packets that reached the peer with the ECN mark CE";
        counter outages: outages, "Times that the path went silent while it was up";
        counter received_aggregates: aggregates, "Aggregates received from the peer, each counted once";
        counter received_copies: copies, "Copies of the peer's aggregates received, and parity packets";
        counter recovered_aggregates: aggregates, "Aggregates of the peer that were lost and restored from parity";
    }

    /// What a path carries, measured with packet trains; bits of IP packets.
    pub struct CapacityStats: "path_capacity" ["path", "peer"] {
        gauge rate: bits_per_second, "Rate of the slowest link";
        gauge low: bits_per_second, "Lower end of the 95 % confidence interval";
        gauge high: bits_per_second, "Upper end of the 95 % confidence interval";
        gauge age: seconds, "Time since the measurement was last confirmed";
    }

    /// The UDP socket of a path, shared by all its peers.
    pub struct PathSocketStats: "path_socket" ["path"] {
        counter dropped_packets: packets, "Packets dropped here because the receive buffer was full, which is not the path's loss";
        counter buffer_full_batches: batches, "Batches not sent because the send buffer was full";
        counter too_large_batches: batches, "Batches that the system refused as longer than the interface's MTU (EMSGSIZE)";
        counter failed_batches: batches, "Batches that the system refused to send for another reason";
    }

    /// Handshakes with all peers, and answers to initiations of no session.
    pub struct HandshakeStats: "handshake" [] {
        counter accepted_messages: messages, "Handshake messages accepted";
        counter read_initiations: initiations, "Initiations that were read, which takes key agreements; a few at a time";
        gauge waiting_initiations: initiations, "Initiations that wait to be read";
        counter answered_copies: copies, "Copies of an initiation that came over a further path and got the same response there";
        counter sent_cookies: cookies, "Initiations answered with a cookie because there were too many";
        counter sent_version_replies: version_replies, "Initiations of another protocol version answered with the versions spoken here";
    }

    /// How small packets are aggregated on a path, from here to the peer.
    pub struct AggregationStats: "path_aggregation" ["path", "peer"] {
        gauge size_bytes: bytes, "S: most bytes of aggregates in an interval, one copy of each counted, whole IP packets";
        gauge interval: seconds, "I: interval of aggregates";
        gauge copies: copies, "N: copies of each aggregate, the first included";
        gauge paused: flag, "The path carries no combination of S, I and N, so packets are not aggregated by the clock";
        gauge bandwidth: [bits_per_second], "Bandwidth by the spacing of copies, or by packet trains";
        counter sent_aggregates: aggregates, "Aggregates sent of which the peer has reported the outcome";
        counter lost_aggregates: aggregates, "Aggregates of which no copy arrived and that parity did not restore";
        counter sent_copies: copies, "Copies and parity packets sent of which the peer has reported the outcome";
        counter lost_copies: copies, "Copies and parity packets lost";
        counter unsent_copies: copies, "Copies and parity packets not sent: their path had no room for them or was down";
        counter peer_socket_dropped_packets: packets, "Packets that the peer dropped because its socket's receive buffer was full";
        counter peer_system_dropped_packets: packets, "Packets for any program that the peer's system dropped in receiving";
    }

    /// One peer.
    pub struct PeerStats: "peer" ["peer"] {
        gauge handshake_age: [seconds], "Time since the last complete handshake";
        counter handshakes_started: count, "Handshakes begun from here";
        counter handshakes_completed: count, "Handshakes completed, each with new keys";
        gauge paths_up: count, "Paths to the peer that are up";
        gauge open_streams: streams, "Streams that either side opened and that have not ended";
        gauge queued_stream_bytes: bytes, "Bytes of streams that wait or are not acknowledged";
        gauge unread_stream_bytes: bytes, "Bytes of streams from the peer that were not yet taken";
        gauge waiting_messages: messages, "Messages that wait or are not acknowledged";
        gauge queued_message_bytes: bytes, "Their bytes";
        gauge reassembly_bytes: bytes, "Bytes of messages from the peer that are not complete or not yet taken";
        gauge reassembly_max_bytes: bytes, "Limit of reassembly_bytes";
        gauge receive_memory_bytes: bytes, "Memory that what it sends takes or may take: messages, credit, windows, parity, numbers";
    }

    /// One application. Delays are from accepting a message until the peer gateway had it whole.
    pub struct AppStats: "app" ["app"] {
        gauge latency_target: [seconds], "Target for the delay";
        gauge target_met: [flag], "The latency target is met: by the measured 99th percentile where enough was measured, else by the forecast";
        gauge predicted_delay: [seconds], "Mean delay that the model of the scheduler in use predicts on its path";
        counter sent_messages: messages, "Messages or datagrams accepted from local senders";
        counter delivered_messages: messages, "Of the sent ones, acknowledged by the peer (class message)";
        counter late_messages: messages, "Of the delivered ones, delivered later than the latency target";
        counter expired_messages: messages, "Of the sent ones, given up at the end of their lifetime";
        counter refused_messages: messages, "Messages or datagrams not accepted, or refused by the peer";
        counter unknown_messages: messages, "Of the sent ones, those that may have arrived: the peer restarted or was removed before it acknowledged them";
        counter received_messages: messages, "Messages, datagrams or IP packets from the peer; IP packets by the rules of their tenant here";
        gauge waiting_messages: messages, "Sent messages that are neither acknowledged nor given up";
        gauge queued_bytes: bytes, "Bytes that wait to be sent";
        counter sent_bytes: bytes, "Bytes of messages or datagrams accepted from local senders";
        counter received_bytes: bytes, "Bytes of messages, datagrams, IP packets or streams from the peer";
        gauge senders: count, "Senders attached to the message socket";
        gauge receivers: count, "Receivers attached to the message socket";
    }

    /// A UDP listener; the metrics add up an application's.
    pub struct UdpListenerStats: "udp_listener" ["app"] {
        counter received_packets: packets, "Datagrams received from clients";
        counter received_bytes: bytes, "Their bytes";
        counter refused_packets: packets, "Of the received datagrams, not accepted for sending";
    }

    /// A UDP forward.
    pub struct UdpForwardStats: "udp_forward" ["app"] {
        counter sent_packets: packets, "Datagrams sent to the destination";
        counter sent_bytes: bytes, "Their bytes";
        counter failed_packets: packets, "Datagrams that could not be sent, for example longer than UDP allows";
        counter refused_packets: packets, "Datagrams of flows for which no socket was opened: the peer has as many flows or descriptors as are left to the others, or descriptors are nearly used up";
    }

    /// A TCP listener; the metrics add up an application's.
    pub struct TcpListenerStats: "tcp_listener" ["app"] {
        gauge open_connections: connections, "Connections that are open";
        counter accepted_connections: connections, "Connections accepted";
        counter refused_connections: connections, "Connections reset at once: no path to the peer was up, there were too many, local clients have as many as are left to peers, or they led to the transparent listener itself";
        counter reset_connections: connections, "Of the accepted ones, reset by client or server";
        counter failed_connections: connections, "Of the accepted ones, ended because the server refused or could not be reached, or a gateway stopped";
    }

    /// A TCP forward.
    pub struct TcpForwardStats: "tcp_forward" ["app"] {
        gauge open_connections: connections, "Connections that are open or being made";
        counter accepted_connections: connections, "Connections that servers accepted";
        counter failed_connections: connections, "Connections that servers refused or that could not be made";
        counter forbidden_connections: connections, "Connections to destinations that the configuration does not allow";
        counter refused_connections: connections, "Connections not begun: the peer has as many descriptors as are left to the others, or they are nearly used up";
        counter reset_connections: connections, "Of the accepted ones, reset by client or server";
    }

    /// One tenant at its device.
    pub struct TenantStats: "tenant" ["tenant"] {
        gauge weight: number, "Share in proportion to the other tenants' weights";
        gauge share: ratio, "Weight of the tenant among the weights of all tenants of this gateway";
        gauge mtu_bytes: bytes, "Longest IP packet of the device";
        counter ingress_packets: packets, "IP packets that came from the device, segments of large ones counted one by one";
        counter ingress_bytes: bytes, "Their bytes";
        counter egress_packets: packets, "IP packets given to the device, merged ones counted once";
        counter egress_bytes: bytes, "Their bytes";
        counter transit_packets: packets, "IP packets from one site of the network to another that were passed on";
        counter transit_bytes: bytes, "Their bytes";
        counter backup_packets: packets, "IP packets, also those passed on, that left over another gateway than the first of their destination";
        counter to_internet_packets: packets, "IP packets that left for the Internet by an exit, this gateway's or a peer's";
        counter to_internet_bytes: bytes, "Their bytes";
        counter from_internet_packets: packets, "IP packets that came from the Internet by an exit";
        counter from_internet_bytes: bytes, "Their bytes";
        counter icmp_error_packets: packets, "ICMP errors sent to senders: packet too big, hop limit, no route, peer down";
        counter suppressed_icmp_error_packets: packets, "ICMP errors not sent because of their rate limit";
        gauge open_split_connections: connections, "TCP connections that are carried as streams now";
        counter split_connections: connections, "TCP connections that were carried as streams, of clients here and at peers";
    }

    /// One client of the message socket on another host.
    pub struct MessageClientStats: "message_client" ["client"] {
        gauge open_connections: connections, "Connections open now";
        counter accepted_connections: connections, "Connections whose token and application were accepted";
        counter refused_connections: connections, "Connections refused after their token was accepted";
        gauge unfinished_messages: messages, "Messages taken over without an outcome";
        gauge unfinished_bytes: bytes, "Their bytes";
        counter sent_messages: messages, "Messages taken over from the client";
        counter sent_bytes: bytes, "Their bytes";
        counter delivered_messages: messages, "Of these, delivered";
        counter expired_messages: messages, "Of these, dropped at the end of their lifetime";
        counter refused_messages: messages, "Of these, refused";
        counter unknown_messages: messages, "Of these, with another outcome or none, because the connection to the message socket ended";
        counter received_messages: messages, "Messages handed to the client";
        counter received_bytes: bytes, "Their bytes";
    }

    /// One tenant towards one peer.
    pub struct TenantPeerStats: "tenant_peer" ["tenant", "peer"] {
        counter accepted_packets: packets, "IP packets accepted for sending";
        counter accepted_bytes: bytes, "Their bytes";
        counter received_packets: packets, "IP packets from the peer";
        counter received_bytes: bytes, "Their bytes";
        counter marked_packets: packets, "IP packets marked CE here instead of dropped because they waited long";
        gauge queued_bytes: bytes, "Bytes of IP packets that wait";
        counter held_packets: packets, "IP packets from the peer that were held because an earlier one of their flow was missing";
        counter hold_time: seconds, "How long they were held, in sum";
        gauge longest_hold: seconds, "The longest of these times";
        counter lost_gaps: gaps, "Gaps in flows from the peer that were given up because every path had brought a later packet";
        counter expired_gaps: gaps, "Gaps that were given up because the sender had set no longer hold";
        counter displaced_gaps: gaps, "Gaps that were given up because too much was held";
        counter late_packets: packets, "IP packets that came after they were given up, and were delivered out of order";
    }

    /// One tenant on one path. Bytes and packets are those on the wire.
    pub struct TenantPathStats: "tenant_path" ["tenant", "path", "peer"] {
        gauge window_bytes: [bytes], "Congestion window: bytes that may be in flight; absent without a controller";
        gauge window_packets: [packets], "The window in packets of the size that the tenant sends";
        gauge rate: [bits_per_second], "Rate that the controller allows; absent where the window alone decides";
        gauge acked_rate: bits_per_second, "Acknowledged in the last second";
        gauge configured_unit: [bits_per_second], "Configured rate of a weight of 1; absent where it is found";
        gauge found_unit: [bits_per_second], "Found rate of a weight of 1, at most: as the peer reports it, and no more than the line carries";
        gauge srtt: [seconds], "Smoothed round-trip time of the tenant's packets (RFC 9002 §5.3)";
        gauge loss: [ratio], "Share of packets lost, of all whose outcome is known";
        gauge in_flight_bytes: bytes, "Bytes sent and neither acknowledged nor lost";
        gauge queued_bytes: bytes, "Bytes of IP packets that wait for the path";
        counter sent_packets: packets, "Packets sent";
        counter sent_bytes: bytes, "Bytes sent";
        counter acked_packets: packets, "Packets that the peer acknowledged";
        counter lost_packets: packets, "Packets declared lost; some may have been late";
        counter acked_ce_packets: packets, "Packets that reached the peer with the ECN mark CE";
    }
}

crate::reasons! {
    /// Datagrams ignored, by reason.
    pub struct DropCounters {
        /// Shorter than its kind's header, or cut off.
        truncated,
        /// A first byte that names no packet kind.
        unknown_kind,
        /// No session has this receiver index.
        unknown_index,
        /// Not sealed with the key that it claims, or altered on the way.
        unauthentic,
        /// Received before, or older than the replay window.
        replayed,
        /// Authentic, but its frames cannot be parsed.
        malformed,
        /// A handshake of a key that is no peer here.
        foreign_key,
        /// A handshake whose first MAC is wrong.
        bad_mac,
        /// A handshake that is not newer than the last one.
        stale_handshake,
        /// A handshake of another protocol version, or the answer to one of ours by a gateway that
        /// does not speak our version.
        version,
        /// A handshake that came too often from its address.
        rate_limited,
        /// Part of a message or stream beyond what was granted; or a reset that was not sent,
        /// because the peer opens streams faster than it reads.
        over_credit,
        /// An IP packet of a tenant that is not configured here.
        unknown_tenant,
        /// From another gateway that uses the peer's key.
        duplicate_key,
        /// Of a peer whose packets cost more work than its share: it waited, and newer ones took its place.
        over_budget,
    }

    /// IP packets of a tenant that were not sent, or not delivered, by cause.
    pub struct PacketDrops {
        /// Its own queue was full: taken from its longest flow.
        queue_full,
        /// The queues of all tenants together were full: taken from its longest flow.
        memory,
        /// Waited too long (CoDel, RFC 8289).
        delayed,
        /// Refused: longer than the path has room for, or the path's room became less.
        too_long,
        /// No path was up.
        no_path,
        /// Arrived from the peer while too much waited for the driver.
        arrived,
        /// Arrived at the peer, which does not know the tenant, as it says at times.
        unknown_at_peer,
    }

    /// IP packets of a tenant that were dropped between its device and the queues, by reason.
    pub struct DeviceDrops {
        /// From the device: no IP packet, or cut off.
        malformed,
        /// From the device: an address that no router forwards.
        not_routable,
        /// From the device: the source is in none of the tenant's own prefixes.
        spoofed,
        /// From the device: no peer has the destination.
        no_route,
        /// From the device: the hop limit ended here.
        hop_limit,
        /// From the device: longer than the path carries, and not to be fragmented.
        too_big,
        /// From the device: no path to the peer was up.
        no_path,
        /// From the device: of a split TCP connection, which a rule of nftables should have led to this machine.
        not_diverted,
        /// From a peer: no IP packet, or cut off.
        peer_malformed,
        /// From a peer: the source is in none of the peer's prefixes.
        peer_spoofed,
        /// From a peer: the destination is in none of the tenant's own prefixes.
        peer_foreign,
        /// From a peer: to an address that the exit to the Internet does not lead to: private, or of its machine.
        exit_refused,
        /// From a peer: to the Internet, to which the exit has no default route of this IP version.
        exit_no_route,
        /// From a peer: marked CE on the way, and its sender does not support ECN (RFC 6040).
        congested,
        /// The device did not accept it: it is gone, down or full.
        device,
    }

    /// TCP connections of a tenant that were begun here and stay IP packets although they are to be split, by reason.
    pub struct NotSplit {
        /// To the Internet, by an exit.
        internet,
        /// A rule gives them to another application than the peer's.
        rule,
        /// Their client is this machine.
        own_address,
        /// Their client's port is below 1024, which the peer has no privilege for.
        client_port,
        /// The peer cannot split connections, or does not for this tenant.
        peer,
        /// The peer does not connect there: its machine's own address, or behind another site.
        destination,
        /// The server refused, or could not be reached; the packet brings its client the answer.
        no_server,
        /// There are too many that wait, or too many streams, descriptors or connections at the peer.
        limit,
        /// This machine's kernel did not take the connection: a firewall or the reverse path filter dropped it.
        diversion,
    }

    /// IP packets from a tenant's device that belong to its link alone and are not forwarded.
    pub struct LinkPackets {
        /// To groups of one link; Linux sends some by itself on every device (RFC 4861, RFC 3810).
        multicast,
        /// From or to addresses that are valid on one link only.
        link_local,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Kind, StatSet, Unit, Value};

    fn check<S: StatSet>(names: &mut BTreeSet<&'static str>) {
        for (index, stat) in S::STATS.iter().enumerate() {
            let metric = stat.metric;
            assert!(names.insert(metric), "{metric} twice");
            assert_eq!(
                stat.kind == Kind::Counter,
                metric.ends_with("_total"),
                "{metric}"
            );
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(metric.chars().all(is_plain), "{metric}");
            assert!(!stat.help.ends_with('.'), "{metric}");
            match stat.unit {
                Unit::Bytes => assert!(stat.name.ends_with("_bytes"), "{metric}"),
                Unit::Count("count") => {}
                Unit::Count(things) => assert!(stat.name.ends_with(things), "{metric}"),
                _ => {}
            }
            let value = match stat.unit {
                Unit::Flag => Value::Flag(true),
                Unit::Seconds | Unit::Ratio | Unit::Number => Value::Real(0.5),
                _ => Value::Integer(7),
            };
            let mut set = S::default();
            assert!(set.set(index, value), "{metric}");
            assert_eq!(set.value(index), Some(value), "{metric}");
            let fresh = S::default().value(index);
            assert_eq!(fresh.is_none(), stat.optional, "{metric}");
        }
    }

    #[test]
    fn names_follow_the_conventions_and_values_come_back() {
        let mut names = BTreeSet::new();
        check::<PathStats>(&mut names);
        check::<CapacityStats>(&mut names);
        check::<PathSocketStats>(&mut names);
        check::<HandshakeStats>(&mut names);
        check::<AggregationStats>(&mut names);
        check::<PeerStats>(&mut names);
        check::<AppStats>(&mut names);
        check::<UdpListenerStats>(&mut names);
        check::<UdpForwardStats>(&mut names);
        check::<TcpListenerStats>(&mut names);
        check::<TcpForwardStats>(&mut names);
        check::<TenantStats>(&mut names);
        check::<MessageClientStats>(&mut names);
        check::<TenantPeerStats>(&mut names);
        check::<TenantPathStats>(&mut names);
    }

    #[test]
    fn sums_add_whole_numbers() {
        let one = TcpListenerStats {
            open_connections: 1,
            accepted_connections: 20,
            ..TcpListenerStats::default()
        };
        let sum = TcpListenerStats::sum([&one, &one]);
        assert_eq!((sum.open_connections, sum.accepted_connections), (2, 40));
    }

    #[test]
    fn values_of_another_type_are_refused() {
        let mut stats = PathStats::default();
        let index = PathStats::STATS
            .iter()
            .position(|stat| stat.name == "loss_ratio");
        let index = index.unwrap();
        assert!(!stats.set(index, Value::Real(1.5)));
        assert!(!stats.set(index, Value::Flag(true)));
        assert_eq!(stats, PathStats::default());
    }
}
