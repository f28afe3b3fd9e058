//! What uplinks cost while they carry nothing, and which part of their budgets that may be.

use keiro_model::probing::{self, LIMIT_MIN};
use keiro_units::ByteCount;

use super::{Budget, Config, Path, PathIndex, PathOrigin};

/// What an uplink costs in 30 days while it carries nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleCost {
    /// Pairs of a peer and a path to it over the uplink, each of which is kept alive and measured for itself.
    pub lines: u64,
    /// Bytes of IP packets of both ends in both directions, at most.
    pub bytes: ByteCount,
    /// What the configuration allows; `None`: no limit.
    pub budget: Option<ByteCount>,
}

impl IdleCost {
    /// What keeps the paths alive takes more than the budget.
    pub fn exceeds_budget(&self) -> bool {
        self.budget.is_some_and(|budget| self.bytes > budget)
    }
}

/// Keepalives and probes take at most this part of a budget, but for what keepalives need. Ours: the rest is for data.
const PROBES_PART: u64 = 10;

impl Config {
    /// The path that is an uplink's first, of this one.
    pub fn uplink_of(&self, path: PathIndex) -> PathIndex {
        match self[path].origin {
            PathOrigin::Further(uplink) => uplink,
            PathOrigin::Written | PathOrigin::Auto => path,
        }
    }

    /// Paths to peers over the uplink of a path; one at least.
    fn lines_over(&self, path: PathIndex) -> u64 {
        let uplink = self.uplink_of(path);
        let further = |peer: &super::Peer| {
            let over = |path: &&PathIndex| self[**path].origin == PathOrigin::Further(uplink);
            1 + peer.further_paths.iter().filter(over).count() as u64
        };
        self.peers.iter().map(further).sum::<u64>().max(1)
    }

    /// What both ends may send on this path to one peer in 30 days to keep it alive and to measure it: its share of a
    /// small part of the uplink's budget. `None`: no limit.
    pub fn probe_limit(&self, path: PathIndex) -> Option<ByteCount> {
        let Path {
            is_metered, budget, ..
        } = &self[path];
        if *is_metered {
            return Some(ByteCount::ZERO);
        }
        let budget = budget.as_ref()?.bytes.get();
        let lines = self.lines_over(path);
        let part = (budget / PROBES_PART).max(LIMIT_MIN.get().saturating_mul(lines));
        Some(ByteCount::new(part.min(budget) / lines))
    }

    /// The uplinks that may carry so much in a month, each with all the paths over it.
    pub fn budgets(&self) -> impl Iterator<Item = (PathIndex, Budget)> + '_ {
        let budget = |(number, path): (usize, &Path)| {
            let is_uplink = !matches!(path.origin, PathOrigin::Further(_));
            Some((PathIndex(number), path.budget.filter(|_| is_uplink)?))
        };
        self.paths.iter().enumerate().filter_map(budget)
    }

    /// What the uplink of a path costs while it carries nothing.
    pub fn idle_cost(&self, path: PathIndex) -> IdleCost {
        let lines = self.lines_over(path);
        let probes = self[path]
            .rate_bound()
            .share_floor(self.gateway.probe_share);
        let each = probing::idle_cost(probes, self.probe_limit(path));
        IdleCost {
            lines,
            bytes: ByteCount::new(each.get().saturating_mul(lines)),
            budget: self[path].budget.map(|budget| budget.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Found, Local};
    use super::*;

    const MB: u64 = 1_000_000;

    fn config(keys: &str, peers: usize, endpoint: &str) -> Config {
        let peer = |number: usize| {
            let key = "VVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVVU=";
            let letter = char::from(b'V' - number as u8);
            let key = key.replacen('V', &letter.to_string(), 1);
            format!("[[peer]]\nname = \"p{number}\"\npublic_key = \"{key}\"\n{endpoint}")
        };
        let peers: String = (0..peers).map(peer).collect();
        let text = format!(
            "[gateway]\nname = \"a\"\n[[path]]\nname = \"lte\"\ninterface = \"wwan0\"\n{keys}{peers}"
        );
        Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{text}\n{error}"))
    }

    #[test]
    fn all_paths_over_an_uplink_share_its_budget() {
        let endpoints = "endpoint = [\"192.0.2.1:1\", \"192.0.2.2:1\", \"192.0.2.3:1\"]\n";
        for (peers, endpoint, lines) in [
            (0, "", 1),
            (1, "", 1),
            (3, "", 3),
            (1, endpoints, 3),
            (2, endpoints, 6),
        ] {
            let written = config("monthly_budget = \"12GB\"\n", peers, endpoint);
            let resolved = written.resolved(&Found::default());
            for path in resolved.with_further(PathIndex(0)) {
                let limit = resolved.probe_limit(path).map(ByteCount::get);
                assert_eq!(limit, Some(1200 * MB / lines), "{peers} peers, {endpoint}");
                let cost = resolved.idle_cost(path);
                assert_eq!((cost.lines, cost.exceeds_budget()), (lines, false));
                assert!(cost.bytes.get() <= 1200 * MB, "{cost:?}");
            }
        }
        // As many as the peer has uplinks.
        let written = config("monthly_budget = \"12GB\"\n", 1, "");
        let mut found = Found::default();
        found
            .wanted
            .insert(("p0".to_owned(), written.paths[0].local.clone()), 4);
        let resolved = written.resolved(&found);
        assert_eq!(resolved.idle_cost(PathIndex(0)).lines, 4);
        assert!(matches!(resolved.paths[3].local, Local::Interface(_)));
    }

    #[test]
    fn keepalives_that_exceed_a_budget_are_warned_of() {
        let small = config("monthly_budget = \"100MB\"\n", 3, "").idle_cost(PathIndex(0));
        assert!(small.exceeds_budget(), "{small:?}");
        let metered = config("metered = true\n", 3, "").idle_cost(PathIndex(0));
        assert!(!metered.exceeds_budget(), "{metered:?}");
        assert!(metered.bytes.get() <= 3 * 30 * 10 * MB, "{metered:?}");
        let any = config("", 1, "").idle_cost(PathIndex(0));
        assert_eq!(any.budget, None);
        // What keepalives need comes before the part that is left for data.
        let little = config("monthly_budget = \"200MB\"\n", 2, "");
        let limit = little.probe_limit(PathIndex(0)).map(ByteCount::get);
        assert_eq!(limit, Some(60 * MB));
        assert!(any.bytes.get() <= 1000 * MB, "{any:?}");
    }
}
