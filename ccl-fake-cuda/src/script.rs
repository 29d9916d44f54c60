//! The language of scripts.

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Devices(u32),
    Version(i32),
    Missing(String),
    Fail { function: String, code: i32, nth: u64, times: u64 },
    Spoil { code: i32, nth: u64 },
    Delay { seed: u64, microseconds: u64 },
    Queues(usize),
    AllocationsWait,
    NoPeers,
    Attribute { number: i32, value: i32, device: Option<u32> },
    Kernels(String),
}

/// Reads a script; the error names the line.
pub(crate) fn parse(text: &str) -> Result<Vec<Command>, String> {
    let lines = text.lines().flat_map(|line| line.split('#').next().unwrap_or_default().split(';'));
    let lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| command(line).map_err(|why| format!("'{line}': {why}"))).collect()
}

fn command(line: &str) -> Result<Command, String> {
    let (named, plain): (Vec<_>, Vec<_>) = line.split_whitespace().partition(|word| word.contains('='));
    let mut plain = plain.into_iter();
    let mut next = |what: &str| plain.next().ok_or_else(|| format!("{what} is missing"));
    let setting = |name: &str, default: Option<u64>| {
        let found = named.iter().filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name);
        match (found, default) {
            (Some((_, value)), _) => number(value),
            (None, Some(value)) => Ok(value),
            (None, None) => Err(format!("{name} is missing")),
        }
    };
    let (allowed, command): (&[&str], _) = match next("a command")? {
        "devices" => (&[], Command::Devices(number(next("N")?)?)),
        "version" => (&[], Command::Version(number(next("NUMBER")?)?)),
        "missing" => (&[], Command::Missing(next("NAME")?.to_string())),
        "fail" => {
            let function = next("NAME")?.to_string();
            let (nth, times) = (setting("nth", Some(1))?, setting("times", Some(1))?);
            let code = i32::try_from(setting("code", None)?).map_err(|_| "no such code")?;
            (&["code", "nth", "times"], Command::Fail { function, code, nth, times })
        }
        "spoil" => {
            let code = i32::try_from(setting("code", None)?).map_err(|_| "no such code")?;
            (&["code", "nth"], Command::Spoil { code, nth: setting("nth", Some(1))? })
        }
        "delay" => (
            &[],
            Command::Delay { seed: number(next("SEED")?)?, microseconds: number(next("MICROSECONDS")?)? },
        ),
        "queues" => match number(next("N")?)? {
            0 => return Err("at least one".into()),
            queues => (&[], Command::Queues(queues)),
        },
        "attribute" => {
            let (number, value) = (number(next("NUMBER")?)?, number(next("VALUE")?)?);
            // Of all devices, unless one is named.
            let device = u32::try_from(setting("device", Some(u64::MAX))?).ok();
            (&["device"], Command::Attribute { number, value, device })
        }
        "no-peers" => (&[], Command::NoPeers),
        "allocations-wait" => (&[], Command::AllocationsWait),
        "kernels" => (&[], Command::Kernels(next("FILE")?.to_string())),
        other => return Err(format!("{other} is no command")),
    };
    let unknown =
        named.iter().copied().find(|word| !allowed.iter().any(|name| word.split('=').next() == Some(name)));
    match (plain.next(), unknown) {
        (None, None) => Ok(command),
        (Some(word), _) | (_, Some(word)) => Err(format!("{word} means nothing here")),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number, or too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read_and_mistakes_named() {
        let script =
            "devices 2; version 12040 # a comment\nfail cuMemAlloc code=2 nth=3\ndelay 7 100; queues 1";
        let fail = Command::Fail { function: "cuMemAlloc".into(), code: 2, nth: 3, times: 1 };
        let delay = Command::Delay { seed: 7, microseconds: 100 };
        let expected = [Command::Devices(2), Command::Version(12_040), fail, delay, Command::Queues(1)];
        assert_eq!(parse(script).unwrap(), expected);
        for (wrong, why) in [
            ("dance", "dance is no command"),
            ("devices", "N is missing"),
            ("devices two", "two is no number"),
            ("fail cuInit", "code is missing"),
            ("spoil code=700 times=2", "times=2 means nothing"),
            ("queues 0", "at least one"),
        ] {
            assert!(parse(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }
}
