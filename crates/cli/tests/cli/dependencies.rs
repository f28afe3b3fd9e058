//! `docs/dependencies.md` is the truth about what Keiro takes from elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

struct Tree {
    packages: BTreeMap<String, Package>,
    /// Names of the packages that a manifest of the workspace itself names.
    direct: BTreeSet<String>,
}

struct Package {
    name: String,
    version: String,
    licence: String,
    ours: bool,
}

struct Page {
    direct: BTreeMap<String, String>,
    allowed: BTreeSet<String>,
    several: BTreeSet<String>,
}

#[test]
fn every_direct_dependency_has_its_line() {
    let (tree, page) = (tree(), page());
    let named: BTreeSet<String> = page.direct.keys().cloned().collect();
    let without: Vec<_> = tree.direct.difference(&named).collect();
    assert!(
        without.is_empty(),
        "add to docs/dependencies.md, with the reason: {without:?}"
    );
    let gone: Vec<_> = named.difference(&tree.direct).collect();
    assert!(
        gone.is_empty(),
        "remove from docs/dependencies.md, nothing uses them: {gone:?}"
    );
    for package in tree.packages.values() {
        if let Some(licence) = page
            .direct
            .get(&package.name)
            .filter(|_| is_named(&tree, package))
        {
            assert_eq!(
                licence, &package.licence,
                "licence of {} in docs/dependencies.md",
                package.name
            );
        }
    }
}

#[test]
fn every_licence_is_allowed() {
    let (tree, page) = (tree(), page());
    for package in tree.packages.values() {
        assert!(
            is_allowed(&package.licence, &page.allowed),
            "{} {}: licence `{}` is not among those that docs/dependencies.md allows",
            package.name,
            package.version,
            package.licence
        );
    }
}

#[test]
fn every_crate_in_several_versions_is_explained() {
    let (tree, page) = (tree(), page());
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in tree.packages.values() {
        versions
            .entry(&package.name)
            .or_default()
            .insert(&package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    for (name, versions) in &versions {
        assert!(
            page.several.contains(*name),
            "{name} is there as {versions:?}; take one version, or explain it in docs/dependencies.md"
        );
    }
    for name in &page.several {
        assert!(
            versions.contains_key(name.as_str()),
            "{name} is there once only; remove its line"
        );
    }
}

/// What `keiro` is built from: the laboratory has a program of its own.
#[test]
fn the_product_is_built_without_the_laboratory() {
    let metadata = metadata();
    let mut open = vec!["keiro-cli".to_owned()];
    let mut built = BTreeSet::new();
    while let Some(name) = open.pop() {
        let package = metadata["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|package| package["name"] == name.as_str() && package["source"].is_null());
        let dependencies = package.and_then(|package| package["dependencies"].as_array());
        // A normal dependency has no kind.
        let normal = dependencies
            .into_iter()
            .flatten()
            .filter(|d| d["kind"].is_null());
        let ours = normal.filter(|d| !d["path"].is_null());
        open.extend(ours.filter_map(|d| d["name"].as_str().map(str::to_owned)));
        built.insert(name);
    }
    for part in ["lab", "link", "sim", "experiment"] {
        assert!(!built.contains(&format!("keiro-{part}")), "{built:?}");
    }
    assert!(built.contains("keiro-gateway"), "{built:?}");
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]
        .map(str::to_owned)
        .into();
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/GPL-3.0",
        "ISC AND (GPL-3.0 OR MIT)",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    // AND binds closer than OR.
    for bad in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "Apache-2.0",
        "",
        "(MIT OR ISC) AND GPL-3.0",
        "GPL-3.0 OR MIT AND GPL-2.0",
    ] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

/// Whether it is there once only, and so is what the workspace itself asks for.
fn is_named(tree: &Tree, package: &Package) -> bool {
    let same = tree.packages.values().filter(|p| p.name == package.name);
    same.count() == 1
}

/// What is built for Linux, as `cargo` resolves it from the lock file. Asks no registry: a machine that
/// runs this has just built it.
fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--frozen"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

fn tree() -> Tree {
    let metadata = metadata();
    let strings = |value: &Value| -> BTreeSet<String> {
        let values = value.as_array().into_iter().flatten();
        values
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect()
    };
    let ours = strings(&metadata["workspace_members"]);
    let nodes = metadata["resolve"]["nodes"]
        .as_array()
        .expect("a resolution");
    let built: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let mut tree = Tree {
        packages: BTreeMap::new(),
        direct: BTreeSet::new(),
    };
    for package in metadata["packages"].as_array().expect("packages") {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let id = text("id");
        if !built.contains(id.as_str()) {
            continue;
        }
        let ours = ours.contains(&id);
        if ours {
            let dependencies = package["dependencies"].as_array().into_iter().flatten();
            // Those with a path are the workspace's own.
            let foreign = dependencies.filter(|d| d["path"].is_null());
            tree.direct
                .extend(foreign.filter_map(|d| d["name"].as_str().map(str::to_owned)));
        }
        let (name, version, licence) = (text("name"), text("version"), text("license"));
        tree.packages.insert(
            id,
            Package {
                name,
                version,
                licence,
                ours,
            },
        );
    }
    assert!(tree.packages.values().any(|p| p.ours) && tree.direct.len() > 10);
    tree
}

fn page() -> Page {
    let text = fs::read_to_string(root().join("docs/dependencies.md")).expect("the page is there");
    let section = |heading: &str| {
        let from = text
            .find(heading)
            .unwrap_or_else(|| panic!("no heading `{heading}`"));
        let body = &text[from + heading.len()..];
        body.split("\n## ").next().unwrap_or(body).to_owned()
    };
    // Header and rule are the table's first two lines.
    let rows = |section: &str| -> Vec<Vec<String>> {
        let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
        let cells = |line: &str| {
            line.trim_matches('|')
                .split('|')
                .map(|c| c.trim().to_owned())
                .collect()
        };
        lines.map(cells).collect()
    };
    let direct = rows(&section("## Direct dependencies"));
    for row in &direct {
        assert!(row.len() == 3 && !row[2].is_empty(), "no reason: {row:?}");
    }
    let several = rows(&section("## Crates in several versions"));
    let allowed = section("## Allowed licences");
    Page {
        direct: direct
            .into_iter()
            .map(|row| (row[0].clone(), row[1].clone()))
            .collect(),
        allowed: allowed
            .split(',')
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect(),
        several: several.into_iter().map(|row| row[0].clone()).collect(),
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// An SPDX expression; the old form with `/` means OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.as_slice();
    let result = either(&mut words, allowed);
    result && words.is_empty()
}

fn either(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut result = both(words, allowed);
    while take(words, "OR") {
        result |= both(words, allowed);
    }
    result
}

fn both(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut result = one(words, allowed);
    while take(words, "AND") {
        result &= one(words, allowed);
    }
    result
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    if take(words, "(") {
        let result = either(words, allowed);
        return take(words, ")") && result;
    }
    let Some((licence, rest)) = words.split_first() else {
        return false;
    };
    *words = rest;
    let mut licence = (*licence).to_owned();
    if take(words, "WITH")
        && let Some((exception, rest)) = words.split_first()
    {
        licence = format!("{licence} WITH {exception}");
        *words = rest;
    }
    allowed.contains(&licence)
}

fn take(words: &mut &[&str], word: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if *first == word => {
            *words = rest;
            true
        }
        _ => false,
    }
}
