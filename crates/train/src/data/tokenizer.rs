//! Text to ids and back: a model's own `tokenizer.json`, or bytes where a model has none.
//!
//! Beside `tokenizer.json`, a folder of the hub states in `tokenizer_config.json` (older ones in
//! `special_tokens_map.json`) which tokens begin, end and pad a text, and holds the chat template there or in
//! `chat_template.jinja`. The tokens that the tokenizer puts around every text (`[CLS]` and `[SEP]`, a first token) are
//! determined once by encoding a text, so that texts can be encoded in pieces and wrapped afterwards.

mod needed;
mod settings;

use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::fault::Fault;
use super::template::ChatTemplate;
use super::windows::{Limits, Placed, WINDOW, WINDOWS_PER_THREAD, Windows};
use super::{BEGIN, BYTE_VOCABULARY, DataError, END, PAD};
use crate::panics::caught;
use crate::reading;

use needed::read;
use settings::{Settings, found};

/// A model's vocabulary, with the chat template that belongs to it.
#[derive(Debug)]
pub struct Tokenizer {
    kind: Kind,
    /// The file that the vocabulary was read from, if any.
    path: Option<PathBuf>,
    vocabulary: usize,
    opening: Vec<i32>,
    closing: Vec<i32>,
    special: Special,
    template: Option<ChatTemplate>,
    /// The template for conversations with tools, where it is another, or the reason why it cannot be used.
    tool_template: Option<Result<ChatTemplate, DataError>>,
    fingerprint: [u8; 32],
    /// Whether every id is independent of the text beyond the nearest space.
    parts_at_spaces: bool,
}

#[derive(Debug)]
enum Kind {
    Bytes,
    Trained(Box<tokenizers::Tokenizer>),
}

/// Special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Special {
    /// Begins a text.
    pub begin: Option<i32>,
    /// Ends a text.
    pub end: Option<i32>,
    /// Fills the rest of a row.
    pub pad: Option<i32>,
    /// Hides a word that is to be guessed.
    pub mask: Option<i32>,
}

impl Tokenizer {
    /// One id per byte, and ids that begin, end and pad a text: for models without a tokenizer of their own.
    pub fn bytes() -> Tokenizer {
        Tokenizer {
            kind: Kind::Bytes,
            path: None,
            vocabulary: BYTE_VOCABULARY,
            opening: vec![BEGIN],
            closing: Vec::new(),
            special: Special { begin: Some(BEGIN), end: Some(END), pad: Some(PAD), mask: None },
            template: None,
            tool_template: None,
            fingerprint: Sha256::digest(b"bytes").into(),
            parts_at_spaces: true,
        }
    }

    /// The tokenizer of a model's folder.
    ///
    /// # Errors
    ///
    /// When there is no `tokenizer.json`, or one of the files is malformed.
    pub fn open(folder: &Path) -> Result<Tokenizer, DataError> {
        let path = folder.join("tokenizer.json");
        let (bytes, needed) =
            found(&path, read(&path))?.ok_or_else(|| DataError::NoTokenizer { folder: folder.to_owned() })?;
        let wrong = |why: String| DataError::Tokenizer { path: path.clone(), why };
        // The library panics on some faults of a file.
        let (inner, (opening, closing)) = caught(|| load(&bytes)).and_then(|loaded| loaded).map_err(wrong)?;
        let config = Settings::read(folder)?;
        let special = Special {
            begin: config.id(&inner, "bos_token")?,
            end: config.id(&inner, "eos_token")?,
            pad: config.id(&inner, "pad_token")?,
            mask: config.id(&inner, "mask_token")?,
        };
        let template = config.template(folder)?;
        let tool_template = config.tool_template(folder);
        reading::begin_needing(&path, needed);
        let largest = inner.get_vocab(true).into_values().max();
        let mut hash = Sha256::new();
        hash.update(&bytes);
        hash.update(format!("{special:?}"));
        hash.update(template.as_ref().map_or("", ChatTemplate::source));
        if let Some(Ok(template)) = &tool_template {
            hash.update(template.source());
        }
        let parts_at_spaces = parts_at_spaces(&inner);
        Ok(Tokenizer {
            kind: Kind::Trained(Box::new(inner)),
            path: Some(path),
            vocabulary: largest.map_or(0, |id| id as usize + 1),
            opening,
            closing,
            special,
            template,
            tool_template,
            fingerprint: hash.finalize().into(),
            parts_at_spaces,
        })
    }

    /// The file that the vocabulary was read from, if any.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// One more than the largest id.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Makes sure that a model with `rows` words has a row for every id.
    ///
    /// # Errors
    ///
    /// When the tokenizer has ids that the model lacks.
    pub fn fits(&self, rows: usize) -> Result<(), DataError> {
        match (&self.kind, self.vocabulary <= rows) {
            (_, true) => Ok(()),
            (Kind::Bytes, _) => Err(DataError::Vocabulary { vocabulary: rows, needed: self.vocabulary }),
            (Kind::Trained(_), _) => Err(DataError::TokenizerTooLarge { ids: self.vocabulary, rows }),
        }
    }

    /// Special tokens.
    pub fn special(&self) -> Special {
        self.special
    }

    /// The id for positions without text. Where the tokenizer has none, any id will do: such positions count for
    /// nothing.
    pub fn pad(&self) -> i32 {
        self.special.pad.or(self.special.end).unwrap_or(0)
    }

    /// Ids before every text.
    pub fn opening(&self) -> &[i32] {
        &self.opening
    }

    /// Ids after every text, besides the one that ends a document.
    pub fn closing(&self) -> &[i32] {
        &self.closing
    }

    /// The model's chat template, if it has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The template of a conversation with these tools: of several templates transformers takes the one called `tool_use`
    /// where there are tools.
    ///
    /// # Errors
    ///
    /// When there is such a template and it is not where it can be read.
    pub(super) fn template_for(&self, tools: Option<&Json>) -> Result<Option<&ChatTemplate>, DataError> {
        match &self.tool_template {
            Some(template) if tools.is_some_and(|tools| !tools.is_null()) => {
                template.as_ref().map(Some).map_err(DataError::clone)
            }
            _ => Ok(self.template()),
        }
    }

    /// The same tokenizer with another chat template.
    ///
    /// # Errors
    ///
    /// When the template has a mistake.
    pub fn with_template(mut self, source: &str) -> Result<Tokenizer, DataError> {
        let names = self.special_names();
        let wrong = |why| DataError::Template { path: None, why };
        self.template = Some(ChatTemplate::new(source, names).map_err(wrong)?);
        self.tool_template = None;
        let mut hash = Sha256::new();
        hash.update(self.fingerprint);
        hash.update(source);
        self.fingerprint = hash.finalize().into();
        Ok(self)
    }

    /// Ids of a text between the ids around every text: the form of a prompt.
    ///
    /// # Errors
    ///
    /// When the tokenizer cannot read the text.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, DataError> {
        Ok([&self.opening[..], &self.encode_plain(text)?, &self.closing].concat())
    }

    /// Ids of a text and nothing else.
    ///
    /// # Errors
    ///
    /// When the tokenizer cannot read the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<i32>, DataError> {
        match &self.kind {
            Kind::Bytes => Ok(text.bytes().map(i32::from).collect()),
            Kind::Trained(inner) => {
                let encoding = self.trusting_nothing(|| inner.encode_fast(text, false))?;
                Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
            }
        }
    }

    /// Passes to `each` the ids of a text with the bytes they stand for, and holds no more than a window of them. Only
    /// a text without a seam takes more, up to `unbroken` bytes at once.
    pub(super) fn encode_each(
        &self,
        text: &str,
        unbroken: usize,
        mut each: impl FnMut(Placed) + Send,
    ) -> Result<(), Fault> {
        if let Kind::Bytes = self.kind {
            text.bytes().enumerate().for_each(|(at, byte)| each((i32::from(byte), (at, at + 1))));
            return Ok(());
        }
        let limits = Limits { most: unbroken, parts_at_spaces: self.parts_at_spaces };
        let mut windows = Windows::new(text, limits, |part| Ok(self.encode_placed(part)?));
        let mut round = || {
            let window = |more, _| if more { windows.next(&mut each) } else { Ok(false) };
            (0..WINDOWS_PER_THREAD).try_fold(true, window)
        };
        if text.len() <= WINDOWS_PER_THREAD * WINDOW {
            while round()? {}
            return Ok(());
        }
        let mut on_a_thread = || thread::scope(|scope| scope.spawn(&mut round).join());
        while on_a_thread().unwrap_or_else(|panic| std::panic::resume_unwind(panic))? {}
        Ok(())
    }

    /// Whether every id is independent of the text beyond the nearest space.
    pub(super) fn parts_at_spaces(&self) -> bool {
        self.parts_at_spaces
    }

    /// Ids of a text, each with the bytes it stands for.
    pub(super) fn encode_placed(&self, text: &str) -> Result<Vec<Placed>, DataError> {
        match &self.kind {
            Kind::Bytes => {
                Ok(text.bytes().enumerate().map(|(at, byte)| (i32::from(byte), (at, at + 1))).collect())
            }
            Kind::Trained(inner) => {
                let encoding = self.trusting_nothing(|| inner.encode(text, false))?;
                let ids = encoding.get_ids().iter().map(|&id| id as i32);
                Ok(ids.zip(encoding.get_offsets().iter().copied()).collect())
            }
        }
    }

    /// The text of ids, without special tokens. Unknown ids are skipped.
    pub fn decode(&self, ids: &[i32]) -> String {
        match &self.kind {
            Kind::Bytes => {
                let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Kind::Trained(inner) => {
                let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
                self.trusting_nothing(|| inner.decode(&ids, true)).unwrap_or_default()
            }
        }
    }

    /// Calls the library, and turns a panic inside it into an error.
    fn trusting_nothing<T>(&self, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, DataError> {
        let done = caught(call).and_then(|done| done.map_err(|fault| one_line(&*fault)));
        let path = || self.path.clone().unwrap_or_else(|| "tokenizer.json".into());
        done.map_err(|why| DataError::Tokenizer { path: path(), why })
    }

    /// The text of ids, with special tokens.
    pub(super) fn decode_whole(&self, ids: &[i32]) -> String {
        match &self.kind {
            Kind::Bytes => self.decode(ids),
            Kind::Trained(inner) => {
                let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
                inner.decode(&ids, false).unwrap_or_default()
            }
        }
    }

    /// A text that comes id by id.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, ids: Vec::new(), shown: 0 }
    }

    /// Changes with anything that could change an id or a rendered conversation.
    pub(super) fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn special_names(&self) -> Vec<(String, String)> {
        let Kind::Trained(inner) = &self.kind else { return Vec::new() };
        let Special { begin, end, pad, mask } = self.special;
        let named = [("bos_token", begin), ("eos_token", end), ("pad_token", pad), ("mask_token", mask)];
        let token = |id: Option<i32>| inner.id_to_token(id? as u32);
        named.into_iter().filter_map(|(name, id)| Some((name.to_owned(), token(id)?))).collect()
    }
}

/// Words of a generated text, as soon as their last byte is there.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<i32>,
    shown: usize,
}

impl TextStream<'_> {
    /// Takes the next id; returns the text it completes, which may be empty.
    pub fn push(&mut self, id: i32) -> String {
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids);
        // A character whose bytes are still incomplete shows as a replacement.
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return String::new();
        }
        let new = text.get(self.shown..).unwrap_or_default().to_owned();
        self.shown = text.len();
        new
    }
}

/// The tokenizer of a `tokenizer.json`, and the ids it puts before and after a text.
fn load(bytes: &[u8]) -> Result<(tokenizers::Tokenizer, Surroundings), String> {
    let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|fault| one_line(&*fault))?;
    // Cutting and filling up rows is done here, to the run's length and not the tokenizer's.
    inner.with_truncation(None).map_err(|fault| one_line(&*fault))?;
    inner.with_padding(None);
    let surroundings = surroundings(&inner)?;
    Ok((inner, surroundings))
}

/// Words of BERT's tokenizers are parted at spaces before anything else is done with them, unless a word that was added has
/// a space in it.
fn parts_at_spaces(inner: &tokenizers::Tokenizer) -> bool {
    let bert = matches!(inner.get_pre_tokenizer(), Some(PreTokenizerWrapper::BertPreTokenizer(_)));
    let whole = matches!(inner.get_model(), ModelWrapper::WordPiece(_));
    bert && whole && !inner.get_added_tokens_decoder().values().any(|token| token.content.contains(' '))
}

/// Ids before and behind a text.
type Surroundings = (Vec<i32>, Vec<i32>);

/// The ids that the tokenizer puts before and after a text.
fn surroundings(inner: &tokenizers::Tokenizer) -> Result<Surroundings, String> {
    let encode = |special| inner.encode_fast("a", special).map_err(|fault| one_line(&*fault));
    let (plain, whole) = (encode(false)?, encode(true)?);
    let (plain, whole) = (plain.get_ids(), whole.get_ids());
    let at = whole.windows(plain.len().max(1)).position(|window| window == plain);
    let at = at.ok_or("its post-processor changes the ids of a text")?;
    let ids = |ids: &[u32]| ids.iter().map(|&id| id as i32).collect();
    Ok((ids(&whole[..at]), ids(&whole[at + plain.len()..])))
}

fn one_line(fault: &(dyn std::error::Error + Send + Sync)) -> String {
    fault.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod memory;
#[cfg(test)]
pub(super) mod tests;
