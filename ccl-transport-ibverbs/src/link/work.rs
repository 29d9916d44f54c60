//! Work requests: how they are numbered, and how many there were.

/// What a transport has given its devices to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Sends posted.
    pub sends: u64,
    /// Sends among them whose bytes the device took while they were posted.
    pub inline: u64,
    /// Sends among them that asked for a completion.
    pub signaled: u64,
    /// Sends among them that only returned credits.
    pub credits: u64,
    /// Sends among them that offered memory.
    pub offers: u64,
    /// Sends among them that wrote the bytes of a put, which another announces.
    pub puts: u64,
    /// Receives posted.
    pub receives: u64,
    /// Calls that posted either.
    pub doorbells: u64,
    /// Polls of completion queues.
    pub polls: u64,
    /// Completions that they gave.
    pub completions: u64,
    /// Queue pairs that failed and were replaced.
    pub repairs: u64,
    /// Those among them whose links went to another pair of rails.
    pub moves: u64,
    /// Messages that were sent again.
    pub resent: u64,
}

impl Work {
    pub(crate) fn add(&mut self, more: Work) {
        self.sends += more.sends;
        self.inline += more.inline;
        self.signaled += more.signaled;
        self.credits += more.credits;
        self.offers += more.offers;
        self.puts += more.puts;
        self.receives += more.receives;
        self.doorbells += more.doorbells;
        self.polls += more.polls;
        self.completions += more.completions;
        self.repairs += more.repairs;
        self.moves += more.moves;
        self.resent += more.resent;
    }
}

/// What a work request's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    /// The lane, or [`Id::CONTROL`].
    pub(crate) lane: u32,
    /// Of a send: how many sends its completion stands for; 0: it is a receive.
    pub(crate) sends: u16,
    /// Whether its time is taken.
    pub(crate) timed: bool,
    /// Which of the lane's queue pairs.
    pub(crate) era: u16,
}

impl Id {
    /// No lane's: a datagram.
    pub(crate) const CONTROL: u32 = u32::MAX >> 1;

    #[inline]
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.lane)
            | u64::from(self.timed) << 31
            | u64::from(self.sends) << 32
            | u64::from(self.era) << 48
    }

    #[inline]
    pub(crate) fn decode(id: u64) -> Id {
        let (lane, timed) = (id as u32 & Id::CONTROL, id >> 31 & 1 == 1);
        Id { lane, timed, sends: (id >> 32) as u16, era: (id >> 48) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_requests_number_says_whose_it_is() {
        for id in [
            Id { lane: 7, sends: 32, timed: true, era: 9 },
            Id { lane: Id::CONTROL, sends: u16::MAX, timed: false, era: u16::MAX },
        ] {
            assert_eq!(Id::decode(id.encode()), id);
        }
    }
}
