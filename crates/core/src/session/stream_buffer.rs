//! What both halves of a stream share: ranges of bytes, the initial window, and buffers that give
//! memory back.

use std::collections::VecDeque;

/// Bytes that a stream may send before the peer has granted credit, and that it may always keep:
/// ten segments, as TCP's initial window (RFC 6928).
pub(crate) const WINDOW_INITIAL: u64 = 16 << 10;
/// A stream that holds anything may have memory for four times as much. Ours: a packet's worth, below
/// which nothing is gained.
pub(crate) const HELD_MIN: usize = 1200;

/// Bytes `start..end` of a stream, and with `fin` its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) fin: bool,
}

/// Gives memory back that is much more than what `data` holds, after bytes were taken out.
///
/// What this copies is less than what was taken out since it last did: half goes when a quarter is
/// held, and so there is as much room again as is held.
pub(crate) fn release(data: &mut VecDeque<u8>) {
    if data.is_empty() {
        // Thousands of idle streams keep no memory.
        *data = VecDeque::new();
        return;
    }
    let held = data.len().max(HELD_MIN);
    if data.capacity() > 4 * held {
        data.shrink_to(2 * held);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is copied to give memory back is less than what passed through it.
        #[test]
        fn shrinking_a_buffer_is_cheap_and_keeps_little(
            steps in proptest::collection::vec((0usize..200_000, 0usize..200_000), 1..100),
        ) {
            let mut data = VecDeque::new();
            let (mut copied, mut taken) = (0, 0);
            for (comes, goes) in steps {
                data.extend(vec![0u8; comes]);
                let (goes, before) = (goes.min(data.len()), data.capacity());
                data.drain(..goes);
                release(&mut data);
                taken += goes;
                prop_assert!(data.capacity() <= 4 * data.len().max(HELD_MIN));
                if data.capacity() < before {
                    copied += data.len();
                }
                prop_assert!(copied <= taken, "{copied} of {taken}");
            }
        }
    }
}
