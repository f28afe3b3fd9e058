//! Local search: better assignments by moving and exchanging applications.

use super::{Meter, loads::Cost, state::State};

/// Moves single applications and exchanges pairs as long as that makes the assignment better.
pub(super) fn descend(state: &mut State<'_>, meter: &mut Meter) {
    while !meter.is_spent() {
        if move_all(state, meter) || exchange_one(state, meter) {
            continue;
        }
        return;
    }
}

/// Tears down two paths at a time, puts what was there where it costs least, and descends again;
/// keeps what is better. Ends when no two paths give anything any more, or the meter is spent.
pub(super) fn wander(state: &mut State<'_>, meter: &mut Meter) {
    let paths = state.loads().paths();
    let mut improved = true;
    while improved {
        improved = false;
        for first in 0..paths {
            for second in 0..first {
                if meter.is_spent() {
                    return;
                }
                let before = state.clone();
                rebuild(state, [first, second], meter);
                descend(state, meter);
                if state.total() < before.total() {
                    improved = true;
                } else {
                    *state = before;
                }
            }
        }
    }
}

/// Moves every application to the path where the whole costs least; whether any moved.
fn move_all(state: &mut State<'_>, meter: &mut Meter) -> bool {
    let mut moved = false;
    for app in 0..state.loads().apps() {
        if meter.is_spent() {
            break;
        }
        let from = state.place(app).expect("every application is placed");
        let left = state.cost_after(from, Some(app), None, meter);
        let now = state.cost(from);
        let best = (0..state.loads().paths())
            .filter(|&to| to != from)
            .map(|to| {
                let joined = state.cost_after(to, None, Some(app), meter);
                (left + joined, now + state.cost(to), joined, to)
            })
            // The least increase, compared without going below zero.
            .reduce(|best, next| {
                if next.0 + best.1 < best.0 + next.1 {
                    next
                } else {
                    best
                }
            });
        if let Some((after, before, joined, to)) = best
            && after < before
        {
            state.take_at(app, left);
            state.put_at(app, to, joined);
            moved = true;
        }
    }
    moved
}

/// Exchanges the first two applications whose exchange makes the assignment better; whether there
/// were any.
fn exchange_one(state: &mut State<'_>, meter: &mut Meter) -> bool {
    let mut exchanged = false;
    for one in 0..state.loads().apps() {
        for other in 0..one {
            if meter.is_spent() {
                return exchanged;
            }
            let place = |app: usize| state.place(app).expect("every application is placed");
            let (here, there) = (place(one), place(other));
            if here == there || state.loads().app(one) == state.loads().app(other) {
                continue;
            }
            let here_after = state.cost_after(here, Some(one), Some(other), meter);
            let before = state.cost(here) + state.cost(there);
            if here_after >= before {
                continue;
            }
            let there_after = state.cost_after(there, Some(other), Some(one), meter);
            if here_after + there_after < before {
                state.take_at(one, Cost::default());
                state.take_at(other, Cost::default());
                state.put_at(one, there, there_after);
                state.put_at(other, here, here_after);
                exchanged = true;
            }
        }
    }
    exchanged
}

/// Takes everything off `torn` and puts it, heaviest first, where the whole costs least.
fn rebuild(state: &mut State<'_>, torn: [usize; 2], meter: &mut Meter) {
    let mut loose: Vec<usize> = torn
        .iter()
        .flat_map(|&path| state.members(path).to_vec())
        .collect();
    loose.sort_by_key(|&app| (std::cmp::Reverse(state.loads().rate(app)), app));
    for &app in &loose {
        state.take(app, meter);
    }
    for app in loose {
        let best = (0..state.loads().paths())
            .map(|path| (state.cost_after(path, None, Some(app), meter), path))
            .reduce(|best, next| {
                if next.0 + state.cost(best.1) < best.0 + state.cost(next.1) {
                    next
                } else {
                    best
                }
            });
        let (cost, path) = best.expect("a problem with applications has paths");
        state.put_at(app, path, cost);
    }
}
