//! Recognises media in UDP by its form: RTP (RFC 3550), and STUN and TURN before it (RFC 8489, RFC 8656), which
//! share a port by their first byte (RFC 7983).

/// Packets of a flow that are looked at. Ours: a call that begins sends some 50 in a second.
const PACKETS_MAX: u8 = 64;
/// Successive packets of one source that make a stream: three in a row by chance are one in 10^14.
const IN_ORDER_MIN: u8 = 3;
/// Sources that alternate, as sound and picture in both directions.
const SOURCES: usize = 4;
const STUN_COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];

/// What the first packets of a flow look like.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MediaProbe {
    looked_at: u8,
    in_order: u8,
    has_stun: bool,
    sources: [(u32, u16); SOURCES],
    next: u8,
}

/// What is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MediaVerdict {
    Media,
    /// QUIC's first packet (RFC 9000 §17.2).
    Quic,
    Unclear,
}

impl MediaProbe {
    /// Whether the next packet is to be looked at.
    pub(super) fn is_open(&self) -> bool {
        self.looked_at < PACKETS_MAX
    }

    pub(super) fn on_payload(&mut self, payload: &[u8]) -> MediaVerdict {
        self.looked_at += 1;
        if self.looked_at == 1 && is_quic_initial(payload) {
            return MediaVerdict::Quic;
        }
        let payload = match payload {
            [0..=3, _, _, _, cookie @ ..] if cookie.starts_with(&STUN_COOKIE) => {
                self.has_stun = true;
                return MediaVerdict::Unclear;
            }
            // A TURN channel.
            [0x40..=0x4f, _, _, _, inner @ ..] => inner,
            other => other,
        };
        let [first, kind, s0, s1, _, _, _, _, a, b, c, d, ..] = *payload else {
            return MediaVerdict::Unclear;
        };
        // Types 64 to 95 are RTCP's (RFC 5761 §4).
        if first >> 6 != 2 || (64..=95).contains(&(kind & 0x7f)) {
            return MediaVerdict::Unclear;
        }
        let source = u32::from_be_bytes([a, b, c, d]);
        let sequence = u16::from_be_bytes([s0, s1]);
        let known = self.sources.iter_mut().find(|(of, _)| *of == source);
        match known {
            Some((_, last)) => {
                // A packet or two may be lost.
                if (1..=3).contains(&sequence.wrapping_sub(*last)) {
                    self.in_order += 1;
                }
                *last = sequence;
            }
            None => {
                self.sources[usize::from(self.next) % SOURCES] = (source, sequence);
                self.next = self.next.wrapping_add(1);
            }
        }
        let needed = if self.has_stun { 1 } else { IN_ORDER_MIN };
        match self.in_order >= needed {
            true => MediaVerdict::Media,
            false => MediaVerdict::Unclear,
        }
    }
}

/// A long header of a version of QUIC: 1 (RFC 9000), 2 (RFC 9369), drafts, and versions that are reserved.
fn is_quic_initial(payload: &[u8]) -> bool {
    let [first, version @ ..] = payload else {
        return false;
    };
    let [a, b, c, d, ..] = *version else {
        return false;
    };
    let is_known = matches!(
        [a, b, c, d],
        [0, 0, 0, 1] | [0x6b, 0x33, 0x43, 0xcf] | [0xff, 0, 0, _]
    );
    let is_reserved = [a, b, c, d].iter().all(|byte| byte & 0xf == 0xa);
    first & 0xc0 == 0xc0 && payload.len() >= 1200 && (is_known || is_reserved)
}
