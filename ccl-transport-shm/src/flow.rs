//! What goes through slots in the call that has sent last.

/// Bytes that a call must have sent in slots, and the rank received, until it is long.
pub(crate) const MUCH: usize = 256 << 10;

/// The account.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The tag of its messages.
    call: u64,
    /// Bytes that it has sent.
    sent: usize,
    /// The same of the call before.
    sent_before: usize,
    /// Bytes that have been received since it first sent.
    received: usize,
    /// The same of the call before.
    received_before: usize,
}

impl Flow {
    /// So many bytes of a call are sent.
    #[inline]
    pub(crate) fn send(&mut self, call: u64, len: usize) {
        if call != self.call {
            let Flow { sent: sent_before, received: received_before, .. } = *self;
            *self = Flow { call, sent: 0, sent_before, received: 0, received_before };
        }
        self.sent += len;
    }

    /// Whether it is a long one, of a rank that receives much too.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.sent >= MUCH && self.received + self.received_before >= MUCH
    }

    /// So many bytes were received.
    #[inline]
    pub(crate) fn receive(&mut self, len: usize) {
        self.received += len;
    }

    /// Bytes that it has sent, or the one before it if these are more.
    #[inline]
    pub(crate) fn most_sent(&self) -> usize {
        self.sent.max(self.sent_before)
    }
}
