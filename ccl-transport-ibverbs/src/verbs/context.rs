//! An open device.

use super::device::Device;
use super::error::{failed, look_at};
use super::event::Event;
use super::gid::{self, GidEntry};
use super::port::Port;
use crate::sys;
use ccl_core::Result;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An open device.
#[derive(Clone)]
pub struct Context(Arc<Opened>);

struct Opened {
    device: Device,
    name: String,
    limits: DeviceLimits,
    raw: Arc<sys::Context>,
}

/// What a device is and how much of everything it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Version of its firmware; empty for software.
    pub firmware: String,
    /// Who made it, by IEEE's number.
    pub vendor: u32,
    /// Which of the maker's products it is.
    pub part: u32,
    /// Its ports are numbered from 1 to this.
    pub ports: u8,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests that wait in one queue.
    pub work_requests: u32,
    /// Pieces of memory in one work request.
    pub sges: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries in one completion queue.
    pub completions: u32,
    /// Regions.
    pub regions: u32,
    /// Bytes in one region.
    pub region_bytes: u64,
    /// Protection domains.
    pub protection_domains: u32,
    /// Address handles.
    pub address_handles: u32,
    /// RDMA reads that a queue pair answers at a time.
    pub reads_answered: u8,
    /// RDMA reads that a queue pair has under way at a time.
    pub reads_started: u8,
    /// How long it may take to acknowledge: 4.096 µs × 2 to this power.
    pub ack_delay: u8,
}

impl Context {
    pub(super) fn new(device: Device, raw: sys::Context) -> Result<Context> {
        let name = device.name();
        let attributes = raw
            .query_device()
            .map_err(|e| failed(format!("ibv_query_device of {name}"), e, look_at(&name)))?;
        let limits = DeviceLimits::of(&attributes);
        Ok(Context(Arc::new(Opened { device, name, limits, raw: Arc::new(raw) })))
    }

    /// The device's name: `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its limits.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// Interrupt vectors that a completion queue can choose from.
    pub fn vectors(&self) -> u32 {
        self.0.raw.vectors()
    }

    /// A port as it is now, from 1.
    pub fn port(&self, number: u8) -> Result<Port> {
        let attributes = self.0.raw.query_port(number).map_err(|e| {
            let remedy = format!("its ports are 1 to {}", self.limits().ports);
            failed(format!("ibv_query_port of {} port {number}", self.name()), e, remedy)
        })?;
        Ok(Port::of(number, &attributes, &self.device().folder()))
    }

    /// The GIDs of a port that are set, by index.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        gid::table(self, port)
    }

    /// What the device has counted at a port since it was started, by the names that its driver gives: packets, errors,
    /// retries. Empty where it counts nothing.
    pub fn counters(&self, port: u8) -> Vec<(String, u64)> {
        let folder = self.device().folder();
        let mut counters = folder.numbers(&format!("ports/{port}/counters"));
        counters.extend(folder.numbers(&format!("ports/{port}/hw_counters")));
        counters
    }

    /// A partition key of a port.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        self.0.raw.query_pkey(port, index).map_err(|e| {
            let remedy = match self.port(port) {
                Ok(port) => format!("its table has {} keys, from index 0", port.pkeys),
                Err(_) => format!("its ports are 1 to {}", self.limits().ports),
            };
            failed(format!("ibv_query_pkey of {} port {port} index {index}", self.name()), e, remedy)
        })
    }

    /// Readable when [`next_event`](Context::next_event) has one.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.0.raw.events()
    }

    /// The oldest asynchronous event; `None` if there is none.
    pub fn next_event(&self) -> Result<Option<Event>> {
        let event = self.0.raw.next_event().map_err(|e| {
            failed(format!("ibv_get_async_event of {}", self.name()), e, look_at(self.name()))
        })?;
        Ok(event.map(|(kind, element)| Event::of(kind, element)))
    }

    pub(super) fn raw(&self) -> &Arc<sys::Context> {
        &self.0.raw
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.name()).finish()
    }
}

impl DeviceLimits {
    fn of(attributes: &sys::ibv_device_attr) -> DeviceLimits {
        // A negative number is a driver's way of saying that it does not know; none of it can be counted on.
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let few = |n: i32| u8::try_from(n.clamp(0, 255)).unwrap_or(0);
        DeviceLimits {
            firmware: sys::firmware(attributes),
            vendor: attributes.vendor_id,
            part: attributes.vendor_part_id,
            ports: attributes.phys_port_cnt,
            queue_pairs: count(attributes.max_qp),
            work_requests: count(attributes.max_qp_wr),
            sges: count(attributes.max_sge),
            completion_queues: count(attributes.max_cq),
            completions: count(attributes.max_cqe),
            regions: count(attributes.max_mr),
            region_bytes: attributes.max_mr_size,
            protection_domains: count(attributes.max_pd),
            address_handles: count(attributes.max_ah),
            reads_answered: few(attributes.max_qp_rd_atom),
            reads_started: few(attributes.max_qp_init_rd_atom),
            ack_delay: attributes.local_ca_ack_delay,
        }
    }
}
