//! The counter of a rendering's work and memory, and the texts that are written under it.
//!
//! Bytes are charged when a text or a list is created and returned when it is dropped. So a template may replace a text
//! any number of times, while a text that keeps doubling meets the bound. Work is one unit for each node that is
//! evaluated and one for every sixteen bytes that are read or written.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::fault::{Answer, Fault};

/// Bytes that a text takes besides its own.
pub(super) const PER_TEXT: usize = 64;
/// Bytes of text that cost as much as evaluating a node.
const BYTES_PER_WORK: usize = 16;

/// Limits of one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of texts and lists alive at once, the output among them.
    pub(crate) memory: usize,
    /// Nodes evaluated.
    pub(crate) work: u64,
}

#[derive(Debug)]
pub(super) struct Meter {
    limits: Limits,
    held: Cell<usize>,
    worked: Cell<u64>,
    /// Bytes passed that do not make a node yet.
    passed: Cell<usize>,
}

impl Meter {
    pub(super) fn new(limits: Limits) -> Rc<Meter> {
        Rc::new(Meter { limits, held: Cell::new(0), worked: Cell::new(0), passed: Cell::new(0) })
    }

    /// Work so far.
    pub(super) fn worked(&self) -> u64 {
        self.worked.get()
    }

    /// Counts nodes.
    pub(super) fn work(&self, nodes: u64) -> Answer<()> {
        let worked = self.worked.get().saturating_add(nodes);
        self.worked.set(worked);
        if worked > self.limits.work {
            let most = self.limits.work;
            return Err(Fault::new(format!(
                "the template is not done after {most} instructions; look for a loop without an end"
            )));
        }
        Ok(())
    }

    /// Counts bytes that are read or written.
    pub(super) fn pass(&self, bytes: usize) -> Answer<()> {
        let passed = self.passed.get().saturating_add(bytes);
        self.passed.set(passed % BYTES_PER_WORK);
        self.work((passed / BYTES_PER_WORK) as u64)
    }

    /// Takes bytes that are given back when the charge is dropped.
    pub(super) fn hold(self: &Rc<Meter>, bytes: usize) -> Answer<Charge> {
        let mut charge = Charge { meter: Rc::clone(self), bytes: 0 };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Takes bytes for as long as the rendering lasts.
    pub(super) fn keep(&self, bytes: usize) -> Answer<()> {
        let held = self.held.get().saturating_add(bytes);
        if held > self.limits.memory {
            let most = self.limits.memory;
            return Err(Fault::new(format!(
                "the template holds more than {most} bytes of text at once, far beyond its conversation; \
                 look for a text that grows without an end"
            )));
        }
        self.held.set(held);
        Ok(())
    }
}

/// Bytes taken from a [`Meter`].
pub(super) struct Charge {
    meter: Rc<Meter>,
    bytes: usize,
}

impl Charge {
    fn grow(&mut self, bytes: usize) -> Answer<()> {
        self.meter.keep(bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.meter.held.set(self.meter.held.get().saturating_sub(self.bytes));
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

/// A text that is being written and refuses to outgrow the meter.
#[derive(Debug)]
pub(super) struct Pen {
    text: String,
    charge: Charge,
}

impl Pen {
    pub(super) fn new(meter: &Rc<Meter>) -> Pen {
        Pen { text: String::new(), charge: Charge { meter: Rc::clone(meter), bytes: 0 } }
    }

    pub(super) fn push(&mut self, text: &str) -> Answer<()> {
        self.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn grow(&mut self, bytes: usize) -> Answer<()> {
        let first = if self.charge.bytes == 0 { PER_TEXT } else { 0 };
        self.charge.grow(bytes.saturating_add(first))?;
        self.charge.meter.pass(bytes)
    }

    pub(super) fn push_char(&mut self, character: char) -> Answer<()> {
        self.push(character.encode_utf8(&mut [0; 4]))
    }

    /// The same text, repeated this many times.
    pub(super) fn repeat(&mut self, text: &str, times: usize) -> Answer<()> {
        let bytes = text.len().saturating_mul(times);
        self.grow(bytes)?;
        self.text.extend(std::iter::repeat_n(text, times));
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The text, and the bytes charged for it.
    pub(super) fn finish(self) -> (String, Charge) {
        (self.text, self.charge)
    }
}
