//! Cargo gives shared libraries no SONAME; programs must ask for the ABI's version, not for a file name.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librdmaccl.so.0");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
