//! What happens to a network over the years: its sites get other names and other keys. Nothing of it interrupts packets.

use std::time::Instant;

use serde_json::Value;

use crate::{
    direct::{self, await_direct},
    harness::{Site, eventually},
    hubs::{Network, gaps_during},
    join::{World, ask},
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
