//! Contexts, memory regions, channels, address handles.

use super::{Device, Errno, Waiting, World};
use crate::abi::*;

/// What an object is called inside; also its handle, its key or its queue pair's number outside.
pub(crate) type Key = u32;

/// An entry of a GID table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
    pub(crate) kind: u32,
    pub(crate) ifindex: u32,
}

/// An open device.
pub(crate) struct Context {
    pub(crate) device: usize,
    /// Events: a code, and a port, queue pair or completion queue.
    pub(crate) events: Waiting<(u32, u32)>,
}

/// A memory region.
pub(crate) struct Mr {
    pub(crate) pd: Key,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) access: u32,
    /// Of a dma-buf, where its bytes are reached.
    pub(crate) dma_buf: Option<DmaBuf>,
}

/// A dma-buf's bytes.
#[derive(Clone, Copy)]
pub(crate) struct DmaBuf {
    /// Where they are.
    pub(crate) at: u64,
    /// What was mapped for them.
    pub(crate) base: u64,
    pub(crate) mapped: usize,
    /// Where writes wait until their device is told to flush them, and where they are noted; `None`: they do not wait.
    pub(crate) late: Option<(u64, u64)>,
}

/// A completion channel.
pub(crate) struct Channel {
    pub(crate) context: Key,
    /// Completion queues.
    pub(crate) events: Waiting<Key>,
}

/// An address handle.
#[derive(Clone, Copy)]
pub(crate) struct Ah {
    pub(crate) pd: Key,
    pub(crate) port: u8,
    pub(crate) way: Way,
}

/// A way to another port.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// This end's address, if it has one.
    pub(crate) from: Option<Gid>,
    pub(crate) index: u32,
    pub(crate) to: Option<[u8; 16]>,
    pub(crate) lid: u64,
}

impl World {
    pub(crate) fn open(&mut self, device: usize) -> Result<Key, Errno> {
        self.call("open_device")?;
        let events = Waiting::new().map_err(|_| libc::EMFILE)?;
        let key = self.key();
        self.contexts.insert(key, Context { device, events });
        Ok(key)
    }

    pub(crate) fn close(&mut self, context: Key) -> Result<(), Errno> {
        let used = self.pds.values().chain(self.channels.values().map(|c| &c.context)).any(|c| *c == context)
            || self.cqs.values().any(|cq| cq.context == context);
        if used {
            return Err(libc::EBUSY);
        }
        self.contexts.remove(&context).map(|_| ()).ok_or(libc::EINVAL)
    }

    pub(crate) fn alloc_pd(&mut self, context: Key) -> Result<Key, Errno> {
        self.call("alloc_pd")?;
        let device = self.device_of(context)?;
        let there = self.pds.values().filter(|c| self.contexts[c].device == device).count();
        if there as u64 >= self.limit(device, "pd") {
            return Err(libc::ENOMEM);
        }
        let key = self.key();
        self.pds.insert(key, context);
        Ok(key)
    }

    pub(crate) fn dealloc_pd(&mut self, pd: Key) -> Result<(), Errno> {
        let used = self.mrs.values().any(|mr| mr.pd == pd)
            || self.qps.values().any(|qp| qp.pd == pd)
            || self.ahs.values().any(|ah| ah.pd == pd);
        if used {
            return Err(libc::EBUSY);
        }
        self.pds.remove(&pd).map(|_| ()).ok_or(libc::EINVAL)
    }

    pub(crate) fn reg_mr(
        &mut self,
        pd: Key,
        (start, len): (u64, u64),
        access: u32,
        dma_buf: Option<DmaBuf>,
    ) -> Result<Key, Errno> {
        let device = self.device_of_pd(pd)?;
        let known = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_RELAXED_ORDERING;
        let writes = access & IBV_ACCESS_REMOTE_WRITE != 0;
        if access & !known != 0 || writes && access & IBV_ACCESS_LOCAL_WRITE == 0 || len == 0 {
            return Err(libc::EINVAL);
        }
        if len > self.limit(device, "mr_bytes") {
            return Err(libc::EINVAL);
        }
        let locked: u64 = self.mrs.values().map(|mr| mr.len).sum();
        let there = self.mrs.values().filter(|mr| self.device_of_pd(mr.pd) == Ok(device)).count();
        if self.memlock.is_some_and(|most| locked + len > most) || there as u64 >= self.limit(device, "mr") {
            return Err(libc::ENOMEM);
        }
        let key = self.key();
        self.mrs.insert(key, Mr { pd, start, len, access, dma_buf });
        Ok(key)
    }

    pub(crate) fn create_channel(&mut self, context: Key) -> Result<Key, Errno> {
        self.call("create_comp_channel")?;
        let events = Waiting::new().map_err(|_| libc::EMFILE)?;
        let key = self.key();
        self.channels.insert(key, Channel { context, events });
        Ok(key)
    }

    pub(crate) fn destroy_channel(&mut self, channel: Key) -> Result<(), Errno> {
        if self.cqs.values().any(|cq| cq.channel == Some(channel)) {
            return Err(libc::EBUSY);
        }
        self.channels.remove(&channel).map(|_| ()).ok_or(libc::EINVAL)
    }

    pub(crate) fn create_ah(&mut self, pd: Key, attributes: &ibv_ah_attr) -> Result<Key, Errno> {
        self.call("create_ah")?;
        let device = self.device_of_pd(pd)?;
        let there = self.ahs.values().filter(|ah| self.device_of_pd(ah.pd) == Ok(device)).count();
        if there as u64 >= self.limit(device, "ah") {
            return Err(libc::ENOMEM);
        }
        let way = self.way(device, attributes)?;
        let key = self.key();
        self.ahs.insert(key, Ah { pd, port: attributes.port_num, way });
        Ok(key)
    }

    /// The way that these attributes describe, with the errors that address resolution gives.
    pub(super) fn way(&self, device: usize, attributes: &ibv_ah_attr) -> Result<Way, Errno> {
        let port = self.port(device, attributes.port_num).ok_or(libc::EINVAL)?;
        let ethernet = port.settings["link"] == u64::from(IBV_LINK_LAYER_ETHERNET);
        let index = u32::from(attributes.grh.sgid_index);
        let lid = u64::from(attributes.dlid);
        if attributes.is_global == 0 {
            // Ethernet has no lids.
            return if ethernet { Err(libc::EINVAL) } else { Ok(Way { from: None, index, to: None, lid }) };
        }
        let from = *port.gids.get(&index).ok_or(libc::EINVAL)?;
        let to = attributes.grh.dgid.raw;
        let everywhere = self.devices.iter().flat_map(|d| &d.ports).flat_map(|p| p.gids.values());
        let mut known = everywhere.filter(|gid| gid.raw == to).peekable();
        if known.peek().is_none() {
            return Err(if ethernet { libc::ETIMEDOUT } else { libc::EINVAL });
        }
        if !known.any(|gid| gid.kind == from.kind) {
            return Err(libc::EINVAL);
        }
        Ok(Way { from: Some(from), index, to: Some(to), lid })
    }

    /// Whether a way that starts at this port ends at that one, as things are now.
    pub(super) fn leads(&self, way: &Way, here: (usize, u8), there: (usize, u8)) -> bool {
        let (Some(from), Some(to)) = (self.port(here.0, here.1), self.port(there.0, there.1)) else {
            return false;
        };
        match (way.from, way.to) {
            (Some(mine), Some(theirs)) => {
                from.gids.get(&way.index) == Some(&mine)
                    && to.gids.values().any(|gid| gid.raw == theirs && gid.kind == mine.kind)
            }
            _ => to.settings["lid"] == way.lid,
        }
    }

    pub(super) fn device_of(&self, context: Key) -> Result<usize, Errno> {
        self.contexts.get(&context).map(|c| c.device).ok_or(libc::EINVAL)
    }

    pub(super) fn device_of_pd(&self, pd: Key) -> Result<usize, Errno> {
        self.device_of(*self.pds.get(&pd).ok_or(libc::EINVAL)?)
    }

    /// The attributes of a device.
    pub(crate) fn device_attributes(
        &mut self,
        context: Key,
        into: &mut ibv_device_attr,
    ) -> Result<(), Errno> {
        self.call("query_device")?;
        let device: &Device = &self.devices[self.device_of(context)?];
        let limit = |name: &str| device.limits[name] as i32;
        into.node_guid = device.guid.to_be();
        into.sys_image_guid = into.node_guid;
        for (to, from) in into.fw_ver.iter_mut().zip(*b"fake-1.0") {
            *to = from as libc::c_char;
        }
        into.max_mr_size = u64::MAX;
        into.page_size_cap = 4096;
        into.max_qp = limit("qp");
        into.max_qp_wr = limit("qp_wr");
        into.max_sge = limit("sge");
        into.max_cq = limit("cq");
        into.max_cqe = limit("cqe");
        into.max_mr = limit("mr");
        into.max_pd = limit("pd");
        into.max_ah = limit("ah");
        into.max_qp_rd_atom = 16;
        into.max_qp_init_rd_atom = 16;
        into.max_pkeys = 1;
        into.local_ca_ack_delay = 15;
        into.phys_port_cnt = device.ports.len() as u8;
        Ok(())
    }

    /// The attributes of a port.
    pub(crate) fn port_attributes(
        &mut self,
        context: Key,
        port: u8,
        into: &mut ibv_port_attr,
    ) -> Result<(), Errno> {
        self.call("query_port")?;
        let settings = &self.port(self.device_of(context)?, port).ok_or(libc::EINVAL)?.settings;
        let active = settings["state"] == u64::from(IBV_PORT_ACTIVE);
        into.state = settings["state"] as u32;
        into.max_mtu = settings["max_mtu"] as u32;
        into.active_mtu = settings["mtu"] as u32;
        into.gid_tbl_len = settings["gids"] as i32;
        into.max_msg_sz = 1 << 30;
        into.pkey_tbl_len = settings["pkeys"] as u16;
        into.lid = settings["lid"] as u16;
        into.sm_lid = settings["sm_lid"] as u16;
        into.active_width = settings["width"] as u8;
        into.active_speed = settings["speed"] as u8;
        into.phys_state = if active { 5 } else { 3 };
        into.link_layer = settings["link"] as u8;
        Ok(())
    }

    /// An entry of a port's GID table; unset ones are zero.
    pub(crate) fn gid(&mut self, context: Key, port: u8, index: u32) -> Result<[u8; 16], Errno> {
        self.call("query_gid")?;
        let port = self.port(self.device_of(context)?, port).ok_or(libc::EINVAL)?;
        if u64::from(index) >= port.settings["gids"] {
            return Err(libc::EINVAL);
        }
        Ok(port.gids.get(&index).map_or([0; 16], |gid| gid.raw))
    }

    /// All entries of all ports of a device.
    pub(crate) fn gids(&mut self, context: Key) -> Result<Vec<ibv_gid_entry>, Errno> {
        self.call("query_gid_table")?;
        let device = &self.devices[self.device_of(context)?];
        let entries = (1..).zip(&device.ports).flat_map(|(number, port)| {
            port.gids.iter().map(move |(index, gid)| ibv_gid_entry {
                gid: ibv_gid { raw: gid.raw },
                gid_index: *index,
                port_num: number,
                gid_type: gid.kind,
                ndev_ifindex: gid.ifindex,
            })
        });
        Ok(entries.collect())
    }

    /// A partition key: every port is in the default partition.
    pub(crate) fn pkey(&mut self, context: Key, port: u8, index: i32) -> Result<u16, Errno> {
        self.call("query_pkey")?;
        let port = self.port(self.device_of(context)?, port).ok_or(libc::EINVAL)?;
        let there = u64::try_from(index).is_ok_and(|index| index < port.settings["pkeys"]);
        if there { Ok(0xffff) } else { Err(libc::EINVAL) }
    }
}
