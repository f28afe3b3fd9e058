//! Octets that a neighbour sends, from the beginning of its connection on or behind its OPEN, in pieces.
#![no_main]

use std::time::Duration;

use fuzz::{
    seeds,
    site::{Other, Site},
    wire::{Choices, Offer},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: seeds::write(seeds::octets()), |data: &[u8]| {
    let mut choices = Choices(data);
    let (offer, how) = (Offer(choices.next()), choices.next());
    let asn = [65001, 65000][usize::from(how & 1)];
    let greets = how & 2 == 0;
    let mut site = Site::new(&[Other { asn, offer, greets }]);
    while !choices.is_empty() {
        let length = match usize::from(how >> 2) {
            0 => usize::MAX,
            pieces => pieces,
        };
        let piece = choices.take(length);
        site.say(0, piece.to_vec());
    }
    site.check(data.len() < 1000);
    site.pass(Duration::from_secs(100));
    site.check(data.len() < 1000);
});
