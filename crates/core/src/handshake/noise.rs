//! Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s over our two handshake packets.

use snow::{Builder, params::NoiseParams};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{
    MAC_LEN, PrivateKey, PublicKey,
    erased::{self, ErasedResolver, ErasedState},
};
use crate::wire::{
    ANY_INITIATION_LEN_MIN, HandshakePayload, INITIATION_LEN, KIND_INITIATION, KIND_RESPONSE,
    PAYLOAD_LEN, RESPONSE_LEN, Reader, VERSION,
};

const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// Binds every handshake to this protocol and its version.
const PROLOGUE: &[u8] = b"keiro overlay 1";

/// What both sides hold after a handshake.
pub(crate) struct Agreed {
    /// The other side's index: goes into every data packet to it.
    pub(crate) remote_index: u32,
    pub(crate) payload: HandshakePayload,
    pub(crate) keys: DirectionKeys,
}

/// The raw keys of both directions; wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct DirectionKeys {
    pub(crate) send: [u8; 32],
    pub(crate) receive: [u8; 32],
}

/// The clear-text head of an initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitiationHeader {
    pub(crate) version: u8,
    pub(crate) sender: u32,
}

/// The clear-text head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseHeader {
    pub(crate) sender: u32,
    pub(crate) receiver: u32,
}

/// A handshake that we began.
pub(crate) struct Initiation {
    state: ErasedState,
    /// The packet without its MACs.
    pub(crate) body: Vec<u8>,
}

/// A handshake that a peer began, read as far as its identity.
pub(crate) struct Responder {
    state: ErasedState,
    pub(crate) peer: PublicKey,
    pub(crate) remote_index: u32,
    pub(crate) payload: HandshakePayload,
}

impl InitiationHeader {
    /// The part that initiations of all versions have in common; `None` if `packet` is too short
    /// for one.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        if packet.len() < ANY_INITIATION_LEN_MIN {
            return None;
        }
        let mut reader = Reader::new(&packet[1..]);
        let version = reader.u8()?;
        reader.bytes(2)?;
        Some(Self {
            version,
            sender: reader.u32()?,
        })
    }
}

impl ResponseHeader {
    /// `None` unless `packet` has a response's length.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        if packet.len() != RESPONSE_LEN {
            return None;
        }
        let mut reader = Reader::new(&packet[4..]);
        Some(Self {
            sender: reader.u32()?,
            receiver: reader.u32()?,
        })
    }
}

impl Initiation {
    /// `None` if the peer's public key is a point that no honest key has.
    pub(crate) fn new(
        local: &PrivateKey,
        remote: &PublicKey,
        preshared: &[u8; 32],
        index: u32,
        payload: &HandshakePayload,
        seed: [u8; 32],
    ) -> Option<Self> {
        let mut state = builder(seed)
            .prologue(PROLOGUE)
            .and_then(|builder| builder.local_private_key(local.as_bytes()))
            .and_then(|builder| builder.remote_public_key(remote.as_bytes()))
            .and_then(|builder| builder.psk(2, preshared))
            .and_then(Builder::build_initiator)
            .map(ErasedState::new)
            .ok()?;
        let mut body = vec![0; INITIATION_LEN - 2 * MAC_LEN];
        body[0] = KIND_INITIATION;
        body[1] = VERSION;
        body[4..8].copy_from_slice(&index.to_be_bytes());
        let len = state
            .write_message(&payload.encode(), &mut body[8..])
            .ok()?;
        debug_assert_eq!(len, body.len() - 8, "initiation length");
        Some(Self { state, body })
    }

    /// Reads the response. The handshake stays open if it is not authentic, so that a forged
    /// response cannot end it.
    pub(crate) fn finish(self, packet: &[u8]) -> Result<Agreed, Box<Self>> {
        let Some(header) = ResponseHeader::decode(packet) else {
            return Err(Box::new(self));
        };
        let mut initiation = self;
        let mut payload = [0; RESPONSE_LEN];
        let noise = &packet[12..RESPONSE_LEN - 2 * MAC_LEN];
        let Ok(len) = initiation.state.read_message(noise, &mut payload) else {
            return Err(Box::new(initiation));
        };
        match HandshakePayload::decode(&payload[..len]) {
            Some(payload) => {
                let (send, receive) = initiation.state.dangerously_get_raw_split();
                Ok(Agreed {
                    remote_index: header.sender,
                    payload,
                    keys: DirectionKeys { send, receive },
                })
            }
            None => Err(Box::new(initiation)),
        }
    }
}

impl Responder {
    /// Reads an initiation up to the sender's identity; `None` if it was not made for us.
    pub(crate) fn read(local: &PrivateKey, packet: &[u8], seed: [u8; 32]) -> Option<Self> {
        if packet.len() != INITIATION_LEN {
            return None;
        }
        let header = InitiationHeader::decode(packet)?;
        let mut state = builder(seed)
            .prologue(PROLOGUE)
            .and_then(|builder| builder.local_private_key(local.as_bytes()))
            .and_then(Builder::build_responder)
            .map(ErasedState::new)
            .ok()?;
        let mut payload = [0; INITIATION_LEN];
        let len = state
            .read_message(&packet[8..INITIATION_LEN - 2 * MAC_LEN], &mut payload)
            .ok()?;
        let payload = HandshakePayload::decode(&payload[..len])?;
        let peer = PublicKey::from_bytes(state.get_remote_static()?.try_into().ok()?);
        Some(Self {
            state,
            peer,
            remote_index: header.sender,
            payload,
        })
    }

    /// The response (without its MACs) and the keys.
    pub(crate) fn answer(
        mut self,
        preshared: &[u8; 32],
        index: u32,
        payload: &HandshakePayload,
    ) -> Option<(Vec<u8>, Agreed)> {
        self.state.set_psk(2, preshared).ok()?;
        let mut body = vec![0; RESPONSE_LEN - 2 * MAC_LEN];
        body[0] = KIND_RESPONSE;
        body[4..8].copy_from_slice(&index.to_be_bytes());
        body[8..12].copy_from_slice(&self.remote_index.to_be_bytes());
        let len = self
            .state
            .write_message(&payload.encode(), &mut body[12..])
            .ok()?;
        debug_assert_eq!(len, 32 + PAYLOAD_LEN + 16, "response length");
        let (receive, send) = self.state.dangerously_get_raw_split();
        let agreed = Agreed {
            remote_index: self.remote_index,
            payload: self.payload,
            keys: DirectionKeys { send, receive },
        };
        Some((body, agreed))
    }
}

pub(super) fn public_key(private: &PrivateKey) -> PublicKey {
    PublicKey::from_bytes(erased::public_key(private.as_bytes()))
}

fn builder(seed: [u8; 32]) -> Builder<'static> {
    let params: NoiseParams = PATTERN.parse().expect("the pattern is a constant");
    Builder::with_resolver(params, Box::new(ErasedResolver::new(seed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Features;

    fn payload(incarnation: u64) -> HandshakePayload {
        HandshakePayload {
            ciphers: 1,
            features: Features::SUPPORTED,
            timestamp: 7,
            incarnation,
            credit: 9,
        }
    }

    fn keypair(byte: u8) -> (PrivateKey, PublicKey) {
        let private = PrivateKey::from_bytes([byte; 32]);
        let public = private.public_key();
        (private, public)
    }

    fn with_macs(mut body: Vec<u8>) -> Vec<u8> {
        body.extend([0; 2 * MAC_LEN]);
        body
    }

    #[test]
    fn both_sides_derive_matching_keys() {
        let (a, a_public) = keypair(1);
        let (b, b_public) = keypair(2);
        let psk = [5; 32];
        let initiation = Initiation::new(&a, &b_public, &psk, 11, &payload(1), [1; 32]).unwrap();
        let packet = with_macs(initiation.body.clone());
        assert_eq!(packet.len(), INITIATION_LEN);
        let responder = Responder::read(&b, &packet, [2; 32]).unwrap();
        assert_eq!(responder.peer, a_public);
        let (body, at_b) = responder.answer(&psk, 22, &payload(2)).unwrap();
        let response = with_macs(body);
        assert_eq!(response.len(), RESPONSE_LEN);
        let mut forged = response.clone();
        forged[40] ^= 1;
        let initiation = initiation.finish(&forged).err().expect("forged response");
        let at_a = initiation
            .finish(&response)
            .ok()
            .expect("true response after a forged one");
        assert_eq!((at_a.remote_index, at_b.remote_index), (22, 11));
        assert_eq!((at_a.payload, at_b.payload), (payload(2), payload(1)));
        assert_eq!(at_a.keys.send, at_b.keys.receive);
        assert_eq!(at_a.keys.receive, at_b.keys.send);
        assert_ne!(at_a.keys.send, at_a.keys.receive);
    }

    #[test]
    fn different_preshared_keys_fail_the_handshake() {
        let (a, _) = keypair(1);
        let (b, b_public) = keypair(2);
        let initiation = Initiation::new(&a, &b_public, &[5; 32], 1, &payload(1), [1; 32]).unwrap();
        let responder = Responder::read(&b, &with_macs(initiation.body.clone()), [2; 32]).unwrap();
        let (body, _) = responder.answer(&[6; 32], 2, &payload(2)).unwrap();
        assert!(initiation.finish(&with_macs(body)).is_err());
    }

    #[test]
    fn initiation_for_another_gateway_is_not_read() {
        let (a, _) = keypair(1);
        let (_, b_public) = keypair(2);
        let (c, _) = keypair(3);
        let initiation = Initiation::new(&a, &b_public, &[0; 32], 1, &payload(1), [1; 32]).unwrap();
        assert!(Responder::read(&c, &with_macs(initiation.body), [2; 32]).is_none());
    }

    #[test]
    fn public_key_matches_rfc_7748() {
        // RFC 7748 §6.1, Alice.
        let private = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2,
            0x66, 0x45, 0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5,
            0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let public = PrivateKey::from_bytes(private).public_key();
        assert_eq!(public.as_bytes()[..4], [0x85, 0x20, 0xf0, 0x09]);
    }
}
