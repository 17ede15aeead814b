//! Compiling one loop for several instruction sets and choosing by the [`Instructions`](super::Instructions) of the pool.
//!
//! The crate is built for the oldest x86-64, so a plain loop gets vectors of four floats. Wrapped in
//! [`widest!`], the same body is compiled three times (AVX-512, AVX2, baseline) and the widest one that the
//! pool allows is called. The compiler may not reorder floating-point sums nor fuse a multiplication with
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
                let instructions = crate::cpu::pool::instructions();
                if instructions >= crate::cpu::Instructions::Avx512 {
                    // SAFETY: the path has these features, and a pool takes only paths that the processor has.
                    return unsafe { avx512($($arg),*) };
                }
                if instructions >= crate::cpu::Instructions::Avx2 {
                    // SAFETY: as above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(super) use widest;
