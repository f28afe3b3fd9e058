//! What a run begins with: messages of the tests, recorded messages of FRR, test vectors, examples.

use std::{env, fs, path::Path};

use crate::wire::{KEEPALIVE, Offer, UPDATE, as_path, attribute, message, reach, unreach, update};

/// Octets that a server heard of FRR as reflector.
const RECORDED: &str =
    include_str!("../../crates/bgp/tests/speaker/recorded/frr-8.4.4-reflector.txt");

/// Bytes of 0.1.0, one `name: bytes` a line.
const VECTORS: &str = include_str!("../../crates/core/tests/vectors/0.1.0.hex");

/// Configurations that are shipped.
const EXAMPLES: [&str; 3] = [
    include_str!("../../packaging/examples/gateway.toml"),
    include_str!("../../packaging/examples/gateway-a.toml"),
    include_str!("../../packaging/examples/gateway-b.toml"),
];

/// Puts them where the environment says; nothing without.
pub fn write(seeds: Vec<Vec<u8>>) {
    let Some(directory) = env::var_os("KEIRO_FUZZ_SEEDS") else {
        return;
    };
    for (number, seed) in seeds.iter().enumerate() {
        let file = Path::new(&directory).join(format!("seed-{number}"));
        fs::write(&file, seed).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

/// For `update`: capabilities, whose, and the body.
pub fn updates() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for body in bodies() {
        for offer in [0xff, 0xef, 0xe7] {
            for asn in [0, 1] {
                all.push([&[offer, asn], &body[..]].concat());
            }
        }
    }
    all
}

/// For `octets`: capabilities, how, and a connection's octets.
pub fn octets() -> Vec<Vec<u8>> {
    let bodies = bodies();
    let messages = bodies.iter().map(|body| message(UPDATE, body));
    let all: Vec<u8> = messages
        .take(8)
        .flatten()
        .chain(message(KEEPALIVE, &[]))
        .collect();
    let greeting = Offer::EVERYTHING.greeting(65001, 2);
    let notification = message(3, &[6, 4]);
    let refresh = message(5, &[0, 2, 1, 1]);
    vec![
        [&[0xef, 0], &all[..]].concat(),
        [&[0xef, 0x21], &all[..]].concat(),
        [&[0xff, 2], &greeting[..], &all, &notification].concat(),
        [&[0xff, 0x32], &greeting[..]].concat(),
        [&[0xff, 0], &refresh[..], &notification].concat(),
    ]
}

/// For `rib`: a step of each kind.
pub fn steps() -> Vec<Vec<u8>> {
    let steps = (0..16u8).flat_map(|what| [what, what, what.wrapping_mul(37), 1, 2, 3]);
    let steps: Vec<u8> = steps.collect();
    let announced = (0..30u8).flat_map(|n| [0, n, n, n, n.wrapping_mul(7), n.wrapping_mul(29)]);
    let lost = [
        7, 0, 0, 8, 0, 10, 6, 0, 0x80, 11, 1, 0, 11, 1, 0x80, 13, 1, 0x80,
    ];
    let announced: Vec<u8> = announced.chain(lost).collect();
    [0xff, 0xef, 0xaf]
        .iter()
        .flat_map(|offer| {
            let offers = [*offer; 3];
            [
                [&offers, &steps[..]].concat(),
                [&offers, &announced[..]].concat(),
            ]
        })
        .collect()
}

/// For `frames`: each of 0.1.0 by itself, and all of them.
pub fn frames() -> Vec<Vec<u8>> {
    let frames = VECTORS
        .lines()
        .filter_map(|line| line.strip_prefix("frame "));
    let bytes = frames.map(|line| {
        let (_, hex) = line.rsplit_once(": ").expect("a line is `name: bytes`");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        (0..hex.len()).step_by(2).map(byte).collect()
    });
    let mut all: Vec<Vec<u8>> = bytes.collect();
    all.push(all.concat());
    all
}

/// For `packets`: each frame in a packet, all one behind the other, and what else a step can be.
pub fn packets() -> Vec<Vec<u8>> {
    let sealed = |frame: &Vec<u8>| {
        let mut step = vec![0, frame.len().div_ceil(5) as u8];
        step.extend(frame);
        step.resize(2 + frame.len().div_ceil(5) * 5, 0);
        step
    };
    let mut all: Vec<Vec<u8>> = frames()
        .iter()
        .filter(|frame| frame.len() < 1000)
        .map(sealed)
        .collect();
    all.push(all.concat());
    let local = [
        6, 40, 5, 14, 7, 9, 5, 20, 6, 1, 5, 23, 3, 7, 1, 1, 4, 3, 4, 0, 0,
    ];
    all.push([&local[..], &all.concat()].concat());
    all
}

/// For `handshake`: unaltered packets, altered ones with and without a right MAC, cut ones, lost ones.
pub fn handshakes() -> Vec<Vec<u8>> {
    [0, 0x22, 0x12, 0x40, 0x02, 0x31]
        .map(|how| [how, 1, 3, 4, 5, 60].repeat(8))
        .to_vec()
}

/// For `config`.
pub fn configurations() -> Vec<Vec<u8>> {
    EXAMPLES.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn bodies() -> Vec<Vec<u8>> {
    let mut next_hop = [0; 16];
    next_hop[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
    next_hop[15] = 7;
    let prefix = [48, 0x20, 0x01, 0x0d, 0xb8, 0, 1];
    let common = [attribute(0x40, 1, &[0]), as_path(&[65001])].concat();
    let vpn = [
        &[48 + 88, 1, 0, 3, 0, 0, 0xfd, 0xe8, 0, 0, 0, 1][..],
        &prefix[1..],
    ]
    .concat();
    let vpn_hop = [&[0; 8], &next_hop[..]].concat();
    let mut service = vec![5, 0, 34, 0, 1, 0, 30, 0];
    service.extend(next_hop);
    service.extend([0, 0xff, 0xff, 0, 1, 0, 6, 40, 24, 16, 0, 16, 64]);
    let of_vpn = [
        attribute(0xc0, 16, &0x0002_fde8_0000_0001_u64.to_be_bytes()),
        attribute(0xc0, 40, &service),
        attribute(0x40, 5, &[0, 0, 0, 100]),
    ];
    let more = [
        attribute(0x80, 4, &[0, 0, 0, 9]),
        attribute(0xc0, 8, &0xffff_ff01_u32.to_be_bytes()),
        attribute(0xc0, 32, &[0, 0, 0xfd, 0xe8, 0, 0, 0, 1, 0, 0, 0, 2]),
        attribute(0xc0, 7, &[0, 0, 0xfd, 0xe9, 10, 0, 0, 7]),
        attribute(0x80, 9, &[10, 0, 0, 7]),
        attribute(0x80, 10, &[10, 0, 0, 7]),
        attribute(0xe0, 99, &[1, 2, 3]),
        attribute(0xc0, 17, &[2, 1, 0, 0, 0xfd, 0xe9]),
    ];
    let announced = [common.clone(), reach(1, &next_hop, &prefix)].concat();
    let old = attribute(0x40, 3, &[192, 0, 2, 1]);
    let mut all = vec![
        update(&[], &announced, &[]),
        update(&[], &[announced.clone(), more.concat()].concat(), &[]),
        update(&[], &unreach(1, &prefix), &[]),
        update(&[], &unreach(128, &[]), &[]),
        update(
            &[],
            &[common.clone(), reach(128, &vpn_hop, &vpn), of_vpn.concat()].concat(),
            &[],
        ),
        update(&[], &[common, old].concat(), &[24, 203, 0, 113, 8, 10]),
        update(&[8, 10], &[], &[]),
    ];
    all.extend(recorded());
    all
}

/// The bodies of FRR's UPDATEs.
fn recorded() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for line in RECORDED.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "received", _, _, octets] = words[..] else {
            continue;
        };
        let octet = |at: usize| u8::from_str_radix(&octets[2 * at..2 * at + 2], 16);
        let octets: Result<Vec<u8>, _> = (0..octets.len() / 2).map(octet).collect();
        let octets = octets.expect("hexadecimal");
        let mut rest = &octets[..];
        while let Some(header) = rest.get(..19) {
            let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
            let (Some(body), kind) = (rest.get(19..length), header[18]) else {
                break;
            };
            if kind == UPDATE {
                all.push(body.to_vec());
            }
            rest = &rest[length..];
        }
    }
    all
}
