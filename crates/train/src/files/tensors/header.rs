//! The header of a safetensors file, read entry by entry: memory holds only the resulting tensors.
//!
//! Files that would make a parser hold more than their length warrants are refused: repeated names (readers differ in
//! taking the first or the last, so one may load what another has not checked), more extents than any tensor has, more
//! tensors than any model has.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::StoredTensor;

/// The most tensors that a file may have: more than a model of 256 experts in 128 layers with its optimizer.
const MOST_TENSORS: usize = 1 << 20;
/// The most extents that a tensor's shape may have.
const MOST_EXTENTS: usize = 16;

/// Tensors and metadata by name.
pub(super) type Header = (BTreeMap<String, StoredTensor>, BTreeMap<String, String>);

/// Reads the JSON and checks it against the `room` bytes of data after it, which start at byte `begin`.
pub(super) fn parse(text: impl Read, begin: u64, room: u64) -> Result<Header, String> {
    let mut json = serde_json::Deserializer::from_reader(text);
    let mut wrong = None;
    let entries = json.deserialize_map(Entries { begin, room, wrong: &mut wrong });
    let read = entries.and_then(|header| json.end().map(|()| header));
    let fault = |fault| wrong.unwrap_or_else(|| format!("has a header that is no JSON object ({fault})"));
    let (tensors, metadata) = read.map_err(fault)?;
    no_gaps(&tensors, begin, room)?;
    Ok((tensors, metadata))
}

/// All entries of a header. A fault is stored here, because the parser would add a line and a column to it.
struct Entries<'a> {
    begin: u64,
    room: u64,
    wrong: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut tensors, mut metadata) = (BTreeMap::new(), None);
        let refuse = |wrong: &mut Option<String>, why: String| {
            *wrong = Some(why);
            de::Error::custom("refused")
        };
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let found = map.next_value::<Texts>().map_err(|fault: A::Error| {
                    refuse(self.wrong, format!("has metadata that is not text ({fault})"))
                })?;
                if metadata.replace(found.0).is_some() {
                    return Err(refuse(self.wrong, "has `__metadata__` twice".into()));
                }
                continue;
            }
            let entry = map.next_value::<Entry>().map_err(|fault: A::Error| {
                refuse(self.wrong, format!("describes {} in a way nobody knows ({fault})", shown(&name)))
            })?;
            let tensor = entry.checked(&name, self.begin, self.room);
            let tensor = tensor.map_err(|why| refuse(self.wrong, why))?;
            if tensors.contains_key(&name) {
                return Err(refuse(self.wrong, format!("has {} twice", shown(&name))));
            }
            if tensors.len() == MOST_TENSORS {
                return Err(refuse(self.wrong, format!("has more than {MOST_TENSORS} tensors")));
            }
            tensors.insert(name, tensor);
        }
        Ok((tensors, metadata.unwrap_or_default()))
    }
}

/// One tensor, as in the header.
#[derive(Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Extents,
    data_offsets: (usize, usize),
}

impl Entry {
    fn checked(self, name: &str, begin: u64, room: u64) -> Result<StoredTensor, String> {
        let Entry { dtype, shape: Extents(shape), data_offsets: (first, end) } = self;
        let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bitsize()));
        let (held, name) = (end.checked_sub(first), || shown(name));
        if bits.is_none() || held.and_then(|held| held.checked_mul(8)) != bits {
            return Err(format!(
                "says that {} lies at bytes {first} to {end}, which is not the size of {dtype} {shape:?}",
                name()
            ));
        }
        if end as u64 > room {
            return Err(format!(
                "is cut off: {} would end at byte {end} of the data, of which there are {room}",
                name()
            ));
        }
        Ok(StoredTensor { dtype, shape, begin: begin + first as u64, bytes: (end - first) as u64 })
    }
}

/// A shape with a bounded number of extents.
struct Extents(Vec<usize>);

impl<'de> Deserialize<'de> for Extents {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Extents, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Extents;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST_EXTENTS} whole numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Extents, A::Error> {
                let mut extents = Vec::new();
                while let Some(extent) = list.next_element()? {
                    if extents.len() == MOST_EXTENTS {
                        return Err(de::Error::invalid_length(MOST_EXTENTS + 1, &self));
                    }
                    extents.push(extent);
                }
                extents.shrink_to_fit();
                Ok(Extents(extents))
            }
        }
        json.deserialize_seq(Each)
    }
}

/// Texts by name, each name once.
struct Texts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Texts, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts = BTreeMap::new();
                while let Some((name, text)) = map.next_entry::<String, String>()? {
                    if texts.contains_key(&name) {
                        return Err(de::Error::custom(format_args!("{} comes twice", shown(&name))));
                    }
                    texts.insert(name, text);
                }
                Ok(Texts(texts))
            }
        }
        json.deserialize_map(Each)
    }
}

/// A name for messages: the beginning of a long one, without characters that a terminal obeys.
fn shown(name: &str) -> String {
    let rest = if name.chars().nth(LONGEST_SHOWN).is_some() { "…" } else { "" };
    let chars = name.chars().take(LONGEST_SHOWN);
    let safe = chars.map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
    format!("`{}{rest}`", safe.collect::<String>())
}

/// Characters of a name in a message.
const LONGEST_SHOWN: usize = 200;

/// Checks that every byte of the data belongs to exactly one tensor.
fn no_gaps(tensors: &BTreeMap<String, StoredTensor>, begin: u64, room: u64) -> Result<(), String> {
    let mut in_order: Vec<(&String, &StoredTensor)> = tensors.iter().collect();
    in_order.sort_by_key(|(_, tensor)| (tensor.begin, tensor.bytes));
    let mut end = begin;
    for (name, tensor) in in_order {
        if tensor.begin != end {
            let what = if tensor.begin < end { "an overlap" } else { "a gap" };
            return Err(format!("has {what} before the data of {}", shown(name)));
        }
        end += tensor.bytes;
    }
    if end != begin + room {
        return Err(format!("has {} bytes at its end that belong to no tensor", begin + room - end));
    }
    Ok(())
}
