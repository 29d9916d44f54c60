//! What the kernel and the NICs say about GPUDirect RDMA: trees as sysfs lays them out, and a libibverbs that answers by script.

mod common;

use ccl_core::config::GpuDirect;
use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::choice::distance::{Distance, Place, between};
use ccl_transport_ibverbs::choice::gpudirect::{Answer, Gpu, Way, choose};
use ccl_transport_ibverbs::gpudirect::{nics, peer_memory, place};
use std::fs::{create_dir_all, write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A folder like /sys, gone with the test.
struct Sys(PathBuf);

impl Sys {
    fn new(name: &str) -> Sys {
        let folder = std::env::temp_dir().join(format!("rdmaccl-gpudirect-{name}-{}", std::process::id()));
        create_dir_all(&folder).unwrap();
        Sys(folder)
    }

    /// A device, with a NUMA node.
    fn device(&self, path: &str, numa: i32) -> PathBuf {
        let folder = self.0.join("devices").join(path);
        create_dir_all(&folder).unwrap();
        write(folder.join("numa_node"), format!("{numa}\n")).unwrap();
        let all = self.0.join("bus/pci/devices");
        create_dir_all(&all).unwrap();
        symlink(&folder, all.join(folder.file_name().unwrap())).unwrap();
        folder
    }

    /// A NIC, as the fake library is told of it.
    fn nic(&self, name: &str, path: &str, numa: i32) -> String {
        let (device, class) = (self.device(path, numa), self.0.join("class/infiniband").join(name));
        create_dir_all(&class).unwrap();
        symlink(device, class.join("device")).unwrap();
        format!("device {name} sysfs={}", class.display())
    }

    fn file(&self, path: &str, text: &str) {
        let file = self.0.join(path);
        create_dir_all(file.parent().unwrap()).unwrap();
        write(file, text).unwrap();
    }
}

impl Drop for Sys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn library() -> Option<String> {
    Fake::library().to_str().map(String::from)
}

/// A switch with a GPU and a NIC, another NIC below the same processor, one at the other, and one in software.
#[test]
fn each_nic_is_judged_by_its_place_and_its_answer() {
    let sys = Sys::new("judged");
    let switch = "pci0000:80/0000:80:01.0/0000:81:00.0";
    sys.device(&format!("{switch}/0000:82:00.0/0000:83:00.0"), 1);
    let script = [
        sys.nic("mlx5_0", &format!("{switch}/0000:82:01.0/0000:84:00.0"), 1),
        sys.nic("mlx5_1", "pci0000:a0/0000:a0:01.0/0000:a1:00.0", 1),
        sys.nic("mlx5_2", "pci0000:00/0000:00:01.0/0000:01:00.0", 0),
        "device rxe0".into(),
        "fail reg_dmabuf_mr errno=EOPNOTSUPP nth=3".into(),
    ];
    let _fake = Fake::start(&script.join(";"));
    let found = nics(&sys.0, library().as_deref()).unwrap();
    let names: Vec<_> = found.iter().map(|nic| (&*nic.name, nic.is_software, nic.dma_buf)).collect();
    let (yes, no) = (Answer::Errno(libc::EBADF), Answer::Errno(libc::EOPNOTSUPP));
    assert_eq!(
        names,
        [("mlx5_0", false, yes), ("mlx5_1", false, yes), ("mlx5_2", false, no), ("rxe0", true, yes)]
    );
    let gpu = Gpu {
        name: "device 0".into(),
        capability: 9,
        place: place(&sys.0, "0000:83:00.0"),
        is_open: true,
        gives_dma_buf: true,
        ordering: 0,
        is_flushed_by_host: true,
    };
    let decisions: Vec<_> = found.iter().map(|nic| choose(&gpu, nic, None, GpuDirect::Auto)).collect();
    let ways: Vec<_> = decisions.iter().map(|of| (of.distance, of.way.value, of.flush.value)).collect();
    let staged = |distance| (distance, Way::Staging, false);
    let expected = [
        (Some(Distance::Pix), Way::DmaBuf, true),
        staged(Some(Distance::Phb)),
        staged(Some(Distance::Sys)),
        staged(None),
    ];
    assert_eq!(ways, expected, "{decisions:?}");
    let said = decisions[2].to_string();
    assert!(said.contains("mlx5_2 says errno 95") && said.contains("nvidia_peermem is not loaded"), "{said}");
}

#[test]
fn places_are_read_wherever_the_root_complex_was_found() {
    let sys = Sys::new("places");
    sys.device("pci0000:3a/0000:3a:00.0/0000:3b:00.0", 0);
    // As on servers with Arm's processors and in guests of some hypervisors.
    sys.device("platform/soc/10000000.pcie/pci0001:00/0001:00:00.0/0001:01:00.0", -1);
    let path = |parts: &[&str]| parts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let first = place(&sys.0, "0000:3b:00.0").unwrap();
    assert_eq!(first, Place { path: path(&["pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"]), numa: Some(0) });
    let second = place(&sys.0, "0001:01:00.0").unwrap();
    assert_eq!(second, Place { path: path(&["pci0001:00", "0001:00:00.0", "0001:01:00.0"]), numa: None });
    assert_eq!(between(&first, &second), Distance::Sys);
    assert_eq!(place(&sys.0, "0000:99:00.0"), None);
}

#[test]
fn modules_for_peer_memory_are_found_by_their_files() {
    let sys = Sys::new("modules");
    assert_eq!(peer_memory(&sys.0), None);
    sys.file("kernel/mm/memory_peers/nv_mem/version", "1.3\n");
    assert_eq!(peer_memory(&sys.0).unwrap(), "nv_mem 1.3");
    sys.file("module/nvidia_peermem/version", "580.65.06\n");
    assert_eq!(peer_memory(&sys.0).unwrap(), "nvidia_peermem 580.65.06");
    assert_eq!(peer_memory(Path::new("/nonexistent")), None);
}
