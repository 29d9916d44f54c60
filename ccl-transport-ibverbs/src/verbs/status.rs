//! How a work request ended.

use crate::sys::*;
use std::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:ident, $text:literal, $cause:literal;)*) => {
        /// How a work request ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[$doc])* $name,)*
            /// A code that is newer than this library.
            Other(u32),
        }

        impl Status {
            #[inline]
            pub(super) fn of(code: u32) -> Status {
                match code {
                    $($code => Status::$name,)*
                    other => Status::Other(other),
                }
            }

            /// Its name, as other programs write it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Status::$name => $text,)*
                    Status::Other(_) => "unknown status",
                }
            }

            /// What usually causes it, and what to look at.
            pub fn cause(self) -> &'static str {
                match self {
                    $(Status::$name => $cause,)*
                    Status::Other(_) => "a status that is newer than this library; see the vendor's error code",
                }
            }
        }
    };
}

statuses! {
    /// Done.
    Success = IBV_WC_SUCCESS, "success", "done";
    /// The message is longer than the receive's memory, or than the port takes.
    LocalLength = IBV_WC_LOC_LEN_ERR, "local length error", "a message is longer than the memory posted for it, or than the port's longest";
    /// The queue pair could not execute the request.
    LocalQueuePair = IBV_WC_LOC_QP_OP_ERR, "local QP operation error", "the request does not fit the queue pair's setting: a fault of this library";
    /// Reliable datagrams only.
    LocalContext = IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error", "reliable datagrams only, which are not used";
    /// A request names memory that is not registered.
    LocalProtection = IBV_WC_LOC_PROT_ERR, "local protection error", "a request names memory outside of its region, or of a region that was dropped";
    /// The queue pair was in error before the request's turn.
    Flushed = IBV_WC_WR_FLUSH_ERR, "work request flushed", "the queue pair went into error before: the first completion that failed says why";
    /// Memory windows only.
    MemoryWindow = IBV_WC_MW_BIND_ERR, "memory window bind error", "memory windows only, which are not used";
    /// The peer's answer makes no sense.
    BadResponse = IBV_WC_BAD_RESP_ERR, "bad response", "the peer's answer does not fit: the two ends are of different connections";
    /// Incoming bytes do not fit local memory.
    LocalAccess = IBV_WC_LOC_ACCESS_ERR, "local access error", "what came in does not fit the memory that it is for";
    /// The peer could not make sense of the request.
    RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR, "remote invalid request", "the peer's queue pair does not take such a request, or its receive is too short";
    /// The peer has no such memory, or does not let it be touched.
    RemoteAccess = IBV_WC_REM_ACCESS_ERR, "remote access error", "the address or key is not of a region of the peer that may be written: it was dropped, or the peer has restarted";
    /// The peer could not complete the request.
    RemoteOperation = IBV_WC_REM_OP_ERR, "remote operation error", "the peer's device could not do it: see the peer's own error";
    /// No acknowledgement within timeout × retries.
    RetryExceeded = IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded", "no answer within timeout times retries: the peer died, its port or a switch is down, packets are lost (check pause frames, MTU and GID at both ends), or RDMACCL_IB_TIMEOUT is too short for this network";
    /// The peer had no receive posted for too long.
    ReceiverNotReady = IBV_WC_RNR_RETRY_EXC_ERR, "receiver-not-ready retry counter exceeded", "the peer has no receive posted: it hangs, or this library has a fault";
    /// Reliable datagrams only.
    LocalDomain = IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation", "reliable datagrams only, which are not used";
    /// Reliable datagrams only.
    RemoteInvalidDomain = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request", "reliable datagrams only, which are not used";
    /// The peer aborted the request.
    RemoteAborted = IBV_WC_REM_ABORT_ERR, "remote aborted", "the peer's queue pair was moved to error";
    /// Reliable datagrams only.
    InvalidContextNumber = IBV_WC_INV_EECN_ERR, "invalid EE context number", "reliable datagrams only, which are not used";
    /// Reliable datagrams only.
    InvalidContextState = IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state", "reliable datagrams only, which are not used";
    /// The device failed.
    Fatal = IBV_WC_FATAL_ERR, "fatal error", "the device failed: look at the kernel's log (dmesg)";
    /// No answer to a request in time.
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR, "response timeout", "the peer does not answer: it died, or its port is down";
    /// Anything else.
    General = IBV_WC_GENERAL_ERR, "general error", "the vendor's error code says more";
}

impl Status {
    /// Whether the request was done.
    #[inline]
    pub fn is_success(self) -> bool {
        self == Status::Success
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Other(code) => write!(f, "unknown status {code}"),
            known => f.write_str(known.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_of_its_own_and_a_cause() {
        let names: std::collections::BTreeSet<_> = (0..=21).map(|code| Status::of(code).name()).collect();
        assert_eq!(names.len(), 22);
        assert!((0..=21).all(|code| !Status::of(code).cause().is_empty()));
        assert_eq!(Status::of(12), Status::RetryExceeded);
        assert_eq!(Status::of(99).to_string(), "unknown status 99");
    }
}
