//! Content of a message: its source and time, and a pattern that shows damage.
//!
//! | bytes | content, big endian |
//! |---|---|
//! | 0..4 | `KLM1` |
//! | 4..8 | application number |
//! | 8..16 | sequence number, from 0 |
//! | 16..24 | when it was made: ns of CLOCK_MONOTONIC |
//! | 24.. | byte `i` is `(i + sequence number) mod 256` |

use super::{AppTraffic, MESSAGE_BYTES_MAX};

/// Bytes before the pattern; the minimum length of a message.
pub const HEADER_BYTES: usize = 24;

const MAGIC: [u8; 4] = *b"KLM1";

/// What a message's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub app: u32,
    /// Sequence number of the application's message, from 0.
    pub seq: u64,
    /// Scheduled time, ns of CLOCK_MONOTONIC.
    pub made_ns: u64,
}

/// Why a received message is not one of ours, or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Shorter than a header, or without its magic.
    #[error("not a message of the laboratory's sources")]
    Foreign,
    /// The pattern is damaged.
    #[error("damaged on the way")]
    Damaged,
}

/// Writes a message of `length` bytes; at least [`HEADER_BYTES`].
pub fn write(header: Header, length: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(length.max(HEADER_BYTES));
    body.extend_from_slice(&MAGIC);
    body.extend_from_slice(&header.app.to_be_bytes());
    body.extend_from_slice(&header.seq.to_be_bytes());
    body.extend_from_slice(&header.made_ns.to_be_bytes());
    let period = period(header.seq);
    while body.len() < length {
        let left = length - body.len();
        body.extend_from_slice(&period[..left.min(period.len())]);
    }
    body
}

/// Reads a received message and checks all of it.
/// Parses a received message and checks all of it.
/// # Errors
/// See [`BodyError`].
pub fn read(body: &[u8]) -> Result<Header, BodyError> {
    let (magic, rest) = body.split_first_chunk().ok_or(BodyError::Foreign)?;
    let (app, rest) = rest.split_first_chunk().ok_or(BodyError::Foreign)?;
    let (seq, rest) = rest.split_first_chunk().ok_or(BodyError::Foreign)?;
    let (made_ns, rest) = rest.split_first_chunk().ok_or(BodyError::Foreign)?;
    if *magic != MAGIC {
        return Err(BodyError::Foreign);
    }
    let header = Header {
        app: u32::from_be_bytes(*app),
        seq: u64::from_be_bytes(*seq),
        made_ns: u64::from_be_bytes(*made_ns),
    };
    let period = period(header.seq);
    let is_whole = rest
        .chunks(period.len())
        .all(|chunk| *chunk == period[..chunk.len()]);
    is_whole.then_some(header).ok_or(BodyError::Damaged)
}

/// Why an application's messages cannot have this length; `None` if they can.
pub(super) fn length_fault(app: &AppTraffic) -> Option<String> {
    let (low, high) = (HEADER_BYTES, MESSAGE_BYTES_MAX);
    let length = app.length.get();
    let fits = (low as u64..=high as u64).contains(&length);
    (!fits).then(|| format!("messages of {length} bytes; they must have {low} to {high}"))
}

/// One period of the pattern, from the end of the header on.
fn period(seq: u64) -> [u8; 256] {
    let first = (HEADER_BYTES as u8).wrapping_add(seq as u8);
    std::array::from_fn(|i| first.wrapping_add(i as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        app: 3,
        seq: 300,
        made_ns: 12_345,
    };

    #[test]
    fn messages_are_read_back() {
        for length in [HEADER_BYTES, 25, 1000, 100_000] {
            let body = write(HEADER, length);
            assert_eq!(body.len(), length);
            let expected = |i: usize| (i as u64 + HEADER.seq) as u8;
            assert!((HEADER_BYTES..length).all(|i| body[i] == expected(i)));
            assert_eq!(read(&body), Ok(HEADER));
        }
    }

    #[test]
    fn damage_is_distinguished_from_foreign_bytes() {
        let mut body = write(HEADER, 1000);
        body[999] ^= 1;
        assert_eq!(read(&body), Err(BodyError::Damaged));
        assert_eq!(read(&body[..23]), Err(BodyError::Foreign));
        assert_eq!(read(b""), Err(BodyError::Foreign));
        assert_eq!(read(&[0; 100]), Err(BodyError::Foreign));
    }
}
