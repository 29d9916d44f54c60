//! Which sizes a run goes through, and how people write them.

/// How one size leads to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// So many bytes more.
    Add(u64),
    /// So many times as large.
    Times(u64),
}

/// Reads `8`, `4K`, `1.5M`, `2G`: binary multiples, either case, as nccl-tests does.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no size: write bytes as 8, 4K, 32M or 1G");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let unit: u64 = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(bad);
    }
    let fraction: f64 = number.parse().map_err(|_| bad())?;
    let bytes = fraction * unit as f64;
    if !(0.0..=u64::MAX as f64 / 2.0).contains(&bytes) {
        return Err(bad());
    }
    Ok(bytes as u64)
}

/// The sizes from `min` to `max`, both included where the steps meet them.
pub(crate) fn sequence(min: u64, max: u64, step: Step) -> Result<Vec<u64>, String> {
    if min > max {
        return Err(format!("-b {min} is larger than -e {max}: the first size must not exceed the last"));
    }
    let stuck = match step {
        Step::Add(bytes) => bytes == 0,
        Step::Times(factor) => factor < 2 || min == 0,
    };
    if stuck && min != max {
        return Err(
            "the sizes do not grow: -i wants at least 1 byte; -f wants at least 2 and a -b above 0".into()
        );
    }
    let next = |&size: &u64| match step {
        _ if stuck => None,
        Step::Add(bytes) => size.checked_add(bytes),
        Step::Times(factor) => size.checked_mul(factor),
    };
    Ok(std::iter::successors(Some(min), next).take_while(|&size| size <= max).collect())
}

/// A size for people: `8`, `4K`, `32M`.
pub(crate) fn short(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let fits = units.into_iter().find(|&(shift, _)| bytes > 0 && bytes.trailing_zeros() >= shift);
    fits.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_suffixes() {
        for (text, bytes) in
            [("8", 8), ("4K", 4096), ("4k", 4096), ("1.5M", 3 << 19), ("2G", 2 << 30), ("0", 0)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "4Q", "1e999", "99999999999G", "nan"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_sequence_multiplies_or_adds_and_ends_at_the_maximum() {
        assert_eq!(sequence(8, 128, Step::Times(4)), Ok(vec![8, 32, 128]));
        assert_eq!(sequence(8, 127, Step::Times(4)), Ok(vec![8, 32]));
        assert_eq!(sequence(0, 20, Step::Add(10)), Ok(vec![0, 10, 20]));
        assert_eq!(sequence(7, 7, Step::Times(0)), Ok(vec![7]));
        assert!(sequence(8, 4, Step::Add(1)).is_err());
        assert!(sequence(0, 4, Step::Times(2)).is_err());
        assert!(sequence(1, 4, Step::Add(0)).is_err());
        assert_eq!(sequence(u64::MAX - 1, u64::MAX, Step::Add(9)), Ok(vec![u64::MAX - 1]));
    }

    #[test]
    fn round_sizes_print_short() {
        assert_eq!([0, 8, 4096, 4097, 3 << 20].map(short), ["0", "8", "4K", "4097", "3M"]);
    }
}
