//! What the sites of a network make of a configuration.

use std::collections::BTreeSet;

use super::*;
use crate::config::{AppIndex, Classes, Exit, ExitIpv6, Found, PeerIndex, Tenant};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn at_hub(config: &Config, registry: &Registry) -> Config {
    config.with_network(&NetworkView::Hub(registry))
}

/// The configuration of the branch `tokyo`, whose own network is 10.1.0.0/24.
fn branch(more: &str) -> Config {
    let text = format!(
        "[gateway]\nname = \"tokyo\"\n[network]\nhub = \"hub\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n\
         [[peer]]\nname = \"hub\"\npublic_key = \"{}\"\nendpoint = \"192.0.2.1:7600\"\n\
         [tenant.net]\nid = 7\nprefixes = [\"10.1.0.0/24\"]\n{more}",
        key(98)
    );
    Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn published(registry: &Registry, site: &str) -> PublicRegistry {
    PublicRegistry::of_site(registry, &hub(), &name(site), [1, 1]).expect("a site")
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// Names, prefixes and the application of the peers of a tenant.
fn peers(config: &Config, tenant: &Tenant) -> Vec<(String, Vec<String>, String)> {
    let peer = |of: &crate::config::TenantPeer| {
        let (peer, app) = (&config[of.peer].name, &config[of.app].name);
        (peer.to_string(), texts(&of.prefixes), app.to_string())
    };
    tenant.peers.iter().map(peer).collect()
}

/// Every index is of an entry, and names and applications' numbers are unique.
fn is_sound(config: &Config) {
    for app in &config.apps {
        assert!(app.peer.0 < config.peers.len());
    }
    for tenant in &config.tenants {
        let mut prefixes = BTreeSet::new();
        for of in &tenant.peers {
            assert!(of.peer.0 < config.peers.len());
            assert_eq!(config[of.app].peer, of.peer, "an application of this peer");
            assert_eq!(config[of.app].class, Class::Datagram);
            assert!(of.prefixes.iter().all(|prefix| prefixes.insert(*prefix)));
            assert!(
                of.backup_prefixes
                    .iter()
                    .all(|prefix| !of.prefixes.contains(prefix))
            );
        }
    }
    let peers: BTreeSet<_> = config.peers.iter().map(|peer| &peer.name).collect();
    let apps: BTreeSet<_> = config.apps.iter().map(|app| &app.name).collect();
    assert_eq!(
        (peers.len(), apps.len()),
        (config.peers.len(), config.apps.len())
    );
}

#[test]
fn at_the_hub_each_site_is_a_peer_with_its_prefixes_and_applications() {
    let (registry, hub) = (parsed(&good()), hub());
    let config = at_hub(&hub, &registry);
    is_sound(&config);
    let names: Vec<String> = config
        .peers
        .iter()
        .map(|peer| peer.name.to_string())
        .collect();
    assert_eq!(names, ["old", "kobe", "tokyo", "invitation@osaka"]);
    let kobe = &config.peers[1];
    assert_eq!((kobe.origin, kobe.endpoint.len()), (PeerOrigin::Site, 0));
    assert_eq!(kobe.preshared_key, Some(PresharedKey::from_bytes([12; 32])));
    assert_eq!(config.peers[3].origin, PeerOrigin::Invitation);
    let apps: Vec<String> = config.apps.iter().map(|app| app.name.to_string()).collect();
    assert_eq!(
        apps,
        ["ip", "voice@kobe", "bulk@kobe", "voice@tokyo", "bulk@tokyo"]
    );
    assert_eq!(
        config.apps[1].latency_target,
        Some(Duration::from_millis(30))
    );
    let tenant = &config.tenants[0];
    let expected = [
        ("old", vec!["10.9.0.0/24"], "ip"),
        ("kobe", vec!["10.2.0.0/24", "fd02::/64"], "voice@kobe"),
        ("tokyo", vec!["10.1.0.0/24"], "voice@tokyo"),
    ];
    let expected: Vec<_> = expected
        .map(|(peer, prefixes, app)| (peer.to_owned(), texts(&prefixes), app.to_owned()))
        .into();
    assert_eq!(peers(&config, tenant), expected);
    let transit: Vec<bool> = tenant.peers.iter().map(|of| of.transit).collect();
    assert_eq!(
        transit,
        [false, true, true],
        "a peer of the file is no site"
    );
    let routes = ["10.9.0.0/24", "10.2.0.0/24", "fd02::/64", "10.1.0.0/24"];
    assert_eq!(texts(&tenant.routes), routes);
    // Nothing has an application that an invitation could use.
    assert!(config.apps.iter().all(|app| app.peer != PeerIndex(3)));
    // What is there stays where it is, so that a reload touches nothing else.
    let diff = hub.diff(&config);
    assert_eq!(diff.peers.added, ["invitation@osaka", "kobe", "tokyo"]);
    assert_eq!((diff.peers.changed.len(), diff.apps.changed.len()), (0, 0));
    let without = parsed(&good().replace("tokyo = {", "#tokyo = {"));
    let diff = config.diff(&at_hub(&hub, &without));
    assert_eq!(
        (diff.peers.removed, diff.peers.changed),
        (vec!["tokyo".to_owned()], vec![])
    );
    assert_eq!(diff.apps.removed, ["bulk@tokyo", "voice@tokyo"]);
    let rekeyed = parsed(&changed(&key(12), &key(77)));
    assert_eq!(config.diff(&at_hub(&hub, &rekeyed)).peers.changed, ["kobe"]);
}

#[test]
fn a_branch_reaches_all_other_sites_through_its_hub() {
    let registry = parsed(&good());
    let file = branch("");
    let config = file.with_network(&NetworkView::Branch(&published(&registry, "tokyo")));
    is_sound(&config);
    assert_eq!(config.peers.len(), 1);
    let there = ["10.0.0.0/24", "10.2.0.0/24", "fd02::/64"];
    let expected = ("hub".to_owned(), texts(&there), "voice@tokyo".to_owned());
    assert_eq!(peers(&config, &config.tenants[0]), [expected]);
    assert_eq!(texts(&config.tenants[0].routes), there);
    assert!(!config.tenants[0].peers[0].transit);
    // The hub calls the applications alike, so that they have one number on the wire.
    let hub = at_hub(&hub(), &registry);
    for app in &config.apps {
        let there = hub.app_named(app.name.as_str()).expect("it is there");
        assert_eq!(
            (hub[there].class, hub[there].lifetime),
            (app.class, app.lifetime)
        );
    }
    // Routes of the file are what it says, and a peer of the file gets more prefixes.
    let more = "routes = [\"10.0.0.0/8\"]\n[tenant.net.peer.hub]\nprefixes = [\"10.2.0.0/24\"]\napp = \"ip\"\n\
                [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"hub\"\n";
    let config = branch(more).with_network(&NetworkView::Branch(&published(&registry, "tokyo")));
    is_sound(&config);
    let there = ["10.2.0.0/24", "10.0.0.0/24", "fd02::/64"];
    let expected = ("hub".to_owned(), texts(&there), "ip".to_owned());
    assert_eq!(peers(&config, &config.tenants[0]), [expected]);
    assert_eq!(texts(&config.tenants[0].routes), ["10.0.0.0/8"]);
}

#[test]
fn a_hub_with_an_exit_offers_the_internet_and_its_branches_do_not_route_it_by_themselves() {
    let mut hub = hub();
    hub.tenants[0].exit = Some(Exit {
        ipv6: ExitIpv6::Nat,
        port_forwards: Vec::new(),
    });
    let registry = parsed(&good());
    let sent = PublicRegistry::of_site(&registry, &hub, &name("tokyo"), [1, 1]).expect("a site");
    let sent = PublicRegistry::parse(&sent.to_json()).expect("valid");
    let config = branch("").with_network(&NetworkView::Branch(&sent));
    is_sound(&config);
    let behind = texts(&config.tenants[0].peers[0].prefixes);
    for everything in ["0.0.0.0/0", "::/0"] {
        assert!(
            behind.iter().any(|prefix| prefix == everything),
            "{behind:?}"
        );
        let routes = texts(&config.tenants[0].routes);
        assert!(
            !routes.iter().any(|prefix| prefix == everything),
            "{routes:?}"
        );
    }
}

#[test]
fn what_a_hub_sends_never_leads_the_tunnel_into_itself_or_takes_the_branchs_own_network() {
    let mut sent = published(&parsed(&good()), "tokyo");
    let prefixes = ["0.0.0.0/0", "10.1.0.0/25", "10.0.0.0/8", "192.0.2.0/24"];
    sent.hub_prefixes = prefixes.iter().map(|text| text.parse().unwrap()).collect();
    let sent = PublicRegistry::parse(&sent.to_json()).expect("a hub may lead to the Internet");
    let view = NetworkView::Branch(&sent);
    let config = branch("").with_network(&view);
    is_sound(&config);
    // Its own network is within 10.0.0.0/8 and stays its own.
    let routes = ["10.0.0.0/8", "10.2.0.0/24", "fd02::/64"];
    assert_eq!(texts(&config.tenants[0].routes), routes);
    let behind = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "192.0.2.0/24",
        "10.2.0.0/24",
        "fd02::/64",
    ];
    assert_eq!(texts(&config.tenants[0].peers[0].prefixes), behind);
    let config = branch("table = 101\n").with_network(&view);
    assert_eq!(
        texts(&config.tenants[0].routes),
        behind,
        "with a table all of it is routed"
    );
}

#[test]
fn what_does_not_belong_together_changes_nothing() {
    let registry = parsed(&good());
    let sent = published(&registry, "tokyo");
    let none = Config::parse(
        "[gateway]\nname = \"a\"\n[[path]]\nname = \"wan\"\ninterface = \"eth0\"\n",
        "f",
    );
    let none = none.expect("it is right");
    let other_tenant = PublicRegistry {
        tenant_id: 8,
        ..sent.clone()
    };
    for (config, view) in [
        (&none, NetworkView::Hub(&registry)),
        (&none, NetworkView::Branch(&sent)),
        (&hub(), NetworkView::Branch(&sent)),
        (&branch(""), NetworkView::Hub(&registry)),
        (&branch(""), NetworkView::Branch(&other_tenant)),
    ] {
        assert!(config.diff(&config.with_network(&view)).is_empty());
    }
}

#[test]
fn without_an_application_one_carries_the_packets() {
    let text = good();
    let (head, sites) = text.split_once("[app.voice]").unwrap();
    let (_, sites) = sites.split_once("[site]").unwrap();
    let registry = parsed(&format!(
        "{head}[app.alarms]\nclass = \"message\"\n[site]{sites}"
    ));
    let config = at_hub(&hub(), &registry);
    is_sound(&config);
    let tenant = &config.tenants[0];
    assert_eq!(config[tenant.peers[1].app].name.as_str(), "sites@kobe");
    let sent = published(&registry, "kobe");
    let config = branch("").with_network(&NetworkView::Branch(&sent));
    assert_eq!(config.apps[1].name.as_str(), "sites@kobe");
    assert_eq!(config[AppIndex(0)].class, Class::Message);
}

#[test]
fn a_class_is_left_out_where_an_application_of_its_name_carries_no_packets() {
    let streams = good().replace(
        "[app.voice]\nclass = \"datagram\"\nlatency_target = \"30ms\"\n",
        "[app.office]\nclass = \"datagram\"\n[app.voice]\nclass = \"stream\"\n",
    );
    let registry = parsed(&streams);
    let mut file = hub();
    file.tenants[0].classes = Classes::Auto;
    let at_hub = at_hub(&file, &registry).with_classes();
    let mut file = branch("");
    file.tenants[0].classes = Classes::Auto;
    let sent = published(&registry, "kobe");
    let at_branch = file
        .with_network(&NetworkView::Branch(&sent))
        .with_classes();
    for config in [at_hub, at_branch] {
        is_sound(&config);
        let tenant = &config.tenants[0];
        let base = tenant.peers.last().expect("a site").app;
        let classes: Vec<&str> = tenant.class_apps[&base]
            .iter()
            .map(|of| of.class.name())
            .collect();
        assert!(!classes.contains(&"voice") && classes.contains(&"bulk"));
        let [warning] = config.warnings() else {
            panic!("{:?}", config.warnings());
        };
        assert!(
            warning.message.contains("has class \"stream\""),
            "{warning}"
        );
    }
}

#[test]
fn what_branches_get_has_no_secrets_and_is_read_again() {
    let registry = parsed(&good());
    let sent = published(&registry, "tokyo");
    let json = String::from_utf8(sent.to_json()).expect("text");
    // Invitations, and what hub and site share.
    for number in [3, 11, 12, 13] {
        assert!(!json.contains(&key(number)[..20]), "{json}");
    }
    assert_eq!(PublicRegistry::parse(json.as_bytes()).expect("read"), sent);
    assert_eq!(sent.apps(), registry.apps);
    // Fields of a later release are ignored.
    let newer = json.replacen('{', "{\"colour\":\"red\",", 1);
    assert_eq!(PublicRegistry::parse(newer.as_bytes()).expect("read"), sent);
    let directory = tempfile::tempdir().expect("a directory");
    let hub_key = PublicKey::from_bytes([98; 32]);
    assert!(
        PublicRegistry::load(directory.path(), hub_key)
            .expect("none")
            .is_none()
    );
    sent.keep(directory.path(), hub_key).expect("kept");
    let of_other = PublicRegistry::load(directory.path(), PublicKey::from_bytes([97; 32]));
    assert_eq!(of_other.expect("read"), None, "what another hub has sent");
    assert_eq!(
        PublicRegistry::load(directory.path(), hub_key).expect("kept"),
        Some(sent.clone())
    );
    fs::write(directory.path().join("network.json"), &json[..100]).expect("written");
    assert!(PublicRegistry::load(directory.path(), hub_key).is_err());
    // A later revision follows, an earlier one of the same run does not.
    let newer = PublicRegistry {
        revision: 2,
        ..sent.clone()
    };
    let restarted = PublicRegistry {
        incarnation: 2,
        ..sent.clone()
    };
    assert!(newer.follows(Some(&sent)) && restarted.follows(Some(&newer)) && sent.follows(None));
    assert!(!sent.follows(Some(&newer)) && !sent.follows(Some(&sent)));
    assert!(newer.says_the_same(&sent) && !published(&registry, "kobe").says_the_same(&sent));
    assert_eq!(
        PublicRegistry::of_site(&registry, &hub(), &name("osaka"), [1, 1]),
        None
    );
}

#[test]
fn invalid_documents_of_a_hub_are_refused() {
    let sent = published(&parsed(&good()), "tokyo");
    let json = String::from_utf8(sent.to_json()).expect("text");
    let replaced = |from: &str, to: &str| {
        assert!(json.contains(from), "{from}: {json}");
        json.replace(from, to)
    };
    let cases = [
        (String::new(), "not understood"),
        (" ".repeat(PUBLIC_BYTES_MAX + 1), "1048577 bytes"),
        (replaced("\"kobe\"", "\"tokyo\""), "there twice"),
        (replaced("\"kobe\"", "\"k@be\""), "not understood"),
        (
            replaced("\"kobe\"", &format!("\"{}\"", "k".repeat(32))),
            "too long",
        ),
        (replaced("\"voice\"", "\"bulk\""), "there twice"),
        (
            replaced("10.2.0.0/24", "0.0.0.0/0"),
            "`0.0.0.0/0` is not a network",
        ),
        (
            replaced("10.2.0.0/24", "10.2.0.7/24"),
            "`10.2.0.7/24` is not a network",
        ),
        (
            replaced("10.2.0.0/24", "127.0.0.0/8"),
            "`127.0.0.0/8` is not a network",
        ),
        (
            replaced("10.0.0.0/24", "224.0.0.0/4"),
            "`224.0.0.0/4` is not a network",
        ),
        (replaced("10.2.0.0/24", "10.2.0.0/33"), "not understood"),
        (replaced("30ms", "30"), "not understood"),
        (replaced("30ms", "0ms"), "`voice` are out of range"),
        (replaced("30ms", "3s"), "`voice` are out of range"),
        (replaced("30ms", "25h"), "`voice` are out of range"),
    ];
    for (text, expected) in cases {
        let error = PublicRegistry::parse(text.as_bytes())
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let many = PublicRegistry {
        sites: (0..=SITES_MAX)
            .map(|number| PublishedSite {
                name: name(&format!("s{number}")),
                public_key: None,
                prefixes: Vec::new(),
                wire_name: None,
            })
            .collect(),
        ..sent
    };
    let error = PublicRegistry::parse(&many.to_json()).expect_err("too many");
    assert!(error.to_string().contains("too many sites"), "{error}");
}

/// A registry with so many sites of two prefixes each.
fn large(count: usize) -> String {
    let line = |number: usize| {
        let mut bytes = [1; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let key = PublicKey::from_bytes(bytes);
        let [high, low] = [number / 256, number % 256];
        format!(
            "s{number} = {{ public_key = \"{key}\", preshared_key = \"{key}\", \
             prefixes = [\"10.{}.{low}.0/24\", \"fd00:{number:x}::/48\"] }}\n",
            high + 100
        )
    };
    let lines: String = (0..count).map(line).collect();
    format!(
        "[network]\ntenant = \"office\"\n[app.voice]\nclass = \"datagram\"\n[app.bulk]\nclass = \"datagram\"\n[site]\n{lines}"
    )
}

#[test]
fn hundreds_of_sites_make_a_configuration_in_one_pass() {
    let hub = hub();
    for count in [500, SITES_MAX] {
        let text = large(count);
        let begun = std::time::Instant::now();
        let registry = parsed(&text);
        let read = begun.elapsed();
        registry.check_with(&hub, &[]).expect("it fits");
        let checked = begun.elapsed() - read;
        let config = at_hub(&hub, &registry);
        let expanded = begun.elapsed() - read - checked;
        let resolved = config.resolved(&Found::default());
        let sent = published(&registry, "s7");
        let branch = branch("").with_network(&NetworkView::Branch(&sent));
        is_sound(&config);
        is_sound(&branch);
        assert_eq!(
            (config.peers.len(), config.apps.len()),
            (count + 1, 2 * count + 1)
        );
        assert_eq!(resolved.tenants[0].routes.len(), 2 * count + 1);
        // Its own network, 10.1.0.0/24, is not that of the site.
        assert_eq!(branch.tenants[0].peers[0].prefixes.len(), 2 * count - 1);
        let json = sent.to_json().len();
        assert!(json <= PUBLIC_BYTES_MAX);
        eprintln!(
            "{count} sites: file {} B read in {read:?}, checked in {checked:?}, configuration in {expanded:?}; \
             {json} B for a branch",
            text.len()
        );
    }
}

/// The registry with a second hub, `second`, in front of 10.5.0.0/24.
fn with_second_hub() -> String {
    format!(
        "{}[hub]\nsecond = {{ public_key = \"{}\", preshared_key = \"{}\", endpoint = \"198.51.100.9:7600\", \
         prefixes = [\"10.5.0.0/24\"] }}\n",
        good(),
        key(4),
        key(14)
    )
}

/// The configuration of the second hub.
fn second() -> Config {
    let text = format!(
        "[gateway]\nname = \"second\"\n[network]\nfirst_hub = \"hub\"\n[[path]]\nname = \"wan\"\n\
         local = \"198.51.100.9:7600\"\n[[peer]]\nname = \"hub\"\npublic_key = \"{}\"\n\
         endpoint = \"192.0.2.1:7600\"\n[tenant.net]\nid = 7\nprefixes = [\"10.5.0.0/24\"]\n",
        key(98)
    );
    Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn replica(registry: &Registry) -> Replica {
    let sent = Replica::new(registry, &hub(), [3, 4]).expect("the tenant is there");
    Replica::parse(&sent.to_json()).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`peers`], with the backup prefixes.
fn ways(config: &Config, tenant: &Tenant) -> Vec<(String, [Vec<String>; 2], String)> {
    let peers = peers(config, tenant).into_iter().zip(&tenant.peers);
    peers
        .map(|((peer, prefixes, app), of)| (peer, [prefixes, texts(&of.backup_prefixes)], app))
        .collect()
}

fn way(
    peer: &str,
    prefixes: &[&str],
    backup: &[&str],
    app: &str,
) -> (String, [Vec<String>; 2], String) {
    (
        peer.to_owned(),
        [texts(prefixes), texts(backup)],
        app.to_owned(),
    )
}

#[test]
fn what_is_behind_one_hub_or_a_site_is_reached_through_the_other_hub_too() {
    let registry = parsed(&with_second_hub());
    let sites = ["10.2.0.0/24", "fd02::/64", "10.1.0.0/24"];
    let first = at_hub(&hub(), &registry);
    is_sound(&first);
    let tenant = &first.tenants[0];
    assert_eq!(
        ways(&first, tenant).pop(),
        Some(way("second", &["10.5.0.0/24"], &sites, "voice@second"))
    );
    assert!(texts(&tenant.routes).contains(&"10.5.0.0/24".to_owned()));
    let peer = first.peer_named("second").expect("a peer");
    assert_eq!(first[peer].origin, PeerOrigin::SecondHub);
    assert_eq!(first[peer].endpoint.len(), 1);

    let replica = replica(&registry);
    replica
        .check_with(&second(), &[])
        .expect("no contradiction");
    let at_second = second().with_network(&NetworkView::SecondHub(&replica));
    is_sound(&at_second);
    let tenant = &at_second.tenants[0];
    let expected = [
        way("kobe", &["10.2.0.0/24", "fd02::/64"], &[], "voice@@kobe"),
        way("tokyo", &["10.1.0.0/24"], &[], "voice@@tokyo"),
        way("hub", &["10.0.0.0/24"], &sites, "voice@second"),
    ];
    assert_eq!(ways(&at_second, tenant), expected);
    let has_invitation = |peer: &crate::config::Peer| peer.origin == PeerOrigin::Invitation;
    assert!(
        !at_second.peers.iter().any(has_invitation),
        "the first hub has them"
    );

    let branch = branch("");
    let sent = PublicRegistry::of_site_in(&registry, &replica.network_copy(), &name("tokyo"));
    let sent = sent.expect("a site");
    assert_eq!(sent.hubs, published(&registry, "tokyo").hubs);
    let sent = PublicRegistry::parse(&sent.to_json()).expect("as it was sent");
    let config = branch.with_network(&NetworkView::Branch(&sent));
    is_sound(&config);
    let others = ["10.0.0.0/24", "10.2.0.0/24", "fd02::/64"];
    let expected = [
        way("hub", &others, &["10.5.0.0/24"], "voice@tokyo"),
        way("second", &["10.5.0.0/24"], &others, "voice@@tokyo"),
    ];
    assert_eq!(ways(&config, &config.tenants[0]), expected);
    // What they call alike has one number on the wire.
    for (app, there) in [("voice@tokyo", &first), ("voice@@tokyo", &at_second)] {
        assert!(config.app_named(app).is_some() && there.app_named(app).is_some());
    }
    assert_eq!(config.tenants[0].routes.len(), 4);
    // Its own peer of this name or key is not taken for the hub.
    let mut other = sent;
    other.hubs[0].name = name("hub");
    let config = branch.with_network(&NetworkView::Branch(&other));
    assert_eq!(config.peers.len(), 1);
}

#[test]
fn copy_of_the_registry_is_applied_atomically() {
    let registry = parsed(&with_second_hub());
    let good = replica(&registry);
    assert_eq!(good.registry(), Some(&registry));
    assert!(good.says_the_same(&replica(&registry)));
    let secret = key(11);
    assert!(
        !format!("{good:?}").contains(&secret[..20]),
        "no keys in logs"
    );
    let directory = tempfile::tempdir().unwrap();
    assert!(Replica::load(directory.path()).unwrap().is_none());
    good.keep(directory.path()).unwrap();
    let (kept, _) = Replica::load(directory.path())
        .unwrap()
        .expect("it was kept");
    assert_eq!(kept, good);
    // A second hub that starts with it has the same, and one whose file contradicts it has none, with the reason.
    let mut of_file = second();
    directory
        .path()
        .clone_into(&mut of_file.gateway.state_directory);
    let state = NetworkState::load(&of_file).unwrap();
    assert_eq!(state, NetworkState::SecondHub(Box::new(good.clone())));
    let mut taken = of_file.clone();
    taken.tenants[0]
        .prefixes
        .push("10.1.0.0/16".parse().unwrap());
    assert_eq!(NetworkState::load(&taken).unwrap(), NetworkState::Nothing);
    let problem = NetworkState::problem(&taken).expect("a reason");
    assert!(problem.message.contains("overlaps"), "{problem}");
    taken.tenants[0].id = 8;
    let problem = NetworkState::problem(&taken).expect("a reason");
    assert!(
        problem.message.contains("no tenant has the number 7"),
        "{problem}"
    );

    let json = String::from_utf8(good.to_json().to_vec()).unwrap();
    for (from, to) in [
        ("10.0.0.0/24", "10.0.0.0/99"),
        ("tenant_id", "tenant"),
        ("[hub]", "[hubs]"),
        ("[hub]", "[hub.x]"),
        ("10.2.0.0/24", "10.1.0.0/24"),
    ] {
        let bad = json.replace(from, to);
        assert_ne!(bad, json, "{from}");
        Replica::parse(bad.as_bytes()).expect_err(to);
    }
    let without = json.replace("second = {", "#second = {");
    let error = Replica::parse(without.as_bytes()).expect_err("for another gateway");
    assert!(error.to_string().contains("second hub"), "{error}");
    let long = vec![b' '; REPLICA_BYTES_MAX + 1];
    Replica::parse(&long).expect_err("too long");
}

#[test]
fn older_copy_of_the_registry_is_ignored() {
    let registry = parsed(&with_second_hub());
    let number = |incarnation, revision| {
        let mut of = published(&registry, "tokyo");
        (of.incarnation, of.revision) = (incarnation, revision);
        of
    };
    let known = number(5, 3);
    for (incarnation, revision, expected) in [
        (5, 3, [false, false]),
        (5, 4, [true, true]),
        (6, 1, [true, true]),
        // The first hub has restarted with a clock that was set back, or the second has an older copy.
        (4, 9, [true, false]),
        (5, 2, [false, false]),
    ] {
        let sent = number(incarnation, revision);
        let found = [sent.follows(Some(&known)), sent.copy_follows(Some(&known))];
        assert_eq!(found, expected, "{incarnation} {revision}");
    }
    assert!(number(1, 1).copy_follows(None));
}

fn direct_site(text: &str, endpoint: &[&str]) -> DirectSite {
    DirectSite {
        name: name(text),
        public_key: PublicKey::from_bytes([2; 32]),
        preshared_key: PresharedKey::from_bytes([50; 32]),
        endpoint: endpoint.iter().map(|at| at.parse().unwrap()).collect(),
    }
}

#[test]
fn a_session_with_another_site_leads_to_what_is_behind_it_before_the_hub_does() {
    let registry = parsed(&with_second_hub());
    let sent = published(&registry, "tokyo");
    let config = branch("").with_network(&NetworkView::Branch(&sent));
    let kobe = direct_site("kobe", &["192.0.2.77:7600"]);
    let direct = config.with_direct_sites(&sent, std::slice::from_ref(&kobe));
    let behind = direct.tenants[0].peers.last().expect("it is there");
    assert!(behind.is_direct && !behind.transit);
    assert_eq!(texts(&behind.prefixes), ["10.2.0.0/24", "fd02::/64"]);
    let peer = &direct[behind.peer];
    assert_eq!((peer.origin, peer.endpoint.len()), (PeerOrigin::Direct, 1));
    // Both call the application alike.
    assert_eq!(direct[behind.app].name.as_str(), "voice@kobe@tokyo");
    // All that was there stays, so that nothing else is touched.
    let diff = config.diff(&direct);
    assert_eq!(
        (diff.peers.added, diff.peers.changed),
        (vec!["kobe".to_owned()], vec![])
    );
    // What is no other site, and what has another key than the registry, is left out.
    let replaced = DirectSite {
        public_key: PublicKey::from_bytes([97; 32]),
        ..kobe
    };
    for other in [
        direct_site("tokyo", &[]),
        direct_site("paris", &[]),
        replaced,
    ] {
        let direct = config.with_direct_sites(&sent, &[other]);
        assert!(config.diff(&direct).is_empty());
    }
}

#[test]
fn a_registry_or_long_names_keep_packets_with_the_hub() {
    let text = good();
    let (kobe, tokyo) = (name("kobe"), name("tokyo"));
    let permitted = published(&parsed(&text), "tokyo");
    assert_eq!(
        permitted.direct_key(&kobe),
        Ok(PublicKey::from_bytes([2; 32]))
    );
    assert_eq!(permitted.direct_key(&tokyo), Err(NotDirect::NoSite));
    let closed = text.replacen("[network]", "[network]\ndirect = false", 1);
    let closed = published(&parsed(&closed), "tokyo");
    assert_eq!(closed.direct_key(&kobe), Err(NotDirect::Registry));
    // A hub of an earlier release sends neither field.
    let mut json: serde_json::Value = serde_json::from_slice(&permitted.to_json()).unwrap();
    json.as_object_mut().unwrap().remove("direct");
    for site in json["sites"].as_array_mut().unwrap() {
        site.as_object_mut().unwrap().remove("public_key");
    }
    let earlier = PublicRegistry::parse(json.to_string().as_bytes()).unwrap();
    assert_eq!(earlier.direct_key(&kobe), Err(NotDirect::Registry));
    let mut long = permitted;
    for site in &mut long.sites {
        if site.name == kobe {
            site.name = name(&"k".repeat(SITE_NAME_BYTES_MAX));
        }
    }
    long.site = name(&"t".repeat(SITE_NAME_BYTES_MAX));
    let other = name(&"k".repeat(SITE_NAME_BYTES_MAX));
    assert_eq!(long.direct_key(&other), Err(NotDirect::NameTooLong));
}

/// What the file has behind another peer is not taken from it, whatever the registry says.
#[test]
fn a_direct_session_takes_no_prefix_from_another_peer() {
    let more = format!(
        "[tenant.net.peer.q]\nprefixes = [\"10.2.0.0/24\"]\napp = \"of-q\"\n\
         [[peer]]\nname = \"q\"\npublic_key = \"{}\"\nendpoint = \"192.0.2.9:7600\"\n\
         [[app]]\nname = \"of-q\"\nclass = \"datagram\"\npeer = \"q\"\n",
        key(97)
    );
    let sent = published(&parsed(&good()), "tokyo");
    let config = branch(&more).with_network(&NetworkView::Branch(&sent));
    let kobe = direct_site("kobe", &["192.0.2.77:7600"]);
    let direct = config.with_direct_sites(&sent, &[kobe]);
    let of_kobe = direct.tenants[0].peers.iter().filter(|of| of.is_direct);
    let of_kobe: Vec<_> = of_kobe.map(|of| texts(&of.prefixes)).collect();
    assert_eq!(of_kobe, [["fd02::/64"]]);
}

#[test]
fn addresses_that_no_other_gateway_can_have_are_not_tried() {
    let sent = published(&parsed(&good()), "tokyo");
    let config = branch("").with_network(&NetworkView::Branch(&sent));
    let own = ["198.51.100.7".parse().unwrap()];
    let claimed = [
        "127.0.0.1:7600",
        "224.0.0.1:7600",
        "255.255.255.255:7600",
        "0.0.0.0:7600",
        "169.254.1.1:7600",
        "[::1]:7600",
        "[fe80::1]:7600",
        "[::ffff:127.0.0.1]:7600",
        "192.0.2.9:0",
        // This machine, its own network, and one behind the tunnel.
        "198.51.100.7:22",
        "10.1.0.9:7600",
        "10.2.0.9:7600",
    ];
    let site = direct_site("kobe", &claimed).with_usable_endpoints(&config, &own);
    assert_eq!(site.endpoint, []);
    let good: Vec<String> = (1..9).map(|n| format!("203.0.113.{n}:7600")).collect();
    let good: Vec<&str> = good.iter().map(String::as_str).collect();
    let site = direct_site("kobe", &good).with_usable_endpoints(&config, &own);
    assert_eq!(texts(&site.endpoint), good[..DIRECT_ENDPOINTS_MAX]);
}
