//! The workloads of `lockkeeper bench`, shared with the benchmarks in `benches/`. This library is not a public
//! interface.

#[doc(hidden)]
pub mod bench {
    pub mod kill;
    pub mod lock;
    pub mod recipes;
    pub mod times;
    pub mod workloads;
}
