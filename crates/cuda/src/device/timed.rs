//! Times of single products and copies, for rates that people and plans are told.
#![allow(unsafe_code, reason = "queues products on addresses of the arena")]

use plimsoll_exec::ExecError;

use super::CudaDevice;
use crate::lower::{Library, Place, Product};

impl CudaDevice {
    /// Seconds of one library product, the mean of `repeats` after a warm-up, on whatever numbers the arena holds.
    ///
    /// # Errors
    ///
    /// When the library has no such product.
    pub fn time_product(&mut self, product: &Product, repeats: usize) -> Result<f64, ExecError> {
        let blas = self.library.products()?;
        if blas.workspace(&product.signature).is_none() {
            return Err(ExecError::Unsupported(format!("cuBLASLt has no product {:?}", product.signature)));
        }
        let base = self.range.base();
        let run = |count: usize| {
            // SAFETY: the caller keeps the operands inside the arena; the product reads and writes nothing else.
            (0..count).try_for_each(|_| unsafe {
                blas.run(product, |place| base + place.0, base + product.workspace.0, &self.stream)
            })
        };
        run(3)?;
        Ok(self.stream.time(|| run(repeats))? / repeats as f64)
    }

    /// Seconds of one copy inside the arena, the mean of `repeats` after a warm-up.
    ///
    /// # Errors
    ///
    /// When a range lies outside the arena.
    pub fn time_copy(
        &mut self,
        (from, to): (Place, Place),
        bytes: u64,
        repeats: usize,
    ) -> Result<f64, ExecError> {
        let [from, to] = [self.arena()?.address(from.0, bytes)?, self.arena()?.address(to.0, bytes)?];
        let run = |count: usize| (0..count).try_for_each(|_| self.stream.copy(from, to, bytes));
        run(3)?;
        Ok(self.stream.time(|| run(repeats))? / repeats as f64)
    }

    /// Scratch bytes of a library product, if there is one.
    pub fn product_workspace(&self, product: &Product) -> Option<u64> {
        self.library.workspace(&product.signature)
    }
}
