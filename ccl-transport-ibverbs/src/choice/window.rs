//! How much may be on its way: bandwidth × delay.

use super::Choice;

/// From a write until its credit is back, on a network of a few switches, in nanoseconds; software takes longer.
pub const DELAY_NS: f64 = 16_000.0;

/// Slots of a link that may be in use where its pieces are spread over rails: they may overtake one another, and what has
/// come out of its turn must be told in a word.
pub const SPREAD_SLOTS: u32 = 64;

/// Bytes of a slot where the user names no number.
pub const SLOT: usize = 64 << 10;

/// The same where software is all that ranks have: a message's work is what counts there, not what it waits for. Measured
/// between two devices of rdma_rxe: calls of 1 to 4 MiB took a tenth to a fifth less than in pieces of [`SLOT`].
pub const LONG_SLOT: usize = 256 << 10;

/// Credits that every link has where the user names no number: what ranks that do not keep step with each other want even
/// where a network is slow, and twice what plans may rely on.
pub const FEWEST: u32 = 16;

/// Bytes of a link's slots that more credits than the fewest may take.
const BUDGET: usize = 4 << 20;

/// Slots of a link that keep rails of `gbps` together busy for `delay_ns`, from 2 to `most`, the budget.
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

/// Credits of a link over rails of `gbps` together. A link has half as many slots more ([`slots_of`]), of which there are
/// never more than may overtake one another, nor than the budget has room for, except where the fewest take more.
pub fn credits(gbps: f64, slot_bytes: usize) -> Choice<u32> {
    let room = (BUDGET / slot_bytes).min(SPREAD_SLOTS as usize) as u32;
    let most = (FEWEST..=SPREAD_SLOTS).rev().find(|credits| slots_of(*credits) <= room).unwrap_or(FEWEST);
    let Choice { value, why } = slots(gbps, DELAY_NS, slot_bytes, most);
    if value < FEWEST { Choice::new(FEWEST, format!("{why}; the fewest")) } else { Choice::new(value, why) }
}

/// Slots of a link with so many credits, and after how many releases they go back. Those that are on their way back would be
/// missed, so there are as many slots more.
pub fn slots_of(credits: u32) -> u32 {
    credits + credits.div_ceil(2) - 1
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

    #[test]
    fn credits_follow_the_speed_within_the_budget() {
        let of = |gbps, slot| credits(gbps, slot).value;
        assert_eq!([2.5, 400.0, 800.0, 3200.0].map(|gbps| of(gbps, 65536)), [16, 16, 27, 43]);
        assert_eq!([100.0, 200.0].map(|gbps| of(gbps, 8192)), [27, 43]);
        // 4 MiB are 32 slots of 128 KiB, which 22 credits make.
        assert_eq!([400.0, 3200.0].map(|gbps| of(gbps, 128 << 10)), [16, 22]);
        assert_eq!(of(3200.0, 64 << 20), FEWEST);
        assert!((1..=1024).all(|credits| slots_of(credits) < 2 * credits.max(2)));
        assert_eq!((slots_of(43), slots_of(16)), (64, 23));
    }
}
