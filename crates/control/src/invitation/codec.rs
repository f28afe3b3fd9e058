//! The bytes of a token: `keiro1` and base64url without padding (RFC 4648 §5) of
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version, 1 |
//! | 2 | length of all of this in bytes |
//! | 8 | number of the invitation |
//! | 16 | secret |
//! | 32 | public key of the hub |
//! | 8 | expiry, Unix time in seconds |
//! | 1 + n | length of the site's name, and the name |
//! | 1 | number of endpoints, 1 to 3 |
//! | 1 + n each | length of an endpoint, and the endpoint as it is written in a configuration |
//! | 4 | BLAKE2s of all before, cut off |
//!
//! Numbers are big endian.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use blake2::{Blake2s256, Digest};
use zeroize::Zeroizing;

use super::{
    ID_BYTES, SECRET_BYTES, Secret, TOKEN_ENDPOINTS_MAX, TOKEN_TEXT_MAX, Token, TokenError,
};
use crate::{
    config::{Name, PeerEndpoint},
    key::{KEY_BYTES, PublicKey},
    network::InvitationId,
};

/// What every token begins with, before the digit of its format.
const PREFIX: &str = "keiro";
const FORMAT: char = '1';
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
/// Version and length.
const HEADER_BYTES: usize = 3;

/// The text of a token.
pub(super) fn encode(token: &Token) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new(vec![VERSION, 0, 0]);
    bytes.extend(token.id.0);
    bytes.extend(token.secret.as_bytes());
    bytes.extend(token.hub_key.as_bytes());
    bytes.extend(token.expires_unix_seconds.to_be_bytes());
    put_text(&mut bytes, token.site.as_str());
    let endpoints = &token.hub_endpoints[..token.hub_endpoints.len().min(TOKEN_ENDPOINTS_MAX)];
    bytes.push(endpoints.len() as u8);
    for endpoint in endpoints {
        put_text(&mut bytes, &endpoint.to_string());
    }
    let length = u16::try_from(bytes.len() + CHECKSUM_BYTES).unwrap_or(u16::MAX);
    bytes[1..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    let checksum = checksum(&bytes);
    bytes.extend(checksum);
    let encoded = Zeroizing::new(URL_SAFE_NO_PAD.encode(&*bytes));
    Zeroizing::new(format!("{PREFIX}{FORMAT}{}", *encoded))
}

/// The token of a text.
pub(super) fn decode(text: &str) -> Result<Token, TokenError> {
    if text.len() > TOKEN_TEXT_MAX {
        return Err(TokenError::TooLong);
    }
    let text: Zeroizing<String> =
        Zeroizing::new(text.split_whitespace().collect::<Vec<_>>().concat());
    let rest = text.strip_prefix(PREFIX).ok_or(TokenError::NotAToken)?;
    let format = rest.chars().next().ok_or(TokenError::Truncated)?;
    let format = format.to_digit(10).ok_or(TokenError::NotAToken)?;
    let rest = rest
        .strip_prefix(FORMAT)
        .ok_or(TokenError::OtherVersion(format))?;
    let bytes = bytes_of(rest)?;
    let Some((header, _)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(TokenError::Truncated);
    };
    if header[0] != VERSION {
        return Err(TokenError::OtherVersion(u32::from(header[0])));
    }
    let length = usize::from(u16::from_be_bytes([header[1], header[2]]));
    if bytes.len() < length {
        return Err(TokenError::Truncated);
    }
    let end = length.checked_sub(CHECKSUM_BYTES);
    let (body, sum) = end
        .and_then(|end| bytes.split_at_checked(end))
        .ok_or(TokenError::Altered)?;
    if bytes.len() != length || sum != checksum(body) {
        return Err(TokenError::Altered);
    }
    // The checksum keeps no one from making up a token, so nothing of it is taken for granted.
    let body = body.get(HEADER_BYTES..).ok_or(TokenError::Altered)?;
    fields(Fields(body)).ok_or(TokenError::Altered)
}

/// Undoes base64url. Where the end of a text is cut off in the midst of a byte, what is whole counts.
fn bytes_of(text: &str) -> Result<Zeroizing<Vec<u8>>, TokenError> {
    let is_ours = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !text.chars().all(is_ours) {
        return Err(TokenError::Altered);
    }
    match URL_SAFE_NO_PAD.decode(text) {
        Ok(bytes) => Ok(Zeroizing::new(bytes)),
        Err(_) => {
            let whole = &text[..text.len() - text.len() % 4];
            let bytes = URL_SAFE_NO_PAD.decode(whole).unwrap_or_default();
            let length = bytes.get(1..HEADER_BYTES).unwrap_or(&[0xff, 0xff]);
            let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
            match text.len() < (4 * length).div_ceil(3) {
                true => Err(TokenError::Truncated),
                false => Err(TokenError::Altered),
            }
        }
    }
}

fn fields(mut fields: Fields<'_>) -> Option<Token> {
    let id = InvitationId(fields.array::<ID_BYTES>()?);
    let secret = Secret::from_bytes(fields.array::<SECRET_BYTES>()?);
    let hub_key = PublicKey::from_bytes(fields.array::<KEY_BYTES>()?);
    let expires_unix_seconds = u64::from_be_bytes(fields.array()?);
    let site = Name::new(fields.text()?).ok()?;
    let [count] = fields.array()?;
    if !(1..=TOKEN_ENDPOINTS_MAX).contains(&usize::from(count)) {
        return None;
    }
    let mut hub_endpoints = Vec::new();
    for _ in 0..count {
        hub_endpoints.push(fields.text()?.parse::<PeerEndpoint>().ok()?);
    }
    fields.0.is_empty().then_some(Token {
        id,
        secret,
        hub_key,
        hub_endpoints,
        expires_unix_seconds,
        site,
    })
}

/// What is left to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn text(&mut self) -> Option<&'a str> {
        let [length] = self.array()?;
        let (text, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        str::from_utf8(text).ok()
    }
}

/// A text of at most 255 bytes.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    bytes.push(length);
    bytes.extend(&text.as_bytes()[..usize::from(length)]);
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = Blake2s256::digest(bytes);
    [hash[0], hash[1], hash[2], hash[3]]
}
