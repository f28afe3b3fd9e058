//! One UPDATE, by whatever capabilities were agreed upon: what is understood of it is sent on, and
//! understood again.
#![no_main]

use fuzz::{
    seeds,
    site::{Other, Site},
    wire::{Choices, Offer, UPDATE, message},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: seeds::write(seeds::updates()), |data: &[u8]| {
    let mut choices = Choices(data);
    let offer = Offer(choices.next());
    let asn = [65001, 65000][usize::from(choices.next() & 1)];
    let mut site = Site::new(&[Other { asn, offer, greets: true }]);
    site.say(0, message(UPDATE, choices.0));
    site.check(data.len() < 1000);
});
