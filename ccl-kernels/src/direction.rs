//! Which way bytes are gone through.

/// Which way a call goes through its buffers: one that begins where the last one ended finds there what is in the caches still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the first byte on.
    #[default]
    Forwards,
    /// From the last part on, each forwards in itself.
    Backwards,
}

impl Direction {
    /// Which of `count` parts is gone through after `done` others, which are fewer.
    #[inline]
    pub fn part(self, done: usize, count: usize) -> usize {
        match self {
            Direction::Forwards => done,
            Direction::Backwards => count - 1 - done,
        }
    }
}
