//! Facts of a run that a checkpoint keeps, so that a run which resumes from it is the same run.

use super::Config;
use crate::data::Source;
use crate::error::TrainError;
use crate::settings::remembered;

impl Config {
    /// Facts of this run that a checkpoint keeps: those that must be equal in a run that resumes from it, and settings
    /// whose change is reported. `data` is the training data.
    ///
    /// # Errors
    ///
    /// When the data, or the weights that adapters belong to, cannot be read.
    pub fn facts(&self, data: &Source) -> Result<Vec<(String, String)>, TrainError> {
        let effective = self.effective();
        let facts =
            [("data", data.mark()?), ("packing", self.model.architecture.reads_documents().to_string())];
        let facts = facts.into_iter().chain(remembered(&effective));
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        let quantised = self.options.quantised.as_ref();
        let quantised = quantised.map(|base| ("quantised weights".to_owned(), base.form.name().to_owned()));
        let chosen = self.options.train_only.as_ref();
        let chosen = chosen.map(|chosen| ("train_only".to_owned(), chosen.texts().join(" ")));
        Ok(facts.chain(chosen).chain(self.model.facts()).chain(self.base_facts()?).chain(quantised).collect())
    }
}
