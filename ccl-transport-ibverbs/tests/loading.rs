//! Libraries that are missing, too old, or of another kind.

mod common;

use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::verbs::{Device, library};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What every libibverbs has.
const REQUIRED: [&str; 26] = [
    "ibv_get_device_list",
    "ibv_free_device_list",
    "ibv_get_device_guid",
    "ibv_open_device",
    "ibv_close_device",
    "ibv_get_async_event",
    "ibv_ack_async_event",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_alloc_pd",
    "ibv_dealloc_pd",
    "ibv_reg_mr",
    "ibv_dereg_mr",
    "ibv_create_comp_channel",
    "ibv_destroy_comp_channel",
    "ibv_create_cq",
    "ibv_destroy_cq",
    "ibv_get_cq_event",
    "ibv_ack_cq_events",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_query_qp",
    "ibv_create_ah",
    "ibv_destroy_ah",
];

/// Builds a library of functions that return null, with the C compiler that also links Rust programs.
fn build(folder: &Path, symbols: &[&str], version: Option<&str>) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let (source, map) = (folder.join("stub.c"), folder.join("stub.map"));
    let text: String =
        symbols.iter().map(|symbol| format!("void *{symbol}(void) {{ return 0; }}\n")).collect();
    std::fs::write(&source, text).unwrap();
    let file = folder.join("libibverbs.so.1");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&source);
    if let Some(version) = version {
        std::fs::write(&map, format!("{version} {{ global: *; }};\n")).unwrap();
        compile.arg(format!("-Wl,--version-script={}", map.display()));
    }
    assert!(compile.status().unwrap().success());
    file
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rdmaccl-{name}-{}", std::process::id()))
}

#[test]
fn a_library_that_lacks_a_symbol_is_refused_by_its_name() {
    let folder = folder("lacking");
    let file = build(&folder, &REQUIRED, None);
    let text = library(file.to_str()).unwrap_err().to_string();
    assert!(text.contains("has no ibv_destroy_qp of version IBVERBS_1.1"), "{text}");
    assert!(text.contains("install rdma-core"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn symbols_of_the_old_version_are_not_taken_for_new_ones() {
    let folder = folder("ancient");
    let all = [&REQUIRED[..], &["ibv_destroy_qp"]].concat();
    let file = build(&folder, &all, Some("IBVERBS_1.0"));
    let text = library(file.to_str()).unwrap_err().to_string();
    assert!(text.contains("has no ibv_get_device_list of version IBVERBS_1.1"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_old_library_works_with_less_comfort() {
    let folder = folder("old");
    let all = [&REQUIRED[..], &["ibv_destroy_qp"]].concat();
    let file = build(&folder, &all, None);
    let old = library(file.to_str()).unwrap();
    let missing = ["ibv_fork_init", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr", "_ibv_query_gid_table"];
    assert_eq!(old.missing(), missing);
    assert!(old.devices().unwrap_err().to_string().contains("ibv_get_device_list failed"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_fake_library_lacks_nothing() {
    let fake = common::fake_library();
    assert_eq!(fake.missing(), [""; 0]);
    assert_eq!(Path::new(fake.file()), Fake::library());
}

/// In a process of its own, whose environment is set before anybody reads it.
#[test]
fn a_script_may_come_by_the_environment() {
    const NAME: &str = "RDMACCL_FAKE_IBVERBS";
    if std::env::var_os(NAME).is_some() {
        let names: Vec<_> = common::fake_library().devices().unwrap().iter().map(Device::name).collect();
        assert_eq!(names, ["first", "second"]);
        return;
    }
    let myself = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_script_may_come_by_the_environment"])
        .env(NAME, "device first; device second")
        .output()
        .unwrap();
    assert!(myself.status.success(), "{}", String::from_utf8_lossy(&myself.stdout));
}
