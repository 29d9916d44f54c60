//! What the ranks tell each other about a measurement, through the communicator itself.

use crate::device;
use crate::options::Place;
use crate::report::Device;
use ccl::{Buffers, Call, Collective, Communicator, DataType, ReduceOp, Result};

/// Combines the ranks' times as `-a` says.
pub(crate) fn combine(comm: &mut Communicator, average: u8, times: &mut [f64]) -> Result<()> {
    let op = match average {
        // Rank 0 prints, and keeps its own.
        0 => return Ok(()),
        1 => ReduceOp::Avg,
        2 => ReduceOp::Min,
        _ => ReduceOp::Max,
    };
    let mut bytes: Vec<u8> = times.iter().flat_map(|t| t.to_le_bytes()).collect();
    all_reduce(comm, &mut bytes, DataType::F64, op)?;
    for (time, bytes) in times.iter_mut().zip(bytes.as_chunks().0) {
        *time = f64::from_le_bytes(*bytes);
    }
    Ok(())
}

/// The sum or the largest of all ranks' numbers.
pub(crate) fn reduce(comm: &mut Communicator, own: u64, op: ReduceOp) -> Result<u64> {
    let mut bytes = own.to_le_bytes();
    all_reduce(comm, &mut bytes, DataType::U64, op)?;
    Ok(u64::from_le_bytes(bytes))
}

fn all_reduce(comm: &mut Communicator, bytes: &mut [u8], dtype: DataType, op: ReduceOp) -> Result<()> {
    let len = bytes.len();
    let call = Call { collective: Collective::AllReduce, count: len / dtype.size(), dtype, op, root: 0 };
    comm.run(&call, Buffers::in_place(bytes, 0..len, 0..len))
}

/// Who takes part, asked of every rank.
pub(crate) fn devices(comm: &mut Communicator, memory: Place) -> Result<Vec<Device>> {
    const RECORD: usize = 256;
    let (device, bus, device_info) = match memory {
        Place::Host => (comm.rank(), "host".into(), processor()),
        Place::Device => {
            let device = device::of(comm)?;
            (device.ordinal, device.pci, device.name.chars().filter(char::is_ascii).take(96).collect())
        }
    };
    let host = short_line("/proc/sys/kernel/hostname", "localhost");
    let text = format!("{}\n{host}\n{device}\n{bus}\n{device_info}\n", std::process::id());
    let mut sent = text.into_bytes();
    sent.resize(RECORD, 0);
    let mut received = vec![0; RECORD * comm.size() as usize];
    comm.all_gather(&sent, &mut received)?;
    let read = |(rank, record): (u32, &[u8])| {
        let text = String::from_utf8_lossy(record);
        let mut lines = text.trim_end_matches('\0').lines().map(str::to_string);
        let mut next = || lines.next().unwrap_or_default();
        Device {
            rank,
            pid: next().parse().unwrap_or(0),
            hostname: next(),
            device: next().parse().unwrap_or(0),
            bus: next(),
            device_info: next(),
        }
    };
    Ok((0u32..).zip(received.chunks_exact(RECORD)).map(read).collect())
}

fn short_line(path: &str, otherwise: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line: String = text.trim().chars().filter(char::is_ascii).take(64).collect();
    if line.is_empty() { otherwise.to_string() } else { line }
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(':').nth(1));
    name.unwrap_or(std::env::consts::ARCH).trim().chars().filter(char::is_ascii).take(96).collect()
}
