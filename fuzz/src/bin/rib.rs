//! What three neighbours announce, withdraw and lose in any order, with all that a driver does meanwhile:
//! the table is in order after each step, and a replay makes the same.
#![no_main]

use std::time::Duration;

use fuzz::{
    seeds,
    site::{FAMILIES, Other, Site, address},
    wire::{Choices, Offer, UPDATE, as_path, attribute, message, reach, unreach, update},
};
use keiro_bgp::{
    rib::NeighbourId,
    speaker::{Input, VpnExport},
    srv6::{Label, Service},
};
use libfuzzer_sys::fuzz_target;

/// The last one is of our own AS.
const ASNS: [u16; 3] = [65001, 65002, 65000];

fuzz_target!(init: seeds::write(seeds::steps()), |data: &[u8]| {
    let mut choices = Choices(data);
    let others = ASNS.map(|asn| Other {
        asn,
        offer: Offer(choices.next() | 0b1000),
        greets: true,
    });
    let mut site = Site::new(&others);
    while !choices.is_empty() {
        step(&mut site, &others, &mut choices);
        site.check(data.len() < 1000);
    }
    site.check_replay();
});

fn step(site: &mut Site, others: &[Other; 3], choices: &mut Choices<'_>) {
    let (what, who) = (choices.next(), usize::from(choices.next()) % others.len());
    let id = NeighbourId(who as u16);
    let prefix = choices.next();
    let of_prefix = || format!("2001:db8:{:x}::/48", prefix % 8).parse().unwrap();
    match what % 16 {
        0..=5 => {
            let body = announcement(others[who], prefix, choices);
            site.say(who, message(UPDATE, &body));
        }
        6 => site.say(who, message(UPDATE, &withdrawal(others[who], prefix))),
        7 => site.cut(who),
        8 => site.pass(Duration::from_secs(u64::from(prefix))),
        9 => site.hand(Input::Originate(of_prefix())),
        10 => site.hand(Input::Retract(of_prefix())),
        11 => {
            let next_hops = vec![(id, next_hop(prefix).into())];
            site.hand(match prefix & 0x80 {
                0 => Input::Unreachable(next_hops),
                _ => Input::Reachable(next_hops),
            });
        }
        12 => {
            let rd = format!("65000:{}", prefix % 2).parse().unwrap();
            site.hand(match prefix & 0x80 {
                0 => Input::Export(rd, export(id, prefix)),
                _ => Input::Unexport(rd),
            });
        }
        13 => site.hand(match prefix & 0x80 {
            0 => Input::Refresh(id, FAMILIES[usize::from(prefix) % 3]),
            _ => Input::Stop(id),
        }),
        14 => site.hand(Input::Start(id)),
        // Anything: a session's octets as they come.
        _ => {
            let octets = choices.take(usize::from(prefix)).to_vec();
            site.say(who, message(UPDATE, &octets));
        }
    }
}

fn next_hop(number: u8) -> [u8; 16] {
    let mut next_hop = [0x20, 1, 0xd, 0xb8, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    next_hop[15] += number % 4;
    next_hop
}

/// A prefix, with an identifier where those were agreed upon.
fn listed(of: Other, number: u8) -> Vec<u8> {
    let mut list = Vec::new();
    if of.offer.0 & 0x10 != 0 {
        list.extend([0, 0, 0, number >> 3 & 1]);
    }
    list.extend([48, 0x20, 0x01, 0x0d, 0xb8, 0, number % 8]);
    list
}

fn announcement(of: Other, number: u8, choices: &mut Choices<'_>) -> Vec<u8> {
    let [path, med, more] = [0; 3].map(|_: u8| choices.next());
    let mut asns = vec![65100 + u32::from(path >> 4); usize::from(path % 4)];
    if of.asn != 65000 {
        asns.insert(0, of.asn.into());
    }
    let mut all = vec![
        attribute(0x40, 1, &[more % 3]),
        as_path(&asns),
        attribute(0x80, 4, &u32::from(med % 4).to_be_bytes()),
        reach(1, &next_hop(med >> 4), &listed(of, number)),
    ];
    if of.asn == 65000 {
        all.push(attribute(
            0x40,
            5,
            &(98 + u32::from(more >> 6)).to_be_bytes(),
        ));
    }
    match more >> 2 & 7 {
        0 => all.push(attribute(0xc0, 8, &0xffff_ff01_u32.to_be_bytes())),
        1 => all.push(attribute(0xc0, 8, &0xffff_ff02_u32.to_be_bytes())),
        2 => all.push(attribute(0x80, 9, &[10, 0, 0, more >> 5])),
        3 => all.push(attribute(0x80, 10, &[10, 0, 0, more >> 5, 10, 0, 0, 77])),
        4 => all.push(attribute(0xe0, 99, &[more])),
        _ => {}
    }
    update(&[], &all.concat(), &[])
}

fn withdrawal(of: Other, number: u8) -> Vec<u8> {
    let list = match number & 0x80 {
        0 => listed(of, number),
        // The end of all routes.
        _ => Vec::new(),
    };
    update(&[], &unreach(1, &list), &[])
}

fn export(from: NeighbourId, number: u8) -> VpnExport {
    let std::net::IpAddr::V6(sid) = address(100 + number % 4) else {
        panic!("it is of IPv6");
    };
    VpnExport {
        from,
        targets: vec![format!("65000:{}", number % 4).parse().unwrap()],
        service: Service {
            sid,
            behaviour: 18,
            structure: None,
        },
        label: Label::IMPLICIT_NULL,
        ipv4: number.is_multiple_of(2).then_some(Service {
            sid,
            behaviour: 19,
            structure: None,
        }),
    }
}
