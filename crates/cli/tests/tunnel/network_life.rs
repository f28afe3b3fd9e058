//! What happens to a network over the years: its sites get other names and other keys. Nothing of it interrupts packets.

use std::{fs, path::PathBuf, time::Instant};

use serde_json::Value;

use crate::{
    direct::{self, await_direct},
    harness::{Site, eventually},
    hubs::{Network, gaps_during},
    join::{World, ask, read},
};

/// When a peer's session began, and how often it was renewed since the gateway started.
fn session(at: &Site, peer: &str) -> Option<Value> {
    let peers = ask(at, &["show", "peer"])?;
    let mut peers = peers.as_array()?.iter();
    let peer = peers.find(|of| of["name"] == peer && of["state"] == "up")?;
    Some(peer["since"].clone())
}

fn rename(world: &World, names: [&str; 2]) {
    let renamed = world.at_hub(&["rename", names[0], names[1]]).expect_code(0);
    let _ = renamed.says(&["sessions go on"]);
}

#[test]
fn a_site_and_the_second_hub_get_other_names_without_loss() {
    let network = Network::start();
    let Network {
        world,
        osaka,
        branches: [tokyo, _],
    } = &network;
    world.ping("desk", "10.2.0.10");
    let before = session(&world.hub, "tokyo").expect("it is up");
    let begun = Instant::now();
    let renamed = gaps_during(world, || {
        rename(world, ["tokyo", "paris"]);
        rename(world, ["osaka", "sakai"]);
        for at in [&world.hub, osaka] {
            eventually("a hub has the site under its new name", || {
                session(at, "paris")
            });
        }
        eventually("the branch calls its second hub so", || {
            session(tokyo, "sakai")
        });
        eventually("its applications have the new name", || {
            let apps = ask(tokyo, &["show", "app"])?;
            let mut apps = apps.as_array()?.iter();
            let is_renamed = |app: &Value| {
                app["name"]
                    .as_str()
                    .is_some_and(|name| name.ends_with("@paris"))
            };
            apps.any(is_renamed).then_some(())
        });
        world.ping("desk", "10.5.0.10");
    });
    renamed.print("a site and a hub are renamed");
    eprintln!("after {:?}", begun.elapsed());
    assert_eq!(renamed.lost, 0, "{renamed:?}");
    assert_eq!(
        session(&world.hub, "paris"),
        Some(before),
        "it is the same session"
    );
    let sites = network.sites_at("osaka");
    assert!(sites.to_string().contains("\"paris\""), "{sites}");
    for (names, says) in [
        (["paris", "kobe"], "another site"),
        (["tokyo", "oita"], "there is no site"),
        (["kobe", "hub"], "the hub itself"),
    ] {
        let refused = world.at_hub(&["rename", names[0], names[1]]).expect_code(1);
        let _ = refused.says(&[says]);
    }
}

#[test]
fn a_direct_session_survives_the_renaming_of_one_end() {
    let (world, [tokyo, kobe, _nara, _oita]) = direct::start();
    world.ping("desk", "10.2.0.10");
    await_direct([(&tokyo, "kobe"), (&kobe, "tokyo")]);
    let before = session(&kobe, "tokyo").expect("it is up");
    let renamed = gaps_during(&world, || {
        rename(&world, ["tokyo", "paris"]);
        await_direct([(&kobe, "paris"), (&tokyo, "kobe")]);
    });
    renamed.print("a site with a direct session is renamed");
    assert_eq!(renamed.lost, 0, "{renamed:?}");
    assert_eq!(
        session(&kobe, "paris"),
        Some(before),
        "it is the same session"
    );
}

/// Gives a gateway another key; the one before and the new one.
fn rotate(world: &World, host: &str, site: &Site, config: &str) -> [String; 2] {
    let before = own_key(site);
    let rotated = world.keiro(host, &["rotate-key", "--config", config]);
    let _ = rotated.expect_code(0).says(&["the one before is refused"]);
    let now = own_key(site);
    assert_ne!(before, now);
    [before, now]
}

fn own_key(site: &Site) -> String {
    let status = eventually("the gateway answers", || ask(site, &["status"]));
    let key = status["public_key"].as_str().expect("a key");
    key.to_owned()
}

/// The public key that a gateway knows of a peer.
fn known_key(at: &Site, peer: &str) -> Option<String> {
    let peers = ask(at, &["show", "peer", peer])?;
    Some(peers[0]["public_key"].as_str()?.to_owned())
}

#[test]
fn a_branch_and_both_hubs_get_other_keys_without_loss() {
    let mut network = Network::start();
    let Network {
        world,
        osaka,
        branches: [tokyo, kobe],
    } = &network;
    world.ping("desk", "10.2.0.10");
    let before = session(&world.hub, "tokyo").expect("it is up");
    for (host, site) in [("tokyo", tokyo), ("osaka", osaka), ("hub", &world.hub)] {
        let config = network.config_of(host);
        let mut keys = None;
        let rotated = gaps_during(world, || {
            keys = Some(rotate(world, host, site, &config));
        });
        rotated.print(&format!("the key of {host} changes"));
        assert_eq!(rotated.lost, 0, "{host}: {rotated:?}");
        let [_, now] = keys.expect("it has run");
        for at in [&world.hub, osaka, tokyo, kobe] {
            eventually("who has the peer knows its new key", || {
                match known_key(at, host) {
                    Some(known) => (known == now).then_some(()),
                    None => Some(()),
                }
            });
        }
    }
    assert_eq!(
        session(&world.hub, "tokyo"),
        Some(before),
        "it is the same session"
    );
    let text = read(&world.hub, "network/registry.toml");
    assert!(!text.contains("next_public_key"), "{text}");

    // All start again with what they have kept, the branch first: the file has the key that the hub had.
    let places = [("tokyo", 2), ("osaka", 1), ("hub", 0)];
    for (host, place) in places {
        let file = PathBuf::from(network.config_of(host));
        network.world.restart(place, host, &file);
        network.world.forward(host, "keiro1");
    }
    network.world.ping("desk", "10.2.0.10");
    network.world.ping("desk", "10.5.0.10");
}

#[test]
fn a_rotation_that_is_cut_short_at_any_step_goes_on() {
    let mut network = Network::start();
    let config = network.config_of("tokyo");
    let key = network.branches[0].path("keiro/private.key");
    let [next, previous] = [".next", ".previous"].map(|end| {
        let mut name = key.clone().into_os_string();
        name.push(end);
        PathBuf::from(name)
    });
    // The second hub is away: the key is announced, and not used.
    network.world.sh("osaka", "ip link set core2 down");
    let args = ["rotate-key", "--timeout", "3s", "--config", &config];
    let late = network.world.keiro("tokyo", &args).expect_code(1);
    let _ = late.says(&["not in use yet", "`osaka`"]);
    assert!(next.exists() && !previous.exists());
    let wanted = fs::read_to_string(&next).expect("read");
    // The machine stops here, and starts again.
    let file = PathBuf::from(&config);
    network.world.restart(2, "tokyo", &file);
    network.world.forward("tokyo", "keiro1");
    network.world.ping("desk", "10.2.0.10");
    network.world.sh(
        "osaka",
        "ip link set core2 up && ip route add default via 203.0.113.33",
    );
    // And here, between the two steps of the exchange of the files.
    eventually("both hubs accept the key", || {
        let args = ["rotate-key", "--timeout", "1s", "--config", &config];
        fs::hard_link(&key, &previous).ok();
        let _ = network.world.keiro("tokyo", &args);
        (!next.exists()).then_some(())
    });
    let used = fs::read_to_string(&key).expect("read");
    assert_eq!(used, wanted, "it is the key that was announced first");
    network.world.restart(2, "tokyo", &file);
    network.world.forward("tokyo", "keiro1");
    network.world.ping("desk", "10.2.0.10");
    let rotated = network
        .world
        .keiro("tokyo", &["rotate-key", "--finish", "--config", &config]);
    rotated.expect_code(0);
    assert!(!previous.exists());
    network.world.ping("desk", "10.2.0.10");
}
