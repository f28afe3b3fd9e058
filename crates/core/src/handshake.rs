//! Handshake: who a peer is, and the keys that both sides agree on.
//!
//! `noise` runs Noise IKpsk2 and turns its messages into bytes, with the primitives of `erased`; `mac` has the two MACs and the
//! cookies that keep unverified senders from costing us Diffie-Hellman work. Which handshake is
//! answered, when one is begun and what its keys are used for is the endpoint's.

mod erased;
mod mac;
mod noise;

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

pub(crate) use mac::{
    CookieJar, CookieSecrets, MAC_LEN, MacCheck, MacKeys, cookie_reply, open_cookie_reply,
    open_version_reply, version_reply,
};
pub(crate) use noise::{Agreed, Initiation, InitiationHeader, Responder, ResponseHeader};

/// X25519 private key of a gateway. Wiped when dropped, never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PrivateKey(SecretBytes);

/// A secret that does not move with its owner: a copy would stay behind.
type SecretBytes = Box<[u8; 32]>;

/// A key that two gateways share beside their own ones. Wiped when dropped, never printed.
#[derive(Clone, Default, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct PresharedKey(SecretBytes);

/// X25519 public key of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PrivateKey {
    /// From 32 random bytes (any are a valid key: they are clamped when used).
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Box::new(bytes))
    }

    /// The raw key, to be written to a key file.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The public key that peers are configured with.
    pub fn public_key(&self) -> PublicKey {
        noise::public_key(self)
    }
}

impl PresharedKey {
    /// From its 32 bytes. All zero, the default, is what two gateways have that share none.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Box::new(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PublicKey {
    /// From its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the key, as they are configured.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PublicKey({:02x}{:02x}{:02x}{:02x}..)",
            self.0[0], self.0[1], self.0[2], self.0[3]
        )
    }
}
