#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smolet_fuzz::tls::run(data));
