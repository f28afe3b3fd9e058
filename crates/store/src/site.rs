//! What gateways of one site share, as JSON.
//!
//! Versions may differ between gateways: unknown fields are ignored, and new fields have defaults.
//! [`LAYOUT`] counts only changes that older versions would misread.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Layout of what is stored. Readers refuse another one.
pub const LAYOUT: u32 = 1;
/// Gateways of one site. Ours: far beyond any site; bounds memory.
pub const GATEWAYS_MAX: usize = 64;
/// Paths of one gateway, counted per peer. Ours: 64 paths to 64 peers.
pub const PATHS_MAX: usize = 4096;
/// Applications of one gateway, as many as its configuration may have.
pub const APPS_MAX: usize = 10_000;
/// Bytes of a name, as in the configuration.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of one stored document. Ours: under etcd's default request limit of 1.5 MiB, with room for
/// the key and the rest of the request.
pub const DOCUMENT_BYTES_MAX: usize = 1_400_000;

/// What one gateway publishes to its site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    pub gateway: String,
    /// Counted up by the gateway with every change, so that a plan can say what it was made from.
    #[serde(default)]
    pub sequence: u64,
    /// When they were made, by the gateway's own clock; for people, not for comparing.
    pub made_at_unix_seconds: f64,
    /// Its paths, one entry for each peer that a path leads to. Only those that may be used now.
    #[serde(default)]
    pub paths: Vec<PathInputs>,
    /// What enters at this gateway.
    #[serde(default)]
    pub apps: Vec<AppInputs>,
}

/// A path as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathInputs {
    /// Its name at that gateway.
    pub name: String,
    /// The gateway at its other end.
    pub peer: String,
    /// What it carries, with all headers.
    pub bandwidth_bits_per_second: f64,
    /// One way.
    pub delay_seconds: f64,
    /// 0 to 1.
    #[serde(default)]
    pub loss_ratio: f64,
    /// Standard deviation of the one-way delay; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<f64>,
    /// What others leave free of it; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bits_per_second: Option<f64>,
    /// What it carries for all gateways of the site together: `bandwidth_bits_per_second` and the
    /// traffic of the site's other gateways, as far as the gateway knows of it; `None`: of an older
    /// gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_bits_per_second: Option<f64>,
    /// It is a backup at one of its ends.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_backup: bool,
    /// What both ends pay for it together, in millionths of a unit of currency per gigabyte.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost_micros_per_gigabyte: u64,
}

/// An application as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppInputs {
    /// Its name at that gateway.
    pub name: String,
    /// The gateway that it sends to.
    pub peer: String,
    /// Mean length of its messages.
    pub length_bytes: f64,
    /// Mean time between their beginnings.
    pub interval_seconds: f64,
    /// Squared coefficient of variation of the lengths; `None`: they are all the same, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_cv2: Option<f64>,
    /// Squared coefficient of variation of the intervals; `None`: 1, as of exponential ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_cv2: Option<f64>,
    /// `None`: it has no latency target. Stored under the name that earlier releases read.
    #[serde(
        rename = "demand_seconds",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub latency_target_seconds: Option<f64>,
    /// Names of the paths that it may take; empty: all that lead to its peer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// It stays where it is, on the first of `paths`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pinned: bool,
    /// Where its gateway has put it for want of a plan that does; `None`: it is where the plan has
    /// it, or nowhere. A plan that was made from these inputs takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_now: Option<String>,
}

/// Which application takes which path, for the whole site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SitePlan {
    /// The store's number of this version. Set by the store when it is loaded, 0 before; grows with
    /// every plan for as long as the store's contents last.
    #[serde(skip)]
    pub revision: u64,
    /// The gateway that computed it.
    pub made_by: String,
    /// When, by that gateway's clock.
    pub made_at_unix_seconds: f64,
    /// The [`Inputs::sequence`] of every gateway that it was made from.
    #[serde(default)]
    pub made_from: BTreeMap<String, u64>,
    /// Gateway to application to path. An application without a path is absent.
    #[serde(default)]
    pub assignments: BTreeMap<String, BTreeMap<String, String>>,
    /// It was made with regard to what paths cost. Gateways choose among their paths themselves where one by an older
    /// gateway's plan costs more than another.
    #[serde(default, skip_serializing_if = "is_false")]
    pub knows_prices: bool,
}

impl SitePlan {
    /// Whether both say the same, whatever their numbers in their stores.
    pub fn is_same(&self, other: &Self) -> bool {
        let revision = self.revision;
        *self
            == Self {
                revision,
                ..other.clone()
            }
    }
}

/// A site as of one moment: its live gateways and the plan.
#[derive(Clone, Debug, Default)]
pub struct SiteView {
    /// By name; those whose entry has not run out.
    pub gateways: BTreeMap<String, Member>,
    /// `None`: there is none yet, it cannot be read, or the store has lost it. A gateway goes on
    /// with the last one that it had.
    pub plan: Option<SitePlan>,
    /// What a new plan has to be based on: the number of what is stored now, even where that cannot
    /// be read; 0: nothing is.
    pub plan_revision: u64,
    /// What is under this gateway's own name is not its own: another's of the same name, or left by
    /// this one before it was started again.
    pub is_name_taken: bool,
}

#[derive(Clone, Debug)]
pub struct Member {
    pub inputs: Inputs,
    /// How long this version of it has been seen here.
    pub age: Duration,
    /// The store's number of this version.
    pub revision: u64,
}

impl SiteView {
    /// The gateway that computes the plan: the live one of the smallest name.
    ///
    /// Every gateway finds it in the view alone, so that nothing has to be elected. Where two views
    /// differ for a moment, both may offer a plan; the store takes the first and refuses the second.
    /// `None`: no gateway is live.
    pub fn leader(&self) -> Option<&str> {
        self.gateways.keys().next().map(String::as_str)
    }

    /// Whether both say the same, whatever the age.
    pub fn is_same(&self, other: &Self) -> bool {
        self.plan_revision == other.plan_revision
            && self.is_name_taken == other.is_name_taken
            && self.plan == other.plan
            && self.gateways.len() == other.gateways.len()
            && self
                .gateways
                .iter()
                .zip(&other.gateways)
                .all(|((a, x), (b, y))| a == b && x.inputs == y.inputs)
    }
}

/// Why a document cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DocumentError {
    /// More than [`DOCUMENT_BYTES_MAX`].
    #[error("{bytes} bytes, at most {DOCUMENT_BYTES_MAX} are taken")]
    TooLarge { bytes: usize },
    /// Not JSON, or not of this form.
    #[error("not readable: {0}")]
    Unreadable(String),
    /// Written by a version that lays it out in another way.
    #[error("layout {0}, this version reads {LAYOUT}")]
    Layout(u32),
    /// A value that has no meaning.
    #[error("{0}")]
    Value(String),
}

/// A document of the store: can be checked for sense.
pub(crate) trait Document: Serialize + DeserializeOwned {
    fn check(&self) -> Result<(), DocumentError>;
}

#[derive(Serialize)]
struct Written<'a, T> {
    layout: u32,
    #[serde(flatten)]
    document: &'a T,
}

#[derive(Deserialize)]
struct LayoutOnly {
    layout: u32,
}

/// The document as it is stored.
pub(crate) fn encode<T: Document>(document: &T) -> Result<Vec<u8>, DocumentError> {
    document.check()?;
    let written = Written {
        layout: LAYOUT,
        document,
    };
    let bytes =
        serde_json::to_vec(&written).map_err(|e| DocumentError::Unreadable(e.to_string()))?;
    bounded(bytes.len())?;
    Ok(bytes)
}

/// Reads what is stored, which may be anything.
pub(crate) fn decode<T: Document>(bytes: &[u8]) -> Result<T, DocumentError> {
    bounded(bytes.len())?;
    let bytes = without_byte_order_mark(bytes);
    let unreadable = |e: serde_json::Error| DocumentError::Unreadable(e.to_string());
    let LayoutOnly { layout } = serde_json::from_slice(bytes).map_err(unreadable)?;
    if layout != LAYOUT {
        return Err(DocumentError::Layout(layout));
    }
    let document: T = serde_json::from_slice(bytes).map_err(unreadable)?;
    document.check()?;
    Ok(document)
}

/// The text behind a byte order mark, with which some editors begin a file in UTF-8.
pub(crate) fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// 1 to 64 bytes of `A-Z a-z 0-9 . _ -`, as in the configuration; not `.` or `..`.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.bytes().all(|byte| byte == b'.')
}

/// A name of the configuration, or one that a network makes of it and of the site's, as `office@tokyo`.
pub(crate) fn is_network_name(text: &str) -> bool {
    match text.split_once('@') {
        Some((of_network, site)) => is_name(of_network) && is_name(site),
        None => is_name(text),
    }
}

impl Document for Inputs {
    fn check(&self) -> Result<(), DocumentError> {
        name("gateway", &self.gateway)?;
        quantity("made_at_unix_seconds", self.made_at_unix_seconds)?;
        count("paths", self.paths.len(), PATHS_MAX)?;
        count("apps", self.apps.len(), APPS_MAX)?;
        for path in &self.paths {
            name("path", &path.name)?;
            name("peer", &path.peer)?;
            quantity("bandwidth_bits_per_second", path.bandwidth_bits_per_second)?;
            quantity("delay_seconds", path.delay_seconds)?;
            quantity("loss_ratio", path.loss_ratio)?;
            if path.loss_ratio > 1.0 {
                return Err(value(format!("loss_ratio {} is above 1", path.loss_ratio)));
            }
            quantity("jitter_seconds", path.jitter_seconds.unwrap_or(0.0))?;
            quantity(
                "available_bits_per_second",
                path.available_bits_per_second.unwrap_or(0.0),
            )?;
            quantity(
                "line_bits_per_second",
                path.line_bits_per_second.unwrap_or(0.0),
            )?;
        }
        for app in &self.apps {
            app_name(&app.name)?;
            name("peer", &app.peer)?;
            quantity("length_bytes", app.length_bytes)?;
            quantity("interval_seconds", app.interval_seconds)?;
            quantity("length_cv2", app.length_cv2.unwrap_or(0.0))?;
            quantity("interval_cv2", app.interval_cv2.unwrap_or(0.0))?;
            quantity("demand_seconds", app.latency_target_seconds.unwrap_or(0.0))?;
            count("paths of an app", app.paths.len(), PATHS_MAX)?;
            app.paths.iter().try_for_each(|path| name("path", path))?;
        }
        Ok(())
    }
}

impl Document for SitePlan {
    fn check(&self) -> Result<(), DocumentError> {
        name("made_by", &self.made_by)?;
        quantity("made_at_unix_seconds", self.made_at_unix_seconds)?;
        count("made_from", self.made_from.len(), GATEWAYS_MAX)?;
        count("gateways", self.assignments.len(), GATEWAYS_MAX)?;
        for (gateway, apps) in &self.assignments {
            name("gateway", gateway)?;
            count("apps", apps.len(), APPS_MAX)?;
            for (app, path) in apps {
                app_name(app)?;
                name("path", path)?;
            }
        }
        Ok(())
    }
}

fn name(what: &str, text: &str) -> Result<(), DocumentError> {
    if is_name(text) {
        return Ok(());
    }
    let shown: String = text.chars().take(NAME_BYTES_MAX).collect();
    Err(value(format!("{what}: {shown:?} is not a name")))
}

fn app_name(text: &str) -> Result<(), DocumentError> {
    match is_network_name(text) {
        true => Ok(()),
        false => name("app", text),
    }
}

fn quantity(what: &str, number: f64) -> Result<(), DocumentError> {
    if number.is_finite() && number >= 0.0 {
        return Ok(());
    }
    Err(value(format!(
        "{what}: {number} is not a number of at least 0"
    )))
}

fn count(what: &str, count: usize, max: usize) -> Result<(), DocumentError> {
    if count <= max {
        return Ok(());
    }
    Err(value(format!("{count} {what}, at most {max} are taken")))
}

fn bounded(bytes: usize) -> Result<(), DocumentError> {
    if bytes <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    Err(DocumentError::TooLarge { bytes })
}

fn value(text: String) -> DocumentError {
    DocumentError::Value(text)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            gateway: "tokyo-1".into(),
            sequence: 3,
            made_at_unix_seconds: 1.5e9,
            paths: vec![PathInputs {
                name: "fibre".into(),
                peer: "osaka".into(),
                bandwidth_bits_per_second: 1e8,
                delay_seconds: 0.004,
                ..PathInputs::default()
            }],
            apps: vec![AppInputs {
                name: "scada".into(),
                peer: "osaka".into(),
                length_bytes: 1200.0,
                interval_seconds: 0.02,
                latency_target_seconds: Some(0.03),
                ..AppInputs::default()
            }],
        }
    }

    #[test]
    fn documents_read_back_as_written() {
        let bytes = encode(&inputs()).unwrap();
        assert_eq!(decode::<Inputs>(&bytes).unwrap(), inputs());
        let plan = SitePlan {
            made_by: "tokyo-1".into(),
            assignments: [("tokyo-1".into(), [("scada".into(), "fibre".into())].into())].into(),
            ..SitePlan::default()
        };
        assert_eq!(decode::<SitePlan>(&encode(&plan).unwrap()).unwrap(), plan);
    }

    #[test]
    fn applications_of_a_network_have_the_names_of_application_and_site() {
        let read = |app: &str| {
            let mut inputs = inputs();
            inputs.apps[0].name = app.to_owned();
            encode(&inputs).and_then(|bytes| decode::<Inputs>(&bytes))
        };
        assert_eq!(read("office@tokyo").unwrap().apps[0].name, "office@tokyo");
        for bad in ["office@", "@tokyo", "a@b@c", "office@..", "@"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_passed_over() {
        let marked = [&b"\xef\xbb\xbf"[..], &encode(&inputs()).unwrap()].concat();
        assert_eq!(decode::<Inputs>(&marked).unwrap(), inputs());
    }

    #[test]
    fn fields_of_later_versions_are_ignored() {
        let text = r#"{"layout":1,"gateway":"a","made_at_unix_seconds":1,"colour":"red",
            "paths":[{"name":"p","peer":"b","bandwidth_bits_per_second":1,"delay_seconds":0,"mood":[]}]}"#;
        let inputs: Inputs = decode(text.as_bytes()).unwrap();
        assert_eq!(inputs.paths[0].loss_ratio, 0.0);
        assert!(inputs.apps.is_empty());
    }

    #[test]
    fn spreads_and_whole_lines_are_read_back_and_checked() {
        let mut published = inputs();
        published.paths[0].line_bits_per_second = Some(2e8);
        published.apps[0].length_cv2 = Some(0.4);
        published.apps[0].interval_cv2 = Some(2.0);
        let bytes = encode(&published).unwrap();
        assert_eq!(decode::<Inputs>(&bytes).unwrap(), published);
        let text = String::from_utf8(bytes).unwrap();
        for (field, value) in [
            ("length_cv2", "0.4"),
            ("interval_cv2", "2.0"),
            ("line_bits_per_second", "200000000.0"),
        ] {
            let given = format!("\"{field}\":{value}");
            let negative = text.replace(&given, &format!("\"{field}\":-1.0"));
            assert_ne!(negative, text, "{given}");
            let error = decode::<Inputs>(negative.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
        }
    }

    #[test]
    fn another_layout_is_refused() {
        let error = decode::<SitePlan>(br#"{"layout":2,"made_by":7}"#).unwrap_err();
        assert_eq!(error, DocumentError::Layout(2));
    }

    #[test]
    fn garbage_is_refused_with_a_reason() {
        for (garbage, reason) in [
            (&b"\xff\xfe"[..], "not readable"),
            (b"", "not readable"),
            (b"[]", "not readable"),
            (br#"{"layout":1}"#, "missing field"),
            (
                br#"{"layout":1,"gateway":"../etc","made_at_unix_seconds":0}"#,
                "is not a name",
            ),
            (
                br#"{"layout":1,"gateway":"a","made_at_unix_seconds":-1}"#,
                "at least 0",
            ),
        ] {
            let error = decode::<Inputs>(garbage).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let deep = format!("{{\"layout\":1,\"x\":{}", "[".repeat(100_000));
        assert!(decode::<Inputs>(deep.as_bytes()).is_err());
        let large = vec![b' '; DOCUMENT_BYTES_MAX + 1];
        assert!(matches!(
            decode::<SitePlan>(&large),
            Err(DocumentError::TooLarge { .. })
        ));
    }

    #[test]
    fn what_is_not_a_number_is_not_written() {
        let mut inputs = inputs();
        inputs.paths[0].delay_seconds = f64::NAN;
        assert!(matches!(encode(&inputs), Err(DocumentError::Value(_))));
    }

    #[test]
    fn a_gateway_with_all_the_applications_it_may_have_fits() {
        let app = |number| AppInputs {
            name: format!("application-{number}"),
            peer: "osaka".into(),
            length_bytes: 1200.5,
            interval_seconds: 0.02,
            latency_target_seconds: Some(0.03),
            ..AppInputs::default()
        };
        let inputs = Inputs {
            apps: (0..APPS_MAX).map(app).collect(),
            ..inputs()
        };
        assert!(encode(&inputs).unwrap().len() < DOCUMENT_BYTES_MAX);
    }

    #[test]
    fn the_smallest_name_leads() {
        let member = || Member {
            inputs: inputs(),
            age: Duration::ZERO,
            revision: 1,
        };
        let mut view = SiteView::default();
        assert_eq!(view.leader(), None);
        for name in ["c", "a", "b"] {
            view.gateways.insert(name.into(), member());
        }
        assert_eq!(view.leader(), Some("a"));
    }
}
