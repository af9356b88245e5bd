#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lockkeeper_store::testing::fuzz_wire::conversation(bytes);
});
