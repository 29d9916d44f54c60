//! What the emulation cannot see: that every flag reaches other devices and the host.
//!
//! The emulation's atomics know no scope: one of the device or the block would pass it, and lose messages between GPUs. So it
//! is read off the PTX, where the kernels' `Flag`, `Alarm` and `Packet` are the only strong accesses.

/// Accesses to flags in a module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) acquires: usize,
    pub(super) releases: usize,
    /// Of alarms and packets, which order nothing.
    pub(super) relaxed: usize,
    /// Stores to the memories of all ranks, and fences that join them with what is read by other addresses.
    pub(super) multicast: usize,
    pub(super) joins: usize,
}

/// Counts them; fails where one has not the scope of the system, or memory is ordered in another way.
pub(super) fn check(module: &str, ptx: &str) -> Result<Flags, String> {
    let mut flags = Flags::default();
    for (number, line) in (1..).zip(ptx.lines()) {
        let code = line.split("//").next().unwrap_or_default().trim();
        let Some(instruction) = code.split_whitespace().find(|word| !word.starts_with('@')) else { continue };
        let mut parts = instruction.trim_end_matches(';').split('.');
        let name = parts.next().unwrap_or_default();
        let parts: Vec<_> = parts.collect();
        let has = |part: &str| parts.contains(&part);
        let wrong = |why: &str| Err(format!("{module}.ptx:{number}: {why}: {code}"));
        match name {
            "ld" | "st" => {
                let strong = has("acquire") || has("release") || has("relaxed");
                if has("volatile") || has("mmio") || strong && !has("sys") {
                    return wrong("a flag without the scope of the system");
                }
                flags.acquires += usize::from(has("acquire"));
                flags.releases += usize::from(has("release"));
                flags.relaxed += usize::from(has("relaxed"));
            }
            // A claim within the block.
            "atom" if has("shared") => {}
            "atom" | "red" => return wrong("an atomic that is no flag"),
            // Not what the switch adds up: its order is its own.
            "multimem" if parts[..2.min(parts.len())] == ["st", "relaxed"] && has("sys") => {
                flags.multicast += 1
            }
            "multimem" => return wrong("an access of all ranks' memory that is no store of the system"),
            "fence" if parts == ["proxy", "alias"] => flags.joins += 1,
            "fence" | "membar" => return wrong("a fence where flags order memory"),
            _ => {}
        }
    }
    Ok(flags)
}

/// Whether kernels that wait can order what they wait for.
pub(super) fn is_complete(module: &str, flags: &Flags) -> bool {
    // The divisor of finished sums waits for nobody.
    let waits = flags.acquires > 0 && flags.releases > 0 && flags.relaxed > 0;
    let is_of_multicast = module.starts_with("multicast");
    let joins = (flags.multicast > 0) == is_of_multicast && (flags.joins > 0) == is_of_multicast;
    joins && (module == "finish" || waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_counted_and_narrow_ones_found() {
        let good = "\tld.acquire.sys.global.u64 %rd1, [%rd2];\n@%p1 st.release.sys.global.u64 [%rd2], %rd1;\n\
                    ld.relaxed.sys.global.v2.u64 {%rd1,%rd2}, [%rd3]; // .gpu\nld.global.u32 %r1, [%rd1];\n\
                    atom.shared.cas.b32 %r1, [%r2], 0, 1;\nbar.sync 0;\n";
        let flags = Flags { acquires: 1, releases: 1, relaxed: 1, ..Flags::default() };
        assert_eq!(check("m", good).as_ref(), Ok(&flags));
        let store = "multimem.st.relaxed.sys.global.v4.f32 [%rd1], {%r1,%r2,%r3,%r4};\n";
        let all = check("m", &format!("{good}{store}fence.proxy.alias;\n")).unwrap();
        assert_eq!((all.multicast, all.joins), (1, 1));
        assert!(is_complete("multicast-f32", &all) && !is_complete("interpret-f32", &all));
        assert!(is_complete("interpret-f32", &flags) && !is_complete("multicast-f32", &flags));
        assert!(!is_complete("multicast-f32", &Flags { joins: 0, ..all }), "stores that nobody joins");
        for bad in [
            "ld.acquire.gpu.global.u64 %rd1, [%rd2];",
            "@%p3 st.release.cta.global.u64 [%rd1], %rd2;",
            "st.relaxed.gpu.global.u64 [%rd1], %rd2;",
            "ld.volatile.global.u32 %r1, [%rd1];",
            "fence.acq_rel.gpu;",
            "membar.gl;",
            "fence.proxy.async;",
            "multimem.st.relaxed.gpu.global.v4.f32 [%rd1], {%r1,%r2,%r3,%r4};",
            "multimem.ld_reduce.relaxed.sys.global.add.f32 %f1, [%rd1];",
            "multimem.red.relaxed.sys.global.add.u32 [%rd1], %r1;",
            "atom.global.add.u32 %r1, [%rd1], 1;",
            "red.release.gpu.global.add.u32 [%rd1], 1;",
        ] {
            let text = check("m", &format!("bar.sync 0;\n{bad}\n")).unwrap_err();
            assert!(text.starts_with("m.ptx:2: "), "{text}");
        }
        assert!(!is_complete("m", &Flags::default()) && is_complete("finish", &Flags::default()));
    }
}
