//! The same for people.

use super::Info;
use super::host::Host;
use crate::size::{rounded, short};
use crate::table::Table;
use std::fmt::Write as _;

/// All sections.
pub(super) fn of(info: &Info) -> String {
    let mut text = format!("rdmaccl {}\n", info.version);
    let mut section = |name: &str, lines: String| {
        let _ = write!(text, "\n{name}\n{lines}");
    };
    section("Host", host(&info.host, info));
    section("Transports", transports(info));
    section("Launcher", launcher(info));
    let choices = format!("Chosen for {} ranks on this machine", info.choices.ranks);
    section(&choices, chosen(info));
    section("Settings", settings(info));
    text
}

fn host(host: &Host, info: &Info) -> String {
    let mut table = Table::plain();
    table.row(["name".to_string(), format!("{}, {}", host.name, host.kernel)]);
    table.row(["processor", &host.processor]);
    let granted =
        host.cores_granted.map_or_else(String::new, |n| format!(", {n} granted by the control group"));
    table.row(["cores".into(), format!("{} of {} online{granted}", host.cores_allowed, host.cores_online)]);
    let nodes: Vec<_> =
        host.numa_nodes.iter().enumerate().map(|(i, list)| format!("{i}: cores {list}")).collect();
    table.row(["NUMA nodes".into(), if nodes.is_empty() { "unknown".into() } else { nodes.join("; ") }]);
    let kernels = &info.kernels;
    table.row([
        "reduction kernels".into(),
        match &kernels.error {
            None => format!("{} (this processor has {})", kernels.used, kernels.available.join(", ")),
            Some(why) => format!("error: {why}"),
        },
    ]);
    if let (Some(total), Some(free)) = (host.memory_bytes, host.memory_available_bytes) {
        let granted = host
            .memory_granted_bytes
            .map_or_else(String::new, |bytes| format!(", {} granted by the control group", rounded(bytes)));
        table.row(["memory".into(), format!("{}, {} available{granted}", rounded(total), rounded(free))]);
    }
    if let (Some(pages), Some(bytes)) = (host.huge_pages, host.huge_page_bytes) {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        table.row([
            "huge pages".into(),
            format!(
                "{pages} of {} reserved; transparent: {}, shared: {}",
                rounded(bytes),
                word(&host.transparent_huge_pages),
                word(&host.transparent_huge_pages_shared)
            ),
        ]);
    }
    let limit = |limit: Option<u64>, show: fn(u64) -> String| limit.map_or_else(|| "no limit".into(), show);
    table.row(["locked memory".into(), limit(host.locked_memory_limit_bytes, rounded)]);
    table.row(["open files".into(), limit(host.open_files_limit, |n| n.to_string())]);
    table.text(2)
}

fn transports(info: &Info) -> String {
    let mut table = Table::plain();
    for transport in &info.transports {
        let state = if transport.works { "works" } else { "does not work" };
        table.row([transport.name, state, transport.what]);
        for note in &transport.notes {
            table.row(["", "", note]);
        }
    }
    table.text(2)
}

fn launcher(info: &Info) -> String {
    let launcher = &info.launcher;
    let mut lines = match (launcher.name, &launcher.error) {
        (_, Some(why)) => format!("  error: {why}\n"),
        (None, None) => {
            "  none: no variable of torchrun, Slurm, Open MPI, PMI or RDMACCL_RANK is set\n".into()
        }
        (Some(name), None) => {
            let number = |n: Option<u32>| n.map_or_else(|| "?".to_string(), |n| n.to_string());
            let local = launcher.local_rank.map_or_else(String::new, |n| format!(", local rank {n}"));
            let (rank, size) = (number(launcher.rank), number(launcher.size));
            let meeting = launcher.meeting.as_deref().unwrap_or_default();
            format!("  {name}: rank {rank} of {size}{local}; the ranks meet at {meeting}\n")
        }
    };
    let mut table = Table::plain();
    for variable in &launcher.variables {
        table.row([variable.name.as_str(), &variable.value]);
    }
    lines += &table.text(2);
    lines
}

fn chosen(info: &Info) -> String {
    let sizes = info.choices.sizes.map(|size| short(size) + "B");
    let names = ["collective".to_string()].into_iter().chain(sizes).collect::<Vec<_>>();
    let mut table = Table::with(names, usize::MAX);
    for chosen in &info.choices.collectives {
        table.row(std::iter::once(chosen.collective).chain(chosen.algorithms.iter().map(String::as_str)));
    }
    format!("  constants of the cost function: {}\n{}", info.choices.constants, table.text(2))
}

fn settings(info: &Info) -> String {
    let mut table = Table::new(["variable", "value", "from", "default", "meaning"]);
    for setting in &info.settings {
        let shown = |value: &str| if value.is_empty() { "-".to_string() } else { value.to_string() };
        table.row([
            setting.name.to_string(),
            shown(&setting.value),
            format!("{}{}", setting.origin, if setting.error.is_some() { " (!)" } else { "" }),
            shown(setting.default),
            setting.meaning.to_string(),
        ]);
    }
    let mut lines = table.text(2);
    for error in info.settings.iter().filter_map(|setting| setting.error.as_ref()) {
        let _ = writeln!(lines, "  (!) {error}");
    }
    for unknown in &info.unknown {
        let _ =
            writeln!(lines, "  unknown variable {}: did you mean {}?", unknown.name, unknown.did_you_mean);
    }
    lines
}
