//! What holds when our recipes and another library's contend for one path: the same for each of them.

pub(crate) mod election;
pub(crate) mod mutex;
pub(crate) mod rwlock;
