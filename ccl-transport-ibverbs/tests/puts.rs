//! Windows: bytes that are put from one rank's memory into another's, and the words behind them.

mod hosts;

use ccl_core::transport::conformance::{connect, mesh};
use ccl_core::transport::{Fabric, ReceiverId, SenderId, Sent, Transport, Window};
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::{IbConfig, IbTransport};
use hosts::pair::{Random, counters, pair, piece, sink};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of more than 8 KiB, so that puts choose among the rails.
const PLACE: usize = 12288;
const PLACES: usize = 6;
const CREDITS: u32 = 4;
const GUARD: Duration = Duration::from_secs(60);

fn window(bytes: &mut [u8]) -> Window {
    Window { memory: sink(bytes), dma_buf: None, owner: Arc::new(()) }
}

/// A stream of puts, with ordinary pieces among them.
struct Stream {
    random: Random,
    source: Vec<u8>,
    target: Vec<u8>,
    /// What was sent and not received: the number of a put and its length, or none for an ordinary piece.
    sent: VecDeque<Option<(u64, usize)>>,
    /// Puts that were made, are over, and whose places the receiver has given back.
    puts: u64,
    over: u64,
    read: u64,
}

impl Stream {
    fn new(seed: u64, t: &mut [IbTransport], to: SenderId, from: ReceiverId) -> Stream {
        let (mut source, mut target) = (vec![0; PLACE * PLACES], vec![0; PLACE * PLACES]);
        let word = t[1].admit(from, &window(&mut target)).unwrap();
        t[0].aim(to, &window(&mut source), &word).unwrap();
        let (sent, puts, over, read) = (VecDeque::new(), 0, 0, 0);
        Stream { random: Random(seed), source, target, sent, puts, over, read }
    }

    fn pattern(put: u64, at: usize) -> u8 {
        (put as usize * 31 + at * 7 + at / 251) as u8
    }

    fn place(put: u64) -> usize {
        put as usize % PLACES * PLACE
    }

    fn run(&mut self, t: &mut [IbTransport], (to, from): (SenderId, ReceiverId), puts: u64) {
        let last = self.puts + puts;
        let start = Instant::now();
        while self.puts < last || !self.sent.is_empty() || self.over < last {
            assert!(start.elapsed() < GUARD, "{} put, {} over, {} read", self.puts, self.over, self.read);
            match self.random.up_to(3) {
                0 | 1 => self.send(t, to, last),
                2 => self.receive(t, from),
                _ => self.look(t, to),
            }
            if self.random.up_to(50) == 0 {
                t.iter_mut().for_each(|t| t.park(Duration::ZERO).unwrap());
            }
        }
    }

    fn send(&mut self, t: &mut [IbTransport], to: SenderId, last: u64) {
        if self.random.up_to(5) == 0 {
            if t[0].send(to, piece(b"ordinary"), 1).unwrap() == Sent::Done {
                self.sent.push_back(None);
            }
            return;
        }
        // Free at both ends.
        let is_free = self.puts - self.read.min(self.over) < PLACES as u64;
        if self.puts == last || !is_free {
            return;
        }
        let (put, at) = (self.puts, Stream::place(self.puts));
        let len = [0, 1, 100, 4096, PLACE][self.random.up_to(4) as usize];
        let bytes = &mut self.source[at..at + len];
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = Stream::pattern(put, at));
        let word = (len as u32).to_le_bytes();
        if t[0].put(to, at..at + len, piece(&word), 2).unwrap() {
            self.sent.push_back(Some((put, len)));
            self.puts += 1;
        }
    }

    fn receive(&mut self, t: &mut [IbTransport], from: ReceiverId) {
        let Some(arrival) = t[1].peek(from).unwrap() else { return };
        let mut word = [0; 8];
        sink(&mut word[..arrival.piece.len()]).copy_from(arrival.piece);
        match self.sent.pop_front().expect("what was sent") {
            None => assert_eq!((arrival.tag, &word), (1, b"ordinary")),
            Some((put, len)) => {
                assert_eq!((arrival.tag, &word[..4]), (2, &(len as u32).to_le_bytes()[..]));
                let bytes = &mut self.target[Stream::place(put)..][..len];
                let wrong = (0..len).find(|at| bytes[*at] != Stream::pattern(put, *at));
                assert_eq!(wrong, None, "put {put} of {len} bytes");
                // It is the reader's until it says so.
                bytes.fill(0xff);
                self.read += 1;
            }
        }
        t[1].release(from).unwrap();
    }

    fn look(&mut self, t: &mut [IbTransport], to: SenderId) {
        let over = t[0].puts_over(to).unwrap();
        assert!(over >= self.over && over <= self.puts);
        for put in self.over..over {
            // From now on it is the writer's, who changes it.
            self.source[Stream::place(put)..][..PLACE].fill(0xee);
        }
        self.over = over;
    }
}

#[test]
fn puts_arrive_before_their_words() {
    for seed in 1..20 {
        let rails = 1 + seed as u32 % 3;
        let fake = Fake::start(&hosts::script(2, rails));
        for rail in 1..rails {
            fake.run(&format!("pace h0r{rail} {}; pace h1r{rail} {}", seed % 4, seed % 5 * u64::from(rail)));
        }
        let (mut t, to, from) = pair(PLACE, CREDITS);
        let mut stream = Stream::new(seed, &mut t, to, from);
        stream.run(&mut t, (to, from), 400);
        let (counted, work) = (counters(&t[0]), t[0].work());
        assert_eq!(counted.puts, 400);
        // No byte of them went through a slot, and each took two work requests, or one if there was nothing to write.
        assert!(counted.put_bytes > 400 * 1000 && counted.bytes == 4 * 400 + 8 * (counted.pieces - 400));
        assert!(counted.inline == counted.pieces && work.puts > 200 && work.puts < 400, "{work:?}");
        // Both with one doorbell: the device was called as often as there were messages.
        assert_eq!(fake.count("bare_writes"), work.puts);
        assert_eq!(fake.count("post_send"), fake.count("sends") - work.puts);
        drop(t);
        assert_eq!(fake.live(), 0);
    }
}

/// Each put arrives once, in order, with its bytes, whichever half of it the queue pair fails with.
#[test]
fn queue_pairs_may_fail_meanwhile() {
    let (mut repairs, mut resent) = (0, 0);
    for seed in 1..40 {
        let fake = Fake::start(&hosts::script(2, 1 + seed % 2));
        let (mut t, to, from) = pair(PLACE, CREDITS);
        let mut stream = Stream::new(seed.into(), &mut t, to, from);
        for _ in 0..15 {
            let nth = 1 + stream.random.up_to(20);
            let delivered = ["no", "yes"][stream.random.up_to(1) as usize];
            let on = ["h0r0", "h1r0"][stream.random.up_to(1) as usize];
            fake.run(&format!(
                "complete status=IBV_WC_RETRY_EXC_ERR nth={nth} on={on} delivered={delivered}"
            ));
            stream.run(&mut t, (to, from), 12);
        }
        repairs += t[0].work().repairs;
        resent += t[0].work().resent;
        t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
    }
    assert!(repairs > 100 && resent > 100, "{repairs} {resent}");
}

/// A device refuses what is posted: the queue pair is replaced, and each put arrives once.
#[test]
fn devices_may_refuse_a_put() {
    let mut repairs = 0;
    for nth in 1..12 {
        let fake = Fake::start(&hosts::script(2, 2));
        let (mut t, to, from) = pair(PLACE, CREDITS);
        let mut stream = Stream::new(nth, &mut t, to, from);
        stream.run(&mut t, (to, from), 20);
        fake.run(&format!("fail post_send errno=ENOMEM nth={nth} times=1"));
        stream.run(&mut t, (to, from), 40);
        repairs += t[0].work().repairs + t[1].work().repairs;
        t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
    }
    assert!(repairs > 0, "{repairs}");
}

/// A device takes the bytes of a put and refuses the word behind them: they lie in the target, and the peer has not heard of them. Both go
/// once more, and each put arrives once.
#[test]
fn devices_may_refuse_the_word_of_a_put() {
    for nth in 1..12 {
        let fake = Fake::start(&hosts::script(2, 1 + nth as u32 % 2));
        let (mut t, to, from) = pair(PLACE, CREDITS);
        let mut stream = Stream::new(nth, &mut t, to, from);
        stream.run(&mut t, (to, from), 20);
        let (puts, bare) = (t[0].work().puts, fake.count("bare_writes"));
        assert_eq!(puts, bare);
        fake.run(&format!("fail chained_send errno=ENOMEM nth={nth}"));
        stream.run(&mut t, (to, from), 60);
        let (work, counted) = (t[0].work(), counters(&t[0]));
        assert!(work.repairs + t[1].work().repairs > 0 && work.resent > 0, "{work:?}");
        // The device has the bytes that it took before it refused, and those of the second time.
        assert_eq!((counted.puts, fake.count("bare_writes")), (80, work.puts));
        t.iter_mut().for_each(|t| assert!(t.withdraw().is_empty()));
    }
}

/// A device that refuses all of them ends the link, at both ends, and no put arrives.
#[test]
fn a_device_that_takes_no_word_of_a_put_is_named() {
    let fake = Fake::start(&hosts::script(2, 1));
    let new = |rank| {
        let recovery = Duration::from_millis(20);
        IbTransport::new(rank, 2, &IbConfig { recovery, ..hosts::config(rank, PLACE, CREDITS) }).unwrap()
    };
    let mut t: Vec<_> = (0..2).map(new).collect();
    connect(&mut t, &mesh(2, 1));
    let (to, from) = (t[0].sender(&[1], 0).unwrap(), t[1].receiver(0, 0).unwrap());
    let (mut source, mut target) = (vec![7; 4096], vec![0; 4096]);
    let word = t[1].admit(from, &window(&mut target)).unwrap();
    t[0].aim(to, &window(&mut source), &word).unwrap();
    fake.run("fail chained_send errno=ENOMEM times=1000000");
    assert!(t[0].put(to, 0..4096, piece(b"word"), 1).unwrap());
    let (start, mut errors) = (Instant::now(), [None, None]);
    while errors.iter().any(Option::is_none) {
        assert!(start.elapsed() < GUARD, "{errors:?}");
        match t[0].puts_over(to) {
            Ok(over) => assert_eq!(over, 0),
            Err(error) => errors[0] = Some(error.to_string()),
        }
        match t[1].peek(from) {
            Ok(arrival) => assert!(arrival.is_none()),
            Err(error) => errors[1] = Some(error.to_string()),
        }
    }
    let [here, there] = errors.map(Option::unwrap);
    for words in ["ibv_post_send", "h0r0:1", "h1r0:1", "rank 1"] {
        assert!(here.contains(words), "no '{words}' in: {here}");
    }
    assert!(there.contains("h1r0:1") && there.contains("rank 0"), "{there}");
}

#[test]
fn what_cannot_be_a_window_is_said() {
    let fake = Fake::start(&hosts::script(2, 2));
    let (mut t, to, from) = pair(PLACE, CREDITS);
    let (mut source, mut target) = (vec![0u8; 4096], vec![0u8; 4096]);
    let says = |outcome: ccl_core::Result<()>, words: &str| {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    says(t[0].put(to, 0..8, piece(b"word"), 1).map(drop), "windows");
    // One of the two devices does not take it; nothing of it stays with the other.
    let before = fake.live();
    fake.run("fail reg_mr_iova2 errno=EOPNOTSUPP nth=2; fail reg_mr errno=EOPNOTSUPP nth=1 times=1");
    says(t[1].admit(from, &window(&mut target)).map(drop), "h1r1");
    assert_eq!(fake.live(), before);
    let word = t[1].admit(from, &window(&mut target)).unwrap();
    says(t[0].aim(to, &window(&mut source[..100]), &word), "of 100 bytes");
    for len in 0..word.len() {
        assert!(t[0].aim(to, &window(&mut source), &word[..len]).is_err());
    }
    t[0].aim(to, &window(&mut source), &word).unwrap();
    says(t[0].put(to, 4000..4097, piece(b"word"), 1).map(drop), "4097");
    says(t[0].put(to, 0..8, piece(&[0; 500]), 1).map(drop), "500");
    // A target that was taken back is nobody's to write: a fault, which the sender hears of.
    t[1].dismiss(from);
    assert!(t[0].put(to, 0..8, piece(b"word"), 1).unwrap());
    let start = Instant::now();
    let error = loop {
        match t[0].puts_over(to).and_then(|_| t[0].peek(ReceiverId(0))) {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(start.elapsed() < GUARD),
        }
    };
    assert!(error.contains("remote access error"), "{error}");
}
