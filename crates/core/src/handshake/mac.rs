//! The two MACs of handshake packets, and cookies, after WireGuard's design.
//!
//! The first MAC proves that the sender knows our public key, cheaply. Under load the second one
//! is asked for: it is keyed with a cookie that we sent to the sender's address, so that a sender
//! with a forged address gets no Diffie-Hellman operation out of us.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use blake2::{
    Blake2s256, Blake2sMac, Digest,
    digest::{FixedOutput, KeyInit, Mac, consts::U16},
};
use chacha20poly1305::{
    XChaCha20Poly1305,
    aead::{Aead, Payload},
};
use keiro_units::Instant;
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;

use super::PublicKey;
use crate::wire::{COOKIE_LEN, KIND_COOKIE, KIND_VERSION_REPLY, VERSION_REPLY_LEN, Versions};

pub(crate) const MAC_LEN: usize = 16;
/// A cookie is good for this long, and the secret behind it is changed as often.
const COOKIE_LIFETIME: Duration = Duration::from_secs(120);

/// Keys derived from a gateway's public key: for packets *to* that gateway.
pub(crate) struct MacKeys {
    mac: [u8; 32],
    cookie: [u8; 32],
    version: [u8; 32],
}

/// What the MACs of a handshake packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MacCheck {
    /// The first MAC is wrong.
    Invalid,
    /// The first is right; the second is absent or not made with a cookie of this address.
    WithoutCookie,
    /// Both are right: the sender receives at its address.
    WithCookie,
}

/// Our changing secret, from which cookies for addresses are made.
pub(crate) struct CookieSecrets {
    secret: [u8; 32],
    previous: [u8; 32],
    changed_at: Instant,
}

/// A cookie that a peer gave us.
#[derive(Default)]
pub(crate) struct CookieJar {
    cookie: Option<([u8; MAC_LEN], Instant)>,
    /// First MAC of our last initiation: the cookie reply is bound to it.
    last_mac: [u8; MAC_LEN],
}

/// A key for one purpose, which the label names, towards `receiver`.
fn derive(label: &[u8], receiver: &PublicKey) -> [u8; 32] {
    let mut hash = Blake2s256::new();
    hash.update(label);
    hash.update(receiver.as_bytes());
    hash.finalize().into()
}

impl MacKeys {
    pub(crate) fn new(receiver: &PublicKey) -> Self {
        Self {
            mac: derive(b"keiro mac 1", receiver),
            cookie: derive(b"keiro cookie 1", receiver),
            version: derive(b"keiro version 1", receiver),
        }
    }

    /// Appends both MACs; the second is zero without a cookie.
    pub(crate) fn append(&self, now: Instant, packet: &mut Vec<u8>, jar: &mut CookieJar) {
        let first = mac(&self.mac, &[packet]);
        packet.extend_from_slice(&first);
        jar.last_mac = first;
        let second = jar
            .cookie
            .filter(|(_, since)| now.saturating_duration_since(*since) < COOKIE_LIFETIME)
            .map_or([0; MAC_LEN], |(cookie, _)| mac(&cookie, &[packet]));
        packet.extend_from_slice(&second);
    }

    /// Checks a packet that carries both MACs at its end.
    pub(crate) fn check(
        &self,
        now: Instant,
        packet: &[u8],
        remote: SocketAddr,
        secrets: &CookieSecrets,
    ) -> MacCheck {
        let Some(body_len) = packet.len().checked_sub(2 * MAC_LEN) else {
            return MacCheck::Invalid;
        };
        let (body, macs) = packet.split_at(body_len);
        if !verify(&self.mac, &[body], &macs[..MAC_LEN]) {
            return MacCheck::Invalid;
        }
        // Most senders have no cookie, and making ours to compare would cost twice as much as the first MAC.
        if macs[MAC_LEN..] == [0; MAC_LEN] {
            return MacCheck::WithoutCookie;
        }
        let with_first = &packet[..body_len + MAC_LEN];
        let known = secrets
            .cookies_for(now, remote)
            .iter()
            .any(|cookie| verify(cookie, &[with_first], &macs[MAC_LEN..]));
        if known {
            MacCheck::WithCookie
        } else {
            MacCheck::WithoutCookie
        }
    }
}

impl CookieSecrets {
    pub(crate) fn new(now: Instant, random: &mut ChaCha20Rng) -> Self {
        let mut secret = [0; 32];
        random.fill_bytes(&mut secret);
        Self {
            secret,
            previous: secret,
            changed_at: now,
        }
    }

    /// Changes the secret when it is old enough.
    pub(crate) fn refresh(&mut self, now: Instant, random: &mut ChaCha20Rng) {
        if now.saturating_duration_since(self.changed_at) >= COOKIE_LIFETIME {
            self.previous = self.secret;
            random.fill_bytes(&mut self.secret);
            self.changed_at = now;
        }
    }

    fn cookies_for(&self, now: Instant, remote: SocketAddr) -> Vec<[u8; MAC_LEN]> {
        let mut cookies = vec![cookie(&self.secret, remote)];
        if now.saturating_duration_since(self.changed_at) < COOKIE_LIFETIME {
            cookies.push(cookie(&self.previous, remote));
        }
        cookies
    }
}

impl CookieJar {
    pub(crate) fn put(&mut self, now: Instant, cookie: [u8; MAC_LEN]) {
        self.cookie = Some((cookie, now));
    }
}

/// A cookie reply to the handshake packet `packet` (with MACs) whose sender's index is `receiver`.
pub(crate) fn cookie_reply(
    keys: &MacKeys,
    secrets: &CookieSecrets,
    packet: &[u8],
    receiver: u32,
    remote: SocketAddr,
    random: &mut ChaCha20Rng,
) -> Option<Vec<u8>> {
    let first_mac = packet.get(packet.len().checked_sub(2 * MAC_LEN)?..packet.len() - MAC_LEN)?;
    let mut nonce = [0; 24];
    random.fill_bytes(&mut nonce);
    let cookie = cookie(&secrets.secret, remote);
    let sealed = XChaCha20Poly1305::new(&keys.cookie.into())
        .encrypt(
            &nonce.into(),
            Payload {
                msg: &cookie,
                aad: first_mac,
            },
        )
        .ok()?;
    let mut reply = Vec::with_capacity(COOKIE_LEN);
    reply.extend_from_slice(&[KIND_COOKIE, 0, 0, 0]);
    reply.extend_from_slice(&receiver.to_be_bytes());
    reply.extend_from_slice(&nonce);
    reply.extend_from_slice(&sealed);
    Some(reply)
}

/// The cookie in a reply to our last initiation to the gateway of `keys`; `None` if it is not one.
pub(crate) fn open_cookie_reply(
    keys: &MacKeys,
    jar: &CookieJar,
    packet: &[u8],
) -> Option<[u8; MAC_LEN]> {
    if packet.len() != COOKIE_LEN {
        return None;
    }
    let nonce: [u8; 24] = packet[8..32].try_into().ok()?;
    XChaCha20Poly1305::new(&keys.cookie.into())
        .decrypt(
            &nonce.into(),
            Payload {
                msg: &packet[32..],
                aad: &jar.last_mac,
            },
        )
        .ok()?
        .try_into()
        .ok()
}

/// A version reply to the initiation `packet` (with MACs) whose sender's index is `receiver`.
///
/// Its MAC covers the initiation's first MAC, so that only a host that saw the initiation can make
/// one. It does not prove that the peer made it: any host that knows the public key can.
pub(crate) fn version_reply(keys: &MacKeys, packet: &[u8], receiver: u32) -> Option<Vec<u8>> {
    let first_mac = packet.get(packet.len().checked_sub(2 * MAC_LEN)?..packet.len() - MAC_LEN)?;
    let ours = Versions::SUPPORTED;
    let mut reply = vec![KIND_VERSION_REPLY, ours.oldest(), ours.newest(), 0];
    reply.extend_from_slice(&receiver.to_be_bytes());
    let mac = mac(&keys.version, &[&reply, first_mac]);
    reply.extend_from_slice(&mac);
    Some(reply)
}

/// The versions in a reply to our last initiation to the gateway of `keys`; `None` if it is not one.
pub(crate) fn open_version_reply(
    keys: &MacKeys,
    jar: &CookieJar,
    packet: &[u8],
) -> Option<Versions> {
    if packet.len() != VERSION_REPLY_LEN {
        return None;
    }
    let (header, mac) = packet.split_at(8);
    verify(&keys.version, &[header, &jar.last_mac], mac).then_some(())?;
    Versions::new(header[1], header[2])
}

fn cookie(secret: &[u8; 32], remote: SocketAddr) -> [u8; MAC_LEN] {
    let ip: [u8; 16] = match remote.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    mac(secret, &[&ip, &remote.port().to_be_bytes()])
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> Blake2sMac<U16> {
    let mut mac =
        <Blake2sMac<U16> as KeyInit>::new_from_slice(key).expect("key of at most 32 bytes");
    for part in parts {
        mac.update(part);
    }
    mac
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC_LEN] {
    keyed(key, parts).finalize_fixed().into()
}

/// Compares in constant time, so that the time says nothing about the MAC.
fn verify(key: &[u8], parts: &[&[u8]], expected: &[u8]) -> bool {
    keyed(key, parts).verify_slice(expected).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    fn remote(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    struct Fixture {
        keys: MacKeys,
        secrets: CookieSecrets,
        random: ChaCha20Rng,
        jar: CookieJar,
    }

    fn fixture() -> Fixture {
        let mut random = ChaCha20Rng::from_seed([3; 32]);
        Fixture {
            keys: MacKeys::new(&PublicKey::from_bytes([9; 32])),
            secrets: CookieSecrets::new(Instant::ZERO, &mut random),
            random,
            jar: CookieJar::default(),
        }
    }

    #[test]
    fn cookie_proves_one_address_until_it_expires() {
        let Fixture {
            keys,
            secrets,
            mut random,
            mut jar,
        } = fixture();
        let now = Instant::ZERO;
        let mut packet = vec![7; 50];
        keys.append(now, &mut packet, &mut jar);
        assert_eq!(
            keys.check(now, &packet, remote(1), &secrets),
            MacCheck::WithoutCookie
        );
        let reply = cookie_reply(&keys, &secrets, &packet, 5, remote(1), &mut random).unwrap();
        assert_eq!(reply.len(), COOKIE_LEN);
        jar.put(now, open_cookie_reply(&keys, &jar, &reply).unwrap());
        let mut packet = vec![8; 50];
        keys.append(now, &mut packet, &mut jar);
        assert_eq!(
            keys.check(now, &packet, remote(1), &secrets),
            MacCheck::WithCookie
        );
        assert_eq!(
            keys.check(now, &packet, remote(2), &secrets),
            MacCheck::WithoutCookie
        );
        let mut secrets = secrets;
        for step in 1..=2 {
            secrets.refresh(now + COOKIE_LIFETIME * step, &mut random);
        }
        let later = now + COOKIE_LIFETIME * 2;
        assert_eq!(
            keys.check(later, &packet, remote(1), &secrets),
            MacCheck::WithoutCookie
        );
    }

    #[test]
    fn altered_packet_and_altered_reply_are_refused() {
        let Fixture {
            keys,
            secrets,
            mut random,
            mut jar,
        } = fixture();
        let mut packet = vec![7; 50];
        keys.append(Instant::ZERO, &mut packet, &mut jar);
        let mut reply = cookie_reply(&keys, &secrets, &packet, 5, remote(1), &mut random).unwrap();
        reply[40] ^= 1;
        assert_eq!(open_cookie_reply(&keys, &jar, &reply), None);
        packet[3] ^= 1;
        assert_eq!(
            keys.check(Instant::ZERO, &packet, remote(1), &secrets),
            MacCheck::Invalid
        );
    }
}
