//! Chance from a fixed sequence, so that the same question gets the same answer.

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(in crate::plan) struct Random(u64);

impl Random {
    /// Always the same sequence.
    pub(in crate::plan) fn new() -> Self {
        Self(0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Less than `end`, which is above zero.
    pub(in crate::plan) fn below(&mut self, end: usize) -> usize {
        // The high part of the product is below `end`.
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// About exponentially distributed, with a mean of about one: the logarithm of a number between
    /// zero and one, taken to be straight between powers of two, which every machine does alike.
    pub(in crate::plan) fn exponential(&mut self) -> f64 {
        let drawn = self.next() | 1;
        let zeros = drawn.leading_zeros();
        // What follows the leading one, as a part of one.
        let part = ((drawn << zeros) << 1) as f64 / TWO_TO_64;
        (f64::from(zeros) + 1.0 - part) * std::f64::consts::LN_2
    }
}

const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;
