//! The store in a directory: which changes survive its process, and which uses are refused.

mod child;
mod folders;
mod history;
mod kill;
mod lazy;
mod processes;
mod program;
mod report;
mod soak;
