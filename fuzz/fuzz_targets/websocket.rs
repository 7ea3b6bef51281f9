#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| smolet_fuzz::websocket::run(data));
