//! A dashboard as Grafana reads it: rows of panels, variables, units from the declarations.

use serde_json::{Value, json};

use crate::{
    catalogue::{Kind, Metric, Scale},
    query::Query,
};

/// Of Grafana 10 and newer, which convert it.
const SCHEMA_VERSION: u32 = 39;
/// Columns of Grafana's grid.
pub const COLUMNS: u32 = 24;
/// Lines of a panel.
const HEIGHT: u32 = 8;
/// Lines of a panel with one number.
const NUMBER_HEIGHT: u32 = 4;
/// Prometheus' scrape interval is at most that long for rates to be there.
pub const RATE_WINDOW: &str = "$__rate_interval";

/// A dashboard that is being made.
#[derive(Clone, Debug)]
pub struct Board {
    uid: &'static str,
    title: &'static str,
    description: &'static str,
    /// Variables by their labels, with the metric that has their values.
    variables: Vec<(&'static str, &'static str)>,
    rows: Vec<(&'static str, Vec<Panel>)>,
}

/// One picture.
#[derive(Clone, Debug)]
pub struct Panel {
    title: String,
    shape: Shape,
    /// Queries with what their lines are called.
    queries: Vec<(Query, String)>,
    unit: &'static str,
    description: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Lines,
    /// The newest value.
    Number,
    /// Now and then, one line for each.
    States,
    Table,
}

impl Panel {
    /// Lines over time, in the unit of the first query's metric.
    pub fn lines(title: &str, queries: &[(&str, &str)]) -> Self {
        Self::new(title, Shape::Lines, queries)
    }

    /// The newest value.
    pub fn number(title: &str, query: &str) -> Self {
        Self::new(title, Shape::Number, &[(query, "")])
    }

    /// 0 and 1 over time: red and green.
    pub fn states(title: &str, query: &str, name: &str) -> Self {
        Self::new(title, Shape::States, &[(query, name)])
    }

    /// The newest values in a table, the greatest first.
    pub fn table(title: &str, query: &str) -> Self {
        Self::new(title, Shape::Table, &[(query, "")])
    }

    /// One declared metric over time, per series, as its kind wants it; `filter` chooses series.
    pub fn of(metric: &Metric, filter: &str) -> Self {
        let name = metric.name;
        let query = match (metric.kind, metric.scale) {
            (Kind::Counter, Scale::Bytes) => format!("8 * rate({name}{{{filter}}}[{RATE_WINDOW}])"),
            (Kind::Counter, _) => format!("rate({name}{{{filter}}}[{RATE_WINDOW}])"),
            (Kind::Histogram, _) => {
                format!(
                    "histogram_quantile(0.99, sum by (le) (rate({name}_bucket{{{filter}}}[{RATE_WINDOW}])))"
                )
            }
            _ => format!("{name}{{{filter}}}"),
        };
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|label| format!("{{{{{label}}}}}"))
            .collect();
        let legend = match labels.is_empty() {
            true => "{{instance}}".to_owned(),
            false => labels.join(" "),
        };
        Self::new(
            metric.name.trim_start_matches("keiro_"),
            Shape::Lines,
            &[(&query, &legend)],
        )
    }

    fn new(title: &str, shape: Shape, queries: &[(&str, &str)]) -> Self {
        let queries: Vec<(Query, String)> = queries
            .iter()
            .map(|(query, name)| (Query::own(*query), (*name).to_owned()))
            .collect();
        let mut described: Vec<&Metric> = Vec::new();
        for metric in queries.iter().filter_map(|(query, _)| query.metric()) {
            if !described.contains(&metric) {
                described.push(metric);
            }
        }
        let text = |metric: &&Metric| format!("{}: {}.", metric.name, metric.help);
        let description: Vec<String> = described.iter().map(text).collect();
        let unit = queries.first().map_or("short", |(query, _)| unit(query));
        Self {
            title: title.to_owned(),
            shape,
            queries,
            unit,
            description: description.join("\n\n"),
        }
    }

    /// Another unit than that of the metric, where the query makes another quantity of it.
    #[must_use]
    pub fn in_unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    fn json(&self, id: u32, at: (u32, u32), size: (u32, u32)) -> Value {
        let mut targets = Vec::new();
        for (number, (query, name)) in self.queries.iter().enumerate() {
            targets.push(json!({
                "datasource": datasource(),
                "refId": ref_id(number),
                "expr": query.text(),
                "legendFormat": name,
                "instant": matches!(self.shape, Shape::Number | Shape::Table),
                "range": matches!(self.shape, Shape::Lines | Shape::States),
                "format": if self.shape == Shape::Table { "table" } else { "time_series" },
            }));
        }
        json!({
            "id": id,
            "type": self.shape.kind(),
            "title": self.title,
            "description": self.description,
            "datasource": datasource(),
            "gridPos": { "x": at.0, "y": at.1, "w": size.0, "h": size.1 },
            "targets": targets,
            "fieldConfig": { "defaults": self.field(), "overrides": [] },
            "options": self.shape.options(),
        })
    }

    fn field(&self) -> Value {
        match self.shape {
            Shape::States => json!({
                "unit": "short",
                "color": { "mode": "thresholds" },
                "custom": { "fillOpacity": 70, "lineWidth": 0 },
                "mappings": [{ "type": "value", "options": {
                    "0": { "text": "no", "color": "red" },
                    "1": { "text": "yes", "color": "green" },
                } }],
                "thresholds": { "mode": "absolute", "steps": [
                    { "color": "red", "value": null },
                    { "color": "green", "value": 1 },
                ] },
            }),
            Shape::Lines => json!({ "unit": self.unit, "custom": {
                "drawStyle": "line", "lineWidth": 1, "fillOpacity": 5, "showPoints": "never", "spanNulls": false,
            } }),
            Shape::Number | Shape::Table => json!({ "unit": self.unit }),
        }
    }
}

impl Shape {
    fn kind(self) -> &'static str {
        match self {
            Self::Lines => "timeseries",
            Self::Number => "stat",
            Self::States => "state-timeline",
            Self::Table => "table",
        }
    }

    fn options(self) -> Value {
        match self {
            Self::Lines => json!({
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            Self::Number => json!({
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
                "colorMode": "none", "graphMode": "none", "textMode": "value",
            }),
            Self::States => json!({ "showValue": "never", "mergeValues": true, "rowHeight": 0.8 }),
            Self::Table => {
                json!({ "showHeader": true, "sortBy": [{ "displayName": "Value", "desc": true }] })
            }
        }
    }
}

impl Board {
    /// An empty one; `uid` is part of its address.
    pub fn new(uid: &'static str, title: &'static str, description: &'static str) -> Self {
        Self {
            uid,
            title,
            description,
            variables: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// A variable that is called as the label is, whose values are those of the label in `metric`.
    #[must_use]
    pub fn variable(mut self, label: &'static str, metric: &'static str) -> Self {
        self.variables.push((label, metric));
        self
    }

    /// A heading with panels below it.
    #[must_use]
    pub fn row(mut self, title: &'static str, panels: impl IntoIterator<Item = Panel>) -> Self {
        self.rows.push((title, panels.into_iter().collect()));
        self
    }

    /// Its file's name.
    pub fn file(&self) -> String {
        format!("{}.json", self.uid)
    }

    /// Every query of its panels.
    pub fn queries(&self) -> impl Iterator<Item = &Query> {
        let panels = self.rows.iter().flat_map(|(_, panels)| panels);
        panels.flat_map(|panel| panel.queries.iter().map(|(query, _)| query))
    }

    /// The names of its variables.
    pub fn variables(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.variables.iter().map(|(label, _)| *label)
    }

    /// As Grafana imports it, for reading.
    pub fn json(&self) -> String {
        let board = json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["keiro"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": true,
            "timezone": "",
            "refresh": "30s",
            "graphTooltip": 1,
            "time": { "from": "now-6h", "to": "now" },
            "links": [{
                "type": "dashboards", "tags": ["keiro"], "asDropdown": true, "title": "Keiro",
                "includeVars": true, "keepTime": true,
            }],
            "templating": { "list": self.templating() },
            "annotations": { "list": [] },
            "panels": self.panels(),
        });
        let text = serde_json::to_string_pretty(&board).expect("a value is JSON");
        format!("{text}\n")
    }

    fn templating(&self) -> Vec<Value> {
        let mut list = vec![json!({
            "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
        })];
        let mut filter = String::new();
        for (label, metric) in &self.variables {
            let query = Query::own(format!("{metric}{{{filter}}}"));
            list.push(json!({
                "name": label, "label": label, "type": "query", "datasource": datasource(),
                "query": { "query": format!("label_values({}, {label})", query.text()), "refId": "values" },
                "definition": format!("label_values({}, {label})", query.text()),
                "includeAll": true, "allValue": ".*", "multi": true, "refresh": 2, "sort": 1,
                "current": { "text": ["All"], "value": ["$__all"] },
            }));
            if !filter.is_empty() {
                filter.push(',');
            }
            filter.push_str(&format!("{label}=~\"${label}\""));
        }
        list
    }

    fn panels(&self) -> Vec<Value> {
        let mut panels = Vec::new();
        let (mut id, mut y) = (1, 0);
        for (title, row) in &self.rows {
            panels.push(json!({
                "id": id, "type": "row", "title": title, "collapsed": false, "panels": [],
                "gridPos": { "x": 0, "y": y, "w": COLUMNS, "h": 1 },
            }));
            (id, y) = (id + 1, y + 1);
            let mut x = 0;
            let mut height = 0;
            for panel in row {
                let (width, lines) = match panel.shape {
                    Shape::Number => (4, NUMBER_HEIGHT),
                    Shape::Lines => (12, HEIGHT),
                    Shape::States | Shape::Table => (12, HEIGHT),
                };
                if x + width > COLUMNS {
                    (x, y, height) = (0, y + height, 0);
                }
                panels.push(panel.json(id, (x, y), (width, lines)));
                (id, x, height) = (id + 1, x + width, height.max(lines));
            }
            y += height;
        }
        panels
    }
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// A, B, C …
fn ref_id(number: usize) -> String {
    let letter = b'A' + u8::try_from(number % 26).unwrap_or(0);
    char::from(letter).to_string()
}

/// Grafana's name of the unit.
fn unit(query: &Query) -> &'static str {
    let Some(metric) = query.metric() else {
        return "short";
    };
    let is_rate = query.text().contains("rate(") && metric.kind == Kind::Counter;
    match (metric.scale, is_rate) {
        (Scale::Bytes, true) => "bps",
        (Scale::Bytes, false) => "decbytes",
        (Scale::Seconds, _) => "s",
        (Scale::BitsPerSecond, _) => "bps",
        (Scale::Ratio, _) => "percentunit",
        (Scale::Time, _) => "dateTimeAsIso",
        (Scale::Flag | Scale::Number, true) => "cps",
        (Scale::Flag | Scale::Number, false) => "short",
    }
}
