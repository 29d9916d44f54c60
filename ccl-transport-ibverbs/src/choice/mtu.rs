//! How long packets are.

use super::Choice;
use super::pairing::Side;
use super::survey::{Gid, GidKind};
use ccl_core::{Error, Result};

/// What RoCE v2 puts around a payload inside an IP packet: UDP, transport header, address and key of a write,
/// immediate and checksum; and the IP header.
fn headers(gid: &Gid) -> u32 {
    8 + 12 + 16 + 4 + 4 + if gid.ip().is_ipv4() { 20 } else { 40 }
}

/// The interface's MTU that a payload needs.
fn needed(gid: &Gid, mtu: u16) -> u32 {
    u32::from(mtu) + headers(gid)
}

/// The payload of packets between two ports: the smaller of the two, or what the user wants if both can.
pub fn choose(here: &Side<'_>, there: &Side<'_>, wanted: Option<u16>) -> Result<Choice<u16>> {
    let least = if there.mtu() < here.mtu() { there } else { here };
    if let Some(wanted) = wanted {
        if wanted > least.mtu() {
            return Err(Error::invalid(
                format!("RDMACCL_IB_MTU={wanted}, and {least} has an MTU of {}", least.mtu()),
                format!("at most {}, or {}", least.mtu(), cure(least, wanted)),
            ));
        }
        fits(here, wanted)?;
        fits(there, wanted)?;
        return Ok(Choice::new(wanted, "RDMACCL_IB_MTU"));
    }
    fits(here, least.mtu())?;
    fits(there, least.mtu())?;
    let most = here.mtu().max(there.mtu());
    let why = if least.mtu() == most {
        "both ports have it".to_string()
    } else {
        format!("{least} has no more; {} would give {most}", cure(least, most))
    };
    Ok(Choice::new(least.mtu(), why))
}

/// What gives a port this MTU.
fn cure(side: &Side<'_>, mtu: u16) -> String {
    let gid = side.gid();
    match gid.kind {
        GidKind::Ib => "a greater MTU in the subnet manager's configuration".to_string(),
        _ => {
            let name = gid.netdev.as_ref().map_or("its network interface", |netdev| netdev.name.as_str());
            format!("an MTU of at least {} at {name} of host {}", needed(gid, mtu), side.host())
        }
    }
}

/// Whether packets of the payload pass through the network interface. Ports whose interface was changed after they
/// came up may promise what it cannot keep.
fn fits(side: &Side<'_>, mtu: u16) -> Result<()> {
    let gid = side.gid();
    let Some(netdev) = gid.netdev.as_ref().filter(|_| gid.kind != GidKind::Ib) else { return Ok(()) };
    if netdev.mtu == 0 || netdev.mtu >= needed(gid, mtu) {
        return Ok(());
    }
    Err(Error::unsupported(
        format!(
            "packets of {mtu} bytes from {side}: they take {} with their headers, and its interface {} has an MTU of {}",
            needed(gid, mtu),
            netdev.name,
            netdev.mtu
        ),
        format!("set RDMACCL_IB_MTU to a smaller size on all ranks, or {}", cure(side, mtu)),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::pairing::Offer;
    use super::super::{rails, surveys};
    use super::*;
    use ccl_core::config::Config;

    fn offer(survey: &super::super::survey::Survey) -> Offer {
        let rails = rails::choose(survey, &Config::default().ib).unwrap().value;
        Offer::of(&survey.host, &rails, 0)
    }

    fn chosen(a: &Offer, b: &Offer, wanted: Option<u16>) -> Result<Choice<u16>> {
        choose(&a.side(0, 0), &b.side(0, 0), wanted)
    }

    #[test]
    fn the_smaller_port_counts_and_the_cure_is_named() {
        let (a, mut small) = (offer(&surveys::softroce(1)), surveys::softroce(2));
        assert_eq!(chosen(&a, &offer(&surveys::softroce(2)), None).unwrap().value, 4096);
        small.devices[0].ports[0].active_mtu = 1024;
        small.devices[0].ports[0].gids.iter_mut().for_each(|g| g.netdev.as_mut().unwrap().mtu = 1500);
        let b = offer(&small);
        let choice = chosen(&a, &b, None).unwrap();
        assert_eq!(choice.value, 1024);
        assert!(choice.why.contains("4160 at d0 of host guest2 would give 4096"), "{}", choice.why);
        assert_eq!(chosen(&b, &a, None).unwrap(), choice, "the same seen from the other end");
        let error = chosen(&a, &b, Some(4096)).unwrap_err().to_string();
        assert!(error.contains("RDMACCL_IB_MTU=4096") && error.contains("rxe0:1 of host guest2"), "{error}");
        assert_eq!(chosen(&a, &b, Some(512)).unwrap().value, 512);
    }

    #[test]
    fn a_port_that_promises_more_than_its_interface_keeps_is_found() {
        let mut shrunk = surveys::softroce(2);
        shrunk.devices[0].ports[0].gids.iter_mut().for_each(|g| g.netdev.as_mut().unwrap().mtu = 1500);
        let error = chosen(&offer(&surveys::softroce(1)), &offer(&shrunk), None).unwrap_err().to_string();
        assert!(error.contains("an MTU of 1500") && error.contains("RDMACCL_IB_MTU"), "{error}");
    }
}
