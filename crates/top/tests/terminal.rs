//! The modes of a real terminal, which `script` of util-linux makes.

use std::{fs, process::Command};

use keiro_top::Screen;

#[test]
fn a_panic_leaves_the_terminal_as_it_was_before_its_message() {
    let directory = tempfile::tempdir().expect("a directory");
    let this = std::env::current_exe().expect("this program");
    let inner = format!(
        "{} --exact --ignored --nocapture panics_after_entering",
        this.display()
    );
    let command = format!("stty -g > before; {inner}; stty -g > after");
    let output = Command::new("script")
        .args(["-q", "-c", &command, "/dev/null"])
        .current_dir(directory.path())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("script runs");
    let modes = |name| fs::read_to_string(directory.path().join(name)).expect("the modes");
    assert!(!modes("before").trim().is_empty());
    assert_eq!(modes("before"), modes("after"));
    let written = String::from_utf8_lossy(&output.stdout).into_owned();
    let place = |text: &str| {
        written
            .find(text)
            .unwrap_or_else(|| panic!("no {text:?} in {written:?}"))
    };
    let (entered, left, message) = (
        place("\x1b[?1049h"),
        place("\x1b[?1049l"),
        place("a test panics"),
    );
    assert!(entered < left && left < message, "{written:?}");
    assert!(place("\x1b[?25l") < place("\x1b[?25h"), "{written:?}");
}

/// Run by the test above, on a terminal.
#[test]
#[ignore = "changes the modes of the terminal that it runs on"]
fn panics_after_entering() {
    // Only what is done before the message counts, not what unwinding does.
    std::mem::forget(Screen::enter().expect("a terminal"));
    panic!("a test panics");
}
