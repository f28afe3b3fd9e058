//! Keys of 0.1.0 that have another name now: read with a warning, and renamed by `--fix`.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::Path,
};

use crate::harness::{Ran, Site, is_root, run, shown};

/// The public key of a peer that does not exist.
const PEER_KEY: &str = "ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=";

/// A configuration in which everything that was renamed has its old name.
fn old(site: &Site) -> String {
    format!(
        "{}# the only uplink\n[[path]]\nname = \"p\"\nlocal = \"127.0.0.1:7600\"\nrate = \"100Mbit\"\n\
         [[peer]]\nname = \"b\"\npublic_key = \"{}\"\n\
         [[app]]\nname = \"s\"\nclass = \"datagram\"\npeer = \"b\"\ndemand   = \"20ms\" # demand\n\
         [[intake]] # in\napp = \"s\"\nudp = \"127.0.0.1:5005\"\n\
         [[intake]]\napp = \"s\"\nudp = \"127.0.0.1:5006\"\n\
         [[outlet]]\napp = \"s\"\nudp = \"10.0.0.9:5005\"\n\
         [aggregation]\n\"law\" = \"none\"\n",
        site.gateway("a"),
        PEER_KEY,
    )
}

/// The same with the new names.
fn new(old: &str) -> String {
    old.replace("demand   =", "latency_target   =")
        .replace("[[intake]]", "[[listener]]")
        .replace("[[outlet]]", "[[forward]]")
        .replace("\"law\" =", "controller =")
}

fn check(file: &Path, options: &[&str]) -> Ran {
    let file = shown(file);
    run(["config", "check", &file].iter().chain(options))
}

/// Names of files in the directory of `file`.
fn beside(file: &Path) -> Vec<String> {
    let entries = fs::read_dir(file.parent().expect("a directory")).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().display().to_string())
        .collect();
    names.sort();
    names
}

#[test]
fn a_check_warns_of_old_keys_and_succeeds() {
    let site = Site::new();
    let file = site.write("gateway.toml", &old(&site));
    let ran = check(&file, &[]).expect_code(0);
    let name = shown(&file);
    for (place, old, new) in [
        ("19:1", "demand", "latency_target"),
        ("20:3", "intake", "listener"),
        ("26:3", "outlet", "forward"),
        ("30:1", "law", "controller"),
    ] {
        let line = format!(
            "warning: {name}:{place}: `{old}` is now called `{new}`; rename it, or let `keiro config check \
             --fix {name}` do it; the next release refuses `{old}`\n"
        );
        assert!(ran.stdout.contains(&line), "no {line} in {}", ran.stdout);
    }
    assert!(
        ran.stdout
            .contains("1 path, 1 peer, 1 application, 2 listeners, 1 forward")
    );
    let json = check(&file, &["--json"]).expect_code(0).json();
    assert_eq!(
        (&json["ok"], &json["problems"]),
        (&true.into(), &serde_json::json!([]))
    );
    assert_eq!(json["warnings"][0]["place"]["line"], 19);
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(4));
}

#[test]
fn a_check_of_a_wrong_file_warns_too() {
    let site = Site::new();
    let file = site.write("gateway.toml", &old(&site).replace("rate =", "rat ="));
    let ran = check(&file, &[]).expect_code(1);
    ran.says(&["unknown key `rat`", "warning: ", "`demand` is now called"]);
}

#[test]
fn old_and_new_key_in_one_table_are_an_error_that_names_both() {
    let site = Site::new();
    for (from, to, place) in [
        (
            "demand   =",
            "latency_target = \"1ms\"\ndemand   =",
            ":20:1: `demand` is the old name of `latency_target`",
        ),
        (
            "[[outlet]]",
            "[[listener]]\napp = \"s\"\nudp = \"127.0.0.1:7\"\n[[outlet]]",
            ":20:3: `intake` is the old name of `listener`",
        ),
    ] {
        let text = old(&site).replace(from, to);
        let file = site.write("gateway.toml", &text);
        for options in [&[][..], &["--fix"]] {
            check(&file, options)
                .expect_code(1)
                .says(&[place, "both are written here"]);
        }
        check(&file, &["--fix"]).says(&[
            "no key was renamed and nothing was written",
            "once the errors are corrected",
        ]);
        let json = check(&file, &["--fix", "--json"]).expect_code(1).json();
        assert_eq!(json["ok"], false);
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn fix_renames_keys_and_nothing_else() {
    let site = Site::new();
    for line_end in ["\n", "\r\n"] {
        let old = old(&site).replace('\n', line_end);
        let file = site.write("gateway.toml", &old);
        let ran = check(&file, &["--fix"]).expect_code(0);
        assert_eq!(fs::read_to_string(&file).unwrap(), new(&old));
        let head = format!(
            "{}: renamed 5 keys\n  line 19: demand → latency_target\n  line 20: intake → listener\n",
            shown(&file)
        );
        assert!(ran.stdout.starts_with(&head), "{}", ran.stdout);
        assert!(!ran.stdout.contains("warning"), "{}", ran.stdout);
    }
    let file = site.write("gateway.toml", &old(&site));
    let json = check(&file, &["--fix", "--json"]).expect_code(0).json();
    assert_eq!(json["renamed"][0], "line 19: demand → latency_target");
    assert_eq!(json["warnings"], serde_json::json!([]));
}

#[test]
fn fix_keeps_a_byte_order_mark() {
    let site = Site::new();
    let file = site.write("gateway.toml", &format!("\u{feff}{}", old(&site)));
    check(&file, &["--fix"]).expect_code(0);
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text, format!("\u{feff}{}", new(&old(&site))));
}

#[test]
fn fix_writes_nothing_where_nothing_is_to_do_or_the_file_is_not_toml() {
    let site = Site::new();
    let good = new(&old(&site)).into_bytes();
    let broken = old(&site).replace("[[outlet]]", "[[outlet]").into_bytes();
    let not_utf8 = [old(&site).as_bytes(), b"# \xff\n"].concat();
    let huge = [old(&site).as_bytes(), &b"#".repeat(1 << 20)].concat();
    for (text, code, said) in [
        (good, 0, "no key has an old name"),
        (broken, 1, "not valid TOML"),
        (not_utf8, 1, "line 31 is not UTF-8"),
        (huge, 1, "longer than 1048576 bytes"),
    ] {
        let file = site.path("gateway.toml");
        fs::write(&file, &text).unwrap();
        let before = fs::metadata(&file).unwrap();
        let ran = check(&file, &["--fix"]).expect_code(code);
        assert!(
            format!("{}{}", ran.stdout, ran.stderr).contains(said),
            "{ran:?}"
        );
        assert_eq!(fs::read(&file).unwrap(), text);
        let after = fs::metadata(&file).unwrap();
        assert_eq!(
            (after.ino(), after.mtime_nsec()),
            (before.ino(), before.mtime_nsec())
        );
    }
}

#[test]
fn fix_does_not_make_a_file_that_is_too_long() {
    let site = Site::new();
    let mut text = old(&site);
    let left = (1 << 20) - text.len();
    text.push_str(&"#".repeat(left));
    let file = site.write("gateway.toml", &text);
    check(&file, &[]).expect_code(0);
    check(&file, &["--fix"]).expect_code(1).says(&[
        "would be longer than 1048576 bytes with the new names",
        "nothing was written",
    ]);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn fix_replaces_the_file_that_a_link_leads_to_and_keeps_mode_and_owner() {
    let site = Site::new();
    fs::create_dir(site.path("real")).unwrap();
    let file = site.write("real/gateway.toml", &old(&site));
    site.set_mode("real/gateway.toml", 0o640);
    let root = is_root("fix_keeps_the_owner");
    if root {
        chown(&file, Some(1234), Some(2345)).unwrap();
    }
    let before = fs::metadata(&file).unwrap();
    let link = site.path("gateway.toml");
    symlink("real/gateway.toml", &link).unwrap();
    check(&link, &["--fix"]).expect_code(0);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), new(&old(&site)));
    let after = fs::metadata(&file).unwrap();
    assert_eq!(after.permissions().mode() & 0o7777, 0o640);
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "replaced as a whole");
    assert_eq!(beside(&file), ["gateway.toml"]);
}

#[test]
fn fix_says_which_file_it_cannot_read() {
    run(["config", "check", "--fix", "/no/such.toml"])
        .expect_code(1)
        .says(&["/no/such.toml: no such file"]);
}

#[test]
fn the_daemon_logs_old_keys() {
    let site = Site::new();
    let file = site.write("gateway.toml", &old(&site));
    // It reads the configuration first and then refuses the key.
    site.set_mode("private.key", 0o644);
    run(["gateway", "--config", &shown(&file)])
        .expect_code(1)
        .says(&[
            "WARN",
            "gateway.toml:19:1: `demand` is now called `latency_target`",
        ]);
}
