//! Paths between ports.

use super::error::{cure_of_path, failed};
use super::gid::Gid;
use super::memory::ProtectionDomain;
use crate::sys;
use ccl_core::Result;
use std::fmt;
use std::sync::Arc;

/// How packets travel from a port of this host to a port of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The port here, from 1.
    pub port: u8,
    /// The peer's address; `None` where lids suffice (InfiniBand without routers).
    pub gid: Option<Gid>,
    /// Which entry of the port's GID table is the sender's address; of no account without `gid`.
    pub gid_index: u8,
    /// The peer's lid (InfiniBand).
    pub lid: u16,
    /// Service level (InfiniBand), or priority (RoCE without traffic class): 0 to 15.
    pub service_level: u8,
    /// Traffic class; its upper six bits are IP's DSCP.
    pub traffic_class: u8,
    /// 20 bits of which RoCE makes its UDP source port, and IPv6 its flow label.
    pub flow_label: u32,
    /// Routers that may pass the packets on.
    pub hop_limit: u8,
    /// Which of the port's lids is the sender's (InfiniBand).
    pub source_path_bits: u8,
}

impl Path {
    /// From a port to a GID, with everything else as it is usual.
    pub fn to_gid(port: u8, gid_index: u8, gid: Gid) -> Path {
        Path {
            port,
            gid: Some(gid),
            gid_index,
            lid: 0,
            service_level: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 255,
            source_path_bits: 0,
        }
    }

    /// From a port to a lid of the same subnet, with everything else as it is usual.
    pub fn to_lid(port: u8, lid: u16) -> Path {
        Path { gid: None, lid, ..Path::to_gid(port, 0, Gid::default()) }
    }

    pub(super) fn attributes(&self) -> sys::ibv_ah_attr {
        sys::ibv_ah_attr {
            grh: sys::ibv_global_route {
                dgid: sys::ibv_gid { raw: self.gid.unwrap_or_default().0 },
                flow_label: self.flow_label & 0xf_ffff,
                sgid_index: self.gid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: self.lid,
            sl: self.service_level,
            src_path_bits: self.source_path_bits,
            static_rate: 0,
            is_global: self.gid.is_some().into(),
            port_num: self.port,
        }
    }

    /// Who is at the other end, for errors.
    pub(super) fn peer(&self) -> String {
        match self.gid {
            Some(gid) => format!("gid {gid}"),
            None => format!("lid {}", self.lid),
        }
    }

    /// Who is at this end, for errors.
    pub(super) fn here(&self) -> String {
        match self.gid {
            Some(_) => format!("gid index {} of port {}", self.gid_index, self.port),
            None => format!("port {}", self.port),
        }
    }
}

/// The way to a peer's port, for datagrams. A clone is the same handle.
#[derive(Clone)]
pub struct AddressHandle(Arc<sys::Ah>);

impl AddressHandle {
    pub(super) fn new(domain: &ProtectionDomain, path: &Path) -> Result<AddressHandle> {
        let raw = sys::Ah::new(domain.raw().clone(), path.attributes()).map_err(|e| {
            let call =
                format!("ibv_create_ah on {} port {} to {}", domain.context().name(), path.port, path.peer());
            let remedy = cure_of_path(&e, &path.peer(), &path.here());
            failed(call, e, remedy)
        })?;
        Ok(AddressHandle(Arc::new(raw)))
    }

    pub(super) fn raw(&self) -> &Arc<sys::Ah> {
        &self.0
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressHandle")
    }
}
