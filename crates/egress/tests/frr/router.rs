//! FRR's zebra and bgpd in a host of a laboratory.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use keiro_lab::{Host, Process};
use tempfile::TempDir;

/// Where Debian's package has the daemons.
const DAEMONS: &str = "/usr/lib/frr";

pub(crate) struct Router {
    directory: TempDir,
    _processes: Vec<Process>,
}

impl Router {
    /// Starts both daemons; `config` is bgpd's.
    pub(crate) fn start(host: &Host, config: &str) -> Self {
        assert!(
            Path::new(DAEMONS).join("bgpd").exists(),
            "FRR is missing: run `make setup`, or install Debian's package `frr`"
        );
        let directory = TempDir::new().expect("a directory");
        // They run as the package's user.
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), all).expect("permissions");
        let mut router = Self {
            directory,
            _processes: Vec::new(),
        };
        fs::write(router.path("zebra.conf"), "hostname zebra\n").unwrap();
        fs::write(router.path("bgpd.conf"), config).unwrap();
        for daemon in ["zebra", "bgpd"] {
            let process = host.spawn(router.command(host, daemon)).unwrap();
            router._processes.push(process);
            let vty = router.path(&format!("{daemon}.vty"));
            let end = Instant::now() + Duration::from_secs(20);
            while !vty.exists() {
                let log = fs::read_to_string(router.path(&format!("{daemon}.out")));
                assert!(Instant::now() < end, "{daemon} does not start: {log:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        router
    }

    fn command(&self, host: &Host, daemon: &str) -> Command {
        // A mount namespace of its own: zebra would look at every named network namespace there is.
        let mut command = host.command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.arg(format!(
            "umount -l /run/netns 2>/dev/null; exec {DAEMONS}/{daemon} \"$@\""
        ));
        command.arg(daemon);
        let of = |kind: &str| self.path(&format!("{daemon}.{kind}"));
        command.arg("-f").arg(of("conf"));
        command.arg("-i").arg(of("pid"));
        command.arg("-z").arg(self.path("zserv.api"));
        command.arg("--vty_socket").arg(self.directory.path());
        // No port for operators; their socket is enough.
        command.args(["-P", "0", "-A", "127.0.0.1"]);
        let out = fs::File::create(of("out")).expect("a file");
        command.stdin(Stdio::null());
        command.stdout(out.try_clone().expect("a descriptor"));
        command.stderr(out);
        command
    }

    /// Gives commands as an operator does, and returns what they print.
    pub(crate) fn vtysh(&self, commands: &[&str]) -> String {
        let mut vtysh = Command::new("vtysh");
        vtysh.arg("--vty_socket").arg(self.directory.path());
        vtysh.args(["-d", "bgpd"]);
        for command in commands {
            vtysh.args(["-c", command]);
        }
        let output = vtysh.output().expect("vtysh runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{commands:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
