#![no_main]

#[path = "../../src/decoders.rs"]
#[allow(dead_code)]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::safetensors_file(bytes);
});
