//! The command line itself: exit statuses, help, completion, man pages, pipes.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    process::Command,
};

use crate::harness::{self, finish, keiro, run};

/// RFC 7748 §6.1: Alice's keys.
const PRIVATE: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
const PUBLIC: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

#[test]
fn usage_errors_end_with_64_and_a_hint() {
    run(["statsu"])
        .expect_code(64)
        .says(&["unrecognized subcommand", "status"]);
    run(["show", "path", "--jsno"])
        .expect_code(64)
        .says(&["--json"]);
    run(["send"]).expect_code(64).says(&["<APP>"]);
    run(["send", "A1", "--count", "0"])
        .expect_code(64)
        .says(&["--count", "write a number from 1 to"]);
    run(["send", "A1", "--interval", "100"])
        .expect_code(64)
        .says(&["no unit"]);
    run(["init", "--name", "a b"])
        .expect_code(64)
        .says(&["must not occur in a name"]);
    run(["gateway", "--realtime", "100"])
        .expect_code(64)
        .says(&["1..=99"]);
    run(["plan", "--config", "x", "--socket", "y"])
        .expect_code(64)
        .says(&["cannot be used with"]);
    run::<&str>([]).expect_code(64).says(&["Usage: keiro"]);
}

#[test]
fn asking_for_a_check_explains_how() {
    let tip = "`keiro config check FILE`";
    for asked in [
        vec!["check", "keiro.toml"],
        vec!["gateway", "--check"],
        vec!["gateway", "-t"],
        vec!["gateway", "check"],
    ] {
        run(asked).expect_code(64).says(&["tip:", tip]);
    }
    for other in [vec!["show", "check"], vec!["asbr", "--check"]] {
        let said = run(other).expect_code(64).stderr;
        assert!(!said.contains(tip), "{said}");
    }
    let no_text = OsStr::from_bytes(b"\xff");
    run([no_text]).expect_code(64).says(&["unrecognized"]);
    run([OsStr::new("--help"), no_text]).expect_code(0);
}

#[test]
fn commands_that_moved_to_keiro_lab_say_so() {
    for (command, tip) in [
        ("lab", "`keiro-lab up`"),
        ("experiment", "`keiro-lab experiment`"),
        ("demo", "`keiro-lab demo`"),
    ] {
        run([command]).expect_code(64).says(&["tip:", tip]);
        run([command, "list", "--json"])
            .expect_code(64)
            .says(&["tip:", tip]);
    }
    let other = run(["show", "lab"]).expect_code(64).stderr;
    assert!(!other.contains("keiro-lab"), "{other}");
}

#[test]
fn help_and_version_are_no_errors() {
    let help = run(["--help"]).expect_code(0);
    assert!(
        help.stdout.contains("Exit status") && help.stderr.is_empty(),
        "{help:?}"
    );
    let version = run(["--version"]).expect_code(0).stdout;
    if let Some(commit) = commit() {
        assert!(
            version.contains(&format!(" ({commit})")),
            "{version} {commit}"
        );
    }
    assert!(
        version.starts_with(concat!("keiro ", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
}

#[test]
fn the_public_key_is_that_of_rfc_7748() {
    let ran = finish(&mut keiro(["pubkey"]), PRIVATE.as_bytes()).expect_code(0);
    assert_eq!(ran.stdout, format!("{PUBLIC}\n"));
}

#[test]
fn every_generated_key_is_another_and_has_a_public_key() {
    let first = run(["genkey"]).expect_code(0).stdout;
    let second = run(["genkey"]).expect_code(0).stdout;
    assert_ne!(first, second);
    assert_eq!(first.len(), 45);
    let public = finish(&mut keiro(["pubkey"]), first.as_bytes())
        .expect_code(0)
        .stdout;
    assert_eq!(public.len(), 45);
    assert_ne!(public, first);
}

#[test]
fn key_that_goes_to_a_file_that_others_can_read_is_warned_of() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (mode, is_exposed) in [(0o644, true), (0o640, true), (0o602, true), (0o600, false)] {
        let path = directory.path().join(format!("{mode:o}.key"));
        let file = fs::File::create(&path).expect("made");
        file.set_permissions(fs::Permissions::from_mode(mode))
            .expect("mode set");
        let output = keiro(["genkey"]).stdout(file).output().expect("it runs");
        assert!(output.status.success());
        let warned = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(!warned.is_empty(), is_exposed, "{mode:o}: {warned}");
        if is_exposed {
            let text =
                format!("others can read the file that the key is written to (mode {mode:04o})");
            assert!(
                warned.contains(&text) && warned.contains("chmod 600"),
                "{warned}"
            );
        }
        // It is written all the same, as by `wg genkey`.
        assert_eq!(fs::read(&path).expect("read").len(), 45);
    }
}

#[test]
fn what_is_no_key_is_refused_and_not_repeated() {
    for text in [
        "",
        "secret",
        "AAECAw==",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    ] {
        let ran = finish(&mut keiro(["pubkey"]), text.as_bytes()).expect_code(1);
        let ran = ran.says(&[
            "keiro: standard input holds no private key",
            "because: ",
            "try: ",
        ]);
        assert!(
            text.is_empty() || !ran.stderr.contains(text),
            "{}",
            ran.stderr
        );
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn completion_exists_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(["completion", shell]).expect_code(0).stdout;
        assert!(script.contains("KEIRO_COMPLETE"), "{shell}: {script}");
    }
    run(["completion", "csh"]).expect_code(64);
}

#[test]
fn a_shell_that_completes_gets_commands_options_and_files() {
    for (words, expected) in [
        (&["keiro", "flow"][..], "flowstats"),
        (&["keiro", "show", "te"], "tenant"),
        (&["keiro", "plan", "--what"], "--what-if"),
        (&["keiro", "config", "check", "/etc/host"], "/etc/hosts"),
    ] {
        let output = keiro(["--"])
            .args(words)
            .env("KEIRO_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
            .output()
            .expect("it runs");
        let offered = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert!(
            offered.lines().any(|line| line == expected),
            "{words:?}: {offered}"
        );
    }
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("man1");
    run(["man", "--output", &harness::shown(&output)]).expect_code(0);
    let pages: Vec<String> = fs::read_dir(&output)
        .expect("pages")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    for command in commands() {
        let page = format!("keiro-{}.1", command.join("-"));
        assert!(pages.contains(&page), "no {page} among {pages:?}");
        let text = fs::read_to_string(output.join(&page)).expect("a page");
        assert!(
            text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"),
            "{page}:\n{text}"
        );
    }
    assert!(
        pages.contains(&"keiro.1".to_owned()) && pages.len() > 25,
        "{pages:?}"
    );
    assert!(run(["man"]).expect_code(0).stdout.contains(".TH keiro 1"));
}

#[test]
fn a_man_page_that_cannot_be_written_is_an_error() {
    run(["man", "--output", "/proc/no/such"])
        .expect_code(1)
        .says(&["cannot write", "try: "]);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let output = keiro(["completion", "bash"])
        .stdout(writer)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_full_disk_is_an_error() {
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let output = keiro(["genkey"]).stdout(full).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.starts_with("keiro: cannot write to standard output"),
        "{stderr}"
    );
}

#[test]
fn nothing_is_coloured_without_a_terminal() {
    for args in [
        &["--help"][..],
        &["statsu"],
        &["status", "--socket", "/no/such"],
    ] {
        let ran = run(args);
        assert!(
            !ran.stdout.contains('\x1b') && !ran.stderr.contains('\x1b'),
            "{ran:?}"
        );
    }
}

/// Every command with its subcommands, as the help lists them.
fn commands() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut open = vec![Vec::<String>::new()];
    while let Some(command) = open.pop() {
        let mut args = command.clone();
        args.push("--help".to_owned());
        let help = run(&args).expect_code(0).stdout;
        let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default();
        for line in listed.lines().take_while(|line| !line.is_empty()) {
            // Long descriptions go on in lines that are indented further.
            let Some(name) = line.strip_prefix("  ").filter(|l| !l.starts_with(' ')) else {
                continue;
            };
            let name = name.split_whitespace().next().expect("a name");
            if name != "help" {
                let mut longer = command.clone();
                longer.push(name.to_owned());
                open.push(longer);
            }
        }
        if !command.is_empty() {
            found.push(command);
        }
    }
    assert!(found.len() > 25, "{found:?}");
    found
}

#[test]
fn man_pages_have_no_warnings() {
    // Only where there is a formatter; a fresh machine has none.
    if Command::new("mandoc").arg("-V").output().is_err() {
        eprintln!("man_pages_have_no_warnings: no mandoc here, left out");
        return;
    }
    let page = run(["man"]).expect_code(0).stdout;
    let ran = finish(
        Command::new("mandoc").args(["-T", "lint", "-W", "error"]),
        page.as_bytes(),
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_full_disk_behind_standard_error_changes_no_exit_status() {
    let full = fs::File::options().write(true).open("/dev/full");
    let status = Command::new(env!("CARGO_BIN_EXE_keiro"))
        .args(["config", "check", "/there/is/none.toml"])
        .stderr(full.expect("a device of every Linux"))
        .status()
        .expect("it runs");
    assert_eq!(status.code(), Some(1));
}

/// Where this is built in a repository of its own, the commit: in a linked worktree, too.
fn commit() -> Option<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    if !std::path::Path::new(root).join(".git").exists() {
        return None;
    }
    let git = Command::new("git")
        .args(["-C", root, "rev-parse", "--short=10", "HEAD"])
        .output()
        .ok()?;
    let commit = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    git.status.success().then_some(commit)
}
