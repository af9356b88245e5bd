//! The codec against itself, and against what real clients and servers said (`tests/wire`).

mod calls;
mod hostile;
mod quirks;
mod records;
mod round_trips;
mod transcript;
