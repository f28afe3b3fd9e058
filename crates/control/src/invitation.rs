//! The token of an invitation: what `keiro invite` prints at a hub and `keiro join` takes at a new site.
//!
//! A token names the hub and holds a secret, from which both ends derive a provisional key pair and a preshared
//! key. The hub keeps the public one of these, so that the new site can make an ordinary handshake before its own
//! key is known. Making secrets, computing public keys and judging the expiry are left to the callers.

mod codec;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use blake2::{
    Blake2sMac,
    digest::{FixedOutput, KeyInit, Update, consts::U32},
};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    config::{Name, PeerEndpoint},
    key::{KEY_BYTES, PresharedKey, PrivateKey, PublicKey},
    network::InvitationId,
};

/// Bytes of the number of an invitation.
pub const ID_BYTES: usize = 8;
/// Bytes of a token's secret. Ours: as many as an AES-128 key has.
pub const SECRET_BYTES: usize = 16;
/// Endpoints of the hub in one token.
pub const TOKEN_ENDPOINTS_MAX: usize = 3;
/// Characters of a token, white space included; a longer text is refused unread. Ours: the longest token has
/// about 1,200.
pub const TOKEN_TEXT_MAX: usize = 4096;

/// An invitation, as it is handed to the new site. `Display` and [`FromStr`] are its text, which is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Of the invitation in the hub's registry; no secret.
    pub id: InvitationId,
    pub secret: Secret,
    /// The key that the hub proves to have.
    pub hub_key: PublicKey,
    /// Where the hub is; 1 to [`TOKEN_ENDPOINTS_MAX`].
    pub hub_endpoints: Vec<PeerEndpoint>,
    /// Until when the hub accepts it, as the hub's clock has it: Unix time in seconds.
    pub expires_unix_seconds: u64,
    /// The name that the site gets unless it asks for another one.
    pub site: Name,
}

/// The secret of a token. Erased when dropped; `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

/// Why a text is no token. The text itself is never repeated: it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin as a token does.
    #[error("this is no token; a token begins with `keiro1`")]
    NotAToken,
    /// More than [`TOKEN_TEXT_MAX`] characters.
    #[error("this is longer than a token can be ({TOKEN_TEXT_MAX} characters)")]
    TooLong,
    /// A token of another release.
    #[error(
        "the token has format {0}, and this release reads format 1; use the same release of keiro at hub and branch"
    )]
    OtherVersion(u32),
    /// The end is missing.
    #[error("the end of the token is missing; copy all of it")]
    Truncated,
    /// It is not what `keiro invite` printed.
    #[error("the token was altered on its way; copy it again from where `keiro invite` printed it")]
    Altered,
}

/// The domains of what is derived from a secret.
const DOMAIN_KEY: &[u8] = b"keiro invitation key 1";
const DOMAIN_PRESHARED: &[u8] = b"keiro invitation psk 1";

impl Token {
    /// Whether it is over at `now`. The hub's clock decides; by another one this is only a hint.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        now >= self.expires()
    }

    /// Until when the hub accepts it.
    pub fn expires(&self) -> SystemTime {
        let since_epoch = Duration::from_secs(self.expires_unix_seconds);
        let latest = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX));
        SystemTime::UNIX_EPOCH
            .checked_add(since_epoch)
            .unwrap_or(latest)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&codec::encode(self))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} for {})", self.id, self.site)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// White space in it is ignored: a terminal or a mail may have cut it into lines.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        codec::decode(text)
    }
}

impl Secret {
    /// A secret of these bytes, which must be random.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// The private key of the handshake with which a site joins.
    pub fn provisional_key(&self) -> PrivateKey {
        PrivateKey::from_bytes(*self.derive(DOMAIN_KEY))
    }

    /// The preshared key of that handshake.
    pub fn preshared_key(&self) -> PresharedKey {
        PresharedKey::from_bytes(*self.derive(DOMAIN_PRESHARED))
    }

    /// Keyed BLAKE2s of the domain.
    fn derive(&self, domain: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
        let mut mac: Blake2sMac<U32> =
            KeyInit::new_from_slice(&self.0).expect("BLAKE2s takes keys of up to 32 bytes");
        mac.update(domain);
        Zeroizing::new(mac.finalize_fixed().into())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}
