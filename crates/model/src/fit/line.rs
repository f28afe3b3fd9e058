//! One line through bins, robustly.
//!
//! Starts from a weighted median of slopes (Theil), which a quarter of bad bins does not move, and
//! improves it by weighted least squares that first hold far bins back (Huber) and then leave them
//! out.

use super::{bins::Bin, statistics::weighted_median};

/// A line by its value at its centre and its slope, whose errors are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// In bytes.
    pub(super) centre: f64,
    /// Seconds at the centre.
    pub(super) value: f64,
    /// Seconds per byte.
    pub(super) slope: f64,
    pub(super) value_variance: f64,
    pub(super) slope_variance: f64,
    /// Bins that were not left out.
    pub(super) kept: usize,
    /// The sum of squared deviations in standard errors, each at most [`FAR`]².
    pub(super) cost: f64,
    /// The same over the bins that were kept.
    pub(super) kept_cost: f64,
}

/// Standard errors from the line at which a bin is an outlier.
pub(super) const FAR: f64 = 4.0;

impl Line {
    /// Seconds at `bytes`.
    pub(super) fn at(&self, bytes: f64) -> f64 {
        self.value + self.slope * (bytes - self.centre)
    }

    /// The variance of [`at`](Self::at).
    pub(super) fn variance_at(&self, bytes: f64) -> f64 {
        self.value_variance + self.slope_variance * (bytes - self.centre).powi(2)
    }

    /// The deviation of `bin` in standard errors, of which each is `scale` times as large as the
    /// bin says.
    pub(super) fn deviation(&self, bin: &Bin, scale: f64) -> f64 {
        (bin.y - self.at(bin.x)) / (bin.error * scale)
    }

    /// The line through `bins` (at least two), whose errors are `scale` times as large as they say.
    pub(super) fn through(bins: &[Bin], scale: f64, scratch: &mut Scratch) -> Self {
        const HELD_BACK: f64 = 1.5;
        const HOLDING: usize = 4;
        const LEAVING: usize = 3;
        let mut line = Self::start(bins, scratch);
        for step in 0..HOLDING + LEAVING {
            let leave = step >= HOLDING;
            let weight = |bin: &Bin| {
                let far = line.deviation(bin, scale).abs();
                let share = match leave {
                    true => f64::from(u8::from(far < FAR)),
                    false => (HELD_BACK / far).min(1.0),
                };
                share / (bin.error * scale).powi(2)
            };
            // Where almost everything is far off, leaving it out would leave no line.
            match Self::least_squares(bins, weight) {
                Some(next) => line = next,
                None => break,
            }
        }
        let mut costs = (0.0, 0.0, 0);
        for bin in bins {
            let square = line.deviation(bin, scale).powi(2);
            costs.0 += square.min(FAR * FAR);
            if square < FAR * FAR {
                costs.1 += square;
                costs.2 += 1;
            }
        }
        (line.cost, line.kept_cost, line.kept) = costs;
        line
    }

    /// The weighted median of the slopes of pairs that are half the bins apart, of all pairs where
    /// there are few bins.
    fn start(bins: &[Bin], scratch: &mut Scratch) -> Self {
        const FEW: usize = 12;
        let weighted = &mut scratch.0;
        let pair = |a: &Bin, b: &Bin| {
            let across = b.x - a.x;
            ((b.y - a.y) / across, across / a.error.hypot(b.error))
        };
        weighted.clear();
        match bins.len() {
            0..=FEW => {
                for (i, a) in bins.iter().enumerate() {
                    weighted.extend(bins[i + 1..].iter().map(|b| pair(a, b)));
                }
            }
            count => {
                let (lower, upper) = (&bins[..count - count / 2], &bins[count / 2..]);
                weighted.extend(lower.iter().zip(upper).map(|(a, b)| pair(a, b)));
            }
        }
        let slope = weighted_median(weighted);
        weighted.clear();
        weighted.extend(bins.iter().map(|b| (b.y - slope * b.x, 1.0 / b.error)));
        Self {
            centre: 0.0,
            value: weighted_median(weighted),
            slope,
            value_variance: 0.0,
            slope_variance: 0.0,
            kept: bins.len(),
            cost: 0.0,
            kept_cost: 0.0,
        }
    }

    /// `None` where the weights leave fewer than two sizes.
    fn least_squares(bins: &[Bin], weight: impl Fn(&Bin) -> f64) -> Option<Self> {
        let (mut sum, mut x, mut y, mut counted) = (0.0, 0.0, 0.0, 0);
        for bin in bins {
            let w = weight(bin);
            sum += w;
            x += w * bin.x;
            y += w * bin.y;
            counted += usize::from(w > 0.0);
        }
        if counted < 2 {
            return None;
        }
        let (centre, value) = (x / sum, y / sum);
        let (mut xx, mut xy) = (0.0, 0.0);
        for bin in bins {
            let w = weight(bin);
            xx += w * (bin.x - centre).powi(2);
            xy += w * (bin.x - centre) * (bin.y - value);
        }
        (xx > 0.0).then(|| Self {
            centre,
            value,
            slope: xy / xx,
            value_variance: 1.0 / sum,
            slope_variance: 1.0 / xx,
            kept: counted,
            cost: 0.0,
            kept_cost: 0.0,
        })
    }
}

/// Memory that is used again from line to line.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<(f64, f64)>);
