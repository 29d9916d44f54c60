//! Who can share memory with whom: the address of a rank.

use ccl_core::{Error, Result};

/// Where a rank lives, as told to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// The boot of a kernel: equal on one host, in containers too, different after a restart and elsewhere.
    boot: String,
    /// Abstract sockets reach within one network namespace only.
    network: String,
    /// What the user says about it.
    name: String,
}

impl Host {
    /// This process's.
    pub(crate) fn here(name: Option<&str>) -> Result<Host> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        const NETWORK: &str = "/proc/self/ns/net";
        let unreadable = |path: &str, e| Error::system(format!("reading {path}"), e, "mount /proc");
        let boot = std::fs::read_to_string(BOOT).map_err(|e| unreadable(BOOT, e))?;
        let network = std::fs::read_link(NETWORK).map_err(|e| unreadable(NETWORK, e))?;
        let name = name.unwrap_or_default().to_string();
        if name.len() > 64 || name.contains('\n') {
            return Err(Error::invalid(format!("host id '{name}'"), "at most 64 bytes on one line"));
        }
        Ok(Host { boot: boot.trim().to_string(), network: network.to_string_lossy().into_owned(), name })
    }

    /// The three, one a line.
    pub(crate) fn encode(&self) -> Vec<u8> {
        format!("{}\n{}\n{}", self.boot, self.network, self.name).into_bytes()
    }

    fn decode(address: &[u8]) -> Option<Host> {
        let mut lines = std::str::from_utf8(address).ok()?.split('\n').map(str::to_string);
        let host = Host { boot: lines.next()?, network: lines.next()?, name: lines.next()? };
        lines.next().is_none().then_some(host)
    }

    /// Why the rank with this address cannot share memory with us, if it cannot.
    pub(crate) fn reaches(&self, address: &[u8]) -> Result<(), String> {
        let peer = Host::decode(address).ok_or("its address is not one of this transport")?;
        if peer.name != self.name {
            return Err(format!("its host id is '{}', ours '{}'", peer.name, self.name));
        }
        if peer.boot != self.boot {
            return Err("it is on another host".to_string());
        }
        if peer.network != self.network {
            return Err(format!(
                "it is in another network namespace ({}, ours {}), where our socket cannot be reached",
                peer.network, self.network
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_apart() {
        let here = Host::here(None).unwrap();
        assert!(here.encode().len() <= 256);
        assert_eq!(here.reaches(&here.encode()), Ok(()));
        let named = Host::here(Some("left")).unwrap();
        assert!(here.reaches(&named.encode()).unwrap_err().contains("'left'"));
        let elsewhere = Host { boot: "another".into(), ..here.clone() };
        assert!(here.reaches(&elsewhere.encode()).unwrap_err().contains("another host"));
        let apart = Host { network: "net:[1]".into(), ..here.clone() };
        assert!(here.reaches(&apart.encode()).unwrap_err().contains("network namespace"));
        assert!(here.reaches(b"\xff").is_err());
        assert!(Host::here(Some("a\nb")).is_err());
    }
}
