//! The store in a folder: what survives the end of its process, and what it refuses.

mod child;
mod folders;
mod history;
mod kill;
mod lazy;
mod processes;
mod program;
mod report;
mod soak;
