//! The guest's first file system: busybox, the modules without which the host's files cannot be mounted, and two
//! scripts. Made anew for each run, which takes no time, so that it cannot be stale.

use super::prepare::Parts;
use std::path::Path;

/// What must be there before modules can be loaded from the host's files; what these need comes before them.
const MODULES: [&str; 5] = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console"];

/// The archive; `command` is a shell script.
pub(crate) fn make(parts: &Parts, command: &str) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    archive.folder("modules");
    archive.file("init", 0o755, include_bytes!("../../templates/softroce/first.sh"));
    archive.file("second.sh", 0o644, include_bytes!("../../templates/softroce/second.sh"));
    archive.file("command.sh", 0o644, command.as_bytes());
    archive.file("busybox", 0o755, &read(&parts.busybox)?);
    archive.file("modules.folder", 0o644, parts.modules.to_string_lossy().as_bytes());
    let dependencies = read(&parts.modules.join("modules.dep"))?;
    let mut list = String::new();
    for module in in_order(&String::from_utf8_lossy(&dependencies), &MODULES)? {
        let name = module.rsplit('/').next().unwrap_or(&module);
        archive.file(&format!("modules/{name}"), 0o644, &read(&parts.modules.join(&module))?);
        list.push_str(name);
        list.push('\n');
    }
    archive.file("modules.list", 0o644, list.as_bytes());
    Ok(archive.close())
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))
}

/// The files of the modules and of all that they need, each after what it needs. A line of `modules.dep` names a
/// module and, the nearest first, everything that it needs.
fn in_order(dependencies: &str, wanted: &[&str]) -> Result<Vec<String>, String> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let file = format!("/{name}.ko");
        let lines = dependencies.lines().filter_map(|line| line.split_once(':'));
        let (module, needs) = lines
            .clone()
            .find(|(module, _)| module.ends_with(&file))
            .ok_or_else(|| format!("the guest's kernel has no module {name}"))?;
        for module in needs.split_whitespace().rev().chain([module]) {
            if !order.iter().any(|m| m == module) {
                order.push(module.to_string());
            }
        }
    }
    Ok(order)
}

/// A cpio archive of the kind that the kernel unpacks ("newc"): no times, no owners, so the same content gives the
/// same bytes.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn folder(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, 0o100_000 | mode, content);
    }

    fn close(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        // inode, mode, owner, group, links, time, size, device (2), its own device (2), length of the name, checksum
        let (size, name) = (content.len() as u32, path.len() as u32 + 1);
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_all_that_it_needs_and_once() {
        let dependencies = "kernel/a/virtio.ko: kernel/a/ring.ko\nkernel/a/ring.ko:\n\
                            kernel/a/pci.ko: kernel/a/legacy.ko kernel/a/virtio.ko kernel/a/ring.ko\n\
                            kernel/b/9p.ko: kernel/b/net.ko\n";
        let order = in_order(dependencies, &["pci", "virtio", "9p"]).unwrap();
        assert_eq!(
            order.join(" ").replace("kernel/", ""),
            "a/ring.ko a/virtio.ko a/legacy.ko a/pci.ko b/net.ko b/9p.ko"
        );
        assert!(in_order(dependencies, &["9"]).unwrap_err().contains("no module 9"));
    }

    #[test]
    fn the_archive_is_what_the_kernel_reads() {
        let mut archive = Archive::default();
        archive.file("init", 0o755, b"abc");
        let bytes = archive.close();
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.starts_with("070701"), "{text}");
        // Magic, thirteen fields, the name with its end and padding, the content with its padding.
        assert_eq!(&text[6..14], "00000001");
        assert_eq!(&text[14..22], "000081ed");
        assert_eq!(&text[6 + 6 * 8..6 + 7 * 8], "00000003");
        assert_eq!(&text[110..124], "init\0\0abc\0".to_string() + "0707");
        assert_eq!(bytes.len() % 4, 0);
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
    }
}
