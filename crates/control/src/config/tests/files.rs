//! Files as a whole: bounds, reports, differences, the examples, and arbitrary text.

use std::{collections::BTreeSet, fmt::Write};

use proptest::prelude::*;

use super::*;

#[test]
fn file_size_and_entry_count_are_bounded() {
    let long = format!("{GOOD}#{}", "x".repeat(1 << 20));
    assert_eq!(
        problems(&long),
        [
            "longer than 1048576 bytes; is this the right file? if it is, share the load between several gateways"
        ]
    );
    let mut many = GOOD.to_owned();
    for i in 0..10_000 {
        write!(
            many,
            "[[listener]]\napp=\"A5\"\nudp=\"10.{}.{}.1:1\"\n",
            i / 256,
            i % 256
        )
        .unwrap();
    }
    let found = problems(&many);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("more than 10000 entries; "));
    assert!(found[0].ends_with("; share the load between several gateways"));
}

#[test]
fn paths_are_bounded() {
    let mut many = GOOD.to_owned();
    for i in 0..63 {
        write!(
            many,
            "[[path]]\nname=\"p{i}\"\nlocal=\"10.0.1.{i}:1\"\nrate=\"1kbit\"\n"
        )
        .unwrap();
    }
    assert_eq!(
        problems(&many),
        ["298:7: more than 64 paths; share them between several gateways"]
    );
}

#[test]
fn a_long_report_ends_with_a_count() {
    let keys: String = (0..150).map(|i| format!("unknown_{i} = 1\n")).collect();
    let error = Config::parse(&format!("{keys}{GOOD}"), "f").unwrap_err();
    assert_eq!(error.problems().len(), 100);
    assert!(
        error.to_string().ends_with("\nand 50 more problems"),
        "{error}"
    );
}

#[test]
fn long_lines_are_cut_around_the_problem() {
    let long = "x".repeat(500);
    let text = format!(
        "gateway = {{ name = \"{}\", b = \"{long}\" }}",
        "é".repeat(30)
    );
    let text = format!("{text} # {long}\n[[path]]\n");
    let error = Config::parse(&text, "f").unwrap_err().to_string();
    let carets: Vec<&str> = error.lines().filter(|l| l.contains("^")).collect();
    assert!(
        carets[0].ends_with(&format!("{}{}", " ".repeat(19), "^".repeat(32))),
        "{error}"
    );
    assert!(
        error
            .lines()
            .filter(|l| l.starts_with("  "))
            .all(|l| l.chars().count() < 110),
        "{error}"
    );
}

#[test]
fn files_that_cannot_be_read_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.toml");
    let shown = file.display();
    let error_text = || Config::load(&file).unwrap_err().to_string();
    assert_eq!(
        error_text(),
        format!("{shown}: no such file; `keiro init` writes a commented one")
    );
    std::fs::write(&file, b"[gateway]\nname = \"\xff\"\n").unwrap();
    assert_eq!(
        error_text(),
        format!("{shown}: line 2 is not UTF-8; save the file as UTF-8 text")
    );
    std::fs::write(&file, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert_eq!(
        error_text(),
        format!(
            "{shown}: longer than 1048576 bytes; is this the right file? if it is, share the load between several gateways"
        )
    );
    std::fs::write(&file, GOOD).unwrap();
    assert_eq!(Config::load(&file).unwrap().apps.len(), 2);
    let error = Config::load(directory.path()).unwrap_err().to_string();
    assert!(
        error.ends_with(": a directory, not a regular file; name a TOML file"),
        "{error}"
    );
}

#[test]
fn problems_have_a_json_form() {
    let error = Config::parse(&GOOD.replace("delay =", "dellay ="), "f").unwrap_err();
    assert_eq!(
        serde_json::to_value(&error).unwrap(),
        serde_json::json!({
            "problems": [{
                "file": "f",
                "place": {
                    "line": 12, "column": 1, "source": "dellay = \"100ms\"", "caret": 0, "width": 6
                },
                "message": "unknown key `dellay` in [[path]]",
                "hint": "did you mean `delay`?"
            }],
            "omitted": 0
        })
    );
}

/// `GOOD` without the tables of `[[listener]]` and `[[forward]]`, which come last.
fn good_until_listeners() -> &'static str {
    let (head, rest) = GOOD.split_once("[[listener]]").unwrap();
    assert!(rest.contains("[[forward]]") && !rest.contains("[[app]]"));
    head
}

#[test]
fn keys_of_0_1_0_mean_what_the_new_ones_mean() {
    let tables = "[[listener]]\napp = \"A5\"\nudp = \"127.0.0.1:5005\"\n\
                  [[forward]]\napp = \"A5\"\nudp = \"10.0.0.9:5005\"\n\
                  [aggregation]\ncontroller = \"none\"\n";
    let new = format!("{}{tables}", good_until_listeners());
    let config = Config::parse(&new, "f").unwrap();
    assert!(config.warnings().is_empty());
    let inline = "listener = [{ app = \"A5\", udp = \"127.0.0.1:5005\" }]\n\
                  forward = [{ app = \"A5\", udp = \"10.0.0.9:5005\" }]\n\
                  aggregation.controller = \"none\"\n";
    for (text, warnings) in [
        (
            new.replace("listener", "intake")
                .replace("forward", "outlet"),
            2,
        ),
        (new.replace("controller =", "law ="), 1),
        (new.replace("controller =", "'law' ="), 1),
        (new.replace("latency_target =", "demand ="), 1),
        (
            new.replace("latency_target =", "\"demand\" =")
                .replace('\n', "\r\n"),
            1,
        ),
        (
            format!(
                "{}{}",
                inline
                    .replace("listener", "intake")
                    .replace("forward", "outlet")
                    .replace("controller", "law"),
                good_until_listeners()
            ),
            3,
        ),
    ] {
        let old = Config::parse(&text, "f").unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert_eq!(old.warnings().len(), warnings, "{text}");
        assert!(old.diff(&config).is_empty(), "{text}");
    }
}

#[test]
fn warnings_and_problems_come_together_and_in_the_order_of_the_file() {
    let text = GOOD
        .replace("latency_target =", "demand =")
        .replace("[[forward]]", "[[outlet]]");
    let warnings = Config::parse(&text, "f").unwrap();
    let lines = |problems: &[Problem]| -> Vec<usize> {
        let places = problems.iter().filter_map(|problem| problem.place.as_ref());
        places.map(|place| place.line).collect()
    };
    let in_order = lines(warnings.warnings());
    assert!(in_order.len() == 2 && in_order.is_sorted(), "{in_order:?}");
    let error = Config::parse(&text.replace("delay =", "dellay ="), "f").unwrap_err();
    assert_eq!(
        (error.problems().len(), lines(error.warnings())),
        (1, in_order)
    );
    assert!(error.to_string().contains("\nwarning: f:"), "{error}");
}

#[test]
fn a_key_under_both_names_is_an_error_that_names_both() {
    let found = problems(&GOOD.replace("latency_target =", "latency_target = \"1s\"\ndemand ="));
    assert_eq!(
        found,
        [
            "31:1: `demand` is the old name of `latency_target`, and both are written here; write only `latency_target`"
        ]
    );
}

#[test]
fn a_diff_names_what_changed() {
    let old = good();
    assert!(old.diff(&good()).is_empty());
    assert_eq!(old.diff(&good()).to_string(), "nothing changed");
    let text = GOOD
        .replace("tolerance = \"2%\"", "scheduler = \"fifo\"")
        .replace("\"1.5Gbit\"", "\"2Gbit\"")
        .replace("198.51.100.1", "198.51.100.2")
        .replace("\"A3\"", "\"A4\"")
        .replace("10.0.0.9", "10.0.0.10")
        .replace("127.0.0.1:5005", "127.0.0.1:5006");
    let new = Config::parse(&text, "f").unwrap();
    let diff = old.diff(&new);
    assert_eq!(
        diff.to_string(),
        "gateway ~scheduler ~tolerance; path ~path2; peer ~osaka; app +A4 -A3; listener \
         +127.0.0.1:5006 -127.0.0.1:5005; forward ~A5"
    );
}

#[test]
fn reordered_entries_are_no_change() {
    let path1 = &GOOD[GOOD.find("[[path]]").unwrap()..GOOD.rfind("[[path]]").unwrap()];
    let moved = format!("{}\n{path1}", GOOD.replace(path1, ""));
    let new = Config::parse(&moved, "f").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(new.paths[0].name.as_str(), "path2");
    assert!(good().diff(&new).is_empty(), "{}", good().diff(&new));
}

#[test]
fn the_template_is_the_default_example() {
    let rendered = Template::example().render();
    let example = include_str!("../../../../../packaging/examples/gateway.toml");
    assert_eq!(
        rendered, example,
        "packaging/examples/gateway.toml must be the template's text"
    );
    let config = Config::parse(&rendered, "gateway.toml").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.paths.len(), 2);
}

/// Without the leading `#` of everything that is an entry and not prose.
fn uncommented(text: &str) -> String {
    let entry = |line: &str| {
        let Some(rest) = line.strip_prefix('#') else {
            return false;
        };
        let key = rest.split(' ').next().unwrap_or_default();
        rest.starts_with('[') || (!key.is_empty() && rest.starts_with(&format!("{key} = ")))
    };
    let lines = text.lines().map(|l| if entry(l) { &l[1..] } else { l });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_key_occurs_in_the_template_with_a_good_value() {
    let text = uncommented(&Template::example().render())
        .replace("public_key = \"...\"", &format!("public_key = \"{KEY}\""))
        .replacen(
            "[[listener]]",
            "[[app]]\nname = \"sensors\"\nclass = \"datagram\"\npeer = \"osaka\"\n\
             [[app]]\nname = \"plc\"\nclass = \"stream\"\npeer = \"osaka\"\n\
             [[app]]\nname = \"web\"\nclass = \"stream\"\npeer = \"osaka\"\n\
             [[app]]\nname = \"scada\"\nclass = \"datagram\"\npeer = \"osaka\"\n\
             [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"osaka\"\n\
             [[app]]\nname = \"voice\"\nclass = \"datagram\"\npeer = \"osaka\"\n[[listener]]",
            1,
        );
    let config = Config::parse(&text, "f").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((config.peers.len(), config.apps.len()), (1, 7));
    assert_eq!(
        (config.tenants.len(), config.tenants[0].rules.len()),
        (3, 1)
    );
    assert_eq!((config.listeners.len(), config.forwards.len()), (4, 4));
    // The known keys, as an unknown one makes the reader list them.
    for header in [
        "[gateway]",
        "[history]",
        "[aggregation]",
        "[[path]]",
        "[[peer]]",
        "[[app]]",
        "[[listener]]",
        "[[forward]]",
        "[tenant.blue]",
        "[tenant.blue.peer.osaka]",
        "[[tenant.blue.rule]]",
        "[tenant.green.port_forward.web]",
        "[tenant.red.internet]",
        "[fairness]",
        "[message_tls]",
        "[[message_client]]",
    ] {
        let broken = text.replacen(
            &format!("\n{header}"),
            &format!("\n{header}\nqqqqqqqq = 1 #"),
            1,
        );
        let error_text = problems(&broken).join("\n");
        let (_, keys) = error_text
            .split_once("known keys are ")
            .unwrap_or_else(|| panic!("{error_text}"));
        // Some of a tenant's keys are tables.
        let is_table = |key: &str| ["rule", "port_forward", "internet"].contains(&key);
        for key in keys.split(", ").filter(|key| !is_table(key)) {
            assert!(
                text.contains(&format!("\n{key} = ")),
                "{header} {key} is not in the template"
            );
        }
    }
}

#[test]
fn a_template_for_odd_values_is_valid() {
    let template = Template {
        name: Name::new("a").unwrap(),
        private_key_file: PathBuf::from("/tmp/with \"quotes\" and \\"),
        uplinks: vec![Uplink {
            name: Name::new("p").unwrap(),
            local: Local::Address("[2001:db8::1]:7600".parse().unwrap()),
            rate: Some(Bandwidth::from_bits_per_second(1_234_567)),
            remark: Some("two\nlines".to_owned()),
        }],
        auto: false,
        auto_port: 7600,
    };
    let config = Config::parse(&template.render(), "f").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.gateway.private_key_file, template.private_key_file);
    assert_eq!(config.paths[0].rate, template.uplinks[0].rate);
}

#[test]
fn a_template_by_interfaces_has_the_uplinks_as_comments() {
    for (port, expected) in [
        (7600, "\n#uplinks_port = 7600\n"),
        (7700, "\nuplinks_port = 7700\n"),
    ] {
        let template = Template {
            auto: true,
            auto_port: port,
            ..Template::example()
        };
        let text = template.render();
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("\n#[[path]] # the leased line\n#name = \"path1\"\n"),
            "{text}"
        );
        let config = Config::parse(&text, "f").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(config.paths, []);
        let auto = config.gateway.auto_uplinks.expect("it is by interfaces");
        assert_eq!((auto.port, auto.rate), (port, None));
    }
}

#[test]
fn the_lab_examples_describe_one_overlay() {
    let a = include_str!("../../../../../packaging/examples/gateway-a.toml");
    let b = include_str!("../../../../../packaging/examples/gateway-b.toml");
    let a = Config::parse(a, "gateway-a.toml").unwrap_or_else(|e| panic!("{e}"));
    let b = Config::parse(b, "gateway-b.toml").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((a.paths.len(), a.apps.len()), (2, 5));
    for (here, there) in [(&a, &b), (&b, &a)] {
        let peer = &here.peers[0];
        assert_eq!(peer.name, there.gateway.name);
        for (path, endpoint) in &peer.endpoints {
            let name = here[*path].name.as_str();
            let local = &there[there.path_named(name).unwrap()].local;
            assert_eq!(*local, Local::Address(*endpoint));
        }
    }
    for app in &a.apps {
        let there = &b[b.app_named(app.name.as_str()).unwrap()];
        assert_eq!(
            (there.class, there.latency_target),
            (app.class, app.latency_target)
        );
    }
    // [path-selection table 2], in order: length, interval, demand.
    let table = [
        (1_000, 200, 1000),
        (100, 100, 500),
        (100, 100, 20),
        (10, 100, 100),
        (10, 100, 20),
    ];
    for (app, (kilobytes, interval, latency_target)) in a.apps.iter().zip(table) {
        assert_eq!(app.length, Some(ByteCount::new(kilobytes * 1000)));
        assert_eq!(app.interval, Some(Duration::from_millis(interval)));
        assert_eq!(
            app.latency_target,
            Some(Duration::from_millis(latency_target))
        );
    }
}

proptest! {
    #[test]
    fn arbitrary_configuration_does_not_panic(
        cuts in prop::collection::vec((0..GOOD.len(), 0..20_usize, "[\\PC\n\"\\[\\]=#{}.]{0,6}"), 1..6),
    ) {
        let mut text = GOOD.to_owned();
        for (at, length, insert) in cuts {
            let start = text.floor_char_boundary(at.min(text.len()));
            let end = text.floor_char_boundary((start + length).min(text.len()));
            text.replace_range(start..end.max(start), &insert);
        }
        if let Err(error) = Config::parse(&text, "f") {
            prop_assert!(!error.problems().is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn garbage_is_refused(text in "\\PC{0,200}") {
        prop_assert!(Config::parse(&text, "f").is_err());
    }
}

/// Keys by table, as the reader lists them when it meets an unknown one.
fn known_keys(header: &str) -> BTreeSet<String> {
    let text = GOOD.replacen(
        &format!("\n{header}"),
        &format!("\n{header}\nqqqqqqqq = 1"),
        1,
    );
    let error_text = problems(&text).join("\n");
    let (_, keys) = error_text
        .split_once("known keys are ")
        .unwrap_or_else(|| panic!("{error_text}"));
    keys.lines()
        .next()
        .unwrap_or_default()
        .split(", ")
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_documentation_has_every_key_and_no_other() {
    let document = include_str!("../../../../../docs/configuration.md");
    for header in [
        "[[path]]",
        "[[peer]]",
        "[[app]]",
        "[[listener]]",
        "[[forward]]",
    ] {
        let section = document.split(&format!("\n## `{header}`\n")).nth(1);
        let section = section.unwrap_or_else(|| panic!("no section {header}"));
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section
            .lines()
            .filter_map(|l| l.strip_prefix("| `")?.split('`').next());
        let documented: BTreeSet<String> = rows.map(str::to_owned).collect();
        assert_eq!(documented, known_keys(header), "{header}");
    }
}

#[test]
fn a_long_line_of_nonsense_is_refused_with_a_count() {
    for nonsense in ["=", "[", "a.", "{", "\""] {
        let error = Config::parse(&nonsense.repeat(50_000), "f").unwrap_err();
        assert!(error.problems().len() <= 100);
        assert!(error.to_string().len() < 100_000);
    }
}
