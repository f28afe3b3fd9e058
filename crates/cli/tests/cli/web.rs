//! `keiro web`, which runs another program.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use crate::harness::{Ran, finish};

#[test]
fn the_program_of_the_pages_is_found_in_path_and_gets_all_arguments() {
    let directory = tempfile::tempdir().unwrap();
    // Beside the command that was built there may be one.
    let keiro = directory.path().join("keiro");
    fs::copy(crate::PROGRAM, &keiro).unwrap();
    let run = |path: &Path| -> Ran {
        let arguments = ["web", "--help", "--socket", "a=b", "--no-such-option"];
        finish(Command::new(&keiro).args(arguments).env("PATH", path), b"")
    };
    let programs = directory.path().join("bin");
    fs::create_dir(&programs).unwrap();
    run(&programs).expect_code(1).says(&[
        "cannot find the program `keiro-web`",
        "neither beside `keiro` nor in PATH",
    ]);
    let program = programs.join("keiro-web");
    fs::write(&program, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let out = run(&programs).expect_code(7).stdout;
    assert_eq!(out, "--help --socket a=b --no-such-option\n");
}
