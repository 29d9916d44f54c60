//! The table of routes, for people.

use super::Route;
use std::fmt;

/// Routes as lines of a table: peer, transport, and why or how.
pub struct RouteTable<'a>(pub &'a [Route]);

impl fmt::Display for RouteTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |route: &Route| route.transport.unwrap_or("none");
        let width = self.0.iter().map(|route| name(route).len()).chain([9]).max().unwrap_or(9);
        write!(f, "{:>5}  {:<width$}  how", "peer", "transport")?;
        for route in self.0 {
            write!(f, "\n{:>5}  {:<width$}  {}", route.peer, name(route), route.why)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_a_line() {
        let routes = [
            Route { peer: 1, transport: Some("shm"), why: "the peer is on this host".into() },
            Route { peer: 12, transport: None, why: "no transport reaches it".into() },
        ];
        let table = RouteTable(&routes).to_string();
        let lines: Vec<_> =
            table.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect();
        assert_eq!(lines, [["peer", "transport"], ["1", "shm"], ["12", "none"]]);
        let starts: Vec<_> = ["how", "the peer", "no transport"]
            .map(|text| table.lines().filter_map(move |l| l.find(text)).next())
            .into();
        assert!(starts.iter().all(|at| *at == starts[0]), "{table}");
    }
}
