//! Shortest paths by number of links.

use std::collections::VecDeque;

/// There is no route.
pub(super) const NO_ROUTE: u16 = u16::MAX;

/// For every node and destination the index of the outgoing port, or [`NO_ROUTE`].
///
/// `neighbours` has the node at the other end of each node's ports, `transits` whether a node forwards
/// packets. Among paths of equal length, the one over the node's lowest port is used.
pub(super) fn shortest(neighbours: &[Vec<usize>], transits: &[bool]) -> Vec<Vec<u16>> {
    let nodes = neighbours.len();
    let mut tables = vec![vec![NO_ROUTE; nodes]; nodes];
    let mut distance = vec![u32::MAX; nodes];
    let mut queue = VecDeque::new();
    for destination in 0..nodes {
        distance.fill(u32::MAX);
        distance[destination] = 0;
        queue.push_back(destination);
        while let Some(node) = queue.pop_front() {
            if node != destination && !transits[node] {
                continue;
            }
            for &next in &neighbours[node] {
                if distance[next] == u32::MAX {
                    distance[next] = distance[node] + 1;
                    queue.push_back(next);
                }
            }
        }
        for node in 0..nodes {
            if distance[node] == u32::MAX || node == destination {
                continue;
            }
            let leads = |&next: &usize| {
                distance[next] == distance[node] - 1 && (next == destination || transits[next])
            };
            let port = neighbours[node].iter().position(leads);
            tables[node][destination] = port.map_or(NO_ROUTE, |port| port as u16);
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_do_not_forward_and_the_shortest_path_is_used() {
        // 0 host – 1 router – 2 router – 3 host; 4 is a host on both routers; 5 is isolated.
        let neighbours = [
            vec![1],
            vec![0, 4, 2],
            vec![3, 1, 4],
            vec![2],
            vec![1, 2],
            vec![],
        ];
        let transits = [false, true, true, false, false, false];
        let tables = shortest(&neighbours, &transits);
        assert_eq!(tables[1][3], 2, "past the host");
        assert_eq!(tables[4][3], 1);
        assert_eq!(tables[0][3], 0);
        assert_eq!(tables[0][5], NO_ROUTE);
        assert_eq!(tables[5][0], NO_ROUTE);
    }
}
