#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lockkeeper_store::testing::fuzz::opening(bytes);
});
