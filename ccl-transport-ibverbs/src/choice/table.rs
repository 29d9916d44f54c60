//! What was chosen, for people: one row per peer and rail.

use std::fmt;

/// A connection to a peer over one pair of rails.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The peer.
    pub peer: u32,
    /// Its host.
    pub host: String,
    /// Device and port here.
    pub here: String,
    /// Device and port there.
    pub there: String,
    /// GID here.
    pub gid: String,
    /// GID there.
    pub peer_gid: String,
    /// Packet payload in bytes.
    pub mtu: u16,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Traffic class and service level.
    pub quality: String,
    /// The reasons, one after the other.
    pub why: String,
}

/// Rows with a heading, columns as wide as they need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(pub Vec<Row>);

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = ["peer", "host", "port", "peer's", "gid", "peer's", "mtu", "qps", "class", "why"];
        let mut lines = vec![heading.map(String::from)];
        lines.extend(self.0.iter().map(|row| {
            let row = row.clone();
            let (peer, mtu, qps) = (row.peer.to_string(), row.mtu.to_string(), row.queue_pairs.to_string());
            [peer, row.host, row.here, row.there, row.gid, row.peer_gid, mtu, qps, row.quality, row.why]
        }));
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..heading.len()).map(width).collect();
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            let (last, others) = line.split_last().expect("ten columns");
            for (cell, width) in others.iter().zip(&widths) {
                write!(f, "{cell:<width$}  ")?;
            }
            f.write_str(last)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_one_another() {
        let row = |peer: u32, host: &str| Row {
            peer,
            host: host.into(),
            here: "mlx5_0:1".into(),
            there: "mlx5_1:1".into(),
            gid: "10.0.0.1".into(),
            peer_gid: "10.0.0.22".into(),
            mtu: 4096,
            queue_pairs: 4,
            quality: "106 (DSCP 26, ECN 2), SL 0".into(),
            why: "same network".into(),
        };
        let text = Table(vec![row(1, "a"), row(12, "a-long-name")]).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.trim_end() == *line));
        let at = |line: &str, text: &str| line.find(text).unwrap();
        assert_eq!(at(lines[0], "why"), at(lines[1], "same"));
        assert_eq!(at(lines[1], "same"), at(lines[2], "same"));
    }
}
