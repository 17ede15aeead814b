//! Dictionaries that keep the order of their keys, as Python's do.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::super::fault::{Answer, Fault};
use super::super::meter::{Charge, Meter};
use super::{Value, check_depth, depth_of};

/// From this many keys on, an index is faster than a linear search.
const FEW: usize = 12;

#[derive(Debug, Default)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    /// Places of keys that are texts, made when a large dictionary is first asked.
    index: OnceCell<HashMap<String, usize>>,
    depth: usize,
    charge: Option<Charge>,
}

impl Dict {
    /// A dictionary from the data, whose keys are all different.
    pub(crate) fn given(entries: Vec<(Value, Value)>) -> Value {
        let depth = depth_of(entries.iter().map(|(_, value)| value));
        Value::Dict(Rc::new(Dict { entries, depth, ..Dict::default() }))
    }

    /// A dictionary of pairs, of which later ones replace earlier ones.
    pub(in crate::jinja) fn made(pairs: Vec<(Value, Value)>, meter: &Rc<Meter>) -> Answer<Rc<Dict>> {
        let mut dict = Dict::default();
        for (key, value) in pairs {
            check_key(&key)?;
            meter.work(1)?;
            dict.set(key, value);
        }
        check_depth(dict.depth + 1)?;
        let bytes = size_of::<Dict>() + dict.len() * size_of::<(Value, Value)>();
        dict.charge = Some(meter.hold(bytes)?);
        Ok(Rc::new(dict))
    }

    pub(in crate::jinja) fn depth(&self) -> usize {
        self.depth
    }

    pub(in crate::jinja) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(in crate::jinja) fn iter(&self) -> impl DoubleEndedIterator<Item = &(Value, Value)> {
        self.entries.iter()
    }

    pub(in crate::jinja) fn get(&self, key: &Value) -> Option<&Value> {
        match key.as_text() {
            Some(key) => self.get_text(key),
            None => self.entries.iter().find(|(known, _)| known.equals(key)).map(|(_, value)| value),
        }
    }

    pub(in crate::jinja) fn get_text(&self, key: &str) -> Option<&Value> {
        let at = match self.entries.len() {
            0..=FEW => self.entries.iter().position(|(known, _)| known.as_text() == Some(key))?,
            _ => *self.index().get(key)?,
        };
        Some(&self.entries[at].1)
    }

    fn index(&self) -> &HashMap<String, usize> {
        self.index.get_or_init(|| {
            let named = self.entries.iter().enumerate();
            named.filter_map(|(at, (key, _))| Some((key.as_text()?.to_owned(), at))).collect()
        })
    }

    /// Adds or replaces an entry; the caller has checked the key.
    pub(in crate::jinja) fn set(&mut self, key: Value, value: Value) {
        self.depth = self.depth.max(1 + value.depth());
        let at = match key.as_text() {
            Some(text) if self.entries.len() > FEW => self.index().get(text).copied(),
            _ => self.entries.iter().position(|(known, _)| known.equals(&key)),
        };
        match at {
            Some(at) => self.entries[at].1 = value,
            None => {
                let at = self.entries.len();
                if let (Some(index), Some(text)) = (self.index.get_mut(), key.as_text()) {
                    index.insert(text.to_owned(), at);
                }
                self.entries.push((key, value));
            }
        }
    }

    pub(in crate::jinja) fn equals(&self, other: &Dict) -> bool {
        let same = |(key, value): &(Value, Value)| other.get(key).is_some_and(|found| found.equals(value));
        self.len() == other.len() && self.iter().all(same)
    }
}

/// Refuses keys that Python cannot hash.
pub(in crate::jinja) fn check_key(key: &Value) -> Answer<()> {
    match key {
        Value::List(_) | Value::Dict(_) | Value::View(..) => {
            Err(Fault::new(format!("{} cannot be a key", key.kind())))
        }
        Value::Tuple(items) => items.iter().try_for_each(check_key),
        _ => Ok(()),
    }
}
