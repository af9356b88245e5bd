//! Our recipes and another library's contend for one path. The scenarios are the same for each library.

pub(crate) mod election;
pub(crate) mod mutex;
pub(crate) mod rwlock;
