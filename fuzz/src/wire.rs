//! Messages octet by octet, as far as an input does not write them itself.

/// What an input chooses by, from its beginning to its end.
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    /// The next octet; 0 at the end.
    pub fn next(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    /// So many octets, or what is left.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub const OPEN: u8 = 1;
pub const UPDATE: u8 = 2;
pub const KEEPALIVE: u8 = 4;

/// The longest body of a message (RFC 4271 §4.1).
pub const BODY_MAX: usize = 4096 - 19;

pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len().min(BODY_MAX)];
    let mut all = vec![0xff; 16];
    all.extend((19 + body.len() as u16).to_be_bytes());
    all.push(kind);
    all.extend(body);
    all
}

/// Which capabilities a neighbour offers, a bit each.
#[derive(Clone, Copy, Debug)]
pub struct Offer(pub u8);

impl Offer {
    pub const EVERYTHING: Self = Self(0xff);
    const FAMILIES: [(u8, [u8; 3]); 3] = [(0, [0, 1, 1]), (1, [0, 2, 1]), (2, [0, 2, 128])];
    const AS4: u8 = 3;
    const ADD_PATH: u8 = 4;
    const GRACEFUL: u8 = 5;
    const REFRESH: u8 = 6;
    const PRESERVED: u8 = 7;

    fn has(self, bit: u8) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// OPEN and KEEPALIVE.
    pub fn greeting(self, asn: u16, id: u8) -> Vec<u8> {
        let families = Self::FAMILIES.into_iter();
        let families: Vec<[u8; 3]> = families
            .filter(|(bit, _)| self.has(*bit))
            .map(|(_, family)| family)
            .collect();
        let mut all = Vec::new();
        for [a, b, safi] in &families {
            all.extend([1, 4, *a, *b, 0, *safi]);
        }
        if self.has(Self::AS4) {
            all.extend([65, 4]);
            all.extend(u32::from(asn).to_be_bytes());
        }
        if self.has(Self::ADD_PATH) {
            all.extend([69, 4 * families.len() as u8]);
            // Both directions.
            families
                .iter()
                .for_each(|family| all.extend(family.iter().chain(&[3])));
        }
        if self.has(Self::GRACEFUL) {
            all.extend([64, 2 + 4 * families.len() as u8, 0x80, 30]);
            let kept = u8::from(self.has(Self::PRESERVED)) << 7;
            families
                .iter()
                .for_each(|family| all.extend(family.iter().chain(&[kept])));
        }
        if self.has(Self::REFRESH) {
            all.extend([2, 0, 70, 0]);
        }
        let mut open = vec![4];
        open.extend(asn.to_be_bytes());
        // It is never too silent.
        open.extend([0, 0, 10, 0, 0, id]);
        let bytes = all.len() as u8;
        match bytes {
            0 => open.push(0),
            _ => open.extend([bytes + 2, 2, bytes]),
        }
        open.extend(all);
        [message(OPEN, &open), message(KEEPALIVE, &[])].concat()
    }
}

pub fn attribute(flags: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut all = vec![flags | 0x10, kind];
    all.extend((value.len() as u16).to_be_bytes());
    all.extend(value);
    all
}

/// The body of an UPDATE.
pub fn update(withdrawn: &[u8], attributes: &[u8], announced: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    all.extend((withdrawn.len() as u16).to_be_bytes());
    all.extend(withdrawn);
    all.extend((attributes.len() as u16).to_be_bytes());
    all.extend(attributes);
    all.extend(announced);
    all
}

/// ASes in order, of four octets each.
pub fn as_path(asns: &[u32]) -> Vec<u8> {
    let mut value = Vec::new();
    if !asns.is_empty() {
        value.extend([2, asns.len() as u8]);
        value.extend(asns.iter().flat_map(|asn| asn.to_be_bytes()));
    }
    attribute(0x40, 2, &value)
}

/// MP_REACH_NLRI of IPv6.
pub fn reach(safi: u8, next_hop: &[u8], list: &[u8]) -> Vec<u8> {
    let mut value = vec![0, 2, safi, next_hop.len() as u8];
    value.extend(next_hop);
    value.push(0);
    value.extend(list);
    attribute(0x80, 14, &value)
}

/// MP_UNREACH_NLRI of IPv6.
pub fn unreach(safi: u8, list: &[u8]) -> Vec<u8> {
    attribute(0x80, 15, &[&[0, 2, safi], list].concat())
}
