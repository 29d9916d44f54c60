//! Sizes in bytes as people write them, one or a range.

use std::str::FromStr;

/// Reads `8`, `64K`, `1M`, `2G`: powers of 1024, either case.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let bad = || format!("'{text}' is no size: write bytes as 8, 64K, 32M or 1G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err(bad()),
    };
    // A price in bytes beyond this is no call that a machine of today can make.
    let most = 1 << 50;
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift)).filter(|b| *b <= most);
    bytes.ok_or_else(bad)
}

/// `8`, `4K`, `32M`.
pub(crate) fn short(bytes: usize) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let fits = units.into_iter().find(|&(shift, _)| bytes > 0 && bytes.trailing_zeros() >= shift);
    fits.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Bytes in the unit that leaves few digits: `15.6 GiB`.
pub(crate) fn rounded(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = units.into_iter().find(|&(shift, _)| bytes >> shift > 0);
    fits.map_or_else(
        || format!("{bytes} B"),
        |(shift, unit)| format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
    )
}

/// `8..64M`, in steps of a factor of 4; or one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let Some((first, last)) = text.split_once("..") else { return Ok(Sizes(vec![parse(text)?])) };
        let (first, last) = (parse(first)?, parse(last.trim_start_matches('='))?);
        if first == 0 || first > last {
            return Err(format!("'{text}' is no range: it begins above 0 and ends at no less, like 8..64M"));
        }
        let next = |size: &usize| size.checked_mul(4);
        let mut sizes: Vec<_> = std::iter::successors(Some(first), next).take_while(|s| *s < last).collect();
        sizes.push(last);
        Ok(Sizes(sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in
            [("8", 8), ("64K", 65536), ("1m", 1 << 20), ("2GiB", 2 << 30), ("0", 0), ("5b", 5)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1T", "1.5M", "99999999999G", "8 K", "µ"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!([0, 8, 4096, 4097, 3 << 20].map(short), ["0", "8", "4K", "4097", "3M"]);
        assert_eq!([5, 1536, 3 << 29].map(rounded), ["5 B", "1.5 KiB", "1.5 GiB"]);
    }

    #[test]
    fn a_range_has_both_of_its_ends() {
        assert_eq!("8..100".parse(), Ok(Sizes(vec![8, 32, 100])));
        assert_eq!("8..=32".parse(), Ok(Sizes(vec![8, 32])));
        assert_eq!("4K".parse(), Ok(Sizes(vec![4096])));
        for text in ["0..8", "9..8", "..", "8..", "a"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_shown_is_read_again(bytes in 0usize..=1 << 50) {
            proptest::prop_assert_eq!(parse(&short(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_a_size_or_an_error(text in "\\PC{0,12}") {
            // Whatever is accepted lies within the bound, and a range ends where it says.
            if let Ok(Sizes(sizes)) = text.parse::<Sizes>() {
                proptest::prop_assert!(sizes.is_sorted() && sizes.iter().all(|s| *s <= 1 << 50));
            }
        }

        #[test]
        fn ranges_are_sorted_and_end_at_their_end(first in 1usize..1 << 40, more in 0usize..1 << 40) {
            let Sizes(sizes) = format!("{first}..{}", first + more).parse().unwrap();
            proptest::prop_assert!(sizes.is_sorted());
            proptest::prop_assert_eq!((sizes.first(), sizes.last()), (Some(&first), Some(&(first + more))));
        }
    }
}
