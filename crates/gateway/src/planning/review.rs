//! Plans held against the forecast, and mended where it says that a demand is unmet.
//!
//! The planner goes by eq. 3 on what is on the wire, which knows loads, but neither queues nor
//! deadlines; whether a demand is met is told by the forecast. So the forecast is asked about the
//! planner's answer. Where it leaves somebody unmet, [`keiro_model::plan::Review`] looks for an
//! assignment that leaves fewer, by coarse forecasts; what it finds is taken if it is better by the
//! forecast that is shown.
//!
//! The paper's own algorithm (`planner = "greedy"`) is left as it is.

use std::collections::{BTreeMap, BTreeSet};

use keiro_model::{
    delay::{AppSpec, Delay, competing_rate},
    plan::{Review, Score},
    queueing::{Resolution, Spread},
    steer::Manner,
};

use super::{
    Expected,
    outlook::{Experience, Outlook, outlooks, resolution},
    question::{EQUATION, Question},
};

/// How closely a plan is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// By the forecast that is shown.
    Close,
    /// By coarse forecasts: many plans are to be made.
    Coarse,
}

/// What the queueing model says, each question asked once.
pub(super) struct Forecasts<'a> {
    question: &'a Question,
    experience: &'a Experience,
    known: BTreeMap<(Resolution, usize, Vec<usize>), Vec<Outlook>>,
}

/// More applications than this are not reviewed: what one forecast costs grows with the square of
/// those on the path.
const REVIEWED_APPS_MAX: usize = 64;
/// The search asks so coarsely; what it finds is looked at more closely.
const SEARCHED: Resolution = Resolution::new(128);
/// Applications that one search asks about, one for each time.
const WORK_MAX: u64 = 6_000;
/// An application whose messages vary in length is so much more work.
const VARYING_WORK: u64 = 16;
/// The search holds demands this much tighter, one after the other until the closer look agrees:
/// coarse forecasts are some per cent off.
const TIGHTER: [f64; 3] = [1.0, 0.95, 0.85];

impl<'a> Forecasts<'a> {
    pub(super) fn new(question: &'a Question, experience: &'a Experience) -> Self {
        Self {
            question,
            experience,
            known: BTreeMap::new(),
        }
    }

    /// For `members` (ascending) when exactly they share `path`, as they are shown.
    pub(super) fn shown(&mut self, path: usize, members: &[usize]) -> &[Outlook] {
        self.of(path, members, resolution(members.len()))
    }

    fn of(&mut self, path: usize, members: &[usize], resolution: Resolution) -> &[Outlook] {
        let (question, experience) = (self.question, self.experience);
        let key = (resolution, path, members.to_vec());
        self.known.entry(key).or_insert_with(|| {
            let traffic: Vec<_> = members.iter().map(|app| question.traffic[*app]).collect();
            let residual = experience.residuals.get(&question.paths[path]);
            let outcomes = question.outcomes_over(path);
            let spec = &question.path_specs[path];
            outlooks(
                question.scheduler,
                spec,
                &traffic,
                outcomes,
                residual,
                resolution,
            )
        })
    }

    /// What is expected of `members` on `path`, demands being `tighter` than they are.
    fn expected(
        &mut self,
        (path, members): (usize, &[usize]),
        resolution: Resolution,
        tighter: f64,
    ) -> Vec<(Expected, Delay)> {
        let question = self.question;
        let outlooks = self.of(path, members, resolution);
        let expected = |(app, outlook): (&usize, &Outlook)| {
            let spec = &question.app_specs[*app];
            let demand = spec.demand.map(|demand| demand.mul_f64(tighter));
            let others = competing_rate(&question.app_specs, members, *app);
            let spec = AppSpec { demand, ..*spec };
            let prediction = EQUATION.predict(&question.path_specs[path], &spec, others);
            let expected = Expected::of(&prediction, Some(outlook), question.tolerance);
            let mean = expected.predicted.unwrap_or(prediction.delay);
            (expected, mean)
        };
        members.iter().zip(outlooks).map(expected).collect()
    }

    fn score(&mut self, on_path: (usize, &[usize]), resolution: Resolution, tighter: f64) -> Score {
        let all = self.expected(on_path, resolution, tighter);
        all.into_iter()
            .fold(Score::default(), |sum, (expected, mean)| {
                sum.saturating_add(Score {
                    unmet: usize::from(expected.met == Some(false) || expected.overloaded),
                    overloaded: usize::from(expected.overloaded),
                    lateness: expected.lateness,
                    delay: mean.finite().unwrap_or_default(),
                })
            })
    }

    /// Whom `look` finds unmet where `assignment` has them, and how many of them overloaded.
    fn trouble(&mut self, assignment: &[usize], look: Look) -> Trouble {
        let mut trouble = Trouble::default();
        for path in 0..self.question.paths.len() {
            let members = members(assignment, path);
            let resolution = match look {
                Look::Close => resolution(members.len()),
                Look::Coarse => SEARCHED,
            };
            let all = self.expected((path, &members), resolution, 1.0);
            for (app, (expected, _)) in members.into_iter().zip(all) {
                if expected.met == Some(false) || expected.overloaded {
                    trouble.unmet.insert(app);
                    trouble.overloaded += usize::from(expected.overloaded);
                }
            }
        }
        trouble
    }
}

/// What a forecast finds wrong with a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Trouble {
    unmet: BTreeSet<usize>,
    overloaded: usize,
}

impl Trouble {
    fn counts(&self) -> (usize, usize) {
        (self.unmet.len(), self.overloaded)
    }
}

impl Question {
    /// Whether the forecast has a say in the plan.
    fn is_reviewed(&self) -> bool {
        self.searches() && self.apps.len() <= REVIEWED_APPS_MAX
    }

    /// What the planner is told of the applications, as they are on the wire. Whose demand the
    /// forecast finds met where the application is demands of eq. 3 no more than that says there:
    /// else it would move for nothing, and be moved back.
    pub(super) fn demanded(&self, forecasts: &mut Forecasts<'_>, look: Look) -> Vec<AppSpec> {
        let mut specs = self.wire.apps.clone();
        let (true, Some(in_force)) = (self.is_reviewed(), self.in_force()) else {
            return specs;
        };
        let by_equation = self.evaluate_on_wire(&in_force);
        if by_equation.unmet.is_empty() {
            return specs;
        }
        let trouble = forecasts.trouble(&in_force, look);
        for app in by_equation.unmet {
            let delay = by_equation.predictions[app].delay.finite();
            if let (Some(delay), false) = (delay, trouble.unmet.contains(&app)) {
                specs[app].demand = specs[app].demand.map(|demand| demand.max(delay));
            }
        }
        specs
    }

    /// The planner's answer, or what is better by the forecast: fewer unmet, or as many and fewer
    /// of them overloaded.
    pub(super) fn reviewed(
        &self,
        planned: Vec<usize>,
        manner: Manner,
        forecasts: &mut Forecasts<'_>,
        look: Look,
    ) -> Vec<usize> {
        if !self.is_reviewed() {
            return planned;
        }
        let mut least = forecasts.trouble(&planned, look).counts();
        if least.0 == 0 {
            return planned;
        }
        let in_force = self.in_force().filter(|_| manner == Manner::Revise);
        let mut kept = planned.clone();
        if let Some(in_force) = &in_force {
            let counts = forecasts.trouble(in_force, look).counts();
            if counts < least {
                (least, kept) = (counts, in_force.clone());
            }
        }
        // Nobody moves for whom it makes no difference.
        let home = in_force.clone().unwrap_or_else(|| planned.clone());
        let starts: Vec<&[usize]> = match &in_force {
            Some(in_force) if *in_force == kept => vec![in_force, &planned],
            Some(in_force) => vec![&planned, in_force],
            None => vec![&planned],
        };
        for tighter in TIGHTER {
            if least.0 == 0 {
                break;
            }
            let mut review = Review::new(&self.allowed, self.work_max(), |path, members| {
                forecasts.score((path, members), SEARCHED, tighter)
            });
            let Some(mended) = review.mend(&starts, &home) else {
                continue;
            };
            let counts = forecasts.trouble(&mended.assignment, look).counts();
            if counts < least {
                (least, kept) = (counts, mended.assignment);
            }
        }
        kept
    }

    /// Where everybody is, if everybody is where they may be.
    fn in_force(&self) -> Option<Vec<usize>> {
        let places = self.at.iter().zip(&self.allowed);
        places
            .map(|(at, allowed)| at.filter(|path| allowed[*path]))
            .collect()
    }

    fn work_max(&self) -> u64 {
        let varies = |(traffic, _): &(keiro_model::queueing::Traffic, _)| {
            traffic.length_spread != Spread::NONE
        };
        match self.traffic.iter().any(varies) {
            true => WORK_MAX / VARYING_WORK,
            false => WORK_MAX,
        }
    }
}

/// Who is on `path`, ascending.
pub(super) fn members(assignment: &[usize], path: usize) -> Vec<usize> {
    let on_path = |app: &usize| assignment[*app] == path;
    (0..assignment.len()).filter(on_path).collect()
}
