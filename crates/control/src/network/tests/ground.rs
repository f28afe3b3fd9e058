//! What a branch needs to reach outside the tunnel is not routed into it.

use std::collections::BTreeMap;

use super::*;
use crate::config::{ConnectedNetwork, Found, HostName, LocalNetworks, PeerEndpoint};

/// A branch with the prefixes of the hub and of the site `kobe`.
fn branch(endpoint: &str, more: &str, hub: &[&str], kobe: &[&str]) -> Config {
    let text = format!(
        "[gateway]\nname = \"tokyo\"\n[network]\nhub = \"hub\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n\
         [[peer]]\nname = \"hub\"\npublic_key = \"{}\"\nendpoint = \"{endpoint}\"\n\
         [tenant.net]\nid = 7\nprefixes = [\"10.1.0.0/24\"]\n{more}",
        key(98)
    );
    let file = Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"));
    let tokyo = Name::new("tokyo").unwrap();
    let mut sent =
        PublicRegistry::of_site(&parsed(&good()), &super::hub(), &tokyo, [1, 1]).unwrap();
    sent.hub_prefixes = prefixes(hub);
    for site in &mut sent.sites {
        if site.name.as_str() == "kobe" {
            site.prefixes = prefixes(kobe);
        }
    }
    file.with_network(&NetworkView::Branch(&sent))
}

fn prefixes(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// An uplink whose network is 192.168.1.0/24 with a router, one without a network of its own, and a bridge.
fn ground() -> LocalNetworks {
    let network = |interface: &str, prefix: &str, is_uplink| ConnectedNetwork {
        interface: interface.to_owned(),
        prefix: prefix.parse().unwrap(),
        is_uplink,
    };
    LocalNetworks {
        networks: vec![
            network("eth0", "192.168.1.0/24", true),
            network("ppp0", "100.64.0.7/32", true),
            network("docker0", "172.17.0.0/16", false),
        ],
        routers: [("eth0", "192.168.1.1"), ("ppp0", "100.64.9.1")]
            .map(|(interface, address)| (interface.to_owned(), address.parse().unwrap()))
            .to_vec(),
        resolvers: vec!["10.53.0.1".parse().unwrap(), "192.168.1.1".parse().unwrap()],
    }
}

/// The lines of what is withheld, after a check that the rest is routed and this is not.
fn withheld(config: &Config, hosts: &BTreeMap<HostName, Vec<IpAddr>>) -> Vec<String> {
    let withheld = config.withheld(&ground(), hosts);
    let found = Found {
        withheld: withheld.clone(),
        ..Found::default()
    };
    let resolved = config.resolved(&found);
    for learned in &config.tenants[0].learned {
        let is_withheld = withheld.iter().any(|of| of.prefix == learned.prefix);
        let is_routed = resolved.tenants[0].routes.contains(&learned.prefix);
        assert_ne!(is_withheld, is_routed, "{}", learned.prefix);
    }
    let lines = withheld.iter().map(ToString::to_string);
    lines
        .map(|line| line.trim_start_matches("tenant net: ").to_owned())
        .collect()
}

#[test]
fn a_network_around_that_of_an_uplink_is_routed_and_one_within_is_not() {
    let kobe = [
        "192.168.0.0/16",
        "192.168.1.0/24",
        "192.168.1.128/25",
        "172.16.0.0/12",
        "172.17.0.0/16",
        "172.17.3.0/24",
    ];
    let config = branch("192.0.2.1:7600", "", &[], &kobe);
    assert_eq!(
        withheld(&config, &BTreeMap::new()),
        [
            "192.168.1.0/24 of site `kobe` is not routed, since uplink eth0 is connected to 192.168.1.0/24",
            "192.168.1.128/25 of site `kobe` is not routed, since uplink eth0 is connected to 192.168.1.0/24",
            "172.17.0.0/16 of site `kobe` is not routed, since interface docker0 is connected to the same network",
        ]
    );
    // Nothing in the way, nothing withheld.
    let nothing = config.withheld(&LocalNetworks::default(), &BTreeMap::new());
    assert_eq!(nothing, []);
}

#[test]
fn routers_and_resolvers_beyond_the_link_stay_outside_the_tunnel() {
    let config = branch(
        "192.0.2.1:7600",
        "",
        &["10.53.0.0/24"],
        &["100.64.0.0/10", "10.48.0.0/12"],
    );
    let of_site = [
        "100.64.0.0/10 of site `kobe` is not routed, since 100.64.9.1, the router of uplink ppp0, is in it",
        "10.48.0.0/12 of site `kobe` is not routed, since 10.53.0.1, a resolver of this machine, is in it",
    ];
    // The resolver may be meant to be the one behind the hub.
    assert_eq!(withheld(&config, &BTreeMap::new()), of_site);
    // Not if it is needed to find the hub.
    let config = branch("hub.example.net:7600", "", &["10.53.0.0/24"], &[]);
    assert_eq!(
        withheld(&config, &BTreeMap::new()),
        [
            "10.53.0.0/24 of the hub is not routed, since 10.53.0.1, a resolver of this machine, is in it"
        ]
    );
}

#[test]
fn every_known_address_of_the_hub_stays_outside_the_tunnel() {
    let kobe = ["198.51.100.0/24", "203.0.113.0/24"];
    let config = branch("hub.example.net:7600", "", &[], &kobe);
    assert_eq!(withheld(&config, &BTreeMap::new()), [] as [&str; 0]);
    let endpoints = &config.peers[0].endpoint;
    let PeerEndpoint::Name(name) = &endpoints[0] else {
        panic!("{endpoints:?}");
    };
    let addresses = ["2001:db8::1", "203.0.113.9"].map(|address| address.parse().unwrap());
    let hosts = BTreeMap::from([(name.host.clone(), addresses.to_vec())]);
    assert_eq!(
        withheld(&config, &hosts),
        [
            "203.0.113.0/24 of site `kobe` is not routed, since 203.0.113.9, where the hub is reached, is in it"
        ]
    );
    let config = branch("198.51.100.3:7600", "", &[], &kobe);
    assert_eq!(withheld(&config, &BTreeMap::new()).len(), 1);
}

#[test]
fn explicit_configuration_withholds_no_prefix() {
    let kobe = ["192.168.1.0/24", "192.0.2.0/24"];
    for more in ["table = 101\n", "routes = [\"192.168.1.0/24\"]\n"] {
        let config = branch("192.0.2.1:7600", more, &[], &kobe);
        assert_eq!(config.withheld(&ground(), &BTreeMap::new()), []);
    }
}

#[test]
fn a_line_of_a_site_is_compared_with_other_tenants_and_new_ones_with_the_hubs_interfaces() {
    let file = "registry = \"/etc/keiro/network.toml\"\n";
    let other = "[tenant.other]\nid = 8\nprefixes = [\"10.2.0.0/16\"]\n";
    let text = |more: &str| {
        format!(
            "[gateway]\nname = \"hub\"\n[network]\n{file}[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n\
             [tenant.office]\nid = 7\nprefixes = [\"10.0.0.0/24\"]\n{more}"
        )
    };
    let parse = |more: &str| Config::parse(&text(more), "gateway.toml").expect("it is right");
    let registry = parsed(&good());
    let error = registry.check_with(&parse(other), &[]).unwrap_err();
    let shown = error.problems()[0].to_string();
    assert!(
        shown.contains("10.2.0.0/24 of site `kobe` overlaps 10.2.0.0/16 of tenant `other`"),
        "{shown}"
    );
    let own_table = format!("{other}table = 102\n");
    registry.check_with(&parse(&own_table), &[]).expect("apart");

    let networks = [("docker0".to_owned(), "10.1.0.0/16".parse().unwrap())];
    let without_tokyo = parsed(&good().replace("tokyo = {", "#tokyo = {"));
    let error = registry
        .check_connected(&without_tokyo, &parse(""), &networks)
        .unwrap_err();
    assert_eq!(error.problems().len(), 1);
    let shown = error.problems()[0].to_string();
    assert!(
        shown.contains("10.1.0.0/24 of site `tokyo`") && shown.contains("`docker0`"),
        "{shown}"
    );
    // An interface that comes later does not take a site out of the network.
    registry
        .check_connected(&registry, &parse(""), &networks)
        .expect("it is in force");
}
