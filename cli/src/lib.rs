//! The command `lockkeeper` is the program of this package. Its library is no public interface: it has the workloads of
//! `lockkeeper bench`, which the benchmarks of the repository run, too.

#[doc(hidden)]
pub mod bench {
    pub mod kill;
    pub mod lock;
    pub mod recipes;
    pub mod times;
    pub mod workloads;
}
