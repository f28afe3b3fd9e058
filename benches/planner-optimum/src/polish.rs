//! Local search by moves and exchanges, as long as one improves an assignment.

use crate::instance::{APPS, Instance, PATHS, Score};

pub fn polished(instance: &Instance, mut assignment: Vec<usize>) -> (Score, Vec<usize>) {
    let mut score = instance.score(&assignment);
    loop {
        let mut better = false;
        for app in 0..APPS {
            for path in 0..PATHS {
                let from = std::mem::replace(&mut assignment[app], path);
                let moved = instance.score(&assignment);
                if moved < score {
                    score = moved;
                    better = true;
                } else {
                    assignment[app] = from;
                }
            }
            for other in 0..app {
                assignment.swap(app, other);
                let swapped = instance.score(&assignment);
                if swapped < score {
                    score = swapped;
                    better = true;
                } else {
                    assignment.swap(app, other);
                }
            }
        }
        if !better {
            return (score, assignment);
        }
    }
}
