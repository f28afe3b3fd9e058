//! Plans that differ from the built-in ones: read from a file, or with settings in place of some values.

use std::{
    ops::Range,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use keiro_config::{FileLimits, Report};
use serde::Serialize;
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue},
};

use crate::{
    error::PlanError,
    laboratory::TOPOLOGIES,
    plan::{PLANS, Plan, SETUPS},
    setup::nearest,
};

/// Text of a plan, and where it differs from a built-in one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The whole plan as TOML: a setup or workloads that the plan names are tables within it.
    pub text: String,
    pub origin: Origin,
}

/// Origin of a plan, for the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// Name of the file that it was read from; `None` for a built-in plan.
    pub file: Option<String>,
    /// Values that were set, as `KEY=VALUE`.
    pub set: Vec<String>,
}

/// `KEY=VALUE`, with a dotted key: a value that replaces one of the plan's.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    path: Vec<String>,
    value: Value,
    text: String,
}

/// Plans have a few kilobytes.
const LIMITS: FileLimits = FileLimits {
    bytes_max: 1 << 20,
    missing_hint: "`keiro-lab experiment show ID > FILE` writes one",
    too_long_hint: "a plan has a few kilobytes",
};

/// Ours; the deepest key of a plan has six parts.
const KEY_PARTS_MAX: usize = 16;

impl Written {
    /// The whole plan as a document, for JSON.
    pub fn document(&self) -> Table {
        self.text.parse().unwrap_or_default()
    }
}

/// The parts of a dotted key as TOML has it, where a part with a dot is quoted.
fn key_parts(key: &str) -> Option<Vec<String>> {
    let mut value = Value::Table(format!("{} = 0", key.trim()).parse().ok()?);
    let mut parts = Vec::new();
    while let Value::Table(table) = value {
        let (part, rest) = table.into_iter().next()?;
        parts.push(part);
        value = rest;
    }
    (parts.len() <= KEY_PARTS_MAX).then_some(parts)
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let usage = || "write KEY=VALUE, as in run.rounds=3 or 'tenants.1.delay=20ms'".to_owned();
        let (key, value) = text.split_once('=').ok_or_else(usage)?;
        let path = key_parts(key).ok_or_else(usage)?;
        Ok(Self {
            path,
            value: value_of(value.trim()),
            text: text.to_owned(),
        })
    }
}

/// The TOML value, or the text itself where it is none: quantities such as `20ms` need no quotes.
fn value_of(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>();
    let only = parsed.ok().filter(|table| table.len() == 1);
    let value = only.and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

impl Plan {
    /// Reads a plan from a file. A setup that it names is looked for beside it, then among the built-in ones.
    ///
    /// # Errors
    /// What is wrong with the file, and where.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let text = LIMITS.read(path)?;
        let file = path.display().to_string();
        let root = root_of(path, &text);
        let mut plan = Self::parse(&file, &text, |name| named_text(&root, name))?;
        plan.check_topology(&root)?;
        let name = path.file_name().unwrap_or_default();
        plan.written.origin.file = Some(name.to_string_lossy().into_owned());
        Ok(plan)
    }

    /// The plan with these values; of several for one key the last counts.
    ///
    /// # Errors
    /// The setting that names no key or has no acceptable value, and what is accepted.
    pub fn with(self, settings: &[Setting]) -> Result<Self, PlanError> {
        if settings.is_empty() {
            return Ok(self);
        }
        let refused = |of: &[Setting], what: String| PlanError::Setting {
            id: self.id.clone(),
            settings: of.iter().map(|s| s.text.clone()).collect(),
            what,
        };
        let mut plan = self.varied(settings).or_else(|all| {
            // The first that is refused alone is to blame, or else all of them together.
            for one in settings.chunks(1) {
                self.varied(one).map_err(|what| refused(one, what))?;
            }
            Err(refused(settings, all))
        })?;
        plan.written.origin = self.written.origin;
        let set = settings.iter().map(|setting| setting.text.clone());
        plan.written.origin.set.extend(set);
        Ok(plan)
    }

    fn varied(&self, settings: &[Setting]) -> Result<Self, String> {
        let mut table: Table = self
            .written
            .text
            .parse()
            .map_err(|e: toml::de::Error| e.to_string())?;
        for setting in settings {
            setting.apply(&mut table)?;
        }
        let text = toml::to_string_pretty(&table).map_err(|error| error.to_string())?;
        Self::parse("the plan", &text, |_| None).map_err(|error| without_places(&error))
    }

    /// Refuses to run a built-in plan if the repository around `directory` has another one of this name, or
    /// another setup or topology for it: an edit must not be ignored.
    ///
    /// # Errors
    /// [`PlanError::Edited`] with the file that differs.
    pub fn check_edits(&self, directory: &Path) -> Result<(), PlanError> {
        let is_keiro = |root: &&Path| root.join("crates/experiment/Cargo.toml").is_file();
        let Some(root) = directory.ancestors().find(is_keiro) else {
            return Ok(());
        };
        let plan = format!("{}/plan", self.id);
        let text = PLANS.iter().find(|(id, _)| *id == self.id);
        let of_setup = match self.accuracy() {
            Some(accuracy) => &accuracy.workloads.id,
            None => &self.setup.id,
        };
        let setup = SETUPS.iter().find(|(name, _)| name == of_setup);
        let built_in = text.map(|(_, text)| (plan.as_str(), *text));
        let experiments = root.join("experiments");
        for (name, built_in) in built_in.into_iter().chain(setup.copied()) {
            let file = experiments.join(format!("{name}.toml"));
            let Some(text) = read_if_there(&file)? else {
                continue;
            };
            if built_in != text {
                let run = experiments.join(format!("{}/plan.toml", self.id));
                return Err(PlanError::Edited {
                    file: file.display().to_string(),
                    hint: format!(
                        "run it with `--plan {}`, or build keiro-lab again",
                        run.display()
                    ),
                });
            }
        }
        self.check_topology(&experiments)
    }

    /// Topologies are built in; one below `root` that differs would be ignored.
    fn check_topology(&self, root: &Path) -> Result<(), PlanError> {
        let topology = &self.setup.topology;
        let file = root.join(format!("{topology}.toml"));
        let built_in = TOPOLOGIES.iter().find(|(name, _)| name == topology);
        match (built_in, read_if_there(&file)?) {
            (Some((_, built_in)), Some(text)) if text != *built_in => Err(PlanError::Edited {
                file: file.display().to_string(),
                hint: "topologies are built in: build keiro-lab again".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// The directory below which `path` has the names that it uses: `experiments` for
/// `experiments/ID/plan.toml`, else the file's own.
fn root_of(path: &Path, text: &str) -> PathBuf {
    let directory = path.parent().unwrap_or(Path::new(""));
    let table = text.parse::<Table>().unwrap_or_default();
    let id = table.get("id").and_then(Value::as_str).unwrap_or_default();
    match directory.ends_with(id) {
        true => {
            let depth = Path::new(id).components().count();
            let root = directory.ancestors().nth(depth);
            root.unwrap_or(directory).to_owned()
        }
        false => directory.to_owned(),
    }
}

/// The text of a file; `None`: there is none.
fn read_if_there(file: &Path) -> Result<Option<String>, PlanError> {
    match file.try_exists() {
        Ok(false) => Ok(None),
        _ => Ok(Some(LIMITS.read(file)?)),
    }
}

fn named_text(root: &Path, name: &str) -> Option<String> {
    let plain = Path::new(name)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let file = root.join(format!("{name}.toml"));
    let beside = plain.then(|| LIMITS.read(&file).ok()).flatten();
    beside.or_else(|| built_in_setup(name))
}

/// The setup or workloads of this name below `experiments/`.
pub(crate) fn built_in_setup(name: &str) -> Option<String> {
    let (_, text) = SETUPS.iter().find(|(known, _)| *known == name)?;
    Some((*text).to_owned())
}

/// The messages of an error without places, which are those of a text that the user has not written.
fn without_places(error: &PlanError) -> String {
    let PlanError::Form(error) = error else {
        return error.to_string();
    };
    let messages = error.problems().iter().map(|problem| match &problem.hint {
        Some(hint) => format!("{}; {hint}", problem.message),
        None => problem.message.clone(),
    });
    messages.collect::<Vec<_>>().join("; ")
}

impl Setting {
    fn apply(&self, table: &mut Table) -> Result<(), String> {
        let Some((last, path)) = self.path.split_last() else {
            return Ok(());
        };
        let mut at = String::new();
        let mut inner = None;
        for part in path {
            inner = Some(match inner {
                None => entry(table, part),
                Some(value) => step(value, part, &at)?,
            });
            at = match at.is_empty() {
                true => part.clone(),
                false => format!("{at}.{part}"),
            };
        }
        match inner {
            None => *entry(table, last) = self.value.clone(),
            Some(value) => *step(value, last, &at)? = self.value.clone(),
        }
        Ok(())
    }
}

/// Reading the plan refuses keys that it does not know.
fn entry<'t>(table: &'t mut Table, key: &str) -> &'t mut Value {
    table
        .entry(key)
        .or_insert_with(|| Value::Table(Table::new()))
}

/// What `part` names in `value`, whose own key is `at`.
fn step<'t>(value: &'t mut Value, part: &str, at: &str) -> Result<&'t mut Value, String> {
    match value {
        Value::Table(table) => Ok(entry(table, part)),
        Value::Array(array) => {
            let names: Vec<String> = array.iter().filter_map(name_of).collect();
            let number = part.parse::<usize>().ok().filter(|n| *n < array.len());
            let place = number.or_else(|| array.iter().position(|e| is_called(e, part)));
            let count = array.len();
            place.and_then(|place| array.get_mut(place)).ok_or_else(|| {
                let near = nearest(part, names.iter().map(String::as_str));
                let known = match names.is_empty() {
                    true => String::new(),
                    false => format!(", or a name: {}", names.join(", ")),
                };
                let last = count.saturating_sub(1);
                format!(
                    "`{at}` has no entry `{part}`{near}; write a number from 0 to {last}{known}"
                )
            })
        }
        other => {
            let kind = other.type_str();
            Err(format!("`{at}` is a {kind} and has no key `{part}`"))
        }
    }
}

fn name_of(entry: &Value) -> Option<String> {
    entry.get("name")?.as_str().map(str::to_owned)
}

fn is_called(entry: &Value, name: &str) -> bool {
    name_of(entry).is_some_and(|known| known == name)
}

/// Whether the plan has a table of this name, and not the name of a file.
pub(crate) fn has_within(text: &str, file: &str, key: &str) -> Result<bool, PlanError> {
    let table: Table = keiro_config::deserialize(text, file)?;
    Ok(table.get(key).is_some_and(Value::is_table))
}

/// The plan with the file that it names in `key` as a table at its end. Comments are kept.
pub(crate) fn with_part(text: &str, key: &str, part: &str) -> String {
    let mut whole = text.to_owned();
    if let Some(range) = span_of(text, key) {
        whole.replace_range(range, "");
    }
    if !whole.ends_with('\n') {
        whole.push('\n');
    }
    whole.push_str(&format!("\n[{key}]\n"));
    for line in part.lines() {
        for bracket in ["[[", "["] {
            if let Some(name) = line.strip_prefix(bracket) {
                whole.push_str(&format!("{bracket}{key}.{name}"));
                break;
            }
        }
        if !line.starts_with('[') {
            whole.push_str(line);
        }
        whole.push('\n');
    }
    let expected = || {
        let mut table: Table = text.parse().ok()?;
        table.insert(key.to_owned(), Value::Table(part.parse().ok()?));
        Some(table)
    };
    match (whole.parse::<Table>().ok(), expected()) {
        (is, Some(expected)) if is.as_ref() != Some(&expected) => {
            // A line that begins with a bracket was no header: without comments then.
            toml::to_string_pretty(&expected).unwrap_or(whole)
        }
        _ => whole,
    }
}

/// Bytes of a key of the root table and its value.
fn span_of(text: &str, key: &str) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let (key, value) = table
        .get_ref()
        .iter()
        .find(|(known, _)| known.get_ref() == key)?;
    Some(key.span().start..value.span().end)
}

/// `what` as a problem of the place in the text that it speaks of: a text or key that it has between
/// backquotes, or the table or key with which it begins.
pub(crate) fn located(file: &str, text: &str, what: &str) -> PlanError {
    let Some(at) = place_of(text, what) else {
        return PlanError::meaning(file, what.to_owned());
    };
    let mut report = Report::new(file, text);
    let (message, hint) = what.split_once("; ").unwrap_or((what, ""));
    report.add(&at, message, hint);
    match report.finish() {
        Err(error) => PlanError::Form(error),
        Ok(_) => PlanError::meaning(file, what.to_owned()),
    }
}

fn place_of(text: &str, what: &str) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut places = Vec::new();
    of_table(table.get_ref(), &mut places);
    let place = |name: &str| {
        let found = places.iter().find(|(known, _)| known == name);
        found.map(|(_, at)| at.clone())
    };
    let quoted = what.split('`').skip(1).step_by(2);
    // A name is more exact than the table that has it.
    let first = what.trim_start_matches('[').split([']', ':', ' ']).next();
    let of_key = |name: &str| place(&format!("{name}s"));
    let first = first.filter(|name| !name.is_empty());
    quoted
        .filter_map(place)
        .next()
        .or_else(|| first.and_then(|name| place(name).or_else(|| of_key(name))))
}

/// Names and places of all keys and texts.
fn of_table(table: &DeTable<'_>, places: &mut Vec<(String, Range<usize>)>) {
    for (key, value) in table {
        places.push((key.get_ref().to_string(), key.span()));
        of_value(value, places);
    }
}

fn of_value(value: &Spanned<DeValue<'_>>, places: &mut Vec<(String, Range<usize>)>) {
    match value.get_ref() {
        DeValue::String(text) => places.push((text.to_string(), value.span())),
        DeValue::Array(array) => array.iter().for_each(|entry| of_value(entry, places)),
        DeValue::Table(table) => of_table(table, places),
        _ => {}
    }
}
