#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ccl_core::fuzzing::node(data));
