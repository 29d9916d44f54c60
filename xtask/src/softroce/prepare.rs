//! What the guest is made of: the emulator and the tools of this machine, and a kernel with its modules and a busybox
//! out of Debian's packages, which are unpacked, not installed.

use crate::shell::{command, read, run, target};
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};

/// Raised when packages are unpacked in another way.
const RECIPE: u32 = 1;
/// Debian's package that depends on the newest kernel. The smaller one for clouds has neither rdma_rxe nor 9p.
const KERNEL: &str = "linux-image-amd64";
/// Folders of drivers that the tests need; the others are four hundred megabytes.
const DRIVERS: [&str; 4] = ["char", "infiniband", "net", "virtio"];

/// Programs that the tests run, and the packages that they come from.
const TOOLS: [(&str, &str); 15] = [
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("tc", "iproute2"),
    ("modprobe", "kmod"),
    ("prlimit", "util-linux"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ib_write_bw", "perftest"),
    // No program of its own: the part of libibverbs that knows rxe devices.
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    // For the C program among them.
    ("cc", "gcc"),
    ("pkg-config", "pkg-config"),
    ("readelf", "binutils"),
    // What ours is compared with.
    ("mpirun", "openmpi-bin"),
    ("mpicc", "libopenmpi-dev"),
];

/// Programs that the guest needs beside these.
const EMULATOR: [(&str, &str); 2] = [("qemu-system-x86_64", "qemu-system-x86"), ("depmod", "kmod")];

/// What a guest is started from.
pub(crate) struct Parts {
    pub(crate) kernel: PathBuf,
    /// The folder of the kernel's modules.
    pub(crate) modules: PathBuf,
    pub(crate) busybox: PathBuf,
}

/// The folder of everything that is kept.
pub(crate) fn folder() -> PathBuf {
    target().join("softroce")
}

/// Makes sure that what the tests run is there.
pub(crate) fn tools() -> Result<(), String> {
    tools::need_all(&TOOLS)
}

/// Makes sure that a guest can be started.
pub(crate) fn guest() -> Result<Parts, String> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(
            "the guest is an x86-64 one: elsewhere the kernel of the machine itself must have rdma_rxe"
                .into(),
        );
    }
    tools::need_all(&EMULATOR)?;
    let depmod = tools::find("depmod").unwrap_or_default();
    let kernel = part(KERNEL, |folder| {
        let modules = only_entry(&folder.join("lib/modules"))?;
        drop_drivers(&modules.join("kernel/drivers"))?;
        let version = modules.file_name().unwrap_or_default().to_string_lossy();
        run(command(&depmod.to_string_lossy()).arg("-b").arg(folder).arg(&*version))
    })?;
    let busybox = part("busybox-static", |_| Ok(()))?;
    let modules = only_entry(&kernel.join("lib/modules"))?;
    let version = modules.file_name().unwrap_or_default().to_string_lossy();
    Ok(Parts {
        kernel: kernel.join(format!("boot/vmlinuz-{version}")),
        busybox: busybox.join("bin/busybox"),
        modules,
    })
}

/// The unpacked files of the newest version of a package that apt knows. Where apt knows nothing of it, or of a version
/// that is no longer there, its lists are fetched once.
fn part(name: &str, finish: impl Fn(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let once = || newest(name).and_then(|package| unpacked(name, &package, &finish));
    once().or_else(|why| {
        println!("{why}");
        let again = run(&mut command("apt-get update")).and_then(|()| once());
        again.map_err(|why| {
            format!(
                "{why}\nthe guest is made of Debian's packages, and {name} cannot be had: this needs Debian, a network and \
                 recent lists of packages (apt-get update); or a machine whose kernel has rdma_rxe, and root"
            )
        })
    })
}

/// A package and its version, as apt names them.
struct Package {
    name: String,
    version: String,
}

/// The package to download for this one: itself, or the one of the same version that it exists to depend on.
fn newest(name: &str) -> Result<Package, String> {
    let described = read(&mut command(&format!("apt-cache show --no-all-versions {name}")))?;
    package(name, &described).ok_or_else(|| format!("apt knows no version of {name}"))
}

fn package(name: &str, described: &str) -> Option<Package> {
    let field = |field: &str| described.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
    let (name, version) = match field("Depends:").filter(|_| name == KERNEL) {
        // "linux-image-6.1.0-48-amd64 (= 6.1.172-1)"
        Some(kernel) => kernel.split(',').next()?.strip_suffix(')')?.split_once(" (= ")?,
        None => (name, field("Version:")?),
    };
    Some(Package { name: name.into(), version: version.into() })
}

/// The folder of a package's files; downloaded, unpacked and finished if it is not there yet, in the place of an older
/// version. It gets its name when it is complete.
fn unpacked(
    part: &str,
    package: &Package,
    finish: impl Fn(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let Package { name, version } = package;
    let parent = folder().join(part);
    let place = parent.join(format!("{name}_{}_{RECIPE}", version.replace([':', '/'], "-")));
    if place.exists() {
        return Ok(place);
    }
    let said = |e: std::io::Error| format!("{}: {e}", parent.display());
    let _ = fs::remove_dir_all(&parent);
    let partial = parent.join("partial");
    fs::create_dir_all(partial.join("package")).map_err(said)?;
    // Root's apt would give the file to a user of its own, who cannot write here.
    let mut download = command(&format!("apt-get -o APT::Sandbox::User=root download {name}={version}"));
    run(download.current_dir(partial.join("package")))?;
    let file = only_entry(&partial.join("package"))?;
    run(command("dpkg -x").arg(file).arg(&partial))?;
    fs::remove_dir_all(partial.join("package")).map_err(said)?;
    finish(&partial)?;
    fs::rename(&partial, &place).map_err(said)?;
    Ok(place)
}

fn drop_drivers(folder: &Path) -> Result<(), String> {
    for entry in entries(folder)? {
        if !DRIVERS.iter().any(|kept| entry.ends_with(kept)) && entry.is_dir() {
            fs::remove_dir_all(&entry).map_err(|e| format!("{}: {e}", entry.display()))?;
        }
    }
    Ok(())
}

fn only_entry(folder: &Path) -> Result<PathBuf, String> {
    match &entries(folder)?[..] {
        [entry] => Ok(entry.clone()),
        others => Err(format!("{}: one entry was expected, not {}", folder.display(), others.len())),
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(entries.filter_map(Result::ok).map(|e| e.path()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_behind_the_kernel_is_found_by_its_version() {
        let described = "Package: linux-image-amd64\nVersion: 6.1.172-1\nDepends: linux-image-6.1.0-48-amd64 (= 6.1.172-1)\n";
        let kernel = package(KERNEL, described).unwrap();
        assert_eq!((&*kernel.name, &*kernel.version), ("linux-image-6.1.0-48-amd64", "6.1.172-1"));
        let busybox = package(
            "busybox-static",
            "Package: busybox-static\nVersion: 1:1.35.0-4+b7\nDepends: libc6 (>= 2)\n",
        )
        .unwrap();
        assert_eq!((&*busybox.name, &*busybox.version), ("busybox-static", "1:1.35.0-4+b7"));
        assert!(package(KERNEL, "Package: linux-image-amd64\nDepends: linux-image\n").is_none());
    }
}
