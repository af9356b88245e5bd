//! Tests the codec against itself, and against recorded clients and servers (`tests/wire`).

mod calls;
mod hostile;
mod quirks;
mod records;
mod round_trips;
mod transcript;
