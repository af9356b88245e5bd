//! Hostile clients over TCP. In each test a real `lockkeeper serve`, a well-behaved client, and an attacker run in
//! separate processes. The well-behaved client must be answered in order all the time, and keep its session; the server
//! must react to the attack as documented, within a stated memory, and never panic. Each attack prints one line: the
//! latencies of the well-behaved client, with and without the attack, and the server's memory.

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
