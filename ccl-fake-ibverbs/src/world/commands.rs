//! What scripts do to the world.

use super::{Device, Ending, Fault, Gid, Loss, Port, Turn, World};
use crate::abi::*;
use crate::script::{Command, PortName, Settings};
use std::collections::BTreeMap;

impl World {
    /// Does what a script says; the text says what it cannot.
    pub(crate) fn run(&mut self, commands: Vec<Command>) -> Result<(), String> {
        commands.into_iter().try_for_each(|command| self.command(command))
    }

    fn command(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Device { name, ports, guid, sysfs } => {
                if name.is_empty() || name.len() > 60 || sysfs.len() > 250 || self.find(&name).is_ok() {
                    return Err(format!("device {name} is there already, or a name is too long"));
                }
                let ports = (0..ports).map(|_| Port::new()).collect();
                self.devices.push(Device { name, guid, sysfs, ports, limits: default_limits(), pace: 0 });
            }
            Command::Port { at, mut settings } => {
                let (device, index) = self.find_port(&at)?;
                let state = settings.remove("state");
                self.devices[device].ports[index].settings.extend(settings);
                if let Some(state) = state {
                    self.set_state(device, index, state);
                }
            }
            Command::Gid { at, index, gid, kind, ifindex } => {
                let (device, port) = self.find_port(&at)?;
                if u64::from(index) >= self.devices[device].ports[port].settings["gids"] {
                    return Err(format!(
                        "the gid table of {}/{} is shorter than {index}",
                        at.device, at.port
                    ));
                }
                self.devices[device].ports[port].gids.insert(index, Gid { raw: gid, kind, ifindex });
                self.raise(device, IBV_EVENT_GID_CHANGE, at.port.into());
            }
            Command::NoGid { at, index } => {
                let (device, port) = self.find_port(&at)?;
                self.devices[device].ports[port].gids.remove(&index);
                self.raise(device, IBV_EVENT_GID_CHANGE, at.port.into());
            }
            Command::Limit { device, settings } => {
                let device = self.find(&device)?;
                self.devices[device].limits.extend(settings);
            }
            Command::Memlock(bytes) => self.memlock = Some(bytes),
            Command::Fail { verb, errno, nth, times } => {
                self.faults.push(Fault { verb, errno, before: nth.saturating_sub(1), times });
            }
            Command::Complete { status, vendor, nth, on, delivered } => {
                self.endings.push(Ending { status, vendor, before: nth.saturating_sub(1), on, delivered });
            }
            Command::Lose { on, nth, times } => {
                self.losses.push(Loss { on, before: nth.saturating_sub(1), times });
            }
            Command::Down { at, after, stall } => self.plan(&at, after, Turn::Down { stall })?,
            Command::Up { at, after } => self.plan(&at, after, Turn::Up)?,
            Command::Delay(polls) => self.delay = polls,
            Command::Pace { device, polls } => {
                let device = self.find(&device)?;
                self.devices[device].pace = polls;
            }
            Command::Event { device, code, port } => {
                let device = self.find(&device)?;
                // Those between name a queue or a queue pair.
                if !matches!(code, IBV_EVENT_DEVICE_FATAL..=IBV_EVENT_SM_CHANGE | IBV_EVENT_CLIENT_REREGISTER..=u32::MAX)
                {
                    return Err(format!("event {code} is not one of a device or a port"));
                }
                self.raise(device, code, port.cast_unsigned());
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        self.devices.iter().position(|d| d.name == name).ok_or_else(|| format!("there is no device {name}"))
    }

    fn find_port(&self, at: &PortName) -> Result<(usize, usize), String> {
        let device = self.find(&at.device)?;
        let index = usize::from(at.port).wrapping_sub(1);
        if index < self.devices[device].ports.len() {
            Ok((device, index))
        } else {
            Err(format!("{} has no port {}", at.device, at.port))
        }
    }

    fn plan(&mut self, at: &PortName, after: u64, turn: Turn) -> Result<(), String> {
        let (device, index) = self.find_port(at)?;
        let port = &mut self.devices[device].ports[index];
        port.plans.push((port.sends + after, turn));
        self.turn(device, index);
        Ok(())
    }

    /// Counts a send from a port, and lets its plans come true.
    pub(super) fn count_send(&mut self, device: usize, port: u8) {
        let index = usize::from(port) - 1;
        self.turn(device, index);
        self.devices[device].ports[index].sends += 1;
    }

    /// Does what is planned for a port by now, in order.
    fn turn(&mut self, device: usize, index: usize) {
        let port = &mut self.devices[device].ports[index];
        let sends = port.sends;
        let (due, later): (Vec<_>, Vec<_>) = port.plans.drain(..).partition(|(at, _)| *at <= sends);
        port.plans = later;
        if due.is_empty() {
            return;
        }
        for (_, turn) in due {
            match turn {
                Turn::Down { stall } => {
                    self.devices[device].ports[index].stall = stall;
                    self.set_state(device, index, IBV_PORT_DOWN.into());
                }
                Turn::Up => self.set_state(device, index, IBV_PORT_ACTIVE.into()),
            }
        }
        // What waits may go on, or has waited in vain.
        self.resume();
    }

    fn set_state(&mut self, device: usize, index: usize, state: u64) {
        let before = self.devices[device].ports[index].settings.insert("state".into(), state);
        let active = u64::from(IBV_PORT_ACTIVE);
        let number = index as u32 + 1;
        if state == active && before != Some(active) {
            self.raise(device, IBV_EVENT_PORT_ACTIVE, number);
            self.resume();
        } else if state != active && before == Some(active) {
            self.raise(device, IBV_EVENT_PORT_ERR, number);
        }
    }
}

impl Port {
    fn new() -> Port {
        let settings = [
            ("link", IBV_LINK_LAYER_ETHERNET),
            ("state", IBV_PORT_ACTIVE),
            ("mtu", 5),
            ("max_mtu", 5),
            ("lid", 0),
            ("sm_lid", 0),
            ("gids", 16),
            ("pkeys", 1),
            // 4x EDR: 100 Gb/s.
            ("width", 2),
            ("speed", 32),
        ];
        let settings = settings.map(|(name, value)| (name.to_string(), u64::from(value))).into();
        Port { settings, gids: BTreeMap::new(), sends: 0, stall: false, plans: Vec::new() }
    }

    pub(super) fn is_active(&self) -> bool {
        self.settings["state"] == u64::from(IBV_PORT_ACTIVE)
    }

    pub(super) fn stalls(&self) -> bool {
        !self.is_active() && self.stall
    }
}

fn default_limits() -> Settings {
    let limits = [
        ("qp", 4096),
        ("qp_wr", 16384),
        ("sge", 16),
        ("inline", 256),
        ("cq", 4096),
        ("cqe", 1 << 20),
        ("mr_bytes", u64::MAX),
        ("mr", 65536),
        ("pd", 1024),
        ("ah", 65536),
    ];
    limits.map(|(name, value)| (name.to_string(), value)).into()
}
