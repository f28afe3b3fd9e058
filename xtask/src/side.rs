//! What is checked beside the test binaries: examples in documentation, and the workspaces that
//! `cargo test --workspace` does not build.

use std::{fs, path::Path, process::Command};

use crate::binaries;

/// A command that has to succeed.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// All of them, in the order of how likely they are to fail.
pub(crate) fn checks() -> Result<Vec<Check>, String> {
    let mut doc_tests = Command::new(binaries::cargo());
    doc_tests.args(["test", "--quiet", "--workspace", "--locked", "--doc"]);
    let mut checks = vec![Check {
        name: "examples in documentation".to_owned(),
        command: doc_tests,
    }];
    for manifest in manifests(Path::new("."))? {
        let mut command = Command::new(binaries::cargo());
        command
            .args([
                "check",
                "--quiet",
                "--locked",
                "--target-dir",
                "target/side",
            ])
            .args(["--manifest-path", &manifest])
            // libfuzzer-sys would compile libFuzzer with a C++ compiler, which checking does not need.
            .env("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a");
        checks.push(Check {
            name: format!("check of {manifest}"),
            command,
        });
    }
    Ok(checks)
}

/// Manifests of the workspaces beside the main one: they have a lock file.
fn manifests(root: &Path) -> Result<Vec<String>, String> {
    let benches = root.join("benches");
    let wrong = |error| format!("{}: {error}", benches.display());
    let mut directories = vec![root.join("fuzz")];
    for entry in fs::read_dir(&benches).map_err(wrong)? {
        directories.push(entry.map_err(wrong)?.path());
    }
    let mut manifests: Vec<String> = directories
        .iter()
        .filter(|directory| directory.join("Cargo.lock").exists())
        .map(|directory| directory.join("Cargo.toml").display().to_string())
        .collect();
    manifests.sort();
    Ok(manifests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_with_a_lock_file_are_checked() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = manifests(&root).unwrap();
        assert!(
            found.iter().any(|m| m.ends_with("fuzz/Cargo.toml")),
            "{found:?}"
        );
        assert!(found.len() >= 2, "{found:?}");
    }
}
