//! Regular expressions over module names, with the meaning that Python's `re` gives them in PEFT.
//!
//! PEFT reads names in three ways: a target is a whole name, a key of `rank_pattern` or `alpha_pattern` is a name or
//! its end after a dot, and `layers_pattern` stands before the number of a layer. Lookahead, lookbehind and named
//! groups work as in Python. Flags in the middle of an expression are absent on purpose.

use std::fmt;
use std::sync::Arc;

use fancy_regex::Regex;
use plimsoll_graph::GraphError;

use crate::language::refuse;

/// A compiled expression. Two expressions are equal if their texts are equal and are read in the same way.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    compiled: Arc<Regex>,
}

impl Pattern {
    /// An expression that a whole module name must match.
    ///
    /// # Errors
    ///
    /// When the text is no regular expression.
    pub fn whole(text: &str) -> Result<Pattern, GraphError> {
        Pattern::compile(text, &format!(r"\A(?:{text})\z"))
    }

    /// An expression that a module name, or its end after some dot, must match.
    ///
    /// # Errors
    ///
    /// When the text is no regular expression.
    pub fn ending(text: &str) -> Result<Pattern, GraphError> {
        Pattern::compile(text, &format!(r"\A(.*\.)?({text})\z"))
    }

    /// An expression that is found somewhere in a name.
    ///
    /// # Errors
    ///
    /// When the text is no regular expression.
    pub fn anywhere(text: &str) -> Result<Pattern, GraphError> {
        Pattern::compile(text, text)
    }

    /// The name before the number of a layer; any name where the text is empty.
    ///
    /// # Errors
    ///
    /// When the text is no regular expression.
    pub fn before_layer(text: &str) -> Result<Pattern, GraphError> {
        let whole = match text {
            "" => r"\A.*?\.[^.]*\.(?P<layer>\d+)\.".to_owned(),
            text => format!(r"\A(?:(?:^|.*?\.){text}\.(?P<layer>\d+)\.)"),
        };
        Pattern::compile(text, &whole)
    }

    fn compile(text: &str, whole: &str) -> Result<Pattern, GraphError> {
        let wrong = |error: fancy_regex::Error| {
            refuse("lora", format!("`{text}` is no regular expression for names of modules: {error}"))
        };
        let compiled = Arc::new(Regex::new(whole).map_err(wrong)?);
        Ok(Pattern { text: text.to_owned(), compiled })
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it fits a module name.
    ///
    /// # Errors
    ///
    /// When answering takes more steps than any sensible expression needs.
    pub fn fits(&self, module: &str) -> Result<bool, GraphError> {
        self.compiled.is_match(module).map_err(|error| self.too_slow(module, &error))
    }

    /// The number of the layer that a module belongs to.
    pub(super) fn layer_of(&self, module: &str) -> Result<Option<usize>, GraphError> {
        let found = self.compiled.captures(module).map_err(|error| self.too_slow(module, &error))?;
        Ok(found.and_then(|found| found.name("layer")?.as_str().parse().ok()))
    }

    fn too_slow(&self, module: &str, error: &fancy_regex::Error) -> GraphError {
        refuse("lora", format!("the expression `{}` cannot be tried on `{module}`: {error}", self.text))
    }
}

/// Whether a text can only be meant as an expression: module names have none of these characters.
pub fn is_expression(text: &str) -> bool {
    text.contains(|c: char| r"\^$*+?()[]{}|".contains(c))
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.compiled.as_str() == other.compiled.as_str()
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_whole_pattern_fits_from_the_first_letter_to_the_last() {
        let pattern = Pattern::whole(r".*\.[qv]_proj|head").unwrap();
        assert!(pattern.fits("model.layers.0.self_attn.q_proj").unwrap() && pattern.fits("head").unwrap());
        assert!(!pattern.fits("q_proj").unwrap() && !pattern.fits("lm_head").unwrap());
        assert!(!pattern.fits("model.q_proj.base").unwrap());
        let ahead = Pattern::whole(r"(?!.*layers\.0\.).*_proj").unwrap();
        assert!(ahead.fits("model.layers.1.mlp.up_proj").unwrap());
        assert!(!ahead.fits("model.layers.0.mlp.up_proj").unwrap());
    }

    #[test]
    fn an_ending_fits_after_a_dot_only() {
        let pattern = Pattern::ending("up_proj|layers.1.*").unwrap();
        for name in ["up_proj", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"] {
            assert!(pattern.fits(name).unwrap(), "{name}");
        }
        assert!(!pattern.fits("model.layers.0.mlp.gate_up_proj").unwrap());
        assert!(Pattern::ending(r"^model\.x").unwrap().fits("model.x").unwrap());
    }

    #[test]
    fn the_number_of_a_layer_is_the_first_that_stands_behind_the_pattern() {
        let layer =
            |pattern: &str, module: &str| Pattern::before_layer(pattern).unwrap().layer_of(module).unwrap();
        assert_eq!(layer("", "model.layers.12.mlp.experts.3.up"), Some(12));
        assert_eq!(layer("", "transformer.h.0.attn.c_attn"), Some(0));
        assert_eq!(layer("", "layers.3.x"), None, "PEFT wants a name before that of the list");
        assert_eq!(layer("layers", "layers.3.x"), Some(3));
        assert_eq!(layer("experts", "model.layers.12.mlp.experts.3.up"), Some(3));
        assert_eq!(layer("h|layer", "bert.encoder.layer.1.output.dense"), None, "as Python reads it");
        assert_eq!(layer("(h|layer)", "bert.encoder.layer.1.output.dense"), Some(1));
        assert_eq!(layer("layers", "lm_head"), None);
    }

    #[test]
    fn a_text_that_is_no_expression_is_named() {
        let error = Pattern::whole("(q_proj").unwrap_err().to_string();
        assert!(error.starts_with("lora: `(q_proj` is no regular expression"), "{error}");
        assert!(is_expression(".*_proj") && is_expression("a|b") && !is_expression("layers.1.up-proj_2"));
    }
}
