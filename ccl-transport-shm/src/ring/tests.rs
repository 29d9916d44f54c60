use super::sending::CALM;
use super::*;

/// Message `i` of a lap: one of each kind.
fn body(i: u64) -> Body {
    match i {
        0 => Body::Line,
        1 => Body::Slot { number: u32::MAX, at: AT as u32, passing: Passing::Over, by_words: true },
        2 => Body::Offered,
        _ => Body::Lent { number: (1 << 24) - 1, offset: LENT_BYTES - 1 },
    }
}

const FOUR: Laps = Laps { least: 4, most: 4 };

fn entries<const N: usize>() -> [Entry; N] {
    std::array::from_fn(|_| Entry::new())
}

#[test]
fn counts_wrap_around() {
    let (entries, credit) = (entries::<4>(), Credit::new());
    let start = u32::MAX - 4;
    let (mut send, mut recv) = (SendEnd::new(FOUR), RecvEnd::new(FOUR));
    (send.published, send.released, recv.released) = (start, start, start);
    credit.released.store(start, Ordering::Relaxed);
    for k in 0..40u64 {
        assert_eq!(recv.peek(&entries[recv.at()]), Ok(None));
        for i in 0..4 {
            assert!(send.has_credit());
            send.publish(&entries[send.at()], k * 4 + i, i as u32, body(i), i == 3);
            if i == 3 {
                send.begin_lap(&credit);
            }
        }
        assert!(!send.has_credit());
        assert_eq!(send.refresh(&credit), Ok(0));
        for i in 0..4 {
            let expected = Message { len: i as u32, tag: k * 4 + i, body: body(i), wraps: i == 3 };
            assert_eq!(recv.peek(&entries[recv.at()]), Ok(Some(expected)));
            recv.release(expected.wraps, &credit);
        }
        assert_eq!(send.refresh(&credit), Ok(4));
    }
}

/// Both ends of a link.
struct Link {
    entries: [Entry; 16],
    credit: Credit,
    send: SendEnd,
    recv: RecvEnd,
    /// Messages that nothing had to be decided for.
    easy: u32,
}

impl Link {
    fn new(least: u32) -> Link {
        let laps = Laps { least, most: 16 };
        let (send, recv) = (SendEnd::new(laps), RecvEnd::new(laps));
        Link { entries: entries(), credit: Credit::new(), send, recv, easy: 0 }
    }

    /// As [`Outgoing`](crate::shm::Outgoing) does; false for want of a credit.
    fn send(&mut self) -> bool {
        let Link { entries, credit, send, easy, .. } = self;
        if send.is_easy() {
            assert!(send.has_credit() && send.goes_on());
            *easy += 1;
        } else if !send.has_credit() {
            send.refresh(credit).unwrap();
            if !send.has_credit() {
                send.starve();
                return false;
            }
        }
        let number = send.published;
        let wraps = !send.goes_on() && send.ends_lap();
        if !wraps && !send.goes_on() {
            entries[send.beyond()].clear();
        }
        send.publish(&entries[send.at()], number.into(), 0, Body::Line, wraps);
        if wraps {
            send.begin_lap(credit);
        }
        true
    }

    fn receive(&mut self) -> bool {
        let Some(message) = self.recv.peek(&self.entries[self.recv.at()]).unwrap() else { return false };
        assert_eq!(message.tag, u64::from(self.recv.released), "in order");
        self.recv.release(message.wraps, &self.credit);
        true
    }

    /// So many messages, each taken at once.
    fn keep_up(&mut self, messages: u32) {
        assert!((0..messages).all(|_| self.send() && self.receive()));
    }

    /// As many messages as can be sent to a receiver that does not run; then it takes all.
    fn lag(&mut self) -> usize {
        let sent = std::iter::from_fn(|| self.send().then_some(())).count();
        assert!(!self.send(), "it is told once");
        assert_eq!(std::iter::from_fn(|| self.receive().then_some(())).count(), sent);
        sent
    }
}

#[test]
fn all_but_the_last_message_of_a_lap_are_easy_for_a_receiver_that_keeps_up() {
    let mut link = Link::new(16);
    link.keep_up(16);
    for lap in 1..10 {
        // Only now it is looked how many are released.
        link.send.refresh(&link.credit).unwrap();
        link.keep_up(16);
        assert_eq!(link.easy, (lap + 1) * 15);
    }
}

#[test]
fn laps_grow_for_a_receiver_that_lags_and_shrink_for_one_that_keeps_up() {
    let mut link = Link::new(4);
    link.keep_up(100);
    assert_eq!(link.send.lap, 4);
    assert_eq!([0; 5].map(|_| link.lag()), [4, 8, 16, 16, 16]);
    assert_eq!(link.send.lap, 16);
    link.keep_up(16 * (CALM - 1));
    assert_eq!(link.send.lap, 16);
    link.keep_up(16 + 8 * CALM);
    assert_eq!(link.send.lap, 4);
    assert!(link.lag() >= 4, "so many go in any case");
}

/// Whatever the two do, all messages come in order, and as many as the shortest lap has can be on their way.
#[test]
fn messages_come_in_order_by_laps_of_all_lengths() {
    for (seed, least) in (1..200u64).zip([1, 2, 3, 4, 7, 16].into_iter().cycle()) {
        let mut link = Link::new(least);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for _ in 0..400 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let (sends, receives) = (state % 19, state / 19 % 19);
            for _ in 0..sends {
                let on_their_way = link.send.published - link.recv.released;
                assert!(link.send() || on_their_way >= least, "{on_their_way} of {least}");
            }
            for _ in 0..receives {
                let none = link.send.published == link.recv.released;
                assert_eq!(link.receive(), !none);
            }
        }
    }
}

/// Sequence numbers come again after 2³² messages; entries that no lap has used since hold them still.
#[test]
fn what_is_as_old_as_sequence_numbers_are_many_is_no_message() {
    let mut link = Link::new(2);
    let lags: Vec<_> = (0..4).map(|_| link.lag()).collect();
    assert_eq!(lags, [2, 4, 8, 16]);
    while link.send.lap > 2 || link.send.at() != 0 {
        link.keep_up(1);
    }
    assert_eq!(link.lag(), 2);
    assert_eq!((link.send.lap, link.send.at()), (4, 0));
    // What stands beyond the short lap is made to be just what will be expected there.
    for (at, entry) in link.entries.iter().enumerate().skip(2) {
        entry.forge(link.send.published + at as u32 + 1, 7, Body::Line);
    }
    for _ in 0..20 {
        link.keep_up(1);
        assert!(!link.receive(), "nothing more was sent");
    }
}

#[test]
fn what_is_ahead_is_free() {
    let (entries, credit) = (entries::<4>(), Credit::new());
    let (mut send, mut recv) = (SendEnd::new(FOUR), RecvEnd::new(FOUR));
    let ahead = |send: &SendEnd| [0, 1, 2, 3, 4].map(|messages| send.ahead(messages));
    assert_eq!(ahead(&send), [Some(0), Some(1), Some(2), Some(3), None]);
    for message in 0..3 {
        send.publish(&entries[send.at()], message, 0, Body::Line, false);
    }
    assert_eq!(ahead(&send), [Some(3), None, None, None, None]);
    for _ in 0..2 {
        let message = recv.peek(&entries[recv.at()]).unwrap().unwrap();
        recv.release(message.wraps, &credit);
    }
    assert_eq!(ahead(&send), [Some(3), None, None, None, None], "it has not looked");
    assert_eq!(send.refresh(&credit), Ok(2));
    assert_eq!(ahead(&send), [Some(3), Some(0), Some(1), None, None]);
}

#[test]
fn impossible_words_are_errors() {
    let (entry, credit) = (Entry::new(), Credit::new());
    entry.flag.store(9 << 32, Ordering::Relaxed);
    assert!(RecvEnd::new(FOUR).peek(&entry).is_err());
    credit.released.store(1, Ordering::Relaxed);
    assert!(SendEnd::new(FOUR).refresh(&credit).is_err());
    let mut last = RecvEnd::new(FOUR);
    (last.at, last.released) = (3, 3);
    entry.flag.store(4 << 32, Ordering::Relaxed);
    assert!(last.peek(&entry).is_err(), "it goes on behind the last entry");
}
