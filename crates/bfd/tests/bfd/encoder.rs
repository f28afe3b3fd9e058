//! A second encoder: fields as in the drawing of RFC 5880 §4.1, bit by bit, in the order of the drawing.

/// Every field of a control packet without authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) version: u32,
    pub(crate) diagnostic: u32,
    pub(crate) state: u32,
    pub(crate) poll: u32,
    /// The F bit.
    pub(crate) last: u32,
    pub(crate) independent: u32,
    pub(crate) authenticated: u32,
    pub(crate) demand: u32,
    pub(crate) multipoint: u32,
    pub(crate) multiplier: u32,
    pub(crate) length: u32,
    pub(crate) my: u32,
    pub(crate) your: u32,
    pub(crate) min_tx: u32,
    pub(crate) min_rx: u32,
    pub(crate) min_echo_rx: u32,
}

pub(crate) const ADMIN_DOWN: u32 = 0;
pub(crate) const DOWN: u32 = 1;
pub(crate) const INIT: u32 = 2;
pub(crate) const UP: u32 = 3;

const WIDTHS: [usize; 16] = [3, 5, 2, 1, 1, 1, 1, 1, 1, 8, 8, 32, 32, 32, 32, 32];

impl Raw {
    /// The first packet of a neighbour: state Down, one second, a multiplier of 3.
    pub(crate) fn down() -> Self {
        Self {
            version: 1,
            diagnostic: 0,
            state: DOWN,
            poll: 0,
            last: 0,
            independent: 0,
            authenticated: 0,
            demand: 0,
            multipoint: 0,
            multiplier: 3,
            length: 24,
            my: 0xabcd_0123,
            your: 0,
            min_tx: 1_000_000,
            min_rx: 1_000_000,
            min_echo_rx: 0,
        }
    }

    fn fields(&mut self) -> [&mut u32; 16] {
        [
            &mut self.version,
            &mut self.diagnostic,
            &mut self.state,
            &mut self.poll,
            &mut self.last,
            &mut self.independent,
            &mut self.authenticated,
            &mut self.demand,
            &mut self.multipoint,
            &mut self.multiplier,
            &mut self.length,
            &mut self.my,
            &mut self.your,
            &mut self.min_tx,
            &mut self.min_rx,
            &mut self.min_echo_rx,
        ]
    }

    pub(crate) fn octets(mut self) -> Vec<u8> {
        let fields = self.fields().into_iter().zip(WIDTHS);
        let bits: String = fields
            .map(|(field, width)| format!("{field:0width$b}"))
            .collect();
        assert_eq!(bits.len(), 24 * 8, "a field is too large");
        let octets = bits.as_bytes().chunks(8);
        octets
            .map(|octet| u8::from_str_radix(std::str::from_utf8(octet).unwrap(), 2).unwrap())
            .collect()
    }

    pub(crate) fn read(octets: &[u8]) -> Self {
        assert_eq!(octets.len(), 24);
        let bits: String = octets.iter().map(|octet| format!("{octet:08b}")).collect();
        let mut rest = bits.as_str();
        let mut raw = Self::down();
        for (field, width) in raw.fields().into_iter().zip(WIDTHS) {
            let (value, after) = rest.split_at(width);
            *field = u32::from_str_radix(value, 2).unwrap();
            rest = after;
        }
        raw
    }
}
