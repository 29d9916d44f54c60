//! This machine, as far as the cost function depends on it.

use crate::cost::Constants;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What tells one machine's constants from another's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Its architecture, as Rust calls it.
    pub architecture: String,
    /// Cores that are switched on.
    pub cores: u32,
    /// Bytes of the largest cache of the first core; 0 where that is not known.
    pub cache_bytes: u64,
}

impl Machine {
    /// The one that this process runs on.
    pub fn here() -> Machine {
        Machine::read(Path::new("/"))
    }

    /// What the files below `root` say.
    fn read(root: &Path) -> Machine {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let caches = (0..8).map(|i| read(&format!("sys/devices/system/cpu/cpu0/cache/index{i}/size")));
        Machine {
            processor: processor(&read("proc/cpuinfo")),
            architecture: std::env::consts::ARCH.to_string(),
            cores: listed(&read("sys/devices/system/cpu/online")).max(1),
            cache_bytes: caches.filter_map(|text| super::size(text.trim())).max().unwrap_or(0) as u64,
        }
    }

    /// The built-in constants, with this machine's cache: half of the largest one, since what passes by takes its share.
    pub fn built_in(&self) -> Constants {
        let built_in = Constants::default();
        let cached = Constants { cache_bytes: self.cache_bytes as f64 / 2.0, ..built_in };
        if cached.fault().is_none() { cached } else { built_in }
    }
}

fn processor(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown".to_string(), |(_, name)| name.trim().to_string())
}

/// How many numbers a list of the kernel's has: `0-3,8` has 5.
fn listed(list: &str) -> u32 {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').filter_map(count).fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_no_error() {
        let nowhere = Machine::read(Path::new("/nonexistent"));
        assert_eq!((nowhere.processor.as_str(), nowhere.cores, nowhere.cache_bytes), ("unknown", 1, 0));
        assert_eq!(nowhere.built_in(), Constants::default());
        assert!(Machine::here().cores >= 1);
    }

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!([listed("0-3,8\n"), listed("0"), listed(""), listed("3-1"), listed("x")], [5, 1, 0, 0, 0]);
        assert_eq!(processor("vendor_id\t: x\nmodel name\t: A B 7 \n"), "A B 7");
        let machine = Machine { cache_bytes: 64 << 20, ..Machine::read(Path::new("/nonexistent")) };
        assert_eq!(machine.built_in().cache_bytes, f64::from(32 << 20));
        let other = Constants { cache_bytes: 0.0, ..machine.built_in() };
        assert_eq!(other, Constants { cache_bytes: 0.0, ..Constants::default() });
    }
}
