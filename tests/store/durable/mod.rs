//! The store in a folder: which changes survive the end of its process, and which uses it refuses.

mod child;
mod folders;
mod history;
mod kill;
mod lazy;
mod processes;
mod program;
mod report;
mod soak;
