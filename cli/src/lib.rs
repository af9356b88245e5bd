//! The workloads of `lockkeeper bench`, shared with the benchmarks of the repository. This library is not a public
//! interface. The package exists for its program, `lockkeeper`.

#[doc(hidden)]
pub mod bench {
    pub mod kill;
    pub mod lock;
    pub mod recipes;
    pub mod times;
    pub mod workloads;
}
