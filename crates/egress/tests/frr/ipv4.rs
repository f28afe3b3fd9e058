//! IPv4 routes of a transit (FRR) with IPv6 next hops (RFC 8950) reach the server with a segment of their own through
//! a reflector (FRR).

use super::*;

/// Of the reflector: all four families, and IPv6 next hops for those of IPv4.
fn reflector(clients: &[&str]) -> String {
    let members = clients
        .iter()
        .map(|client| format!(" neighbor {client} peer-group CLIENTS\n"));
    let members: String = members.collect();
    let families = ["ipv4 unicast", "ipv4 vpn", "ipv6 unicast", "ipv6 vpn"].map(|family| {
        format!(
            " address-family {family}\n  neighbor CLIENTS activate\n  \
             neighbor CLIENTS route-reflector-client\n exit-address-family\n"
        )
    });
    format!(
        "router bgp 65000\n bgp router-id 10.0.0.30\n no bgp default ipv4-unicast\n \
         neighbor CLIENTS peer-group\n neighbor CLIENTS remote-as 65000\n \
         neighbor CLIENTS timers connect 1\n neighbor CLIENTS capability extended-nexthop\n{members}{}",
        families.concat()
    )
}

#[test]
fn ipv4_routes_come_by_a_reflector_with_segments_of_their_own() {
    let topology = Topology::parse(TOPOLOGY, "frr").unwrap();
    let name = format!("frr4{}", std::process::id());
    let lab = Lab::builder(&topology).name(name).up().unwrap();
    let files = tempfile::tempdir().unwrap();
    let host = |name: &str| lab.host(name).unwrap();
    let clients = ["2001:db8:a1::9", "2001:db8:a2::20"];
    let _reflector = Router::start(host("rr"), &reflector(&clients)).unwrap();
    let neighbour = "2001:db8:f::2";
    let more = format!(
        " neighbor {neighbour} ttl-security hops 1\n neighbor {neighbour} capability extended-nexthop\n"
    );
    let of_transit = announcer((65001, 1), neighbour, &more, &["2001:db8:c1::/48"])
        + &format!(
            " address-family ipv4 unicast\n  neighbor {neighbour} activate\n  network 198.18.0.0/24\n  \
             network 198.18.1.0/24\n exit-address-family\n"
        );
    let transit = Router::start(host("transit"), &of_transit).unwrap();
    let mut at_transit = transit.operator().unwrap();
    let with_ipv4 = |config: &str| {
        config
            .replace("name = \"rr\"", "name = \"rr\"\nipv4 = true")
            .replace("asn = 65001", "asn = 65001\nipv4 = true")
    };
    let config = AsbrConfig::parse(&with_ipv4(BORDER), "border").unwrap();
    let speaker = config.speaker.clone();
    let recording = files.path().join("border");
    let border = Running::start(host("border"), Asbr::new(config), speaker, recording);
    let config = EndpointConfig::parse(&with_ipv4(SERVER), "server").unwrap();
    let speaker = config.speaker.clone();
    let recording = files.path().join("server");
    let role = Endpoint::new(config);
    let server = Running::start(host("server"), role, speaker, recording);

    let of_ipv4 = Some("2001:db8:a:1:8100::");
    server.wait("routes of both families", |contents| {
        segment(contents, "198.18.0.0/24").as_deref() == of_ipv4
            && segment(contents, "198.18.1.0/24").as_deref() == of_ipv4
            && segment(contents, "2001:db8:c1::/48").as_deref() == Some("2001:db8:a:1:100::")
    });
    border.wait("an IPv6 next hop for IPv4", |contents| {
        segment(contents, "198.18.0.0/24").as_deref() == Some("via 2001:db8:f::1")
    });
    server.wait("End-of-RIB of all families", |contents| contents.settled);
    for command in [
        "configure terminal",
        "router bgp 65001",
        "address-family ipv4 unicast",
        "no network 198.18.1.0/24",
    ] {
        at_transit.command(command).unwrap();
    }
    server.wait("withdrawn at the server", |contents| {
        segment(contents, "198.18.1.0/24").is_none()
    });
    assert_eq!(
        segment(&server.memory.contents(), "198.18.0.0/24").as_deref(),
        of_ipv4
    );
    drop((server, border));
    lab.down().unwrap();
}
