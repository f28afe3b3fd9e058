//! The linear program over the sets known so far: of each path at most one, every application in
//! one. Its prices are only proposals: what is proven with them does not depend on how exactly it
//! was solved.

use clarabel::{
    algebra::CscMatrix,
    solver::{
        DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SupportedConeT, ZeroConeT,
    },
};

use crate::{
    instance::{APPS, PATHS},
    pricing::{Column, Weights, bits},
};

/// What a part of the score must not exceed; `None`: it is not bounded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caps {
    pub unmet: Option<f64>,
    pub overloaded: Option<f64>,
}

/// What a part of the score may cost, bounded or not: prices of applications and of bounds.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    pub apps: [f64; APPS],
    /// By cap, in their order, at least zero.
    pub caps: [f64; 2],
}

pub struct Solved {
    pub prices: Prices,
    /// How much of every column.
    pub parts: Vec<f64>,
    /// The objective with what is not served at its penalty.
    pub value: f64,
}

impl Caps {
    pub fn list(&self) -> [Option<f64>; 2] {
        [self.unmet, self.overloaded]
    }
}

pub fn parts_of(column: &Column) -> [f64; 2] {
    [column.unmet, column.overloaded]
}

pub fn cost(column: &Column, weights: &Weights) -> f64 {
    weights.unmet * column.unmet
        + weights.overloaded * column.overloaded
        + weights.delay * column.delay
}

/// `penalty` is what an application that is in no set costs.
pub fn solve(columns: &[Column], weights: &Weights, caps: &Caps, penalty: f64) -> Option<Solved> {
    let caps = caps.list();
    let capped: Vec<usize> = (0..2).filter(|&cap| caps[cap].is_some()).collect();
    let count = columns.len() + APPS;
    // Equalities, paths, caps, and that no column is taken less than not at all.
    let first_sign = APPS + PATHS + capped.len();
    let rows = first_sign + count;
    let (mut starts, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    let mut objective = Vec::with_capacity(count);
    for column in columns {
        for app in bits(column.set) {
            indices.push(app);
            values.push(1.0);
        }
        indices.push(APPS + column.path);
        values.push(1.0);
        let amounts = parts_of(column);
        for (row, &cap) in capped.iter().enumerate() {
            if amounts[cap] != 0.0 {
                indices.push(APPS + PATHS + row);
                values.push(amounts[cap]);
            }
        }
        indices.push(first_sign + objective.len());
        values.push(-1.0);
        starts.push(indices.len());
        objective.push(cost(column, weights));
    }
    for app in 0..APPS {
        indices.extend([app, first_sign + objective.len()]);
        values.extend([1.0, -1.0]);
        starts.push(indices.len());
        objective.push(penalty);
    }
    let mut right = vec![1.0; APPS + PATHS];
    right.extend(capped.iter().filter_map(|&cap| caps[cap]));
    right.resize(rows, 0.0);
    let constraints = CscMatrix::new(rows, count, starts, indices, values);
    let cones: [SupportedConeT<f64>; 2] = [ZeroConeT(APPS), NonnegativeConeT(rows - APPS)];
    let settings = DefaultSettings {
        verbose: false,
        max_iter: 60,
        tol_gap_abs: 1e-6,
        tol_gap_rel: 1e-6,
        tol_feas: 1e-7,
        ..DefaultSettings::default()
    };
    let none = CscMatrix::zeros((count, count));
    let mut solver =
        DefaultSolver::new(&none, &objective, &constraints, &right, &cones, settings).ok()?;
    solver.solve();
    let solution = &solver.solution;
    if !solution.obj_val.is_finite() || solution.z.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut prices = Prices {
        apps: [0.0; APPS],
        caps: [0.0; 2],
    };
    for (price, dual) in prices.apps.iter_mut().zip(&solution.z) {
        *price = -dual;
    }
    for (row, &cap) in capped.iter().enumerate() {
        prices.caps[cap] = solution.z[APPS + PATHS + row].max(0.0);
    }
    Some(Solved {
        prices,
        parts: solution.x[..columns.len()].to_vec(),
        value: solution.obj_val,
    })
}
