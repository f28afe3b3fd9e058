//! The sender's own number of a message, which travels in front of its body.

/// Bytes in front of a message's body: the sender's number for it, big-endian.
pub(crate) const TAG_BYTES: usize = 8;

/// `body` with its sender's number in front, as it crosses the overlay.
pub(crate) fn tagged_body(id: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TAG_BYTES + body.len());
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The body without the number; `None` if the peer sent something else.
pub(crate) fn untagged_body(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(TAG_BYTES..).filter(|body| !body.is_empty())
}
