//! Cargo gives shared libraries no SONAME; programs must ask for the ABI's version, not for a file name.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        let major = env!("CARGO_PKG_VERSION_MAJOR");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librdmaccl.so.{major}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
