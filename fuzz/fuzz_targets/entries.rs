#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lockkeeper::testing::fuzz_entries::entries(bytes);
});
