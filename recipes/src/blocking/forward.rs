//! Macros that generate blocking versions of async calls.

use lockkeeper_store::ZnodePath;

use super::BlockingGuard;
use crate::election::Leader;
use crate::lock_guard::LockGuard;
use crate::observe::QueueEntry;
use crate::path::LockPath;

/// Converts the output of an async call. Guards become [`BlockingGuard`]s.
pub(super) trait Blocking {
    type Output;

    fn blocking(self) -> Self::Output;
}

impl<G: LockGuard> Blocking for G {
    type Output = BlockingGuard<G>;

    fn blocking(self) -> BlockingGuard<G> {
        BlockingGuard(self)
    }
}

impl<T: Blocking> Blocking for Option<T> {
    type Output = Option<T::Output>;

    fn blocking(self) -> Self::Output {
        self.map(T::blocking)
    }
}

impl<G: LockGuard> Blocking for (LockPath, G) {
    type Output = (LockPath, BlockingGuard<G>);

    fn blocking(self) -> Self::Output {
        (self.0, BlockingGuard(self.1))
    }
}

impl<G: LockGuard> Blocking for Vec<(LockPath, G)> {
    type Output = Vec<(LockPath, BlockingGuard<G>)>;

    fn blocking(self) -> Self::Output {
        self.into_iter().map(Blocking::blocking).collect()
    }
}

macro_rules! same {
    ($($output:ty),+) => {$(
        impl Blocking for $output {
            type Output = Self;

            fn blocking(self) -> Self {
                self
            }
        }
    )+};
}

same!((), u32, Vec<QueueEntry>, Vec<ZnodePath>, Leader);

/// Implements blocking methods. The async type must have methods with the same names, arguments and errors.
macro_rules! forward_methods {
    ($type:ident {$(
        $(#[$doc:meta])+
        fn $name:ident($($argument:ident: $of:ty),*) -> $output:ty;
    )+}) => {
        impl $type {$(
            $(#[$doc])+
            ///
            /// # Errors
            #[doc = concat!("Those of [`", stringify!($type), "::", stringify!($name), "`](crate::", stringify!($type), "::", stringify!($name), ").")]
            #[track_caller]
            pub fn $name(&self, $($argument: $of),*) -> $crate::error::Result<$output> {
                super::wait(self.0.$name($($argument),*)).map(super::forward::Blocking::blocking)
            }
        )+}
    };
}

macro_rules! forward_functions {
    ($(
        $(#[$doc:meta])+
        fn $name:ident($($argument:ident: $of:ty),+) -> $output:ty;
    )+) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        #[doc = concat!("Those of [`", stringify!($name), "`](crate::", stringify!($name), "()).")]
        #[track_caller]
        pub fn $name(client: &super::Client, $($argument: $of),+) -> $crate::error::Result<$output> {
            super::wait(crate::$name(client.as_async(), $($argument),+)).map(super::forward::Blocking::blocking)
        }
    )+};
}

pub(super) use {forward_functions, forward_methods};
