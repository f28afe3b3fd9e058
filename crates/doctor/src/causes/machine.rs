//! The machine, the configuration's file and the gateway as such.

use super::{Cause, ago};
use crate::{
    Subject,
    facts::{ConfigurationProblem, Tun},
};

pub(super) static NO_CONFIGURATION: Cause = Cause {
    id: "no_configuration",
    what: "there is no configuration",
    remedy: "`keiro init` writes one",
    check: |facts, _| {
        let file = &facts.configuration.file;
        let is_missing = facts.configuration.problem == Some(ConfigurationProblem::Missing);
        let finding = is_missing.then(|| {
            NO_CONFIGURATION.found(
                Subject::Configuration,
                format!("{file} does not exist"),
                format!("`keiro init --output {file}`, or name the file with --config"),
            )
        });
        finding.into_iter().collect()
    },
};

pub(super) static INVALID_CONFIGURATION: Cause = Cause {
    id: "invalid_configuration",
    what: "the configuration has errors, so that the gateway does not start or goes on with the one before",
    remedy: "`keiro config check` lists them with their places",
    check: |facts, _| {
        let file = &facts.configuration.file;
        let Some(ConfigurationProblem::Invalid { first, count }) = &facts.configuration.problem
        else {
            return Vec::new();
        };
        let more = match count {
            0 | 1 => String::new(),
            count => format!(", the first of {count} problems"),
        };
        vec![INVALID_CONFIGURATION.found(
            Subject::Configuration,
            format!("{first}{more}"),
            format!("correct the file: `keiro config check {file}`"),
        )]
    },
};

pub(super) static KEY_UNUSABLE: Cause = Cause {
    id: "key_unusable",
    what: "the private key is missing, is no key, or others may read it, so that the gateway does not start",
    remedy: "`chmod 600` the file, or `keiro genkey` where there is none",
    check: |facts, _| {
        let problem = facts.machine.key_problem.as_deref();
        let finding = problem.map(|problem| {
            let (what, remedy) = problem
                .split_once("; ")
                .unwrap_or((problem, "see `keiro help genkey`"));
            KEY_UNUSABLE.found(Subject::Machine, what, remedy)
        });
        finding.into_iter().collect()
    },
};

pub(super) static NO_TUN: Cause = Cause {
    id: "no_tun",
    what: "the machine has no usable /dev/net/tun, which tenants need",
    remedy: "`modprobe tun`, or give the container the device",
    check: |facts, _| {
        let has_devices = facts.gateway.is_some()
            && facts
                .tenants
                .iter()
                .all(|tenant| tenant.device_problem.is_none());
        if facts.tenants.is_empty() || has_devices {
            return Vec::new();
        }
        let (finding, remedy) = match facts.machine.tun {
            Tun::Present => return Vec::new(),
            Tun::Missing => (
                "/dev/net/tun does not exist, so no tenant has a device",
                "`modprobe tun`; for a container `--device /dev/net/tun`",
            ),
            Tun::Refused => (
                "/dev/net/tun cannot be opened, so no tenant has a device",
                "for a container `--device /dev/net/tun`; else `chmod 666 /dev/net/tun`",
            ),
        };
        vec![NO_TUN.found(Subject::Machine, finding, remedy)]
    },
};

/// A file that is newer than now by less may come from another machine. Ours.
const CLOCK_TOLERANCE_HOURS: u64 = 1;

pub(super) static CLOCK_BEHIND: Cause = Cause {
    id: "clock_behind",
    what: "the machine's clock is behind, so that peers take its handshakes for old ones",
    remedy: "`timedatectl set-ntp true`, then `systemctl restart keiro-gateway`",
    check: |facts, _| {
        let Some((file, behind)) = &facts.machine.clock_behind else {
            return Vec::new();
        };
        let is_stopped = facts.gateway.is_none() && !facts.may_not_ask;
        let has_consequence = is_stopped || facts.peers_down().next().is_some();
        if behind.as_secs() < CLOCK_TOLERANCE_HOURS * 3600 || !has_consequence {
            return Vec::new();
        }
        vec![CLOCK_BEHIND.found(
            Subject::Machine,
            format!(
                "the clock is behind by {} or more: {file} was written later than it is now; peers ignore \
                 handshakes that are older than the last one",
                ago(*behind)
            ),
            CLOCK_BEHIND.remedy,
        )]
    },
};

pub(super) static NOT_RUNNING: Cause = Cause {
    id: "not_running",
    what: "no gateway runs; only its configuration and the machine were looked at",
    remedy: "`systemctl start keiro-gateway`",
    check: |facts, _| {
        if facts.gateway.is_some() || facts.may_not_ask || facts.configuration.problem.is_some() {
            return Vec::new();
        }
        vec![NOT_RUNNING.found(
            Subject::Gateway,
            "no gateway runs; only its configuration and this machine were looked at",
            "`systemctl start keiro-gateway`, then `keiro doctor` again",
        )]
    },
};

pub(super) static REJECTED_CONFIGURATION: Cause = Cause {
    id: "rejected_configuration",
    what: "the last reload was refused, and the configuration before stays in force",
    remedy: "correct the file, then `keiro reload`",
    check: |facts, found| {
        let gateway = facts.gateway.as_ref();
        let rejected = gateway.and_then(|gateway| gateway.rejected.as_deref());
        let finding = rejected
            .filter(|_| !found.has_cause(INVALID_CONFIGURATION.id))
            .map(|why| {
                REJECTED_CONFIGURATION.found(
                    Subject::Configuration,
                    format!("the last reload was refused, and the configuration before stays in force: {why}"),
                    format!("correct {}, then `keiro reload`", facts.configuration.file),
                )
            });
        finding.into_iter().collect()
    },
};

pub(super) static NEEDS_RESTART: Cause = Cause {
    id: "needs_restart",
    what: "something of the configuration takes effect only by a restart",
    remedy: "`systemctl restart keiro-gateway`",
    check: |facts, _| {
        let gateway = facts.gateway.as_ref();
        let waiting = gateway.map_or(&[][..], |gateway| &gateway.needs_restart);
        let of = |line: &String| {
            NEEDS_RESTART.found(Subject::Configuration, line.as_str(), NEEDS_RESTART.remedy)
        };
        waiting.iter().map(of).collect()
    },
};

pub(super) static NO_NET_ADMIN: Cause = Cause {
    id: "no_net_admin",
    what: "the gateway may not make devices, routes and rules (CAP_NET_ADMIN)",
    remedy: "the capability in the unit, or `--cap-add NET_ADMIN` for a container",
    check: |facts, _| {
        let gateway = facts.gateway.as_ref();
        let has = gateway.and_then(|gateway| gateway.has_net_admin);
        let is_missed = facts
            .tenants
            .iter()
            .any(|tenant| tenant.device_problem.is_some());
        if has != Some(false) || !is_missed {
            return Vec::new();
        }
        vec![NO_NET_ADMIN.found(
            Subject::Gateway,
            "the gateway lacks CAP_NET_ADMIN, so that it makes no devices and routes of tenants",
            "`AmbientCapabilities=CAP_NET_ADMIN` in `systemctl edit keiro-gateway`; for a container `--cap-add NET_ADMIN`",
        )]
    },
};

pub(super) static STORE_LOST: Cause = Cause {
    id: "store_lost",
    what: "the plan store does not answer; the last plan stays in force",
    remedy: "the store's own health, and what lies between",
    check: |facts, _| {
        let gateway = facts.gateway.as_ref();
        let why = gateway.and_then(|gateway| gateway.store_lost.as_deref());
        let finding = why.map(|why| {
            STORE_LOST.found(
                Subject::Gateway,
                format!("the plan store does not answer, and the last plan stays in force: {why}"),
                "for etcd `etcdctl endpoint health`; the endpoints are in [store]",
            )
        });
        finding.into_iter().collect()
    },
};
