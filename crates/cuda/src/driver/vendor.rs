//! The vendor's libraries of one device: cuBLASLt for products, and cuDNN for attention where it is installed.

use std::sync::Arc;

use plimsoll_exec::ExecError;

use super::{Attentions, Blas, Context, Cudnn, Libraries, Stream};
use crate::lower::{AttentionShape, Library, Signature};

/// The libraries that are open; none by default.
#[derive(Debug, Default)]
pub(crate) struct Vendor {
    products: Option<Blas>,
    attentions: Option<Attentions>,
}

impl Vendor {
    /// Opens the libraries, with products of f32 operands in tf32 where that is asked for.
    ///
    /// # Errors
    ///
    /// When cuBLASLt is missing, or one refuses to open.
    pub(crate) fn open(
        context: &Arc<Context>,
        libraries: &Libraries,
        stream: &Stream,
        tf32: bool,
    ) -> Result<Vendor, ExecError> {
        let products = Some(Blas::new(context, libraries, tf32)?);
        let attentions = Cudnn::open(context, libraries, stream)?.map(Attentions::new);
        Ok(Vendor { products, attentions })
    }

    /// Opens cuDNN alone, for a GPU that `text` describes.
    ///
    /// # Errors
    ///
    /// When there is no cuDNN.
    pub(crate) fn described(libraries: &Libraries, text: &str) -> Result<Vendor, ExecError> {
        let attentions = Attentions::new(Cudnn::described(libraries, text)?);
        Ok(Vendor { products: None, attentions: Some(attentions) })
    }

    pub(crate) fn products(&self) -> Result<&Blas, ExecError> {
        self.products.as_ref().ok_or_else(|| ExecError::Unsupported("cuBLASLt is not in use".into()))
    }

    pub(crate) fn attentions(&self) -> Result<&Attentions, ExecError> {
        self.attentions.as_ref().ok_or_else(|| ExecError::Unsupported("cuDNN is not in use".into()))
    }

    /// Each library in use with its version, in the library's own numbering.
    pub(crate) fn versions(&self) -> Vec<(&'static str, usize)> {
        let products = self.products.as_ref().map(|products| ("cuBLASLt", products.version()));
        let attentions = self.attentions.as_ref().map(|plans| ("cuDNN", plans.version()));
        products.into_iter().chain(attentions).collect()
    }

    /// Reasons why attention is slow here.
    pub(crate) fn notes(&self) -> Vec<String> {
        match &self.attentions {
            // One refused shape is enough to see why: the others differ in their sizes.
            Some(plans) => {
                let refused = plans.refused().into_iter().take(1);
                refused
                    .map(|why| format!("cuDNN does not run {why}; the plain kernel does, slowly"))
                    .collect()
            }
            None if self.products.is_some() => {
                vec![
                    "cuDNN is missing, so attention is slow; to install it: pip install nvidia-cudnn-cu13"
                        .into(),
                ]
            }
            None => Vec::new(),
        }
    }

    /// The libraries in words.
    pub(crate) fn name(&self) -> String {
        let names: Vec<&str> = self.versions().into_iter().map(|(name, _)| name).collect();
        if names.is_empty() { "own kernels".into() } else { names.join(", ") }
    }
}

impl Library for Vendor {
    fn workspace(&self, signature: &Signature) -> Option<u64> {
        self.products.as_ref()?.workspace(signature)
    }

    fn attention(&self, shape: &AttentionShape) -> Option<u64> {
        self.attentions.as_ref()?.workspace(shape)
    }
}
