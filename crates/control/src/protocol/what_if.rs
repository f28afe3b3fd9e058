//! What a plan may suppose: changes that have not happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use keiro_units::{Bandwidth, Probability};
use serde::{Deserialize, Serialize};

use super::PathRole;
use crate::{
    config::{CostPerGb, Name, PATH_RATE_MAX, PATH_RATE_MIN},
    units::{Quantity, Text, UnitError},
};

/// One supposed change. As text, which [`WhatIf::parse`] reads:
///
/// | text | meaning |
/// |---|---|
/// | `lose PATH` | the path is down |
/// | `add APP`, `add 5 APP` | as many more applications like this one |
/// | `set PATH rate=50Mbit delay=80ms loss=5%` | the path is like this; one of them is enough |
/// | `set PATH role=backup cost=3.5 budget=spent` | the path is used on these terms; or `role=primary`, `budget=left` |
/// | `latency-target APP 20ms`, `latency-target APP none` | the application has this latency target |
///
/// `latency_target` is read as `latency-target`. So is `demand`, the word of 0.1.0, in this release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum WhatIf {
    /// A path is down.
    LosePath { path: String },
    /// More applications like one that there is.
    AddApp {
        /// The name of the one that they are like.
        app: String,
        count: u64,
    },
    /// A path is another one.
    SetPath {
        path: String,
        /// What it carries; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_bits_per_second: Option<u64>,
        /// One-way propagation delay; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delay_seconds: Option<f64>,
        /// The part of its packets that is lost; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_ratio: Option<f64>,
        /// Its role at this end; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<PathRole>,
        /// Money per 10^9 bytes at this end; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_per_gb: Option<f64>,
        /// The budget of the month is used up; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget_spent: Option<bool>,
    },
    /// An application has another latency target.
    #[serde(alias = "set_demand")]
    SetTarget {
        app: String,
        /// Target delay; absent: none.
        #[serde(
            default,
            alias = "demand_seconds",
            skip_serializing_if = "Option::is_none"
        )]
        latency_target_seconds: Option<f64>,
    },
}

/// Applications that may be supposed at once.
pub const WHAT_IF_APPS_MAX: u64 = 1000;
/// Changes that may be supposed at once.
pub const WHAT_IF_MAX: usize = 64;

/// Why a text supposes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhatIfError {
    /// None of the forms.
    #[error(
        "`{0}` supposes nothing; try: \"lose PATH\", \"add 5 APP\", \"set PATH rate=50Mbit delay=80ms \
         loss=5% role=backup cost=3.5 budget=spent\" or \"latency-target APP 20ms\""
    )]
    Form(String),
    /// A value that is none.
    #[error("{0}")]
    Value(UnitError),
    /// A value that makes no sense.
    #[error("{0}")]
    InvalidValue(InvalidValue),
    /// One of a path's properties given twice.
    #[error("`{key}` is given twice in `{text}`; try: one of the two")]
    Twice { key: String, text: String },
    /// Too many or no applications.
    #[error("`{0}` is not a number of applications; try: 1 to {WHAT_IF_APPS_MAX}")]
    Count(String),
}

/// A value that no path or application can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// 0 bit/s.
    #[error("the rate of a path must be more than 0 bit/s; try: lose the path instead")]
    Rate,
    /// Less or more than the configuration allows a path.
    #[error(
        "the rate of a path is out of range; try: {} to {}",
        Text(PATH_RATE_MIN),
        Text(PATH_RATE_MAX)
    )]
    RateOutOfRange,
    /// More than a day, or no time at all.
    #[error("a delay must be 0 s to 24 h")]
    Delay,
    /// Everything, or no ratio at all.
    #[error("a loss must be 0 % to 90 %; try: lose the path instead")]
    Loss,
    /// Negative, more than a million, or no number.
    #[error("a cost per gigabyte must be a number from 0 to 1000000")]
    Cost,
    /// A role of another version.
    #[error("the role of a path must be primary or backup")]
    Role,
    /// 0 s, more than a day, or no time at all.
    #[error("a latency target must be more than 0 s and at most 24 h; try: none")]
    LatencyTarget,
}

/// Longer times make no sense, as in the configuration: 24 h.
const SECONDS_MAX: f64 = 24.0 * 3600.0;
/// A path that loses more is planned with as if it lost this much (`keiro_planner::steer`).
const LOSS_MAX: f64 = 0.9;

/// Two changes are about one thing, so that the first comes to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{first}` and `{second}` suppose {what} twice")]
pub struct SupposedTwice {
    /// What they are about.
    pub what: String,
    /// The change that comes to nothing.
    pub first: String,
    /// The change that takes its place.
    pub second: String,
}

impl WhatIf {
    /// Whether every thing is supposed once; applications may be added again and again.
    ///
    /// # Errors
    /// The first two changes about one thing.
    pub fn check(changes: &[Self]) -> Result<(), SupposedTwice> {
        let mut supposed = BTreeMap::new();
        for change in changes {
            for what in change.subjects() {
                if let Some(first) = supposed.insert(what.clone(), change) {
                    let (first, second) = (first.to_string(), change.to_string());
                    return Err(SupposedTwice {
                        what,
                        first,
                        second,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether its values make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        match self {
            Self::LosePath { .. } | Self::AddApp { .. } => Ok(()),
            Self::SetPath {
                rate_bits_per_second,
                delay_seconds,
                loss_ratio,
                role,
                cost_per_gb,
                ..
            } => {
                if cost_per_gb.is_some_and(|cost| CostPerGb::new(cost).is_none()) {
                    return Err(InvalidValue::Cost);
                }
                if *role == Some(PathRole::Unknown) {
                    return Err(InvalidValue::Role);
                }
                let possible =
                    PATH_RATE_MIN.as_bits_per_second()..=PATH_RATE_MAX.as_bits_per_second();
                let delay = delay_seconds.unwrap_or_default();
                let loss = loss_ratio.unwrap_or_default();
                match (rate_bits_per_second, delay, loss) {
                    (Some(0), ..) => Err(InvalidValue::Rate),
                    (Some(rate), ..) if !possible.contains(rate) => {
                        Err(InvalidValue::RateOutOfRange)
                    }
                    (_, delay, _) if !(0.0..=SECONDS_MAX).contains(&delay) => {
                        Err(InvalidValue::Delay)
                    }
                    (_, _, loss) if !(0.0..=LOSS_MAX).contains(&loss) => Err(InvalidValue::Loss),
                    _ => Ok(()),
                }
            }
            Self::SetTarget {
                latency_target_seconds,
                ..
            } => match latency_target_seconds {
                Some(latency_target) if !(1e-9..=SECONDS_MAX).contains(latency_target) => {
                    Err(InvalidValue::LatencyTarget)
                }
                _ => Ok(()),
            },
        }
    }

    /// What the change is about.
    fn subjects(&self) -> Vec<String> {
        match self {
            Self::LosePath { path } => vec![format!("the loss of {path}")],
            Self::AddApp { .. } => Vec::new(),
            Self::SetPath {
                path,
                rate_bits_per_second,
                delay_seconds,
                loss_ratio,
                role,
                cost_per_gb,
                budget_spent,
            } => {
                let given = [
                    ("rate", rate_bits_per_second.is_some()),
                    ("delay", delay_seconds.is_some()),
                    ("loss", loss_ratio.is_some()),
                    ("role", role.is_some()),
                    ("cost", cost_per_gb.is_some()),
                    ("budget", budget_spent.is_some()),
                ];
                let given = given.into_iter().filter(|(_, given)| *given);
                given.map(|(key, _)| format!("{path}'s {key}")).collect()
            }
            Self::SetTarget { app, .. } => vec![format!("{app}'s latency target")],
        }
    }

    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn parse(text: &str) -> Result<Self, WhatIfError> {
        let form = || WhatIfError::Form(text.to_owned());
        let words: Vec<&str> = text.split_whitespace().collect();
        let name = |name: &str| match Name::in_use(name) {
            Ok(name) => Ok(name.to_string()),
            Err(_) => Err(form()),
        };
        let change = match words[..] {
            ["lose", path] => Self::LosePath { path: name(path)? },
            ["add", app] => Self::AddApp {
                app: name(app)?,
                count: 1,
            },
            ["add", count, app] => Self::AddApp {
                app: name(app)?,
                count: number_of(count)?,
            },
            [keyword, app, "none"] if is_latency_target(keyword) => Self::SetTarget {
                app: name(app)?,
                latency_target_seconds: None,
            },
            [keyword, app, latency_target] if is_latency_target(keyword) => Self::SetTarget {
                app: name(app)?,
                latency_target_seconds: Some(value::<Duration>(latency_target)?.as_secs_f64()),
            },
            ["set", path, ref values @ ..] if !values.is_empty() => {
                set_path(name(path)?, values).ok_or_else(form)??
            }
            _ => return Err(form()),
        };
        change.validate().map_err(WhatIfError::InvalidValue)?;
        Ok(change)
    }
}

impl fmt::Display for WhatIf {
    /// As [`WhatIf::parse`] reads it, if the values make sense.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |seconds: f64| match Duration::try_from_secs_f64(seconds) {
            Ok(time) => Text(time).to_string(),
            Err(_) => format!("{seconds}s"),
        };
        match self {
            Self::LosePath { path } => write!(f, "lose {path}"),
            Self::AddApp { app, count: 1 } => write!(f, "add {app}"),
            Self::AddApp { app, count } => write!(f, "add {count} {app}"),
            Self::SetPath {
                path,
                rate_bits_per_second,
                delay_seconds,
                loss_ratio,
                role,
                cost_per_gb,
                budget_spent,
            } => {
                write!(f, "set {path}")?;
                if let Some(rate) = rate_bits_per_second {
                    let rate = Text(Bandwidth::from_bits_per_second(*rate));
                    write!(f, " rate={rate}")?;
                }
                if let Some(delay) = delay_seconds {
                    write!(f, " delay={}", time(*delay))?;
                }
                match loss_ratio.map(|loss| (Probability::new(loss), loss)) {
                    Some((Some(loss), _)) => write!(f, " loss={}", Text(loss))?,
                    Some((None, loss)) => write!(f, " loss={loss}")?,
                    None => {}
                }
                match role {
                    Some(PathRole::Backup) => write!(f, " role=backup")?,
                    Some(PathRole::Primary) => write!(f, " role=primary")?,
                    Some(PathRole::Unknown) => write!(f, " role=unknown")?,
                    None => {}
                }
                if let Some(cost) = cost_per_gb {
                    write!(f, " cost={cost}")?;
                }
                match budget_spent {
                    Some(true) => write!(f, " budget=spent"),
                    Some(false) => write!(f, " budget=left"),
                    None => Ok(()),
                }
            }
            Self::SetTarget {
                app,
                latency_target_seconds: Some(latency_target),
            } => write!(f, "latency-target {app} {}", time(*latency_target)),
            Self::SetTarget {
                app,
                latency_target_seconds: None,
            } => write!(f, "latency-target {app} none"),
        }
    }
}

/// Whether a keyword of [`WhatIf::parse`] is about a latency target.
fn is_latency_target(keyword: &str) -> bool {
    matches!(keyword, "latency-target" | "latency_target" | "demand")
}

fn number_of(count: &str) -> Result<u64, WhatIfError> {
    let digits = count.trim_end_matches(['x', '×']);
    let number = digits.parse().ok();
    number
        .filter(|number| (1..=WHAT_IF_APPS_MAX).contains(number))
        .ok_or_else(|| WhatIfError::Count(count.to_owned()))
}

/// `None`: not of the form.
fn set_path(name: String, values: &[&str]) -> Option<Result<WhatIf, WhatIfError>> {
    let mut set = PathValues::default();
    let mut written = BTreeSet::new();
    for word in values {
        let (key, text) = word.split_once('=')?;
        if !written.insert(key) {
            return Some(Err(WhatIfError::Twice {
                key: key.to_owned(),
                text: format!("set {name} {}", values.join(" ")),
            }));
        }
        if let Err(error) = set.set(key, text)? {
            return Some(Err(error));
        }
    }
    Some(Ok(WhatIf::SetPath {
        path: name,
        rate_bits_per_second: set.rate,
        delay_seconds: set.delay,
        loss_ratio: set.loss,
        role: set.role,
        cost_per_gb: set.cost,
        budget_spent: set.budget_spent,
    }))
}

/// What [`WhatIf::SetPath`] sets.
#[derive(Default)]
struct PathValues {
    rate: Option<u64>,
    delay: Option<f64>,
    loss: Option<f64>,
    role: Option<PathRole>,
    cost: Option<f64>,
    budget_spent: Option<bool>,
}

impl PathValues {
    /// `None`: there is no such key, or it has no such value.
    fn set(&mut self, key: &str, text: &str) -> Option<Result<(), WhatIfError>> {
        match key {
            "rate" => match value::<Bandwidth>(text) {
                Ok(rate) => self.rate = Some(rate.as_bits_per_second()),
                Err(error) => return Some(Err(error)),
            },
            "delay" => match value::<Duration>(text) {
                Ok(delay) => self.delay = Some(delay.as_secs_f64()),
                Err(error) => return Some(Err(error)),
            },
            "loss" => match value::<Probability>(text) {
                Ok(loss) => self.loss = Some(loss.get()),
                Err(error) => return Some(Err(error)),
            },
            "role" => {
                self.role = Some(match text {
                    "primary" => PathRole::Primary,
                    "backup" => PathRole::Backup,
                    _ => return None,
                });
            }
            "cost" => self.cost = Some(text.parse().ok()?),
            "budget" => {
                self.budget_spent = Some(match text {
                    "spent" => true,
                    "left" => false,
                    _ => return None,
                });
            }
            _ => return None,
        }
        Some(Ok(()))
    }
}

fn value<T: Quantity>(text: &str) -> Result<T, WhatIfError> {
    T::parse(text).map_err(WhatIfError::Value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_what_if_is_read() {
        let path = "osaka".to_owned();
        let app = "A3".to_owned();
        for (text, wanted) in [
            ("lose osaka", WhatIf::LosePath { path: path.clone() }),
            (
                "add 5 A3",
                WhatIf::AddApp {
                    app: app.clone(),
                    count: 5,
                },
            ),
            (
                "add  A3",
                WhatIf::AddApp {
                    app: app.clone(),
                    count: 1,
                },
            ),
            (
                "set osaka rate=50Mbit loss=5%",
                WhatIf::SetPath {
                    path,
                    rate_bits_per_second: Some(50_000_000),
                    delay_seconds: None,
                    loss_ratio: Some(0.05),
                    role: None,
                    cost_per_gb: None,
                    budget_spent: None,
                },
            ),
            (
                "set osaka role=backup cost=3.5 budget=spent",
                WhatIf::SetPath {
                    path: "osaka".to_owned(),
                    rate_bits_per_second: None,
                    delay_seconds: None,
                    loss_ratio: None,
                    role: Some(PathRole::Backup),
                    cost_per_gb: Some(3.5),
                    budget_spent: Some(true),
                },
            ),
            (
                "latency-target A3 20ms",
                WhatIf::SetTarget {
                    app: app.clone(),
                    latency_target_seconds: Some(0.02),
                },
            ),
            (
                "latency-target A3 none",
                WhatIf::SetTarget {
                    app,
                    latency_target_seconds: None,
                },
            ),
        ] {
            assert_eq!(WhatIf::parse(text), Ok(wanted.clone()), "{text}");
            let shown = wanted.to_string();
            assert_eq!(WhatIf::parse(&shown), Ok(wanted), "{shown}");
        }
    }

    #[test]
    fn a_latency_target_has_one_canonical_spelling() {
        for target in ["20ms", "none"] {
            let canonical = format!("latency-target A3 {target}");
            let wanted = WhatIf::parse(&canonical).unwrap();
            for keyword in ["latency_target", "demand"] {
                let change = WhatIf::parse(&format!("{keyword} A3 {target}")).unwrap();
                assert_eq!(change, wanted);
                assert_eq!(change.to_string(), canonical);
            }
        }
    }

    #[test]
    fn json_of_0_1_0_sets_a_latency_target() {
        let old = r#"{"change":"set_demand","app":"A3","demand_seconds":0.02}"#;
        let change: WhatIf = serde_json::from_str(old).unwrap();
        assert_eq!(change, WhatIf::parse("latency-target A3 20ms").unwrap());
    }

    #[test]
    fn contradictory_suppositions_are_refused() {
        let check = |texts: &[&str]| {
            let changes: Vec<WhatIf> = texts.iter().map(|t| WhatIf::parse(t).unwrap()).collect();
            WhatIf::check(&changes).map_err(|twice| twice.to_string())
        };
        let fine = [
            "lose osaka",
            "set nara rate=1Mbit",
            "set nara delay=1ms",
            "latency-target A3 1ms",
            "add A3",
            "add A3",
        ];
        assert_eq!(check(&fine), Ok(()));
        for (twice, what) in [
            (["lose osaka", "lose osaka"], "the loss of osaka"),
            (
                [
                    "set nara rate=1Mbit loss=1%",
                    "set nara rate=2Mbit delay=1ms",
                ],
                "nara's rate",
            ),
            (
                ["latency-target A3 1ms", "latency-target A3 none"],
                "A3's latency target",
            ),
        ] {
            let said = check(&twice).unwrap_err();
            let [first, second] = twice;
            assert_eq!(
                said,
                format!("`{first}` and `{second}` suppose {what} twice")
            );
        }
    }

    #[test]
    fn invalid_suppositions_are_refused_with_an_example() {
        for text in [
            "",
            "lose",
            "lose a b",
            "set osaka",
            "set osaka mtu=3",
            "gain osaka",
            "lose a/b",
        ] {
            let error = WhatIf::parse(text).unwrap_err();
            assert!(matches!(error, WhatIfError::Form(_)), "{text}: {error}");
            assert!(error.to_string().contains("try:"), "{error}");
        }
        for key in ["rate=1Mbit", "delay=1ms", "loss=1%"] {
            let error = WhatIf::parse(&format!("set osaka {key} {key}")).unwrap_err();
            assert!(matches!(error, WhatIfError::Twice { .. }), "{key}: {error}");
        }
        for text in ["add 0 A3", "add 1001 A3", "add -1 A3", "add x A3"] {
            let error = WhatIf::parse(text).unwrap_err();
            assert!(matches!(error, WhatIfError::Count(_)), "{text}: {error}");
        }
        for text in [
            "set osaka rate=0bit",
            "set osaka rate=999bit",
            "set osaka rate=99999Tbit",
            "set osaka delay=25h",
            "set osaka loss=91%",
            "set osaka loss=100%",
            "latency-target A3 0s",
            "latency-target A3 25h",
        ] {
            let error = WhatIf::parse(text).unwrap_err();
            assert!(
                matches!(error, WhatIfError::InvalidValue(_)),
                "{text}: {error}"
            );
        }
        for text in [
            "set osaka rate=fast",
            "set osaka loss=200%",
            "latency-target A3 -1ms",
        ] {
            let error = WhatIf::parse(text).unwrap_err();
            assert!(matches!(error, WhatIfError::Value(_)), "{text}: {error}");
        }
    }
}
