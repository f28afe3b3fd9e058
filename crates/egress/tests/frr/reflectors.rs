//! The configurations of reflectors in docs/egress.md are read by their programs.

use std::{fs, process::Command};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/egress.md");

/// The code blocks of the section, in order: BIRD, FRR, gobgp.
fn documented() -> [String; 3] {
    let page = fs::read_to_string(PAGE).unwrap();
    let (_, section) = page.split_once("\n## Reflectors\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("an end");
    let blocks = section.split("```").skip(1).step_by(2);
    let blocks: Vec<String> = blocks.map(|block| block.trim_start().to_owned()).collect();
    blocks.try_into().expect("three configurations")
}

#[test]
fn documented_reflectors_are_read_by_their_programs() {
    let directory = tempfile::tempdir().unwrap();
    let programs: [(&str, &[&str]); 3] = [
        ("/usr/sbin/bird", &["-p", "-c"]),
        ("/usr/lib/frr/bgpd", &["-C", "-f"]),
        ("gobgpd", &["--dry-run", "-f"]),
    ];
    for (text, (program, options)) in documented().iter().zip(programs) {
        let file = directory.path().join("reflector.conf");
        fs::write(&file, text).unwrap();
        let ran = Command::new(program).args(options).arg(&file).output();
        let ran = ran.unwrap_or_else(|error| panic!("{program}: {error}; `scripts/setup tests`"));
        // bgpd reports an unknown command and goes on.
        let said = String::from_utf8_lossy(&ran.stderr);
        let wrong = ["No such command", "Unknown command", "Ambiguous"];
        assert!(ran.status.success(), "{program}: {ran:?}");
        assert!(
            !wrong.iter().any(|text| said.contains(text)),
            "{program}: {said}"
        );
    }
}
