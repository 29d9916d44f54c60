//! Independent programs over verbs, between two rails: ibv_rc_pingpong and perftest. What they can do here, the library
//! must be able to do.

use crate::network::Rail;
use crate::placement::Placement;
use crate::process::{Process, wait_until};
use crate::sysfs;
use std::net::TcpListener;
use std::time::Instant;

/// A program that runs at both ends of a rail: the server's end first.
pub(crate) struct Pair {
    server: Process,
    client: Process,
}

/// Starts a program at both ends, the client when the server listens. `gid` is what the program calls the option for
/// the GID's index; `lines` are the program and its options, the server's first.
fn start(lines: [&str; 2], gid: &str, ends: [&Rail; 2], deadline: Instant) -> Result<Pair, String> {
    let port = free_port()?;
    let line = |end: usize| {
        let (line, rail) = (lines[end], ends[end]);
        Ok::<_, String>(format!("{line} -d {} -{gid} {} -p {port}", rail.device, rail.gid_index()?))
    };
    let mut server = Process::start(&line(0)?)?;
    wait_until(&format!("{} to listen", lines[0]), deadline, || {
        Ok(sysfs::listens(port) || server.has_ended())
    })?;
    // They exchange what a connection needs over TCP, which does not matter here.
    let client = Process::start(&format!("{} 127.0.0.1", line(1)?))?;
    Ok(Pair { server, client })
}

/// Messages of 4096 bytes forth and back over a reliable connection.
pub(crate) fn pingpong(ends: [&Rail; 2], iterations: u32, deadline: Instant) -> Result<Pair, String> {
    pingpong_with_mtu(ends, [4096, 4096], iterations, deadline)
}

/// [`pingpong`] whose ends have been told different sizes of packets.
pub(crate) fn pingpong_with_mtu(
    ends: [&Rail; 2],
    mtu: [u32; 2],
    iterations: u32,
    deadline: Instant,
) -> Result<Pair, String> {
    let [server, client] = mtu.map(|mtu| format!("ibv_rc_pingpong -m {mtu} -n {iterations}"));
    start([&server, &client], "g", ends, deadline)
}

impl Pair {
    /// What the client said at its end; an error if one end failed.
    pub(crate) fn finish(self, deadline: Instant) -> Result<String, String> {
        let said = self.client.finish(deadline)?;
        self.server.finish(deadline)?;
        Ok(said)
    }
}

/// One-sided writes of `bytes` between the first two hosts, in MiB/s on average.
pub(crate) fn write_bandwidth(
    ends: [&Rail; 2],
    processors: Placement,
    bytes: u64,
    iterations: u32,
    deadline: Instant,
) -> Result<f64, String> {
    let options = format!("--perform_warm_up -F -s {bytes} -n {iterations}");
    let said = perftest(&format!("ib_write_bw {options}"), ends, processors, deadline)?;
    // #bytes #iterations BW-peak BW-average message-rate
    column(&said, bytes, 3)
}

/// One-sided writes of `bytes` in turns: microseconds one way, the median.
pub(crate) fn write_latency(
    ends: [&Rail; 2],
    processors: Placement,
    bytes: u64,
    iterations: u32,
    deadline: Instant,
) -> Result<f64, String> {
    let said = perftest(&format!("ib_write_lat -F -s {bytes} -n {iterations}"), ends, processors, deadline)?;
    // #bytes #iterations minimum maximum typical …
    column(&said, bytes, 4)
}

/// What a program of perftest says between the first two hosts.
fn perftest(
    line: &str,
    ends: [&Rail; 2],
    processors: Placement,
    deadline: Instant,
) -> Result<String, String> {
    let [server, client] = [0, 1].map(|host| format!("{}{line}", processors.words(host)));
    start([&server, &client], "x", ends, deadline)?.finish(deadline)
}

/// A number in the line of a perftest table that begins with `bytes`.
fn column(table: &str, bytes: u64, number: usize) -> Result<f64, String> {
    let words = |line: &'_ str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let row = table.lines().map(words).find(|row| row.first().is_some_and(|w| *w == bytes.to_string()));
    row.and_then(|row| row.get(number)?.parse().ok())
        .ok_or_else(|| format!("perftest printed no result:\n{table}"))
}

/// A TCP port that nobody has now.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    listener.map(|address| address.port()).map_err(|e| format!("no free TCP port: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_from_the_table_of_perftest() {
        let table = "---\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n\
                     Conflicting CPU frequency values detected\n 65536      100              48.12              47.50  \t\t     0.000760\n---\n";
        assert_eq!(column(table, 65536, 3), Ok(47.5));
        assert!(column(table, 8, 3).unwrap_err().contains("no result"));
    }
}
