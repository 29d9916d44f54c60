//! The language of scripts.

use crate::abi::*;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A port of a device, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortName {
    pub(crate) device: String,
    /// From 1.
    pub(crate) port: u8,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Device { name: String, ports: u8, guid: u64, sysfs: String },
    Port { at: PortName, settings: Settings },
    Gid { at: PortName, index: u32, gid: [u8; 16], kind: u32, ifindex: u32 },
    NoGid { at: PortName, index: u32 },
    Limit { device: String, settings: Settings },
    Memlock(u64),
    Fail { verb: String, errno: i32, nth: u64, times: u64 },
    Complete { status: u32, vendor: u32, nth: u64, on: Option<String>, delivered: bool },
    Lose { on: String, nth: u64, times: u64 },
    Down { at: PortName, after: u64, stall: bool },
    Up { at: PortName, after: u64 },
    Delay(u64),
    Pace { device: String, polls: u64 },
    Event { device: String, code: u32, port: i32 },
}

/// Names with numbers.
pub(crate) type Settings = BTreeMap<String, u64>;

/// Reads a script; the error names the line.
pub(crate) fn parse(text: &str) -> Result<Vec<Command>, String> {
    let lines = text.lines().flat_map(|line| line.split('#').next().unwrap_or_default().split(';'));
    let lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| command(line).map_err(|why| format!("'{line}': {why}"))).collect()
}

/// A line's words: those with `=`, and the others in their order.
struct Words<'a> {
    plain: std::vec::IntoIter<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.plain.next().ok_or_else(|| format!("{what} is missing"))
    }

    fn port(&mut self) -> Result<PortName, String> {
        let (device, port) = self.next("DEVICE/PORT")?.split_once('/').ok_or("DEVICE/PORT is meant")?;
        let port = port.parse().map_err(|_| format!("port {port} is no number"))?;
        Ok(PortName { device: device.to_string(), port })
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        self.named.remove(name)
    }

    fn number(&mut self, name: &str, default: u64) -> Result<u64, String> {
        self.take(name).map_or(Ok(default), number)
    }

    /// All that are left must have one of these names.
    fn settings(&mut self, names: &[&str]) -> Result<Settings, String> {
        let mut settings = Settings::new();
        for (name, value) in std::mem::take(&mut self.named) {
            if !names.contains(&name) {
                return Err(format!("{name} is none of {names:?}"));
            }
            settings.insert(name.to_string(), named_number(name, value)?);
        }
        Ok(settings)
    }

    fn end(mut self) -> Result<(), String> {
        match (self.plain.next(), self.named.pop_first()) {
            (None, None) => Ok(()),
            (Some(word), _) | (_, Some((word, _))) => Err(format!("{word} means nothing here")),
        }
    }
}

fn command(line: &str) -> Result<Command, String> {
    let (named, plain): (Vec<_>, Vec<_>) = line.split_whitespace().partition(|word| word.contains('='));
    let named = named.iter().filter_map(|word| word.split_once('=')).collect();
    let mut words = Words { plain: plain.into_iter(), named };
    let command = match words.next("a command")? {
        "device" => {
            let name = words.next("NAME")?.to_string();
            let default =
                0x0200_0000_0000_0000 + name.bytes().fold(0, |sum, b| sum * 31 % 65_521 + u64::from(b));
            Command::Device {
                ports: words.number("ports", 1)?.try_into().map_err(|_| "too many ports")?,
                guid: words.number("guid", default)?,
                sysfs: words
                    .take("sysfs")
                    .map_or_else(|| format!("/nonexistent/infiniband/{name}"), str::to_string),
                name,
            }
        }
        "port" => {
            let names =
                ["link", "state", "mtu", "max_mtu", "lid", "sm_lid", "gids", "pkeys", "width", "speed"];
            Command::Port { at: words.port()?, settings: words.settings(&names)? }
        }
        "gid" => {
            let at = words.port()?;
            let index = number(words.next("INDEX")?)?.try_into().map_err(|_| "the index is too large")?;
            let address: IpAddr = words.next("ADDRESS")?.parse().map_err(|_| "no address")?;
            let gid = match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let kind = match words.take("type").unwrap_or("v2") {
                "ib" => IBV_GID_TYPE_IB,
                "v1" => IBV_GID_TYPE_ROCE_V1,
                "v2" => IBV_GID_TYPE_ROCE_V2,
                other => return Err(format!("type {other} is none of ib, v1, v2")),
            };
            Command::Gid { at, index, gid, kind, ifindex: words.number("ifindex", 0)? as u32 }
        }
        "nogid" => Command::NoGid { at: words.port()?, index: number(words.next("INDEX")?)? as u32 },
        "limit" => {
            let names = ["qp", "qp_wr", "sge", "inline", "cq", "cqe", "mr", "mr_bytes", "pd", "ah"];
            Command::Limit { device: words.next("NAME")?.to_string(), settings: words.settings(&names)? }
        }
        "memlock" => Command::Memlock(number(words.next("BYTES")?)?),
        "fail" => Command::Fail {
            verb: words.next("VERB")?.to_string(),
            errno: errno(words.take("errno").ok_or("errno is missing")?)?,
            nth: words.number("nth", 1)?,
            times: words.number("times", 1)?,
        },
        "complete" => Command::Complete {
            status: status(words.take("status").ok_or("status is missing")?)?,
            vendor: words.number("vendor", 0)? as u32,
            nth: words.number("nth", 1)?,
            on: words.take("on").map(str::to_string),
            delivered: match words.take("delivered").unwrap_or("no") {
                "yes" => true,
                "no" => false,
                other => return Err(format!("delivered {other} is none of yes, no")),
            },
        },
        "lose" => Command::Lose {
            on: words.next("NAME")?.to_string(),
            nth: words.number("nth", 1)?,
            times: words.number("times", 1)?,
        },
        "down" => {
            let at = words.port()?;
            let stall = match words.take("traffic").unwrap_or("fail") {
                "stall" => true,
                "fail" => false,
                other => return Err(format!("traffic {other} is none of stall, fail")),
            };
            Command::Down { at, after: words.number("after", 0)?, stall }
        }
        "up" => Command::Up { at: words.port()?, after: words.number("after", 0)? },
        "delay" => Command::Delay(number(words.next("POLLS")?)?),
        "pace" => {
            Command::Pace { device: words.next("NAME")?.to_string(), polls: number(words.next("POLLS")?)? }
        }
        "event" => Command::Event {
            device: words.next("NAME")?.to_string(),
            code: number(words.next("CODE")?)? as u32,
            port: words.number("port", 0)? as i32,
        },
        other => return Err(format!("{other} is no command")),
    };
    words.end()?;
    Ok(command)
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is no number"))
}

/// The number of a setting, some of which are words.
fn named_number(name: &str, value: &str) -> Result<u64, String> {
    let one_of = |words: &[(&str, u32)]| {
        let found = words.iter().find(|(word, _)| *word == value);
        found.map(|(_, code)| u64::from(*code)).ok_or_else(|| format!("{name} {value} is none of {words:?}"))
    };
    match name {
        "link" => one_of(&[("infiniband", IBV_LINK_LAYER_INFINIBAND), ("ethernet", IBV_LINK_LAYER_ETHERNET)]),
        "state" => one_of(&[
            ("down", IBV_PORT_DOWN),
            ("init", IBV_PORT_INIT),
            ("armed", IBV_PORT_ARMED),
            ("active", IBV_PORT_ACTIVE),
        ]),
        "mtu" | "max_mtu" => one_of(&[("256", 1), ("512", 2), ("1024", 3), ("2048", 4), ("4096", 5)]),
        _ => number(value),
    }
}

fn errno(text: &str) -> Result<i32, String> {
    let names = [
        ("EPERM", libc::EPERM),
        ("ENOENT", libc::ENOENT),
        ("EIO", libc::EIO),
        ("EAGAIN", libc::EAGAIN),
        ("ENOMEM", libc::ENOMEM),
        ("EACCES", libc::EACCES),
        ("EFAULT", libc::EFAULT),
        ("EBUSY", libc::EBUSY),
        ("ENODEV", libc::ENODEV),
        ("EINVAL", libc::EINVAL),
        ("EMFILE", libc::EMFILE),
        ("ENOSPC", libc::ENOSPC),
        ("ENOSYS", libc::ENOSYS),
        ("EOPNOTSUPP", libc::EOPNOTSUPP),
        ("ETIMEDOUT", libc::ETIMEDOUT),
        ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ];
    match names.iter().find(|(name, _)| *name == text) {
        Some((_, errno)) => Ok(*errno),
        None => number(text).map(|n| n as i32),
    }
}

fn status(text: &str) -> Result<u32, String> {
    let names = [
        ("IBV_WC_LOC_LEN_ERR", IBV_WC_LOC_LEN_ERR),
        ("IBV_WC_LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR),
        ("IBV_WC_LOC_PROT_ERR", IBV_WC_LOC_PROT_ERR),
        ("IBV_WC_WR_FLUSH_ERR", IBV_WC_WR_FLUSH_ERR),
        ("IBV_WC_BAD_RESP_ERR", IBV_WC_BAD_RESP_ERR),
        ("IBV_WC_LOC_ACCESS_ERR", IBV_WC_LOC_ACCESS_ERR),
        ("IBV_WC_REM_INV_REQ_ERR", IBV_WC_REM_INV_REQ_ERR),
        ("IBV_WC_REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR),
        ("IBV_WC_REM_OP_ERR", IBV_WC_REM_OP_ERR),
        ("IBV_WC_RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR),
        ("IBV_WC_RNR_RETRY_EXC_ERR", IBV_WC_RNR_RETRY_EXC_ERR),
        ("IBV_WC_REM_ABORT_ERR", IBV_WC_REM_ABORT_ERR),
        ("IBV_WC_FATAL_ERR", IBV_WC_FATAL_ERR),
        ("IBV_WC_RESP_TIMEOUT_ERR", IBV_WC_RESP_TIMEOUT_ERR),
        ("IBV_WC_GENERAL_ERR", IBV_WC_GENERAL_ERR),
    ];
    match names.iter().find(|(name, _)| *name == text) {
        Some((_, status)) => Ok(*status),
        None => number(text).map(|n| n as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_line_by_line() {
        let text = "device a ports=2 # two\n gid a/2 1 10.0.0.1 ; fail reg_mr errno=ENOMEM nth=3\n\n";
        let commands = parse(text).unwrap();
        assert_eq!(commands.len(), 3);
        assert!(matches!(&commands[0], Command::Device { name, ports: 2, .. } if name == "a"));
        let Command::Gid { at, index: 1, gid, kind: IBV_GID_TYPE_ROCE_V2, .. } = &commands[1] else {
            panic!("{commands:?}")
        };
        assert_eq!((at.port, &gid[10..]), (2, &[0xff, 0xff, 10, 0, 0, 1][..]));
        let fail = Command::Fail { verb: "reg_mr".into(), errno: libc::ENOMEM, nth: 3, times: 1 };
        assert_eq!(commands[2], fail);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (line, why) in [
            ("devise a", "devise is no command"),
            ("device", "NAME is missing"),
            ("device a port=1", "port means nothing here"),
            ("port a mtu=1024", "DEVICE/PORT is meant"),
            ("port a/1 mtu=1500", "mtu 1500 is none of"),
            ("port a/1 colour=1", "colour is none of"),
            ("gid a/1 0 nowhere", "no address"),
            ("fail reg_mr errno=EWHAT", "EWHAT is no number"),
            ("complete status=bad", "bad is no number"),
            ("complete status=12 delivered=perhaps", "perhaps is none of"),
            ("lose", "NAME is missing"),
            ("pace a", "POLLS is missing"),
            ("down a/1 traffic=slow", "slow is none of"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(why) && error.contains(line), "{error}");
        }
    }
}
