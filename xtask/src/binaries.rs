//! Which test binaries there are, from cargo, and which of them are laboratory tests.
//!
//! A package lists its laboratory tests in its manifest: targets that make network namespaces, start
//! servers or measure time, and so depend on the machine.
//!
//! ```toml
//! [package.metadata.keiro]
//! laboratory = ["tunnel", "lib"]   # `lib`: its unit tests
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Where a test may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Depends on its inputs only.
    Pure,
    /// Depends on the machine: namespaces, servers, time.
    Laboratory,
}

/// A test binary that is built.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binary {
    pub(crate) kind: Kind,
    /// As `crate::target`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// The package's directory, in which cargo runs its tests.
    pub(crate) directory: PathBuf,
}

/// Builds all test binaries of the workspace.
pub(crate) fn build() -> Result<Vec<Binary>, String> {
    let packages = packages(&metadata()?)?;
    let messages = output(Command::new(cargo()).args([
        "test",
        "--workspace",
        "--locked",
        "--lib",
        "--bins",
        "--tests",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]))?;
    let mut binaries: Vec<Binary> = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message| binary(&message, &packages))
        .collect();
    binaries.sort();
    Ok(binaries)
}

/// The program that runs this one.
pub(crate) fn cargo() -> String {
    env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn metadata() -> Result<Value, String> {
    let text = output(Command::new(cargo()).args([
        "metadata",
        "--locked",
        "--no-deps",
        "--format-version=1",
    ]))?;
    serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{command:?}: {error}"))
}

/// A package of the workspace.
struct Package {
    name: String,
    /// Its laboratory targets; `lib`: its unit tests.
    laboratory: BTreeSet<String>,
}

/// Packages by their manifests' paths. A laboratory target that does not exist is an error: its
/// tests would silently count as pure.
fn packages(metadata: &Value) -> Result<BTreeMap<String, Package>, String> {
    let mut all = BTreeMap::new();
    for package in array(&metadata["packages"]) {
        let name = text(&package["name"]);
        let targets: BTreeSet<String> = array(&package["targets"])
            .iter()
            .filter(|target| text(&target["kind"][0]) == "test")
            .map(|target| text(&target["name"]).to_owned())
            .chain(["lib".to_owned()])
            .collect();
        let laboratory: BTreeSet<String> = array(&package["metadata"]["keiro"]["laboratory"])
            .iter()
            .map(|target| text(target).to_owned())
            .collect();
        if let Some(unknown) = laboratory.difference(&targets).next() {
            return Err(format!(
                "{name}: laboratory target `{unknown}` is no test of it; has it been renamed?"
            ));
        }
        let package_found = Package {
            name: name.strip_prefix("keiro-").unwrap_or(name).to_owned(),
            laboratory,
        };
        all.insert(text(&package["manifest_path"]).to_owned(), package_found);
    }
    Ok(all)
}

fn binary(message: &Value, packages: &BTreeMap<String, Package>) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let manifest = message["manifest_path"].as_str()?;
    let package = packages.get(manifest)?;
    let target = match text(&message["target"]["kind"][0]) {
        "lib" => "lib",
        _ => text(&message["target"]["name"]),
    };
    Some(Binary {
        kind: match package.laboratory.contains(target) {
            true => Kind::Laboratory,
            false => Kind::Pure,
        },
        name: format!("{}::{target}", package.name),
        executable,
        directory: Path::new(manifest).parent()?.to_owned(),
    })
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MANIFEST: &str = "/s/crates/lab/Cargo.toml";

    fn metadata(laboratory: &[&str]) -> Value {
        json!({"packages": [{
            "name": "keiro-lab",
            "manifest_path": MANIFEST,
            "targets": [{"name": "keiro_lab", "kind": ["lib"]}, {"name": "traffic", "kind": ["test"]}],
            "metadata": {"keiro": {"laboratory": laboratory}},
        }]})
    }

    #[test]
    fn a_laboratory_target_that_does_not_exist_is_an_error() {
        assert!(packages(&metadata(&["traffic", "lib"])).is_ok());
        let refused = packages(&metadata(&["trafic"])).err().unwrap();
        assert!(refused.contains("`trafic`"), "{refused}");
    }

    #[test]
    fn a_target_is_a_laboratory_test_where_the_manifest_says_so() {
        let packages = packages(&metadata(&["traffic"])).unwrap();
        let artifact = |target: &str, kind: &str| {
            let message = json!({
                "reason": "compiler-artifact", "profile": {"test": true},
                "executable": "/t/x-1", "manifest_path": MANIFEST,
                "target": {"name": target, "kind": [kind]},
            });
            binary(&message, &packages).unwrap()
        };
        assert_eq!(artifact("traffic", "test").kind, Kind::Laboratory);
        assert_eq!(artifact("keiro_lab", "lib").kind, Kind::Pure);
        assert_eq!(artifact("keiro_lab", "lib").name, "lab::lib");
        assert_eq!(
            artifact("traffic", "test").directory,
            Path::new("/s/crates/lab")
        );
    }

    #[test]
    fn what_is_no_test_binary_is_left_out() {
        let message = json!({"reason": "compiler-artifact", "profile": {"test": false}});
        assert!(binary(&message, &BTreeMap::new()).is_none());
    }
}
