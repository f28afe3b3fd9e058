//! Devices: made, opened, handed over, removed.

use caps::{CapSet, Capability};
use keiro_linux::tun::{
    DeviceState, Existing, Offloads, READ_BYTES_MAX, Tun, TunError, TunFault, TunOptions,
};

use crate::namespace::{Namespace, is_root, wait_until};

pub(crate) fn options(name: &str) -> TunOptions {
    TunOptions {
        name: name.into(),
        queues: 1,
        offloads: true,
        existing: Existing::Refuse,
    }
}

#[test]
fn a_device_is_made_in_a_namespace_and_goes_with_its_owner() {
    if !is_root("a_device_is_made_in_a_namespace_and_goes_with_its_owner") {
        return;
    }
    let namespace = Namespace::new();
    let tun = Tun::open_in(&namespace.0, &options("tenant0")).unwrap();
    assert_eq!(tun.name(), "tenant0");
    assert_eq!(tun.mtu().unwrap(), 1500);
    tun.set_mtu(1380).unwrap();
    assert_eq!(tun.mtu().unwrap(), 1380);
    let error = tun.set_mtu(70_000).unwrap_err();
    assert!(matches!(error, TunError::System { .. }), "{error}");
    tun.set_up().unwrap();
    let shown = namespace.ip("link show tenant0");
    assert!(
        shown.contains("mtu 1380") && shown.contains(",UP,"),
        "{shown}"
    );
    assert!(shown.starts_with(&format!("{}: ", tun.index())), "{shown}");
    drop(tun);
    // A process that another test is just spawning may hold inherited descriptors until it execs.
    wait_until("it is gone", || {
        !namespace.ip("link show").contains("tenant0")
    });
}

#[test]
fn offloads_are_those_of_the_kernel_or_none() {
    if !is_root("offloads_are_those_of_the_kernel_or_none") {
        return;
    }
    let namespace = Namespace::new();
    let with = Tun::open_in(&namespace.0, &options("with"))
        .unwrap()
        .offloads();
    assert!(with.vnet_header && with.tcp, "{with:?}");
    let without = TunOptions {
        offloads: false,
        ..options("without")
    };
    let without = Tun::open_in(&namespace.0, &without).unwrap();
    assert_eq!(without.offloads(), Offloads::default());
}

#[test]
fn a_name_in_use_is_an_error_and_its_owner_unaffected() {
    if !is_root("a_name_in_use_is_an_error_and_its_owner_unaffected") {
        return;
    }
    let namespace = Namespace::new();
    let first = Tun::open_in(&namespace.0, &options("tenant0")).unwrap();
    let error = Tun::open_in(&namespace.0, &options("tenant0")).unwrap_err();
    assert!(matches!(error, TunError::Taken { .. }), "{error}");
    first.set_up().unwrap();
    for existing in [Existing::Refuse, Existing::Require] {
        let other = TunOptions {
            existing,
            ..options("lo")
        };
        let error = Tun::open_in(&namespace.0, &other).unwrap_err();
        assert!(
            matches!(error, TunError::Unfit { .. } | TunError::Taken { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_persistent_device_is_opened_and_stays() {
    if !is_root("a_persistent_device_is_opened_and_stays") {
        return;
    }
    let namespace = Namespace::new();
    let existing = TunOptions {
        existing: Existing::Require,
        ..options("admin0")
    };
    let error = Tun::open_in(&namespace.0, &existing).unwrap_err();
    assert!(matches!(error, TunError::Missing { .. }), "{error}");
    namespace.ip("tuntap add admin0 mode tun");
    let error = Tun::open_in(&namespace.0, &options("admin0")).unwrap_err();
    assert!(matches!(error, TunError::Taken { .. }), "{error}");
    let tun = Tun::open_in(&namespace.0, &existing).unwrap();
    let error = Tun::open_in(&namespace.0, &existing).unwrap_err();
    assert!(matches!(error, TunError::Taken { .. }), "{error}");
    drop(tun);
    assert!(namespace.ip("link show").contains("admin0"));
    let two = TunOptions {
        queues: 2,
        ..existing
    };
    let error = Tun::open_in(&namespace.0, &two).unwrap_err();
    assert!(matches!(error, TunError::Unfit { .. }), "{error}");
}

#[test]
fn lack_of_the_capability_is_reported() {
    if !is_root("lack_of_the_capability_is_reported") {
        return;
    }
    let namespace = Namespace::new();
    let tun = Tun::open_in(&namespace.0, &options("tenant0")).unwrap();
    namespace.run(|| {
        caps::drop(None, CapSet::Effective, Capability::CAP_NET_ADMIN).unwrap();
        let error = Tun::open(&options("tenant1")).unwrap_err();
        assert!(matches!(error, TunError::NotPermitted { .. }), "{error}");
        let error = tun.set_mtu(1400).unwrap_err();
        assert!(matches!(error, TunError::NotPermitted { .. }), "{error}");
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    });
}

#[test]
fn readers_and_writers_get_an_error_for_a_device_that_is_down_or_removed() {
    if !is_root("readers_and_writers_get_an_error_for_a_device_that_is_down_or_removed") {
        return;
    }
    let namespace = Namespace::new();
    let plain = TunOptions {
        offloads: false,
        ..options("tenant0")
    };
    let tun = Tun::open_in(&namespace.0, &plain).unwrap();
    let queue = &tun.queues()[0];
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut packet = [0; 40];
    packet[0] = 0x45;
    assert!(matches!(queue.write(&packet), Err(TunFault::Down)));
    assert!(matches!(queue.read(&mut buffer), Ok(None)));
    tun.set_up().unwrap();
    assert!(matches!(queue.write(&packet), Ok(true)));
    // A first byte that is neither IPv4 nor IPv6.
    packet[0] = 0x05;
    assert!(matches!(queue.write(&packet), Err(TunFault::Refused)));
    packet[0] = 0x45;
    namespace.ip("link delete tenant0");
    assert!(matches!(queue.write(&packet), Err(TunFault::Gone)));
    // Packets that the kernel sent before may still be read.
    let mut fault = None;
    wait_until("the reader gets the error", || {
        match queue.read(&mut buffer) {
            Err(error) => {
                fault = Some(error);
                true
            }
            Ok(_) => false,
        }
    });
    assert!(matches!(fault, Some(TunFault::Gone)), "{fault:?}");
    assert!(matches!(tun.mtu(), Err(TunError::Missing { .. })));
    assert!(matches!(tun.set_up(), Err(TunError::Missing { .. })));
    drop(tun);
    Tun::open_in(&namespace.0, &plain).unwrap();
}

#[test]
fn the_state_of_a_device_is_reported() {
    if !is_root("the_state_of_a_device_is_reported") {
        return;
    }
    let namespace = Namespace::new();
    let tun = Tun::open_in(&namespace.0, &options("tenant0")).unwrap();
    let state = || tun.state().unwrap();
    assert_eq!(state(), DeviceState::Down);
    tun.set_up().unwrap();
    assert_eq!(state(), DeviceState::Up);
    namespace.ip("link set tenant0 down");
    assert_eq!(state(), DeviceState::Down);
    namespace.ip("link set tenant0 name other0");
    let name = "other0".to_owned();
    assert_eq!(state(), DeviceState::Renamed { name });
    tun.set_mtu(1380).unwrap();
    assert!(namespace.ip("link show other0").contains("mtu 1380"));
    namespace.ip("link set other0 name tenant0");
    namespace.ip("link set tenant0 up");
    assert_eq!(state(), DeviceState::Up);
    namespace.ip("link delete tenant0");
    assert_eq!(state(), DeviceState::Absent);
    // Another device of that name is not this one.
    let another = Tun::open_in(&namespace.0, &options("tenant0")).unwrap();
    assert_eq!(state(), DeviceState::Absent);
    assert_eq!(another.state().unwrap(), DeviceState::Down);
}

#[test]
fn flows_are_spread_over_queues() {
    if !is_root("flows_are_spread_over_queues") {
        return;
    }
    let namespace = Namespace::new();
    let several = TunOptions {
        queues: 4,
        ..options("tenant0")
    };
    let mut tun = Tun::open_in(&namespace.0, &several).unwrap();
    namespace.ip("address add 10.7.0.1/24 dev tenant0");
    tun.set_up().unwrap();
    namespace.run(|| {
        for _ in 0..64 {
            let socket = std::net::UdpSocket::bind("10.7.0.1:0").unwrap();
            socket.send_to(b"packet", "10.7.0.2:9").unwrap();
        }
    });
    let queues = tun.take_queues();
    assert_eq!((queues.len(), tun.queues().len()), (4, 0));
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut used = 0;
    for queue in &queues {
        let mut packets = 0;
        while queue.read(&mut buffer).unwrap().is_some() {
            packets += 1;
        }
        used += u32::from(packets > 0);
    }
    assert!(used > 1, "{used} queues used");
}
