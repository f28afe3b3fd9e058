//! `keiro hooks` beside a real gateway.

use std::{
    fs,
    process::{Child, Stdio},
};

use crate::{
    gateway::{Gateway, free, path},
    harness::{Site, eventually, keiro, run, shown},
};

/// Ended when dropped.
struct Hooks(Child);

impl Drop for Hooks {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A script that appends every event to `events`, and the file of hooks that names it.
fn hooks_file(site: &Site) -> String {
    let (program, events) = (site.path("notify"), site.path("events"));
    keiro_testing::write_script(
        &program,
        &format!("echo \"$KEIRO_GATEWAY $KEIRO_EVENT\" >> {}", shown(&events)),
    );
    let text = format!(
        "[[hook]]\nname = \"ops\"\nevents = [\"reloaded\", \"gateway_gone\", \"gateway_answers\"]\ncommand = [\"{}\"]\n",
        shown(&program)
    );
    shown(&site.write("hooks.toml", &text))
}

#[test]
fn events_of_a_gateway_run_a_command_also_when_it_goes_and_comes_again() {
    let here = Site::without_key();
    let file = hooks_file(&here);
    let site = Site::new();
    let socket = shown(&site.path("control.sock"));
    let text = format!(
        "{}{}",
        site.gateway("tokyo"),
        path("near", free("127.0.0.1"))
    );
    let mut gateway = Gateway::start(site, &text);
    gateway.ready();
    let mut command = keiro(["hooks", "--config", &file, "--socket", &socket]);
    let log = fs::File::create(here.path("log")).expect("a log");
    let _hooks = Hooks(
        command
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts"),
    );
    let events = || fs::read_to_string(here.path("events")).unwrap_or_default();
    let has = |line: &str| events().lines().any(|of| of == line);
    let log = || fs::read_to_string(here.path("log")).unwrap_or_default();
    eventually("it follows", || {
        log().contains("following gateway tokyo").then_some(())
    });
    run(["reload", "--socket", &socket]).expect_code(0);
    eventually("a reload runs it", || has("tokyo reloaded").then_some(()));
    gateway.kill();
    eventually("an end runs it", || has("tokyo gateway_gone").then_some(()));
    gateway.start_again();
    eventually("a start runs it", || {
        has("tokyo gateway_answers").then_some(())
    });
    assert!(!events().contains("started"), "{}", events());
}

#[test]
fn a_file_of_hooks_is_checked_and_tried_without_a_gateway() {
    let site = Site::without_key();
    let file = hooks_file(&site);
    let ran = run(["hooks", "--config", &file, "--check"]).expect_code(0);
    assert!(ran.stdout.ends_with("1 hooks: ops\n"), "{}", ran.stdout);
    let ran = run(["hooks", "--config", &file, "--test"]).expect_code(0);
    assert_eq!(ran.stdout, "ops: done\n");
    assert_eq!(
        fs::read_to_string(site.path("events")).expect("written"),
        " test\n"
    );
    let wrong = site.write(
        "wrong.toml",
        "[[hook]]\nname = \"a\"\nevents = [\"path_dwn\"]\ncommand = [\"/a\"]\n",
    );
    run(["hooks", "--config", &shown(&wrong)])
        .expect_code(1)
        .says(&["hook a: no event is called", "did you mean `path_down`?"]);
    run(["hooks", "--config", "/no/such.toml"])
        .expect_code(1)
        .says(&["/no/such.toml: no such file"]);
}
