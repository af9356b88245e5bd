//! Hostile clients over TCP. In each test a real `lockkeeper serve`, a well-behaved client, and an
//! attacker are processes of their own. The well-behaved one must be answered in order all the time
//! and keep its session; the server must take the attack as its documentation says, within a stated
//! memory, and never panic. What the well-behaved client waited, quiet and under attack, and the server's
//! memory are printed, one line an attack.

mod arena;
mod crowds;
mod floods;
mod frames;
mod good;
mod large;
mod memory;
mod served;
mod slow;
mod stopped;
#[path = "../../../tests/support/wire.rs"]
mod wire;
mod work;
