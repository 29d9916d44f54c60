//! `calls_in_turn --call NAME --iterations N --bytes B`: calls of two ranks by the C ABI, made in turn by one thread. Each finds what it
//! waits for, so that every run does exactly the same: what `cargo xtask counts` counts.
//!
//! `broadcast`: both ranks' calls. `send`: one sends, the other receives. `exchange`: each sends and receives in a group.
//! It prints `begin` before the N counted iterations and `end` after them.

// A command-line program talks to people.
#![allow(clippy::print_stdout)]

use ccl::Level;
use ccl_ffi as _;
use std::error::Error;
use std::ffi::c_int;
use std::str::FromStr;

#[path = "../tests/common/mod.rs"]
mod common;
use common::*;

/// Iterations before the counted ones: more than there are slots to touch for the first time.
const WARM_UP: u64 = 100;

/// The two ranks, and what they send and receive.
struct Ranks {
    comms: [Comm; 2],
    sent: Vec<f32>,
    received: [Vec<f32>; 2],
}

/// A call of both ranks.
type Call = fn(&mut Ranks);

impl Ranks {
    fn broadcast(&mut self) {
        // The root's is over when its piece is on its way.
        for (comm, into) in self.comms.into_iter().zip(&mut self.received) {
            let (from, into) = (self.sent.as_ptr().cast(), into.as_mut_ptr().cast());
            ok(cclBroadcast(from, into, self.sent.len(), FLOAT32, 0, comm, 0));
        }
    }

    fn send(&mut self) {
        self.send_of(0);
        self.receive_of(1);
    }

    /// The second rank is one message ahead.
    fn exchange(&mut self) {
        for rank in [0, 1] {
            ok(cclGroupStart());
            self.send_of(rank);
            self.receive_of(rank);
            ok(cclGroupEnd());
        }
    }

    fn send_of(&self, rank: usize) {
        let (from, count) = (self.sent.as_ptr().cast(), self.sent.len());
        ok(cclSend(from, count, FLOAT32, 1 - rank as c_int, self.comms[rank], 0));
    }

    fn receive_of(&mut self, rank: usize) {
        let into = &mut self.received[rank];
        ok(cclRecv(into.as_mut_ptr().cast(), into.len(), FLOAT32, 1 - rank as c_int, self.comms[rank], 0));
    }

    /// What both ranks have to be in at once, before their calls find each other's: links are opened.
    fn meet(&mut self) {
        ok(cclGroupStart());
        self.broadcast();
        for rank in [0, 1] {
            self.send_of(rank);
            self.receive_of(rank);
        }
        ok(cclGroupEnd());
    }
}

/// Instructions are counted inside this function.
#[inline(never)]
fn calls(ranks: &mut Ranks, call: Call, times: u64) {
    (0..times).for_each(|_| call(ranks));
}

fn option<T: FromStr>(name: &str) -> Result<T, String> {
    let mut arguments = std::env::args().skip_while(|word| word != name).skip(1);
    let value = arguments.next().and_then(|word| word.parse().ok());
    value.ok_or_else(|| "usage: calls_in_turn --call NAME --iterations N --bytes B".to_string())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (name, iterations, bytes) =
        (option::<String>("--call")?, option("--iterations")?, option::<usize>("--bytes")?);
    let call: Call = match name.as_str() {
        "broadcast" => Ranks::broadcast,
        "send" => Ranks::send,
        "exchange" => Ranks::exchange,
        other => return Err(format!("a call {other}: broadcast, send and exchange are known").into()),
    };
    let count = bytes / size_of::<f32>();
    let received = [vec![0.0; count], vec![0.0; count]];
    let mut ranks = Ranks { comms: init_all(), sent: vec![1.0; count], received };
    ranks.meet();
    if name == "exchange" {
        ranks.send_of(1);
    }

    println!("kernels {}", Level::best());
    calls(&mut ranks, call, WARM_UP);
    println!("begin");
    calls(&mut ranks, call, iterations);
    println!("end");

    if name == "exchange" {
        ranks.receive_of(0);
    }
    destroy_all(&ranks.comms);
    let all_came = ranks.received.iter().flatten().all(|value| *value == 1.0);
    if all_came { Ok(()) } else { Err("something else came than was sent".into()) }
}
