//! Messages that clients send and servers echo.
//!
//! | bytes | content, big endian |
//! |---|---|
//! | 0..4 | `KTX1` |
//! | 4..8 | the client's number |
//! | 8..16 | the transaction's number in the schedule |
//! | 16..20 | the exchange, from 0 |
//! | 20.. | byte `i` is `(i + exchange) mod 256` |

/// Bytes before the pattern; the minimum length of a message.
pub const HEADER_BYTES: usize = 20;

const MAGIC: [u8; 4] = *b"KTX1";

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) client: u32,
    pub(super) transaction: u64,
    pub(super) exchange: u32,
}

impl Message {
    /// Writes the message into `bytes`, which has its length: at least [`HEADER_BYTES`].
    pub(super) fn write(self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.client.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.exchange.to_be_bytes());
        for (index, byte) in bytes.iter_mut().enumerate().skip(HEADER_BYTES) {
            *byte = (index as u8).wrapping_add(self.exchange as u8);
        }
    }
}

/// Whether these bytes begin like a message.
pub(super) fn is_message(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_messages_are_alike() {
        let first = Message {
            client: 3,
            transaction: 70_000,
            exchange: 1,
        };
        let others = [
            Message { client: 4, ..first },
            Message {
                transaction: 70_001,
                ..first
            },
            Message {
                exchange: 2,
                ..first
            },
        ];
        let bytes = |message: Message| {
            let mut bytes = vec![0; 64];
            message.write(&mut bytes);
            bytes
        };
        assert!(is_message(&bytes(first)));
        assert_eq!(bytes(first)[63], 64);
        for other in others {
            assert_ne!(bytes(first), bytes(other));
        }
        assert!(!is_message(b"GET / HTTP/1.1"));
    }
}
