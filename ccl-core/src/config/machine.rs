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
    /// Bytes of its second cache; 0 where that is not known.
    pub second_cache_bytes: u64,
}

/// What Intel's processors do best with in place of [`Constants::lead_bytes`]: a piece each way, in slots that stay in the second caches. With that between
/// two cores of a Xeon (second caches of 1.25 MiB) all-gathers, all-to-alls and reduce-scatters of 1 MiB take 0.8 to 0.9 of the time. On AMD's they take longer.
const INTEL_LEAD_BYTES: f64 = 131_072.0;

/// What a core of Intel's can count on, in second caches: the third one takes what the second ones drop, is slow, and most of it is full of what other cores drop, of which a guest
/// sees nothing. Writing past the caches wins from 4 MiB of buffers on with 2, 4 and 8 ranks on two cores of a Xeon (second caches of 1.25 MiB, a third one of 48).
const SECOND_CACHES: f64 = 1.5;

impl Machine {
    /// The one that this process runs on.
    pub fn here() -> Machine {
        Machine::read(Path::new("/"))
    }

    /// What the files below `root` say.
    fn read(root: &Path) -> Machine {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let caches = (0..8).map(|i| {
            let of = |what: &str| read(&format!("sys/devices/system/cpu/cpu0/cache/index{i}/{what}"));
            (of("level").trim().to_string(), super::size(of("size").trim()).unwrap_or(0) as u64)
        });
        let caches: Vec<_> = caches.collect();
        Machine {
            processor: processor(&read("proc/cpuinfo")),
            architecture: std::env::consts::ARCH.to_string(),
            cores: listed(&read("sys/devices/system/cpu/online")).max(1),
            cache_bytes: caches.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0),
            second_cache_bytes: caches.iter().find(|(level, _)| level == "2").map_or(0, |(_, bytes)| *bytes),
        }
    }

    /// The built-in constants, with this machine's cache: half of the largest one, since what passes by takes its share; of Intel's no more than
    /// its cores can count on.
    pub fn built_in(&self) -> Constants {
        let built_in = Constants::default();
        let half = self.cache_bytes as f64 / 2.0;
        let machine = if self.processor.starts_with("Intel") {
            let counts = f64::from(self.cores) * self.second_cache_bytes as f64 * SECOND_CACHES;
            let cache_bytes = if counts > 0.0 { half.min(counts) } else { half };
            Constants { cache_bytes, lead_bytes: INTEL_LEAD_BYTES, ..built_in }
        } else {
            Constants { cache_bytes: half, ..built_in }
        };
        if machine.fault().is_none() { machine } else { built_in }
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
        let xeon = Machine {
            processor: "Intel(R) Xeon(R)".into(),
            cores: 2,
            second_cache_bytes: 1 << 20,
            ..machine.clone()
        };
        assert_eq!(xeon.built_in().cache_bytes, f64::from(3 << 20));
        let many = Machine { cores: 64, ..xeon.clone() };
        assert_eq!(many.built_in().cache_bytes, f64::from(32 << 20), "no more than half of the largest");
        let hidden = Machine { second_cache_bytes: 0, ..xeon };
        assert_eq!(hidden.built_in().cache_bytes, f64::from(32 << 20));
        assert!(hidden.built_in().lead_bytes < machine.built_in().lead_bytes);
        let other = Constants { cache_bytes: 0.0, ..machine.built_in() };
        assert_eq!(other, Constants { cache_bytes: 0.0, ..Constants::default() });
    }
}
