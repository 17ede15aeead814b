//! What a checkpoint remembers of a run, so that a run which goes on from it is the same run.

use super::Config;
use crate::data::Source;
use crate::error::TrainError;
use crate::settings::remembered;

impl Config {
    /// What a checkpoint remembers of this run: what must be the same in one that goes on from it, and settings that may
    /// change but not in silence. `data` is what is trained on.
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
        Ok(facts.chain(self.model.facts()).chain(self.base_facts()?).collect())
    }
}
