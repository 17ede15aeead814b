//! The plan in a file's text: its fields as JSON, its lists as rows that become typed one at a time.
//!
//! As a tree of JSON a plan takes some thirty times the bytes of its text, and it is read by a process that has a budget. So
//! no more than one row of a list is ever a tree.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::Value;

use super::PlanFileError;
use super::rows::{self, SavedState};
use crate::schedule::{Action, Away, Buffer, Copy, Schedule};

/// A plan that was read, before it is compared with a program.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Body {
    pub(super) states: Option<List<SavedState>>,
    pub(super) schedules: Option<BTreeMap<String, Lists>>,
    /// Everything else: an object.
    #[serde(flatten)]
    pub(super) fields: Value,
}

impl Body {
    /// Reads the text of a plan.
    pub(super) fn read(text: &str) -> Result<Body, PlanFileError> {
        serde_json::from_str(text).map_err(|error| PlanFileError::NotAPlan(error.to_string()))
    }
}

/// The lists of a schedule, as far as they are there.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Lists {
    buffers: Option<List<Buffer>>,
    copies: Option<List<Copy>>,
    away: Option<List<Away>>,
    actions: Option<List<Action>>,
}

impl Lists {
    /// The schedule of this name.
    pub(super) fn named(&self, name: &str) -> Result<Schedule, PlanFileError> {
        fn taken<T: Row>(list: Option<&List<T>>, place: &str) -> Result<Vec<T>, PlanFileError> {
            let list = list.ok_or_else(|| rows::field(place, "a list"))?;
            let rows = list.rows().map_err(|row| rows::field(&format!("{place}[{row}]"), T::NAME))?;
            Ok(rows.to_vec())
        }
        let place = |list: &str| format!("schedules.{name}.{list}");
        Ok(Schedule {
            name: name.to_owned(),
            buffers: taken(self.buffers.as_ref(), &place("buffers"))?,
            copies: taken(self.copies.as_ref(), &place("copies"))?,
            away: taken(self.away.as_ref(), &place("away"))?,
            actions: taken(self.actions.as_ref(), &place("actions"))?,
        })
    }
}

/// The rows of a list up to the first that means nothing, and the index of that one.
#[derive(Clone, Debug)]
pub(super) struct List<T> {
    rows: Vec<T>,
    wrong: Option<usize>,
}

impl<T> List<T> {
    /// All rows, or the index of one that means nothing.
    pub(super) fn rows(&self) -> Result<&[T], usize> {
        self.wrong.map_or(Ok(&self.rows), Err)
    }
}

/// A kind of row.
pub(super) trait Row: Clone {
    /// Its name in errors.
    const NAME: &str;

    /// The row in JSON, if every number means something.
    fn parse(json: &Value) -> Option<Self>;
}

/// One line for each kind of row.
macro_rules! rows {
    ($($kind:ty, $name:literal, $parse:path;)*) => {
        $(impl Row for $kind {
            const NAME: &str = $name;

            fn parse(json: &Value) -> Option<$kind> {
                $parse(json)
            }
        })*
    };
}

rows! {
    Buffer, "a buffer", rows::parse_buffer;
    Copy, "a copy", rows::parse_copy;
    Away, "state of a tier", rows::parse_away;
    Action, "an action", rows::parse_action;
    SavedState, "a range of state", rows::parse_state;
}

impl<'de, T: Row> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        deserializer.deserialize_seq(EachRow(PhantomData))
    }
}

/// Reads a list row by row.
struct EachRow<T>(PhantomData<T>);

impl<'de, T: Row> Visitor<'de> for EachRow<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
        let (mut rows, mut wrong) = (Vec::new(), None);
        while let Some(json) = list.next_element::<Value>()? {
            match T::parse(&json) {
                Some(row) if wrong.is_none() => rows.push(row),
                Some(_) => {}
                None => wrong = wrong.or(Some(rows.len())),
            }
        }
        Ok(List { rows, wrong })
    }
}
