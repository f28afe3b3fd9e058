//! The receive ring: memory shared with the kernel, divided into slots of one frame each.
//!
//! A slot belongs to the kernel while its status is zero, otherwise to us. Slots are read in the kernel's
//! order, and each is returned before the next one is read.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering},
};

/// Room for the slot's header, the link-layer address behind it, and alignment; the frame starts at about 82
/// bytes.
const SLOT_OVERHEAD_BYTES: usize = 128;

/// The smallest slot: holds a frame of the usual MTU of 1500 bytes.
const SLOT_BYTES_MIN: usize = 2048;

/// Slots in the smallest ring, and in each of the blocks that the kernel allocates.
const SLOTS_PER_BLOCK: usize = 32;

/// Slots in the largest ring; ours: 128 MiB with the smallest slots.
const SLOTS_MAX: usize = 1 << 16;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Ring {
    memory: NonNull<u8>,
    slot_bytes: usize,
    slots: usize,
    next: usize,
}

/// A slot that belongs to us until it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    ring: &'a mut Ring,
    header: libc::tpacket2_hdr,
}

// SAFETY: the memory is mapped for as long as the ring lives, and reached only through it.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes the ring of an unbound packet socket. `frame_bytes_max` counts the Ethernet header.
    pub(super) fn new(
        socket: BorrowedFd<'_>,
        frames: usize,
        frame_bytes_max: usize,
    ) -> io::Result<Self> {
        let slots = frames.clamp(SLOTS_PER_BLOCK, SLOTS_MAX).next_power_of_two();
        let slot_bytes = frame_bytes_max
            .saturating_add(SLOT_OVERHEAD_BYTES)
            .clamp(SLOT_BYTES_MIN, 1 << 17)
            .next_power_of_two();
        let request = libc::tpacket_req {
            tp_block_size: (slot_bytes * SLOTS_PER_BLOCK) as libc::c_uint,
            tp_block_nr: (slots / SLOTS_PER_BLOCK) as libc::c_uint,
            tp_frame_size: slot_bytes as libc::c_uint,
            tp_frame_nr: slots as libc::c_uint,
        };
        // SAFETY: the pointer is to a live structure of the length given.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_RX_RING,
                (&raw const request).cast(),
                size_of::<libc::tpacket_req>() as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                slot_bytes * slots,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            memory,
            slot_bytes,
            slots,
            next: 0,
        })
    }

    /// The next slot if it belongs to us.
    pub(super) fn next_slot(&mut self) -> Option<Slot<'_>> {
        // Acquire: what the kernel wrote before it gave the slot away is seen after.
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is inside the mapping, aligned to its size, and ours: the kernel no
        // longer writes to it.
        let header = unsafe { self.slot().cast::<libc::tpacket2_hdr>().read() };
        Some(Slot { ring: self, header })
    }

    fn slot(&self) -> NonNull<u8> {
        // SAFETY: `next` is below `slots`, so the offset lies inside the mapping.
        unsafe { self.memory.add(self.next * self.slot_bytes) }
    }

    /// The status word with which a slot changes hands: the first member of its header.
    fn status(&self) -> &AtomicU32 {
        // SAFETY: the slot is mapped for as long as `self` lives and aligned to its size; the
        // word is written by the kernel and by us, always whole.
        unsafe { AtomicU32::from_ptr(self.slot().cast::<u32>().as_ptr()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and nothing borrows it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.slot_bytes * self.slots) };
    }
}

impl Slot<'_> {
    pub(super) fn header(&self) -> &libc::tpacket2_hdr {
        &self.header
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let start = usize::from(self.header.tp_mac).min(self.ring.slot_bytes);
        let length = (self.header.tp_snaplen as usize).min(self.ring.slot_bytes - start);
        // SAFETY: start + length is within the slot, which is ours and stays so while `self` is
        // borrowed; the kernel initialised the whole mapping.
        unsafe { std::slice::from_raw_parts(self.ring.slot().add(start).as_ptr(), length) }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // Release: our reads are over before the kernel may write again.
        self.ring
            .status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.ring.next = (self.ring.next + 1) % self.ring.slots;
    }
}
