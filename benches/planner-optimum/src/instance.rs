//! The random instances, and the score of an assignment, in integers.

pub const INSTANCES: u64 = 200;
pub const PATHS: usize = 4;
pub const APPS: usize = 30;

/// L in bytes to what is nanoseconds over bit/s.
const SCALE: u64 = 8_000_000_000;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

pub struct Path {
    /// In bit/s.
    pub bandwidth: u64,
    /// Propagation, in nanoseconds.
    pub delay: u64,
}

pub struct App {
    /// In 10^-9 bit: over bit/s it is nanoseconds.
    pub length: u64,
    /// In nanoseconds.
    pub latency_target: u64,
    /// In bit/s.
    pub rate: u64,
    /// The rate in drawn units, up to rounding: all rates are whole multiples of one number.
    pub weight: usize,
}

pub struct Instance {
    pub paths: Vec<Path>,
    pub apps: Vec<App>,
}

/// In the order of importance, as plans are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    pub unmet: u64,
    pub overloaded: u64,
    /// In nanoseconds.
    pub delay: u64,
}

impl Instance {
    pub fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let paths: Vec<Path> = (0..PATHS)
            .map(|_| Path {
                bandwidth: draw.between(50, 500) * 1_000_000,
                delay: draw.between(1, 60) * 1_000_000,
            })
            .collect();
        let load_percent = u128::from([30_u32, 50, 70, 85][seed as usize % 4]);
        let drawn: Vec<(u64, u64, u64)> = (0..APPS)
            .map(|_| {
                let length = draw.between(1, 9) * 10_u64.pow(draw.between(3, 5) as u32);
                (length, draw.between(1, 30), draw.between(30, 250))
            })
            .collect();
        let weights: u64 = drawn.iter().map(|(_, weight, _)| weight).sum();
        let capacity: u64 = paths.iter().map(|path| path.bandwidth).sum();
        let apps = drawn.iter().map(|&(bytes, weight, latency_target)| {
            let whole = u128::from(capacity) * load_percent * u128::from(weight);
            let rate = (whole / (100 * u128::from(weights))) as u64;
            let length = bytes * SCALE;
            let interval = length / rate;
            App {
                length,
                latency_target: latency_target * 1_000_000,
                rate: length.div_ceil(interval),
                weight: weight as usize,
            }
        });
        let apps = apps.collect();
        Self { paths, apps }
    }

    /// The delay on a path with the whole load `load`, in nanoseconds; `None` if overloaded.
    fn delay(&self, path: usize, app: usize, load: u64) -> Option<u64> {
        let (path, app) = (&self.paths[path], &self.apps[app]);
        let left = path.bandwidth.checked_sub(load).filter(|&left| left > 0)?;
        Some(path.delay + app.length.div_ceil(left + app.rate))
    }

    /// The largest integer load at which an application meets its target; `None` if it never does.
    pub fn limit(&self, path: usize, app: usize) -> Option<u64> {
        let (path, app) = (&self.paths[path], &self.apps[app]);
        let transfer = app
            .latency_target
            .checked_sub(path.delay)
            .filter(|&time| time > 0)?;
        let needed = app.length.div_ceil(transfer);
        let limit = (path.bandwidth + app.rate).checked_sub(needed)?;
        Some(limit.min(path.bandwidth - 1))
    }

    pub fn score(&self, assignment: &[usize]) -> Score {
        let mut loads = [0; PATHS];
        for (app, &path) in self.apps.iter().zip(assignment) {
            loads[path] += app.rate;
        }
        let mut score = Score::default();
        for (app, &path) in assignment.iter().enumerate() {
            match self.delay(path, app, loads[path]) {
                None => {
                    score.unmet += 1;
                    score.overloaded += 1;
                }
                Some(delay) => {
                    score.unmet += u64::from(delay > self.apps[app].latency_target);
                    score.delay += delay;
                }
            }
        }
        score
    }
}
