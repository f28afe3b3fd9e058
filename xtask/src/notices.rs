//! Licence texts of the crates that are linked into commands. Most licences ask for them beside a binary.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

/// Beginnings of the names of files with licences and notices, in lower case.
const NAMES: [&str; 5] = ["copying", "copyright", "licence", "license", "notice"];

/// A licence text beyond this is a mistake: the longest, aws-lc's, has 30 kB.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Prints every text once, after the names of the crates that have it, for the crates that `packages` of the workspace
/// link.
pub(crate) fn print(packages: &[String]) -> Result<bool, String> {
    if packages.is_empty() {
        return Err("notices: name packages of the workspace".to_owned());
    }
    let metadata = metadata()?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut out = String::new();
    for package in linked(&metadata, packages)? {
        let title = format!("{} {}", text(package, "name")?, text(package, "version")?);
        let directory = Path::new(text(package, "manifest_path")?)
            .parent()
            .ok_or_else(|| format!("{title}: no directory"))?;
        let found = licence_texts(directory)?;
        if found.is_empty() {
            let licence = text(package, "license").unwrap_or("an unnamed licence");
            let _ = writeln!(out, "{title} is under {licence}; its package has no text.");
        }
        for text in found {
            texts.entry(text).or_default().insert(title.clone());
        }
    }
    println!(
        "Keiro's commands contain these crates of others, and the standard library of Rust (MIT OR Apache-2.0).\n"
    );
    print!("{out}");
    let mut sections: Vec<_> = texts.into_iter().collect();
    sections.sort_by(|one, other| one.1.cmp(&other.1));
    for (text, names) in sections {
        let names: Vec<_> = names.into_iter().collect();
        println!(
            "\n{}\n{}\n\n{}",
            "-".repeat(80),
            names.join(", "),
            text.trim_end()
        );
    }
    Ok(true)
}

fn metadata() -> Result<Value, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// The packages of others that are linked into `roots`: without those of builds, tests and macros.
fn linked<'a>(metadata: &'a Value, roots: &[String]) -> Result<Vec<&'a Value>, String> {
    let packages: BTreeMap<&str, &Value> = list(metadata, "packages")?
        .iter()
        .map(|package| Ok((text(package, "id")?, package)))
        .collect::<Result<_, String>>()?;
    let nodes: BTreeMap<&str, &Value> = list(&metadata["resolve"], "nodes")?
        .iter()
        .map(|node| Ok((text(node, "id")?, node)))
        .collect::<Result<_, String>>()?;
    let mut waiting = Vec::new();
    for root in roots {
        let found = packages
            .iter()
            .find(|(_, package)| package["name"] == root.as_str() && package["source"].is_null());
        let (id, _) =
            found.ok_or_else(|| format!("notices: the workspace has no package {root}"))?;
        waiting.push(*id);
    }
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        let (Some(node), Some(package)) = (nodes.get(id), packages.get(id)) else {
            continue;
        };
        if is_macro(package) || !seen.insert(id) {
            continue;
        }
        for dependency in list(node, "deps")? {
            let kinds = list(dependency, "dep_kinds")?;
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                waiting.push(text(dependency, "pkg")?);
            }
        }
    }
    let others = seen
        .into_iter()
        .filter_map(|id| packages.get(id).copied())
        .filter(|package| !package["source"].is_null());
    Ok(others.collect())
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    targets
        .flat_map(|target| target["kind"].as_array().into_iter().flatten())
        .any(|kind| kind == "proc-macro")
}

fn licence_texts(directory: &Path) -> Result<BTreeSet<String>, String> {
    let failed = |error| format!("{}: {error}", directory.display());
    let mut texts = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let metadata = entry.metadata().map_err(failed)?;
        let is_text =
            metadata.is_file() && NAMES.iter().any(|beginning| name.starts_with(beginning));
        if is_text && metadata.len() <= TEXT_BYTES_MAX {
            let bytes = fs::read(entry.path()).map_err(failed)?;
            texts.insert(String::from_utf8_lossy(&bytes).replace('\r', ""));
        }
    }
    Ok(texts)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key]
        .as_array()
        .ok_or_else(|| format!("cargo metadata: no list `{key}`"))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key]
        .as_str()
        .ok_or_else(|| format!("cargo metadata: no text `{key}`"))
}
