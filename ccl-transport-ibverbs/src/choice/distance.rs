//! How far two devices of PCI Express are from each other.

use std::fmt;

/// Where a device sits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// From the root complex down to the device: `pci0000:3a`, then the addresses of bridges and, last, its own.
    pub path: Vec<String>,
    /// The NUMA node that it is near to.
    pub numa: Option<u32>,
}

/// What lies between two devices, nearest first. The names are nvidia-smi's, whose NODE counts as PHB here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// At most one switch.
    Pix,
    /// Several switches.
    Pxb,
    /// A host bridge: the processor, or another one of the same NUMA node.
    Phb,
    /// What connects NUMA nodes.
    Sys,
}

impl Distance {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Distance::Pix => "at most one PCIe switch is between them",
            Distance::Pxb => "several PCIe switches are between them",
            Distance::Phb => "a host bridge of the processor is between them",
            Distance::Sys => "the connection of NUMA nodes is between them",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::Pix => "PIX",
            Distance::Pxb => "PXB",
            Distance::Phb => "PHB",
            Distance::Sys => "SYS",
        })
    }
}

/// Of two devices. Without any bridge in common it is by the processor; whose, the NUMA nodes say.
pub fn between(a: &Place, b: &Place) -> Distance {
    let common = a.path.iter().zip(&b.path).take_while(|(a, b)| a == b).count();
    let below = (a.path.len() - common).max(b.path.len() - common);
    match common {
        0 if a.numa.is_some() && a.numa == b.numa => Distance::Phb,
        0 => Distance::Sys,
        // The root complex alone.
        1 => Distance::Phb,
        // Below the upstream port of a switch there are a downstream port and the device.
        _ if below <= 2 => Distance::Pix,
        _ => Distance::Pxb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, numa: Option<u32>) -> Place {
        Place { path: path.split('/').map(String::from).collect(), numa }
    }

    #[test]
    fn what_two_devices_have_in_common_is_their_distance() {
        let gpu = place("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0", Some(1));
        for (other, numa, distance) in [
            ("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:04.0/0000:84:00.1", Some(1), Distance::Pix),
            (
                "pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:08.0/0000:85:00.0/0000:86:00.0/0000:87:00.0",
                Some(1),
                Distance::Pxb,
            ),
            ("pci0000:80/0000:80:03.0/0000:90:00.0", Some(1), Distance::Phb),
            ("pci0000:a0/0000:a0:01.0/0000:a1:00.0", Some(1), Distance::Phb),
            ("pci0000:00/0000:00:01.0/0000:01:00.0", Some(0), Distance::Sys),
            ("pci0000:00/0000:00:01.0/0000:01:00.0", None, Distance::Sys),
        ] {
            assert_eq!(between(&gpu, &place(other, numa)), distance, "{other}");
            assert_eq!(between(&place(other, numa), &gpu), distance, "{other}");
        }
        // Two functions of one card.
        let (one, two) = ("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:01.0/0000:01:00.1");
        assert_eq!(between(&place(one, None), &place(two, None)), Distance::Pix);
        // Two nodes that are not known are not one.
        assert_eq!(between(&place("pci0000:00/a", None), &place("pci0000:80/b", None)), Distance::Sys);
    }
}
