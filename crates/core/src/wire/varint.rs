//! Variable-length integers (RFC 9000 §16) and a bounds-checked reader.

/// Largest value that a variable-length integer holds.
pub const VARINT_MAX: u64 = (1 << 62) - 1;

/// Bytes that `value` takes: 1, 2, 4 or 8.
pub const fn varint_len(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Appends `value` in its shortest form; values above [`VARINT_MAX`] are a programmer's error.
pub fn put_varint(buf: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= VARINT_MAX, "varint range");
    match varint_len(value) {
        1 => buf.push(value as u8),
        2 => buf.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        4 => buf.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => buf.extend_from_slice(&((value & VARINT_MAX) | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Reads from the front of a slice; `None` where it is too short.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their start.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// All bytes were read.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(len)?;
        self.rest = tail;
        Some(head)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next byte; `None`: nothing is left.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A big-endian 32-bit integer.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A big-endian 64-bit integer.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A variable-length integer in any of its forms.
    pub fn varint(&mut self) -> Option<u64> {
        let first = *self.rest.first()?;
        let bytes = self.bytes(1 << (first >> 6))?;
        let value = bytes
            .iter()
            .fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        // The two length bits stand at the top of what was read.
        Some(value & (u64::MAX >> (64 - bytes.len() * 8 + 2)))
    }

    /// A variable-length integer that must fit into `usize` and not exceed `max`.
    pub fn length(&mut self, max: usize) -> Option<usize> {
        usize::try_from(self.varint()?)
            .ok()
            .filter(|len| *len <= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varint_round_trips(value in 0..=VARINT_MAX) {
            let mut buf = Vec::new();
            put_varint(&mut buf, value);
            prop_assert_eq!(buf.len(), varint_len(value));
            let mut reader = Reader::new(&buf);
            prop_assert_eq!(reader.varint(), Some(value));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn reader_never_reads_past_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut reader = Reader::new(&bytes);
            while reader.varint().is_some() {}
            prop_assert!(reader.rest().len() <= bytes.len());
        }
    }

    #[test]
    fn varint_examples_of_rfc_9000_decode() {
        for (bytes, value) in [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(Reader::new(bytes).varint(), Some(value));
        }
    }
}
