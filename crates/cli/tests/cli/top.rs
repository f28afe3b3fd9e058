//! `keiro top` on a real terminal, which `script` of util-linux makes.

use std::{
    fs,
    io::{Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use crate::{
    gateway::{Gateway, free, path},
    harness::{LIMIT, Site, eventually, run, shown, wait},
};

/// `keiro top` on a terminal of 100 columns.
struct Top {
    directory: tempfile::TempDir,
    script: Child,
    keys: ChildStdin,
    written: Arc<Mutex<String>>,
}

impl Top {
    fn start(socket: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let command = format!(
            "stty cols 100 rows 30; stty -g > before; \
             sh -c 'echo $$ > pid; exec {} top --interval 100ms --socket {socket}'; \
             echo $? > status; stty -g > after",
            crate::PROGRAM
        );
        let mut script = Command::new("script")
            .args(["-q", "-c", &command, "/dev/null"])
            .current_dir(directory.path())
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script runs");
        let mut output = script.stdout.take().expect("piped");
        let written = Arc::new(Mutex::new(String::new()));
        let into = Arc::clone(&written);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                into.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&text);
            }
        });
        Self {
            keys: script.stdin.take().expect("piped"),
            directory,
            script,
            written,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("typed");
    }

    /// Waits until a whole picture has this word. Only changes are written, so everything is asked for.
    fn sees(&mut self, word: &str) {
        eventually(word, || {
            let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            let is_seen = written.contains(word);
            drop(written);
            if !is_seen {
                self.press("\x0c");
                thread::sleep(std::time::Duration::from_millis(100));
            }
            is_seen.then_some(())
        });
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    /// It ends with status 0, and the terminal is as it was before.
    fn ends_well(mut self) {
        assert!(wait(&mut self.script, LIMIT).is_some(), "it does not end");
        assert_eq!(self.file("status").trim(), "0");
        assert!(!self.file("before").trim().is_empty());
        assert_eq!(self.file("before"), self.file("after"));
        eventually("the screen before is shown again", || {
            let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            let is_left = written.contains("\x1b[?1049l") && written.contains("\x1b[?25h");
            is_left.then_some(())
        });
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

fn configuration(site: &Site) -> String {
    format!(
        "{}{}[[peer]]\nname = \"osaka\"\npublic_key = \"{}\"\n[[app]]\nname = \"orders\"\npeer = \"osaka\"\n\
         class = \"message\"\n",
        site.gateway("tokyo"),
        path("near", free("127.0.0.1")),
        Site::new().public_key()
    )
}

#[test]
fn a_gateway_that_comes_goes_and_comes_again_is_followed() {
    let site = Site::new();
    let socket = shown(&site.path("control.sock"));
    let mut top = Top::start(&socket);
    top.sees("ANSWER");
    let text = configuration(&site);
    let mut gateway = Gateway::start(site, &text);
    top.sees("orders");
    top.press("2");
    top.sees("near");
    top.press("1\r");
    top.sees("why");
    gateway.kill();
    top.sees("ANSWER");
    gateway.start_again();
    top.sees("targets");
    top.press("4");
    top.sees("happened");
    top.press("q");
    top.ends_well();
}

#[test]
fn a_signal_ends_it_and_leaves_the_terminal_as_it_was() {
    let site = Site::without_key();
    let mut top = Top::start(&shown(&site.path("none.sock")));
    top.sees("ANSWER");
    let pid = top.file("pid");
    let kill = format!("kill -TERM {}", pid.trim());
    let status = Command::new("sh").args(["-c", &kill]).status();
    assert!(status.expect("the shell runs").success());
    top.ends_well();
}

#[test]
fn without_a_terminal_other_commands_are_named() {
    let site = Site::without_key();
    run(["top", "--socket", &shown(&site.path("none.sock"))])
        .expect_code(1)
        .says(&["standard input is not a terminal", "`keiro show app`"]);
    let file = shown(&site.write("file", ""));
    run(["top", "--socket", &file])
        .expect_code(1)
        .says(&["is a file, not a socket"]);
}
