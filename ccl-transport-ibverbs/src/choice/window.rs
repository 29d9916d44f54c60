//! How much may be on its way: bandwidth × delay.

use super::Choice;

/// From a write until its credit is back, on a network of a few switches, in nanoseconds; software takes longer.
pub const DELAY_NS: f64 = 16_000.0;

/// Slots of a link that may be in use where its pieces are spread over rails: they may overtake one another, and what has come out of
/// its turn must be told in a word.
pub const SPREAD_SLOTS: u32 = 64;

/// Slots of a link that keep a rail of `gbps` busy for `delay_ns`, from 2 to `most`, the budget.
pub fn slots(gbps: f64, delay_ns: f64, slot_bytes: usize, most: u32) -> Choice<u32> {
    // Gigabits per second are bits per nanosecond. One more slot is being filled, one more being read.
    let bytes = gbps * delay_ns / 8.0;
    let wanted = (bytes / slot_bytes as f64).ceil().clamp(0.0, f64::from(u32::MAX - 2)) as u32 + 2;
    let told = format!("{gbps} Gb/s × {:.0} µs = {:.0} KiB", delay_ns / 1e3, bytes / 1024.0);
    if wanted > most {
        let covered = f64::from(most.saturating_sub(2)) * slot_bytes as f64 * 8.0 / gbps / 1e3;
        return Choice::new(
            most,
            format!("{told} wants {wanted} slots; {most} cover {covered:.0} µs; see RDMACCL_CREDITS"),
        );
    }
    Choice::new(wanted, told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_links_get_more_and_never_more_than_the_budget() {
        let of = |gbps, slot| slots(gbps, DELAY_NS, slot, 32).value;
        assert_eq!([of(0.0, 65536), of(25.0, 65536), of(100.0, 65536), of(400.0, 65536)], [2, 3, 6, 15]);
        let tight = slots(800.0, DELAY_NS, 4096, 32);
        assert_eq!(tight.value, 32);
        assert!(tight.why.contains("RDMACCL_CREDITS"), "{}", tight.why);
    }
}
