//! Asynchronous events.

use crate::sys::*;
use std::fmt;

/// Something that happened to a device beside the completions of work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The port carries traffic.
    PortActive {
        /// Which.
        port: u8,
    },
    /// The port went down.
    PortError {
        /// Which.
        port: u8,
    },
    /// The port's GID table changed: addresses may have moved to another index.
    GidChange {
        /// Which port.
        port: u8,
    },
    /// The port's lid changed (InfiniBand).
    LidChange {
        /// Which port.
        port: u8,
    },
    /// The port's partition keys changed.
    PkeyChange {
        /// Which port.
        port: u8,
    },
    /// The port has another subnet manager (InfiniBand).
    SubnetManagerChange {
        /// Which port.
        port: u8,
    },
    /// The subnet manager asks for what it was told before (InfiniBand).
    ClientReregister {
        /// Which port.
        port: u8,
    },
    /// The queue pair went into error by itself.
    QueuePairFatal {
        /// Its number.
        queue_pair: u32,
    },
    /// The queue pair got a request that it could not take.
    QueuePairRequestError {
        /// Its number.
        queue_pair: u32,
    },
    /// The queue pair got a request for memory that the peer may not touch.
    QueuePairAccessError {
        /// Its number.
        queue_pair: u32,
    },
    /// The first message came before the queue pair was ready to send.
    Established {
        /// The queue pair's number.
        queue_pair: u32,
    },
    /// Another change of a queue pair: its sends have drained, or its path has moved.
    QueuePairOther {
        /// Its number.
        queue_pair: u32,
        /// The event's code.
        code: u32,
    },
    /// The completion queue is in error, most likely because it overflowed.
    CompletionQueueError {
        /// Its [`id`](super::CompletionQueue::id).
        queue: u64,
    },
    /// The device failed: nothing on it works until it is opened again.
    DeviceFatal,
    /// An event that we cause nothing for, or that is newer than this library.
    Other {
        /// The event's code.
        code: u32,
    },
}

impl Event {
    pub(super) fn of(code: u32, element: Element) -> Event {
        match (code, element) {
            (IBV_EVENT_DEVICE_FATAL, _) => Event::DeviceFatal,
            (IBV_EVENT_PORT_ACTIVE, Element::Port(port)) => Event::PortActive { port },
            (IBV_EVENT_PORT_ERR, Element::Port(port)) => Event::PortError { port },
            (IBV_EVENT_GID_CHANGE, Element::Port(port)) => Event::GidChange { port },
            (IBV_EVENT_LID_CHANGE, Element::Port(port)) => Event::LidChange { port },
            (IBV_EVENT_PKEY_CHANGE, Element::Port(port)) => Event::PkeyChange { port },
            (IBV_EVENT_SM_CHANGE, Element::Port(port)) => Event::SubnetManagerChange { port },
            (IBV_EVENT_CLIENT_REREGISTER, Element::Port(port)) => Event::ClientReregister { port },
            (IBV_EVENT_QP_FATAL, Element::Qp(queue_pair)) => Event::QueuePairFatal { queue_pair },
            (IBV_EVENT_QP_REQ_ERR, Element::Qp(queue_pair)) => Event::QueuePairRequestError { queue_pair },
            (IBV_EVENT_QP_ACCESS_ERR, Element::Qp(queue_pair)) => Event::QueuePairAccessError { queue_pair },
            (IBV_EVENT_COMM_EST, Element::Qp(queue_pair)) => Event::Established { queue_pair },
            (code, Element::Qp(queue_pair)) => Event::QueuePairOther { queue_pair, code },
            (_, Element::Cq(queue)) => Event::CompletionQueueError { queue },
            (code, _) => Event::Other { code },
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::PortActive { port } => write!(f, "port {port} is active"),
            Event::PortError { port } => write!(f, "port {port} is down"),
            Event::GidChange { port } => write!(f, "the gids of port {port} changed"),
            Event::LidChange { port } => write!(f, "the lid of port {port} changed"),
            Event::PkeyChange { port } => write!(f, "the partition keys of port {port} changed"),
            Event::SubnetManagerChange { port } => write!(f, "port {port} has another subnet manager"),
            Event::ClientReregister { port } => {
                write!(f, "the subnet manager asks port {port} to register again")
            }
            Event::QueuePairFatal { queue_pair } => write!(f, "queue pair {queue_pair:#x} failed"),
            Event::QueuePairRequestError { queue_pair } => {
                write!(f, "queue pair {queue_pair:#x} got a request that it could not take")
            }
            Event::QueuePairAccessError { queue_pair } => {
                write!(f, "queue pair {queue_pair:#x} got a request for memory that the peer may not touch")
            }
            Event::Established { queue_pair } => {
                write!(f, "queue pair {queue_pair:#x} got its first message")
            }
            Event::QueuePairOther { queue_pair, code } => {
                write!(f, "event {code} of queue pair {queue_pair:#x}")
            }
            Event::CompletionQueueError { queue } => {
                write!(f, "completion queue {queue} overflowed or failed")
            }
            Event::DeviceFatal => f.write_str("the device failed"),
            Event::Other { code } => write!(f, "event {code}"),
        }
    }
}
