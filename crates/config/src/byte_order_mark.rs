//! The byte order mark with which some editors begin a file in UTF-8.

/// The text behind the mark. The TOML parser passes it over without this.
pub fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// U+FEFF in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";
