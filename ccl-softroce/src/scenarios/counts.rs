//! What calls cost the devices, by the line with which the links of a rank end.

use super::rdma::job;
use super::{Scenario, Stage};
use std::time::Duration;

pub(super) const COUNTED: Scenario = Scenario {
    name: "rdma_work_counted",
    proves: "short pieces travel inline, long ones by slots, those of registered memory from where they lie and into where they go; a call costs the devices one work request and post for each message of its plan",
    hosts: 2,
    rails: 1,
    limit: Duration::from_secs(90),
    run: counted,
};

/// What one rank's devices did: the numbers of the line that its links end with.
struct Counted {
    inline: u64,
    slots: u64,
    referenced: u64,
    direct: u64,
    bytes: u64,
    sends: u64,
    offers: u64,
    credits: u64,
    receives: u64,
    doorbells: u64,
    polls: u64,
}

/// Everything that more calls add is theirs: the programs' own calls are in both runs.
fn counted(stage: &mut Stage<'_>) -> Result<(), String> {
    const FEW: u64 = 16;
    const MORE: u64 = 128;
    for (name, algorithm, bytes, messages, is_short) in [
        ("8B", "oneshot", 8, 1, true),
        ("64KiB", "oneshot", 65536, 1, false),
        ("256B ring", "ring", 256, 2, true),
    ] {
        let arguments = |calls: u64| format!("-b {bytes} -e {bytes} -n {calls} -w 0 --algo {algorithm}");
        let few = count(stage, "all_reduce_perf", &arguments(FEW))?;
        let many = count(stage, "all_reduce_perf", &arguments(FEW + MORE))?;
        let more = |of: fn(&Counted) -> u64| of(&many) - of(&few);
        // Out of place and in place.
        let messages = 2 * MORE * messages;
        let path = if is_short { more(|c| c.inline) } else { more(|c| c.slots) };
        let moved = more(|c| c.bytes);
        // The ring's two messages are half of the buffer each.
        if path != messages || more(|c| c.sends) != messages || moved != 2 * MORE * bytes {
            let sends = more(|c| c.sends);
            return Err(format!(
                "{name}: {messages} messages of the plan were {path} on their path, {sends} work requests, {moved} bytes"
            ));
        }
        let (doorbells, receives) = (more(|c| c.doorbells), more(|c| c.receives));
        if doorbells > messages + receives / 16 + 1 || receives > messages + 16 {
            return Err(format!("{name}: {messages} messages cost {doorbells} posts, {receives} receives"));
        }
        stage.measured(&format!("{name}: posts per call"), doorbells as f64 / (2 * MORE) as f64);
        // How long a rank waits differs from run to run, so this is for people.
        stage.measured(&format!("{name}: polls"), many.polls as f64);
    }
    registered(stage)
}

/// Which pieces are sent before their offer has come depends on timing; that some are not, and that none takes more than one
/// work request, does not.
fn registered(stage: &mut Stage<'_>) -> Result<(), String> {
    let counted = count(stage, "all_gather_perf", "-b 8M -e 8M -n 8 -w 0 -R 1")?;
    let Counted { inline, slots, referenced, direct, sends, offers, credits, .. } = counted;
    let pieces = inline + slots + referenced;
    stage.measured("registered: pieces", pieces as f64);
    stage.measured("registered: by reference", referenced as f64);
    stage.measured("registered: direct", direct as f64);
    if referenced == 0 || direct == 0 || sends != pieces + offers + credits {
        return Err(format!(
            "of {pieces} pieces {referenced} went by reference, {direct} direct, in {sends} work requests with {offers} offers and {credits} returns of credits"
        ));
    }
    Ok(())
}

fn count(stage: &Stage<'_>, program: &str, arguments: &str) -> Result<Counted, String> {
    let said = job(program, arguments, &[0, 1]).run(&stage.network, stage.programs, stage.deadline)?;
    let line = said.lines().find(|line| line.contains("links end"));
    let line = line.ok_or_else(|| format!("rank 0 does not say what its devices did:\n{said}"))?;
    let number = |name: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.and_then(|word| word.parse().ok()).ok_or_else(|| format!("no number of {name}: {line}"))
    };
    Ok(Counted {
        inline: number("inline")?,
        slots: number("slots")?,
        referenced: number("referenced")?,
        direct: number("direct")?,
        bytes: number("bytes")?,
        sends: number("sends")?,
        offers: number("offers")?,
        credits: number("credits")?,
        receives: number("receives")?,
        doorbells: number("doorbells")?,
        polls: number("polls")?,
    })
}
