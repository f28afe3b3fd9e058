//! A TUN device with its queues.

use std::cell::Cell;

use keiro_ip::{
    Header,
    flow::{FlowKey, FlowSeed},
    offload::VNET_HEADER_BYTES,
};
use keiro_linux::tun::{Offloads, TunQueue};

pub(super) struct Device {
    /// At least one; the kernel spreads flows over them.
    pub(super) queues: Vec<TunQueue>,
    /// Which is read first in the next turn.
    pub(super) turn: Cell<usize>,
    pub(super) offloads: Offloads,
}

impl Device {
    /// The numbers of its queues, beginning with the one whose turn it is.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (count, first) = (self.queues.len(), self.turn.get());
        (first..first + count).map(move |number| number % count)
    }

    /// Writes a packet that is complete and not large; whether the device took it.
    pub(super) fn write_one(&self, packet: &[u8]) -> bool {
        let skip = match self.offloads.vnet_header {
            true => VNET_HEADER_BYTES,
            false => 0,
        };
        let mut bytes = vec![0; skip];
        bytes.extend_from_slice(packet);
        matches!(self.queues[0].write(&bytes), Ok(true))
    }

    /// By which a packet is written: the kernel gives its flow's answers to the same one.
    pub(super) fn queue_of(&self, seed: &FlowSeed, packet: &[u8]) -> &TunQueue {
        match &self.queues[..] {
            [only] => only,
            queues => {
                let header = Header::parse(packet).ok();
                let flow = header.map_or(0, |header| seed.number(&FlowKey::of(&header)));
                &queues[(flow % queues.len() as u64) as usize]
            }
        }
    }
}
