//! `keiro measure fit` and `compare`: what files say, and what is said about files that say nothing.

use std::fmt::Write;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Ran, finish, keiro, run};

/// A directory of series.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), text).expect("written");
        self.path(name)
    }
}

/// Numbers from −1 to 1 that look random and are always the same.
struct Wobble(u64);

impl Iterator for Wobble {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        // Knuth's MMIX generator.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Some((self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
    }
}

/// Twenty transfers of each of 40 sizes from 1 kB to 100 MB, 3 % more or less.
fn series(seed: u64, seconds: impl Fn(f64) -> f64) -> Vec<(u64, f64)> {
    let wobble = Wobble(seed);
    let sizes = (0..40).map(|i| (1e3 * 1e5_f64.powf(f64::from(i) / 39.0)).round());
    sizes
        .flat_map(|size| [size; 20])
        .zip(wobble)
        .map(|(bytes, wobble)| (bytes as u64, seconds(bytes) * (1.0 + 0.03 * wobble)))
        .collect()
}

fn csv(series: &[(u64, f64)]) -> String {
    let mut text = "# drawn\nbytes,seconds\n".to_owned();
    for (bytes, seconds) in series {
        writeln!(text, "{bytes},{seconds}").expect("a string takes all");
    }
    text
}

/// The paper's Japan to Korea.
fn internet(bytes: f64) -> f64 {
    match bytes / 1e6 {
        n if n < 10.0 => 0.6886 * n + 0.6580,
        n => 1.0150 * n + 2.6844,
    }
}

/// 100 Mbit/s with 50 ms.
fn wide(bytes: f64) -> f64 {
    bytes * 8.0 / 100e6 + 0.050
}

/// 20 Mbit/s with 5 ms.
fn near(bytes: f64) -> f64 {
    bytes * 8.0 / 20e6 + 0.005
}

fn number(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number at {pointer} in {value:#}"))
}

#[track_caller]
fn near_to(found: f64, truth: f64, share: f64) {
    assert!(
        (found / truth - 1.0).abs() <= share,
        "{found} instead of {truth}"
    );
}

#[track_caller]
fn refused(file: &str, parts: &[&str]) -> Ran {
    let ran = run(["measure", "fit", file]).expect_code(1);
    assert_eq!(ran.stdout, "");
    ran.says(&["keiro: ", "  try: "]).says(parts)
}

#[test]
fn the_papers_internet_is_fitted_back_in_its_units() {
    let files = Files::new();
    let file = files.write("internet.csv", csv(&series(1, internet)));
    let fit = run(["measure", "fit", &file, "--json", "--paper-units"]);
    let fit = fit.expect_code(0).json();
    assert_eq!(number(&fit, "/points"), 800.0);
    near_to(number(&fit, "/breaks/0/at_bytes"), 1e7, 0.10);
    let (low, high) = ("/breaks/0/low_bytes", "/breaks/0/high_bytes");
    assert!(number(&fit, low) <= 1e7 && number(&fit, high) >= 1e7);
    for (piece, slope, intercept) in [(0, 0.6886, 0.6580), (1, 1.0150, 2.6844)] {
        let at = |name: &str| number(&fit, &format!("/pieces/{piece}/{name}"));
        near_to(at("paper/slope_seconds_per_megabyte"), slope, 0.02);
        near_to(at("bandwidth_bits_per_second"), 8e6 / slope, 0.02);
        near_to(at("overhead_seconds"), intercept, 0.05);
        assert!(at("bandwidth_low_bits_per_second") < 8e6 / slope);
        assert!(at("bandwidth_high_bits_per_second") > 8e6 / slope);
        assert!(at("overhead_low_seconds") < intercept);
        assert!(at("overhead_high_seconds") > intercept);
    }
    assert_eq!(fit["sizes"].as_array().expect("sizes").len(), 40);
}

#[test]
fn the_table_has_lines_breaks_and_units() {
    let files = Files::new();
    let file = files.write("internet.csv", csv(&series(2, internet)));
    let text = run(["measure", "fit", &file]).expect_code(0).stdout;
    for part in [
        "800 transfers from 1 kB to 100 MB",
        "T(n) = 8n/B + oh",
        "Mbit/s",
        "break at",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    assert!(!text.contains("n in MB"));
    let text = run(["measure", "fit", &file, "--paper-units"])
        .expect_code(0)
        .stdout;
    assert!(
        text.contains("T(n), n in MB, T in s") && text.contains("0.68"),
        "{text}"
    );
}

#[test]
fn json_is_fitted_as_csv_is() {
    let files = Files::new();
    let series = series(3, wide);
    let records: Vec<Value> = series
        .iter()
        .map(|(bytes, seconds)| serde_json::json!({"bytes": bytes, "seconds": seconds}))
        .collect();
    let document = serde_json::json!({"server": "192.0.2.2", "samples": records});
    let csv = files.write("x.csv", csv(&series));
    let json = files.write("x.json", document.to_string());
    let [csv, json] = [csv, json].map(|file| {
        let ran = run(["measure", "fit", &file, "--json"]);
        ran.expect_code(0).json()
    });
    // Reading JSON may lose the last bit.
    for at in [
        "bandwidth_bits_per_second",
        "overhead_seconds",
        "overhead_low_seconds",
    ] {
        let at = format!("/pieces/0/{at}");
        near_to(number(&json, &at), number(&csv, &at), 1e-9);
    }
}

#[test]
fn a_figure_is_drawn_beside_the_answer() {
    let files = Files::new();
    let file = files.write("wide.csv", csv(&series(4, wide)));
    let picture = files.path("wide.svg");
    run(["measure", "fit", &file, "--json", "--figure", &picture])
        .expect_code(0)
        .json();
    let svg = std::fs::read_to_string(&picture).expect("the figure is there");
    assert!(svg.starts_with("<svg") && svg.contains("throughput"));
    let nowhere = files.path("nowhere/wide.svg");
    for (place, says) in [
        (nowhere.as_str(), "there is no directory"),
        (&files.path("."), "a directory, not a file"),
    ] {
        let ran = run(["measure", "fit", &file, "--figure", place]).expect_code(1);
        assert_eq!(ran.stdout, "");
        ran.says(&[says, place, "try: "]);
    }
    // The measurements under any of their names.
    for own in [file.clone(), files.path("./wide.csv")] {
        let ran = run(["measure", "fit", &file, "--figure", &own]).expect_code(1);
        ran.says(&["would replace the measurements in", "try: --figure", ".svg"]);
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            csv(&series(4, wide))
        );
    }
    // The answer costs nothing.
    let ran = run(["measure", "fit", &file, "--figure", "/dev/full"]).expect_code(1);
    assert!(ran.stdout.contains("T(n) = 8n/B + oh"), "{ran:#?}");
    let ran = ran.says(&["cannot write /dev/full", "No space left", "try: "]);
    // Nothing was measured that a document could keep.
    assert!(!ran.stderr.contains("--json"), "{ran:#?}");
}

#[test]
fn a_figure_of_nothing_leaves_the_old_one() {
    let files = Files::new();
    let wrong = files.write("wrong.csv", "1000,0.5\n");
    let picture = files.write("old.svg", "as it was");
    run(["measure", "fit", &wrong, "--figure", &picture]).expect_code(1);
    assert_eq!(std::fs::read_to_string(&picture).unwrap(), "as it was");
    let right = files.write("right.csv", csv(&series(4, wide)));
    run(["measure", "fit", &right, "--figure", &picture]).expect_code(0);
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg"), "{svg}");
}

#[test]
fn a_figure_is_drawn_by_either_reader_of_the_answer() {
    let files = Files::new();
    let file = files.write("wide.csv", csv(&series(4, wide)));
    let picture = files.path("wide.svg");
    let unread = |figure: &str| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = keiro(["measure", "fit", &file, "--figure", figure])
            .stdout(writer)
            .output()
            .expect("it runs");
        (
            output.status.code(),
            String::from_utf8(output.stderr).expect("text"),
        )
    };
    assert_eq!(unread(&picture), (Some(0), String::new()));
    let svg = std::fs::read_to_string(&picture).expect("the figure is there");
    assert!(svg.starts_with("<svg"));
    let (code, said) = unread("/dev/full");
    assert!(
        code == Some(1) && said.contains("cannot write /dev/full"),
        "{said}"
    );
}

#[test]
fn the_crossover_of_two_networks_is_found() {
    let files = Files::new();
    let a = files.write("wide.csv", csv(&series(5, wide)));
    let b = files.write("near.csv", csv(&series(6, near)));
    // Equation 2: 45 ms = 8n(1/20 − 1/100)/10^6 gives 140,625 bytes.
    let found = run(["measure", "compare", &a, &b, "--json"])
        .expect_code(0)
        .json();
    near_to(number(&found, "/crossovers/0/at_bytes"), 140_625.0, 0.05);
    assert!(number(&found, "/crossovers/0/low_bytes") < 140_625.0);
    assert!(number(&found, "/crossovers/0/high_bytes") > 140_625.0);
    assert_eq!(found["stretches"][0]["faster"], "b");
    assert_eq!(found["stretches"][1]["faster"], "a");
    assert!(number(&found, "/stretches/1/probability") > 0.99);
    let text = run(["measure", "compare", &a, &b]).expect_code(0).stdout;
    assert!(
        text.contains("on A is faster, where the lines cross"),
        "{text}"
    );
    let small = run(["measure", "compare", &a, &b, "--sizes", "1kB-50kB"]);
    let small = small.expect_code(0).stdout;
    assert!(
        small.contains("B is the faster one for all of these sizes"),
        "{small}"
    );
    assert_eq!(found["extrapolated"], serde_json::json!([]));
    assert!(!small.contains("were measured"), "{small}");
    let wide = run(["measure", "compare", &a, &b, "--sizes", "1MB-2GB"]);
    let wide = wide.expect_code(0).stdout;
    let beyond = "not all of these sizes were measured over A and over B";
    assert!(wide.contains(beyond), "{wide}");
    let same = run(["measure", "compare", &a, &a]).expect_code(0).stdout;
    assert!(same.contains("both are exactly as fast"), "{same}");
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let files = Files::new();
    let a = files.write("wide.csv", csv(&series(7, wide)));
    let b = files.write("near.csv", csv(&series(8, near)));
    let compare = || {
        let ran = run(["measure", "compare", &a, &b, "--json", "--seed", "7"]);
        ran.expect_code(0).stdout
    };
    assert_eq!(compare(), compare());
}

#[test]
fn files_that_say_nothing_are_refused_with_what_to_try() {
    let files = Files::new();
    let file = |text: &str| files.write("x.csv", text);
    refused(
        &file("bytes,seconds\n1000,0.5\n2000,fast\n"),
        &["x.csv:3", "`fast`", "no number"],
    );
    refused(&file("1000,0.5\n-2000,0.6\n"), &["x.csv:2", "-2000"]);
    refused(
        &file("1000,0.5\n2000,-0.6\n"),
        &["x.csv:2", "-0.6 s", "more than zero"],
    );
    for (line, says) in [
        ("0,0.6", "0 bytes"),
        ("2000,0", "0 s"),
        ("2000,inf", "not a finite number"),
        ("2000,NaN", "not a finite number"),
        ("2000.5,0.6", "2000.5"),
        ("1152921504606846976,0.6", "1152921504606846976"),
        ("2000", "no `seconds`"),
        ("2000;0.6", "2000;0.6"),
    ] {
        refused(&file(&format!("1000,0.5\n{line}\n")), &["x.csv:2", says]);
    }
    let scaled = |unit: f64| csv(&series(9, |bytes| unit * (0.1 + bytes * 1e-7)));
    for (unit, says) in [(1e300, "0 bit/s"), (1e-300, "Tbit/s")] {
        refused(
            &file(&scaled(unit)),
            &[says, "which no network has", "bytes"],
        );
    }
    refused(
        &file("1000,0.5\n2000,0.6\n"),
        &["2 transfers", "at least 4"],
    );
    let negative = r#"{"samples": [{"bytes": -5, "seconds": 1}]}"#;
    refused(&file(negative), &["x.csv: ", "`-5`"]);
    let none = r#"{"samples": [{"bytes": 0, "seconds": 1}]}"#;
    refused(&file(none), &["samples[0]", "0 bytes"]);
    refused(
        &file(&"1000,0.5\n".repeat(50)),
        &["the same size, 1000 bytes", "other sizes"],
    );
    let falling = csv(&series(9, |bytes| 10.0 - bytes / 2e7));
    refused(&file(&falling), &["do not rise with size", "larger sizes"]);
    let level: String = (1..=50).map(|n| format!("{},0.25\n", n * 1000)).collect();
    refused(
        &file(&level),
        &["times do not rise with size", "larger sizes"],
    );
    refused(
        &file("bytes;seconds\n1000;0,5\n"),
        &["x.csv:1", "separated by `;`", "commas"],
    );
    refused(
        &file("bytes,bytes,seconds\n1000,1000,0.5\n"),
        &["x.csv:1", "two columns are named `bytes`"],
    );
    refused(
        &file("size,time\n1,2\n"),
        &["x.csv:1", "`bytes`", "bytes,seconds"],
    );
    refused(
        &file("bytes,seconds\r1000,0.5\r2000,0.6\r\rfast,0.7\r"),
        &["x.csv:5", "`fast`"],
    );
    refused(&file(""), &["no transfers"]);
    refused(&file("{\"points\": 1}"), &["`samples`"]);
    refused(&files.path("nowhere.csv"), &["nowhere.csv", "No such file"]);
    refused(&files.path("."), &["directory"]);
    let binary = files.write("x.csv", b"\x00\xff\xfe\n");
    refused(&binary, &["x.csv:1"]);
}

#[test]
fn a_dash_is_standard_input() {
    let text = csv(&series(3, internet));
    let ran = finish(&mut keiro(["measure", "fit", "-"]), text.as_bytes()).expect_code(0);
    let wanted = "standard input: 800 transfers";
    assert!(ran.stdout.contains(wanted), "{}", ran.stdout);
    finish(&mut keiro(["measure", "fit", "-"]), b"1000;0.5\n")
        .expect_code(1)
        .says(&["standard input:1", "`;`"]);
    finish(
        &mut keiro(["measure", "compare", "-", "-"]),
        text.as_bytes(),
    )
    .expect_code(1)
    .says(&["cannot be both networks"]);
}

#[test]
fn networks_without_a_common_size_cannot_be_compared() {
    let files = Files::new();
    let all = series(10, wide);
    let (small, large) = all.split_at(all.len() / 2);
    let a = files.write("a.csv", csv(small));
    let b = files.write("b.csv", csv(large));
    run(["measure", "compare", &a, &b]).expect_code(1).says(&[
        "cannot compare",
        "no size was measured in both",
        "try: ",
    ]);
    run(["measure", "compare", &a, &b, "--sizes", "2MB-1MB"])
        .expect_code(64)
        .says(&["--sizes", "smaller size"]);
}

#[test]
fn usage_errors_end_with_64() {
    run(["measure", "fit"]).expect_code(64).says(&["<FILE>"]);
    run(["measure", "compare", "a.csv"])
        .expect_code(64)
        .says(&["<B>"]);
    run(["measure", "fit", "a.csv", "--jsno"])
        .expect_code(64)
        .says(&["--json"]);
    run(["measure", "compare", "a", "b", "--sizes", "1-2"])
        .expect_code(64)
        .says(&["--sizes"]);
    for (wrong, says) in [
        (&["192.0.2.1:", "--open"][..], "write HOST:PORT"),
        (&["2001:db8::1", "--open"], "write HOST:PORT"),
        (&["192.0.2.1:0", "--open"], "write HOST:PORT"),
        (&["h:1", "--open", "--sizes", "0B-1kB"], "is 1 byte"),
        (&["h:1", "--open", "--sizes", "2kB-1kB"], "smaller size"),
        (&["h:1", "--open", "--time", "0s"], "in no time"),
        (&["h:1", "--open", "--precision", "0%"], "above 0%"),
        (&["h:1", "--open", "--pause", "2h"], "60s at most"),
    ] {
        run([&["measure"], wrong].concat())
            .expect_code(64)
            .says(&[says]);
    }
    run(["show", "path", "osaka", "--history", "0s"])
        .expect_code(64)
        .says(&["--history", "in no time"]);
    run(["show", "path", "osaka", "--history", "59s"])
        .expect_code(64)
        .says(&["1min or more"]);
}
