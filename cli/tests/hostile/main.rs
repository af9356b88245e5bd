//! Hostile clients over TCP. In each test, a real `lockkeeper serve`, a well-behaved client and an attacker run in
//! separate processes. The well-behaved client must always be answered in order and keep its session. The server must
//! react to the attack as documented, stay within a stated memory limit, and never panic. Each attack prints one line
//! with the client's latencies, with and without the attack, and the server's memory.

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
mod work;
