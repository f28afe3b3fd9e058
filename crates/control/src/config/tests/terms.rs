//! Roles, costs and budgets of paths, and what is essential.

use super::*;

const PATH: &str = "[gateway]\nname = \"a\"\n[[path]]\nname = \"dsl\"\ninterface = \"eth0\"\n\
                    [[path]]\nname = \"lte\"\ninterface = \"wwan0\"\n";

fn lte(keys: &str) -> Path {
    let config = Config::parse(&format!("{PATH}{keys}"), "f").unwrap_or_else(|e| panic!("{e}"));
    assert!(config.warnings().is_empty());
    config.paths[1].clone()
}

#[test]
fn roles_costs_and_budgets_are_read() {
    let plain = lte("");
    assert_eq!((plain.terms(), plain.budget), (PathTerms::FREE, None));
    let path = lte(
        "role = \"backup\"\ncost_per_gb = 3.5\nmonthly_budget = \"10GB\"\nbudget_day = 15\nmetered = true\n",
    );
    assert_eq!(path.role, PathRole::Backup);
    assert_eq!(Some(path.cost), CostPerGb::new(3.5));
    let budget = Budget {
        bytes: ByteCount::new(10_000_000_000),
        day: 15,
    };
    assert_eq!((path.budget, path.is_metered), (Some(budget), true));
    assert_eq!(Some(lte("cost_per_gb = 2\n").cost), CostPerGb::new(2.0));
}

#[test]
fn wrong_roles_costs_and_budgets_are_refused() {
    for (keys, part) in [
        ("role = \"spare\"", "role"),
        ("role = 1", "role"),
        ("cost_per_gb = -1", "write a number from 0 to 1000000"),
        ("cost_per_gb = 1e7", "write a number from 0 to 1000000"),
        ("cost_per_gb = nan", "finite"),
        ("cost_per_gb = \"3.5\"", "write a number"),
        ("monthly_budget = \"1MB\"", "out of range"),
        (
            "monthly_budget = \"1GB\"\nbudget_day = 29",
            "write a number from 1 to 28",
        ),
        (
            "monthly_budget = \"1GB\"\nbudget_day = -1",
            "write a number from 1 to 28",
        ),
        ("budget_day = 2", "write monthly_budget, or remove it"),
    ] {
        let error = Config::parse(&format!("{PATH}{keys}\n"), "f").unwrap_err();
        let text = error.to_string();
        assert!(text.contains(part), "{keys}: {text}");
    }
}

#[test]
fn backups_without_a_primary_path_are_warned_of() {
    let backups = PATH.replace("name = \"dsl\"\n", "name = \"dsl\"\nrole = \"backup\"\n");
    let warnings = |text: &str| {
        let config = Config::parse(text, "f").unwrap_or_else(|e| panic!("{e}"));
        config.warnings().len()
    };
    assert_eq!(warnings(&backups), 0);
    let all = format!("{backups}role = \"backup\"\n");
    assert_eq!(warnings(&all), 1);
    // Others may come by themselves.
    let auto = all.replace(
        "[[path]]\nname = \"dsl\"",
        "uplinks = \"auto\"\n[[path]]\nname = \"dsl\"",
    );
    assert_eq!(warnings(&auto), 0);
}

#[test]
fn applications_with_interactive_targets_are_essential() {
    let app = |keys: &str| {
        let text = format!(
            "{PATH}[[peer]]\nname = \"b\"\npublic_key = \"{KEY}\"\n\
             [[app]]\nname = \"x\"\nclass = \"datagram\"\npeer = \"b\"\n{keys}"
        );
        let config = Config::parse(&text, "f").unwrap_or_else(|e| panic!("{e}"));
        config.apps[0].is_essential()
    };
    for (keys, expected) in [
        ("", false),
        ("latency_target = \"150ms\"\n", true),
        ("latency_target = \"151ms\"\n", false),
        ("essential = true\n", true),
        ("latency_target = \"20ms\"\nessential = false\n", false),
    ] {
        assert_eq!(app(keys), expected, "{keys}");
    }
}
