//! Which ports carry links.

use super::survey::{Device, Gid, Layer, Port, State, Survey};
use super::{Choice, gid};
use ccl_core::config::Ib;
use ccl_core::{Error, Result};
use std::fmt;

/// A port that carries links.
#[derive(Clone, Debug, PartialEq)]
pub struct Rail {
    /// Its device's name.
    pub device: String,
    /// Its number on the device.
    pub port: u8,
    /// What lies below it.
    pub layer: Layer,
    /// Gigabits per second; 0: not known.
    pub gbps: f64,
    /// The NUMA node that its device is near to.
    pub numa: Option<u32>,
    /// Whether the device is software.
    pub software: bool,
    /// Longest packet payload in bytes.
    pub active_mtu: u16,
    /// Its address in an InfiniBand subnet.
    pub lid: u16,
    /// The host's traffic class for it.
    pub host_class: Option<u8>,
    /// The GIDs that it can speak from, best first; never empty.
    pub gids: Vec<Gid>,
    /// Why the best GID is the best.
    pub gid_why: String,
    place: String,
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.port)
    }
}

impl Rail {
    /// Whether several links lie below its interface.
    pub fn is_bonded(&self) -> bool {
        self.gids.iter().filter_map(|gid| gid.netdev.as_ref()).any(|netdev| netdev.bond)
    }

    /// The network interface below it.
    fn interface(&self) -> Option<&str> {
        self.gids.iter().find_map(|gid| gid.netdev.as_ref()).map(|netdev| netdev.name.as_str())
    }
}

/// The ports that carry links, in an order that is the same on hosts built alike; the `why` says which were left
/// out for what.
pub fn choose(survey: &Survey, settings: &Ib) -> Result<Choice<Vec<Rail>>> {
    if survey.devices.is_empty() {
        return Err(Error::unsupported(
            format!("RDMA on host {}: it has no RDMA device", survey.host),
            "load the adapter's driver, or give a network interface a software device (rdma link add rxe0 type rxe netdev eth0); \
             `ibv_devinfo` lists devices",
        ));
    }
    let mut rails = Vec::new();
    let mut left_out: Vec<String> = Vec::new();
    for device in &survey.devices {
        for port in &device.ports {
            match rail(device, port, settings) {
                Ok(rail) => rails.push(rail),
                Err(why) => left_out.push(format!("{}:{}: {why}", device.name, port.number)),
            }
        }
    }
    if rails.is_empty() {
        let why = if left_out.is_empty() { "its devices have no port".into() } else { left_out.join("; ") };
        return Err(Error::unsupported(
            format!("RDMA on host {}: no port can be used: {why}", survey.host),
            "see `ibv_devinfo -v` and `rdma link`",
        ));
    }
    let named = settings.hca.as_ref().is_some_and(|filter| filter.chooses());
    let before = rails.len();
    one_layer(&mut rails, named, &survey.host, &mut left_out)?;
    if !named {
        like_speeds(&mut rails, &mut left_out);
        one_per_interface(&mut rails, &mut left_out);
    }
    rails.sort_by(|a, b| (&a.place, a.port).cmp(&(&b.place, b.port)));
    let reason = match (named, before == rails.len() && left_out.is_empty()) {
        (true, _) => "named by RDMACCL_IB_HCA".to_string(),
        (false, true) => "every port".to_string(),
        (false, false) => format!("left out: {}", left_out.join("; ")),
    };
    Ok(Choice::new(rails, reason))
}

fn rail(device: &Device, port: &Port, settings: &Ib) -> Result<Rail, String> {
    if let Some(filter) = settings.hca.as_ref().filter(|filter| !filter.matches(&device.name, port.number)) {
        return Err(format!("excluded by RDMACCL_IB_HCA={filter}"));
    }
    if port.state != State::Active {
        let cure = match (port.layer, port.state) {
            (Layer::InfiniBand, State::Init | State::Armed) => "see whether a subnet manager runs",
            (Layer::InfiniBand, _) => "see the cable and the switch",
            (Layer::Ethernet, _) => "see the cable, and set its interface up (ip link set up)",
        };
        return Err(format!("its state is {} (physically {}): {cure}", port.state, port.physical));
    }
    let gids = gid::usable(port, settings)?;
    Ok(Rail {
        device: device.name.clone(),
        port: port.number,
        layer: port.layer,
        gbps: port.gbps,
        numa: device.numa,
        software: device.is_software(),
        active_mtu: port.active_mtu,
        lid: port.lid,
        host_class: port.host_class,
        gid_why: gid::why(&gids[0], settings),
        gids,
        place: place(device),
    })
}

/// Sorts as the devices lie in the machine, where that is known, else by their numbers.
fn place(device: &Device) -> String {
    let stem = device.name.trim_end_matches(|c: char| c.is_ascii_digit());
    let by_number = format!("~{stem}{:>8}", &device.name[stem.len()..]);
    device.pci.clone().unwrap_or(by_number)
}

/// A connection has one link layer at both its ends, so the rails have one.
fn one_layer(rails: &mut Vec<Rail>, named: bool, host: &str, left_out: &mut Vec<String>) -> Result<()> {
    let speed = |layer| rails.iter().filter(|r| r.layer == layer).map(|r| r.gbps).sum::<f64>();
    let count = |layer| rails.iter().filter(|r| r.layer == layer).count();
    if count(Layer::InfiniBand) == 0 || count(Layer::Ethernet) == 0 {
        return Ok(());
    }
    if named {
        let each: Vec<_> = rails.iter().map(|rail| format!("{rail} ({})", rail.layer)).collect();
        return Err(Error::invalid(
            format!("RDMACCL_IB_HCA names ports of two link layers on host {host}: {}", each.join(", ")),
            "name InfiniBand ports or Ethernet ports, not both",
        ));
    }
    let best =
        if speed(Layer::Ethernet) > speed(Layer::InfiniBand) { Layer::Ethernet } else { Layer::InfiniBand };
    drop_where(rails, left_out, |rail| {
        (rail.layer != best)
            .then(|| format!("it is {}, and the host's {best} ports are faster together", rail.layer))
    });
    Ok(())
}

/// Short pieces are spread evenly, so a port much slower than the others would hold them up.
fn like_speeds(rails: &mut Vec<Rail>, left_out: &mut Vec<String>) {
    let fastest = rails.iter().map(|rail| rail.gbps).fold(0.0, f64::max);
    drop_where(rails, left_out, |rail| {
        let slow = rail.gbps < fastest / 2.0;
        slow.then(|| format!("{} Gb/s, less than half of the fastest port's {fastest}", rail.gbps))
    });
}

/// A software device over an interface that has a hardware one shares its wire.
fn one_per_interface(rails: &mut Vec<Rail>, left_out: &mut Vec<String>) {
    let hardware: Vec<String> =
        rails.iter().filter(|r| !r.software).filter_map(|r| r.interface().map(String::from)).collect();
    drop_where(rails, left_out, |rail| {
        let interface =
            rail.interface().filter(|name| rail.software && hardware.iter().any(|h| h == name))?;
        Some(format!("software over {interface}, which has a hardware device"))
    });
}

fn drop_where(rails: &mut Vec<Rail>, left_out: &mut Vec<String>, fault: impl Fn(&Rail) -> Option<String>) {
    rails.retain(|rail| {
        let fault = fault(rail);
        left_out.extend(fault.iter().map(|why| format!("{rail}: {why}")));
        fault.is_none()
    });
}

#[cfg(test)]
mod tests {
    use super::super::surveys;
    use super::*;
    use ccl_core::config::Config;

    fn with(hca: &str) -> Ib {
        Ib { hca: Some(hca.parse().unwrap()), ..Config::default().ib }
    }

    fn names(survey: &Survey, settings: &Ib) -> Vec<String> {
        choose(survey, settings).unwrap().value.iter().map(Rail::to_string).collect()
    }

    #[test]
    fn every_active_port_of_one_kind_is_a_rail() {
        let settings = Config::default().ib;
        assert_eq!(names(&surveys::infiniband(), &settings), ["mlx5_0:1", "mlx5_0:2"]);
        assert_eq!(names(&surveys::rails(1, 4), &settings), ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"]);
        let mixed = choose(&surveys::mixed(), &settings).unwrap();
        assert_eq!(mixed.value.len(), 4);
        assert!(mixed.why.contains("mlx5_4:1: it is Ethernet"), "{}", mixed.why);
        assert!(choose(&surveys::bond(), &settings).unwrap().value[0].is_bonded());
    }

    #[test]
    fn a_port_that_is_down_is_left_out_with_its_cure() {
        let mut survey = surveys::infiniband();
        survey.devices[0].ports[1].state = State::Init;
        let choice = choose(&survey, &Config::default().ib).unwrap();
        assert_eq!(choice.value.len(), 1);
        assert!(choice.why.contains("mlx5_0:2") && choice.why.contains("subnet manager"), "{}", choice.why);
        survey.devices[0].ports[0].state = State::Down;
        let error = choose(&survey, &Config::default().ib).unwrap_err().to_string();
        assert!(error.contains("ib1") && error.contains("mlx5_0:1: its state is down"), "{error}");
    }

    #[test]
    fn what_the_user_names_is_used_and_nothing_else() {
        let survey = surveys::mixed();
        assert_eq!(names(&survey, &with("=mlx5_4")), ["mlx5_4:1"]);
        assert_eq!(names(&survey, &with("^=mlx5_1,mlx5_3")), ["mlx5_0:1", "mlx5_2:1"]);
        let error = choose(&survey, &with("mlx5")).unwrap_err().to_string();
        assert!(error.contains("two link layers") && error.contains("not both"), "{error}");
        let error = choose(&survey, &with("ena")).unwrap_err().to_string();
        assert!(error.contains("mlx5_2:1: excluded by RDMACCL_IB_HCA=ena"), "{error}");
    }

    #[test]
    fn no_device_is_an_error_that_says_how_to_get_one() {
        let error = choose(&Survey::default(), &Config::default().ib).unwrap_err().to_string();
        assert!(error.contains("no RDMA device") && error.contains("rdma link add"), "{error}");
    }

    #[test]
    fn a_slow_port_and_a_software_twin_are_left_out_unless_named() {
        let mut survey = surveys::rails(1, 2);
        survey.devices[1].ports[0].gbps = 100.0;
        assert_eq!(names(&survey, &Config::default().ib), ["mlx5_0:1"]);
        assert_eq!(names(&survey, &with("mlx5")), ["mlx5_0:1", "mlx5_1:1"]);
        let mut twin = surveys::rails(1, 1);
        let software = Device { name: "rxe0".into(), pci: None, ..twin.devices[0].clone() };
        twin.devices.push(software);
        let choice = choose(&twin, &Config::default().ib).unwrap();
        assert!(choice.value.len() == 1 && choice.why.contains("software over eth0"), "{}", choice.why);
    }

    #[test]
    fn rails_stand_in_the_order_of_the_machine() {
        let mut survey = surveys::rails(1, 12);
        survey.devices.iter_mut().for_each(|device| device.pci = None);
        survey.devices.reverse();
        let found = names(&survey, &Config::default().ib);
        assert_eq!(
            (found[0].as_str(), found[2].as_str(), found[10].as_str()),
            ("mlx5_0:1", "mlx5_2:1", "mlx5_10:1")
        );
    }
}
