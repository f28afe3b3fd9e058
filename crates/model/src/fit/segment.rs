//! Where the line breaks: dynamic programming over all ways to cut the bins into pieces, and an
//! information criterion for their number.
//!
//! The cost of a piece is the sum of its bins' squared deviations in standard errors, far ones
//! bounded. Standard errors come from repetitions; where even many pieces leave more than that,
//! because transfers of one size have something in common, all of them are enlarged first
//! (quasi-likelihood), so that such wiggles do not ask for breaks.

use super::{
    BREAK_COST, BREAKS_MAX,
    bins::{Bin, Binned},
    line::{Line, Scratch},
    statistics::{MEDIAN_DEVIATION, median},
};

/// How the bins are cut.
#[derive(Clone, Debug)]
pub(super) struct Segmentation {
    /// The pieces, by rising size.
    pub(super) segments: Vec<Segment>,
    /// For every break, the places where it may be.
    pub(super) breaks: Vec<Vec<BreakCandidate>>,
    /// The criterion for no break, one, two, …, as far as pieces had enough points.
    pub(super) criterion: Vec<f64>,
    /// By how much standard errors are larger than bins say.
    pub(super) scale: f64,
    /// Degrees of freedom of `scale`, or of what the bins say.
    pub(super) degrees: usize,
}

/// One piece: the bins `start..end` and the line through them.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) line: Line,
}

/// Where a break may be: before the bin `before`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BreakCandidate {
    pub(super) before: usize,
    /// How much costlier than the best candidate; the likelihood falls by exp(−excess/2).
    pub(super) excess: f64,
}

/// A piece has at least this many bins and points: a line always goes through two.
const BINS_MIN: usize = 3;
const POINTS_MIN: usize = 6;

/// As how many parameters the search for the place of a break counts, beside the break itself.
const SEARCH_COST: usize = 2;

/// The likelihood ratio that bounds the 95 % interval of a break, −2·ln(1 − √0.95)
/// (Hansen, Econometrica 68 (2000), §3).
const PLACE_RATIO: f64 = 7.352;

/// Cuts the bins. Where there are no repetitions, how much times vary is taken from a first cut.
pub(super) fn segment(binned: &mut Binned) -> Segmentation {
    let first = cut(binned);
    if binned.repeated {
        return first;
    }
    let lines = first.segments.iter();
    let fitted: Vec<f64> = lines
        .flat_map(|s| {
            binned.bins[s.start..s.end]
                .iter()
                .map(|bin| s.line.at(bin.x))
        })
        .collect();
    binned.learn(&fitted, parameters(first.segments.len()));
    cut(binned)
}

/// How many parameters `pieces` pieces have, with what the search for breaks takes.
fn parameters(pieces: usize) -> usize {
    // Two of each line; the place of each break, and as breaks were put where they take the most
    // away, more than their share.
    2 * pieces + (1 + SEARCH_COST) * (pieces - 1)
}

fn cut(binned: &Binned) -> Segmentation {
    let bins = &binned.bins;
    let mut search = Search::new(bins);
    let scale = search.scale();
    search.measure(scale);
    let cuts = search.cuts();
    let penalty = BREAK_COST * (bins.len() as f64).ln();
    let criterion: Vec<f64> = cuts
        .iter()
        .enumerate()
        .map(|(breaks, cut)| cut.cost + penalty * breaks as f64)
        .collect();
    let mut best = 0;
    for (breaks, value) in criterion.iter().enumerate() {
        if *value < criterion[best] {
            best = breaks;
        }
    }
    let edges = &cuts[best].edges;
    let (scale, degrees) = dispersion(&mut search, edges, scale, binned);
    let mut segments = search.segments(edges, scale);
    for segment in &mut segments {
        // Least squares takes the errors of bins as they were enlarged.
        segment.line = search.line(segment.start, segment.end, scale);
    }
    let breaks = edges.windows(3).map(|w| search.places(w)).collect();
    Segmentation {
        segments,
        breaks,
        criterion,
        scale,
        degrees,
    }
}

/// By how much the deviations that are left exceed what the bins say, and how sure that is.
fn dispersion(
    search: &mut Search<'_>,
    edges: &[usize],
    scale: f64,
    binned: &Binned,
) -> (f64, usize) {
    let segments = search.segments(edges, scale);
    let kept: usize = segments.iter().map(|s| s.line.kept).sum();
    let cost: f64 = segments.iter().map(|s| s.line.kept_cost).sum();
    let parameters = 3 * segments.len() - 1;
    let degrees = kept.saturating_sub(parameters).max(1);
    let found = scale * (cost / degrees as f64).sqrt();
    let repeats = binned.bins.iter().map(|b| b.points.len() - 1).sum();
    match binned.repeated {
        true if found <= 1.0 => (1.0, usize::max(repeats, 1)),
        // Without repetitions the deviations from the lines are all there is to go by.
        _ => (found.max(1e-6), degrees),
    }
}

/// A way to cut.
struct Cut {
    cost: f64,
    /// Where pieces begin and end: 0, the breaks, the number of bins.
    edges: Vec<usize>,
}

struct Search<'a> {
    bins: &'a [Bin],
    scratch: Scratch,
    /// `costs[start][end]` of the piece `start..end`; infinite where it must not be.
    costs: Vec<Vec<f64>>,
}

impl<'a> Search<'a> {
    fn new(bins: &'a [Bin]) -> Self {
        let count = bins.len();
        Self {
            bins,
            scratch: Scratch::default(),
            costs: vec![vec![f64::INFINITY; count + 1]; count + 1],
        }
    }

    fn line(&mut self, start: usize, end: usize, scale: f64) -> Line {
        Line::through(&self.bins[start..end], scale, &mut self.scratch)
    }

    fn segments(&mut self, edges: &[usize], scale: f64) -> Vec<Segment> {
        edges
            .windows(2)
            .map(|w| Segment {
                start: w[0],
                end: w[1],
                line: self.line(w[0], w[1], scale),
            })
            .collect()
    }

    /// Computes the costs of all pieces.
    fn measure(&mut self, scale: f64) {
        let count = self.bins.len();
        for start in 0..count {
            for end in start + 1..=count {
                let whole = start == 0 && end == count;
                let bins = &self.bins[start..end];
                let points = bins[bins.len() - 1].points.end - bins[0].points.start;
                if !whole && (bins.len() < BINS_MIN || points < POINTS_MIN) {
                    continue;
                }
                let line = Line::through(bins, scale, &mut self.scratch);
                // A piece whose times do not rise has no bandwidth.
                if whole || line.slope > 0.0 {
                    self.costs[start][end] = line.cost;
                }
            }
        }
    }

    /// The cheapest cuts with no break, with one, and so on.
    fn cuts(&self) -> Vec<Cut> {
        let count = self.bins.len();
        // cheapest[k][end]: of the bins before `end` in k + 1 pieces, with where the last begins.
        let mut cheapest: Vec<Vec<(f64, usize)>> =
            vec![(0..=count).map(|end| (self.costs[0][end], 0)).collect()];
        for breaks in 1..=BREAKS_MAX {
            let last = &cheapest[breaks - 1];
            let next = (0..=count).map(|end| {
                let ways = (0..end).map(|start| (last[start].0 + self.costs[start][end], start));
                ways.min_by(|a, b| a.0.total_cmp(&b.0))
                    .unwrap_or((f64::INFINITY, 0))
            });
            let next = next.collect();
            cheapest.push(next);
        }
        let cut = |breaks: usize| {
            let cost = cheapest[breaks][count].0;
            let mut edges = vec![count];
            for level in (0..=breaks).rev() {
                let end = edges[edges.len() - 1];
                edges.push(cheapest[level][end].1);
            }
            edges.reverse();
            Cut { cost, edges }
        };
        (0..=BREAKS_MAX)
            .map(cut)
            .take_while(|cut| cut.cost.is_finite())
            .collect()
    }

    /// By how much bins differ from lines beyond their standard errors, whatever the breaks: from
    /// the middle one of the deviations that the most pieces leave, so that outliers do not count.
    fn scale(&mut self) -> f64 {
        const ROUNDS: usize = 2;
        let mut scale = 1.0;
        for _ in 0..ROUNDS {
            self.measure(scale);
            let Some(cut) = self.cuts().pop() else {
                break;
            };
            let segments = self.segments(&cut.edges, scale);
            let mut deviations = Vec::with_capacity(self.bins.len());
            for segment in &segments {
                let bins = &self.bins[segment.start..segment.end];
                deviations.extend(bins.iter().map(|b| segment.line.deviation(b, scale).abs()));
            }
            let count = deviations.len() as f64;
            let free = (count - parameters(segments.len()) as f64).max(1.0);
            let typical = median(&mut deviations).unwrap_or(0.0) / MEDIAN_DEVIATION;
            let found = typical * (count / free).sqrt();
            if found <= 1.0 {
                break;
            }
            scale *= found;
        }
        scale
    }

    /// Where the middle one of three edges may be, the other two held.
    fn places(&self, edges: &[usize]) -> Vec<BreakCandidate> {
        let (start, end) = (edges[0], edges[2]);
        let costs = (start + 1..end).map(|before| {
            let cost = self.costs[start][before] + self.costs[before][end];
            (before, cost)
        });
        let costs: Vec<(usize, f64)> = costs.collect();
        let least = costs.iter().map(|c| c.1).fold(f64::INFINITY, f64::min);
        costs
            .iter()
            .map(|&(before, cost)| BreakCandidate {
                before,
                excess: cost - least,
            })
            .filter(|place| place.excess <= PLACE_RATIO)
            .collect()
    }
}
