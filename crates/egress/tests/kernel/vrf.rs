//! VRF devices, as far as the kernel has them: where it does not, the daemon reports that.

use std::collections::BTreeMap;

use keiro_egress::{
    comparison::Settings,
    config::EndpointConfig,
    forwarding::{Configured, Forwarding, PeerIndex},
    kernel::{self, Kernel},
    multipath::ConnectionSettings,
};
use keiro_testing::not_tested;

use crate::network::{CLIENTS, Network, SERVER, wait_until};

/// With devices for both peers.
fn with_vrfs() -> String {
    let first = SERVER.replacen("fd00:e::a\"", "fd00:e::a\"\nvrf = \"epe-a\"", 1);
    first.replacen("fd00:e::b\"", "fd00:e::b\"\nvrf = \"epe-b\"", 1)
}

fn parsed(text: &str) -> EndpointConfig {
    EndpointConfig::parse(text, "egress.toml").unwrap()
}

fn open(network: &Network, text: &str) -> Result<Kernel, String> {
    let config = parsed(text);
    let open = move || Kernel::endpoint(&config).map_err(|error| error.to_string());
    network.host("server").run(open).unwrap()
}

/// What `ip` says of adding a device in the server's namespace; `Err`: it cannot.
fn link(network: &Network, arguments: &str) -> Result<(), String> {
    let mut command = network.host("server").command("ip");
    command.arg("link").args(arguments.split_whitespace());
    let output = command.output().expect("ip runs");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Whether this kernel has VRF devices.
fn has_vrfs(network: &Network) -> bool {
    match link(network, "add probe type vrf table 99") {
        Ok(()) => {
            link(network, "del probe").unwrap();
            true
        }
        Err(words) => {
            eprintln!("this kernel has no VRF devices: {}", words.trim());
            false
        }
    }
}

#[test]
fn a_device_that_is_no_vrf_is_in_the_way_and_stays() {
    let Some(network) = Network::new("a_device_that_is_no_vrf_is_in_the_way_and_stays") else {
        return;
    };
    link(&network, "add epe-a type veth peer name other").unwrap();
    let refused = open(&network, &with_vrfs()).unwrap_err();
    assert!(
        refused.starts_with(
            "the device `epe-a`, which is no VRF, is in the way of the VRF `epe-a` of table 7600"
        ),
        "{refused}"
    );
    assert_eq!(network.left("server", 76), "", "nothing was begun");
    let report = network.host("server").run(kernel::cleanup_endpoint);
    assert!(report.unwrap().unwrap().is_clean());
    link(&network, "show dev epe-a").expect("it is not of any tenant");
    network.lab.down().unwrap();
}

#[test]
fn a_kernel_without_vrf_devices_is_reported_at_start_and_on_reload() {
    let Some(network) =
        Network::new("a_kernel_without_vrf_devices_is_reported_at_start_and_on_reload")
    else {
        return;
    };
    if has_vrfs(&network) {
        eprintln!("this kernel has them: left out");
        return;
    }
    let refused = open(&network, &with_vrfs()).unwrap_err();
    for part in ["`epe-a`", "this kernel has none", "CONFIG_NET_VRF"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(network.left("server", 76), "", "nothing was begun");
    // A daemon that runs goes on, and says what it has not done.
    let mut kernel = open(&network, SERVER).unwrap();
    let peers = parsed(&with_vrfs()).peers;
    let peers: BTreeMap<PeerIndex, _> = (2..).map(PeerIndex).zip(peers).collect();
    let others = ConnectionSettings {
        classes: &[],
        comparison: Settings::DEFAULT,
    };
    let configured = Configured::Endpoint {
        peers: &peers,
        others,
    };
    let adopt = || kernel.follow_configuration(&configured);
    let reported = network.host("server").run(adopt).unwrap();
    let reported: Vec<String> = reported.iter().map(ToString::to_string).collect();
    assert!(
        matches!(&reported[..], [one] if one.contains("CONFIG_NET_VRF")),
        "{reported:?}"
    );
    let furniture = network.left("server", 76);
    for what in ["lookup 7600", "lookup 7601"] {
        assert!(furniture.contains(what), "{what}: {furniture}");
    }
    drop(kernel);
    let report = network.host("server").run(kernel::cleanup_endpoint);
    assert!(report.unwrap().unwrap().is_clean());
    network.lab.down().unwrap();
}

#[test]
fn a_peer_has_the_vrf_device_that_it_asks_for() {
    let Some(network) = Network::new("a_peer_has_the_vrf_device_that_it_asks_for") else {
        return;
    };
    if !has_vrfs(&network) {
        return not_tested(
            "a_peer_has_the_vrf_device_that_it_asks_for",
            "this kernel has no VRF devices; `make test-guest` boots one that has",
        );
    }
    let shown = |name: &str| network.ip("server", &format!("-d link show {name}"));
    // One that the operator has made is used, and stays.
    link(&network, "add epe-b type vrf table 7601").unwrap();
    let taken = with_vrfs().replacen("epe-b", "epe-c", 1);
    let refused = open(&network, &taken).unwrap_err();
    assert!(refused.contains("`epe-b` of table 7601"), "{refused}");
    let (border, server) = (network.border(), network.server_of(&with_vrfs()));
    let transits = [0, 1].map(|number| network.transit(number, &CLIENTS));
    network.await_routes([&CLIENTS[1..2]; 2]);
    let of_a = shown("epe-a");
    assert!(
        of_a.contains("vrf table 7600") && of_a.contains("keiro egress"),
        "{of_a}"
    );
    assert!(
        network
            .ip("server", "route show vrf epe-a")
            .contains(CLIENTS[1])
    );
    assert_eq!(network.send("fd00:e::a", 1).unwrap(), 0);
    // What another program removes is made again.
    link(&network, "del epe-a").unwrap();
    wait_until("it is back", || link(&network, "show dev epe-a").is_ok());
    wait_until("its routes", || {
        network.has_route("server", 7600, CLIENTS[1])
    });
    drop((border, server, transits));
    let report = network.host("server").run(kernel::cleanup_endpoint);
    assert!(report.unwrap().unwrap().is_clean());
    assert!(link(&network, "show dev epe-a").is_err(), "removed");
    link(&network, "show dev epe-b").expect("it is the operator's");
    network.lab.down().unwrap();
}
