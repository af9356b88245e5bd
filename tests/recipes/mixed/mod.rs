//! Scenarios in which our recipes and another library's contend for one path. They are the same for each library.

pub(crate) mod election;
pub(crate) mod mutex;
pub(crate) mod rwlock;
