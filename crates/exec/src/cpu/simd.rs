//! Compiling one loop for several instruction sets and choosing at run time.
//!
//! The crate is built for the oldest x86-64, so a plain loop gets vectors of four floats. Wrapped in
//! [`widest!`], the same body is compiled three times (AVX-512, AVX2, baseline) and the widest one that the
//! machine has is called. The compiler may not reorder floating-point sums nor fuse a multiplication with
//! an addition on its own, so all three give the same bits.

/// Defines a function whose body is compiled for each instruction set; see the module's documentation.
/// Functions called in the body must be `#[inline(always)]` to be compiled along with it.
macro_rules! widest {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($param:ident: $bound:ident),+>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_code, reason = "calls a copy of itself compiled for instructions found to exist")]
        $vis fn $name $(<$($param: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::inline_always, reason = "the copies must be compiled with their callers' features")]
            fn body $(<$($param: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
                fn avx512 $(<$($param: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2 $(<$($param: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if crate::cpu::simd::has_avx512() {
                    // SAFETY: the processor was asked for exactly these features.
                    return unsafe { avx512($($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor was asked for this feature.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(super) use widest;

/// Whether the AVX-512 copies may run. The standard library caches the answer.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
}
