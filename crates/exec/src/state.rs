//! State by name, wherever it lives: weights and moments are loaded, saved and read through here.
//!
//! State in the arena is a range of it. State that is away is a range of a tier, read and written there between
//! schedules, a bounded piece at a time: memory never holds a second copy of it.
//!
//! A group of state is one range here too. The names of its parts are used only in files.
//!
//! Where ranks divide a state, each rank has a range of its elements. Numbers to write are given by their place in
//! the whole state, and each rank keeps those in its own range; so all ranks load a file in the same way. Everything
//! else here is about the range of this rank as it lies in the arena.

use std::ops::Range;

use plimsoll_graph::{DType, Graph, Shape, State, StateKind, Type};

use crate::device::Draw;
use crate::elements::{PIECE, Place, fits, read_numbers, write_halves, write_numbers};
use crate::engine::Engine;
use crate::error::ExecError;
use crate::init;
use crate::own_range::Share;

impl Engine {
    /// Names and types of all state, as the arena stores it.
    pub fn states(&self) -> impl Iterator<Item = (&str, Type)> {
        self.states.iter().map(|(name, place)| (name.as_str(), place.ty))
    }

    /// Type of the whole of a state, of which this rank may have a shard.
    pub fn whole_type(&self, name: &str) -> Option<Type> {
        let whole = self.shares.get(name).map(|share| share.whole);
        whole.or_else(|| self.states.get(name).map(|place| place.ty))
    }

    /// The pieces of a whole state that have names in files, each with its first element, name and shape: the parts of a
    /// group, or else the whole state; empty if there is no such state.
    pub fn pieces(&self, name: &str) -> Vec<(usize, String, Shape)> {
        match (self.parts.get(name), self.whole_type(name)) {
            (Some(parts), _) => parts.clone(),
            (None, Some(whole)) => vec![(0, name.to_owned(), whole.shape)],
            (None, None) => Vec::new(),
        }
    }

    /// Whether this rank keeps any of `count` elements of a whole state, from element `first` on.
    pub fn keeps(&self, name: &str, first: usize, count: usize) -> bool {
        self.shares.get(name).is_none_or(|share| !share.common(first, count).is_empty())
    }

    /// Of numbers for a whole state from element `first` on, those that this rank keeps, after their place in its range.
    fn own<'a>(&self, name: &str, first: usize, values: &'a [f32]) -> Result<(usize, &'a [f32]), ExecError> {
        let Some(share) = self.shares.get(name) else { return Ok((first, values)) };
        let whole = Place { ty: share.whole, tier: None, offset: 0 };
        fits(name, whole, first, values.len())?;
        let common = share.common(first, values.len());
        Ok((common.start.saturating_sub(share.first), &values[common.start - first..common.end - first]))
    }

    /// Whether there is state of that name.
    pub fn has_state(&self, name: &str) -> bool {
        self.states.contains_key(name)
    }

    /// Reads state from element `first` on, as f32, which holds every element type of state exactly.
    ///
    /// # Errors
    ///
    /// When there is no such state or it is shorter.
    pub fn read_state(&self, name: &str, first: usize, values: &mut [f32]) -> Result<(), ExecError> {
        read_numbers(&*self.device, name, self.state(name)?, first, values)
    }

    /// Writes state from element `first` of the whole on, rounded to nearest even where it is stored in fewer bits.
    ///
    /// # Errors
    ///
    /// When there is no such state or it is shorter.
    pub fn write_state(&mut self, name: &str, first: usize, values: &[f32]) -> Result<(), ExecError> {
        let (place, (first, values)) = (self.state(name)?, self.own(name, first, values)?);
        fits(name, place, first, values.len())?;
        write_numbers(&mut *self.device, place, first, values)
    }

    /// Writes a weight that is kept in halves from element `first` of the whole on, without rounding: to `upper` the nearest bf16,
    /// and to `lower` the half that completes it to the given f32; see [`rounding`](crate::rounding).
    ///
    /// # Errors
    ///
    /// When there is no such state, it is shorter, or it is of other element types.
    pub fn write_state_halves(
        &mut self,
        [upper, lower]: [&str; 2],
        first: usize,
        values: &[f32],
    ) -> Result<(), ExecError> {
        let (first, values) = self.own(upper, first, values)?;
        let half = |name: &str, dtype: DType| {
            let place = self.state(name)?;
            fits(name, place, first, values.len())?;
            if place.ty.dtype != dtype {
                let ty = place.ty;
                return Err(ExecError::Mismatch(format!("`{name}` is {ty}, which is no half of a weight")));
            }
            Ok(place)
        };
        let places = [half(upper, DType::Bf16)?, half(lower, DType::I16)?];
        write_halves(&mut *self.device, places, first, values)
    }

    /// Reads state as it is stored, whatever its element type, from byte `first` on.
    ///
    /// # Errors
    ///
    /// When there is no such state or it is shorter.
    pub fn read_state_bytes(&self, name: &str, first: u64, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.state_bytes(name, first, bytes.len())?.read(&*self.device, bytes)
    }

    /// Writes state as it is to be stored, from byte `first` on.
    ///
    /// # Errors
    ///
    /// When there is no such state or it is shorter.
    pub fn write_state_bytes(&mut self, name: &str, first: u64, bytes: &[u8]) -> Result<(), ExecError> {
        self.state_bytes(name, first, bytes.len())?.write(&mut *self.device, bytes)
    }

    /// The place of `count` bytes of a state, from its byte `first` on.
    fn state_bytes(&self, name: &str, first: u64, count: usize) -> Result<Place, ExecError> {
        let place = self.state(name)?;
        if first + count as u64 > place.ty.bytes() as u64 {
            let ty = place.ty;
            return Err(ExecError::Mismatch(format!(
                "`{name}` is {ty}, asked for {count} bytes from {first}"
            )));
        }
        Ok(place.from(first))
    }

    fn state(&self, name: &str) -> Result<Place, ExecError> {
        let place = self.states.get(name).copied();
        place.ok_or_else(|| ExecError::Mismatch(format!("there is no state `{name}`")))
    }

    /// Fills in the initial state of a graph. Of divided state a rank draws its own part, with the numbers of the whole.
    pub(crate) fn initialise(&mut self, graph: &Graph, seed: u64) -> Result<(), ExecError> {
        let mut piece = vec![0.0; PIECE];
        // A transient gradient is there only while a schedule runs.
        for state in graph.states().iter().filter(|state| state.kind != StateKind::Transient) {
            match self.shares.get(&state.name).copied() {
                Some(share) => self.draw_share(state, share, seed, &mut piece)?,
                None => self.draw_whole(state, seed, &mut piece)?,
            }
        }
        Ok(())
    }

    fn draw_whole(&mut self, state: &State, seed: u64, piece: &mut [f32]) -> Result<(), ExecError> {
        let place = self.state(&state.name)?;
        for (first, name, shape) in state.pieces() {
            let part = place.from((first * place.ty.dtype.bytes()) as u64);
            let (ty, draw) = (Type { shape, ..place.ty }, Draw { init: &state.init, name, seed });
            if place.tier.is_none() && self.device.draw(part.offset, ty, draw)? {
                continue;
            }
            for (at, count) in steps(0..shape.elements()) {
                init::fill(&state.init, name, seed, at, &mut piece[..count]);
                write_numbers(&mut *self.device, part, at, &piece[..count])?;
            }
        }
        Ok(())
    }

    /// Draws a rank's own elements; those past the end of the whole are 0.
    fn draw_share(
        &mut self,
        state: &State,
        share: Share,
        seed: u64,
        piece: &mut [f32],
    ) -> Result<(), ExecError> {
        let place = self.state(&state.name)?;
        for (first, name, shape) in state.pieces() {
            for (at, count) in steps(share.common(first, shape.elements())) {
                init::fill(&state.init, name, seed, at - first, &mut piece[..count]);
                write_numbers(&mut *self.device, place, at - share.first, &piece[..count])?;
            }
        }
        for (at, count) in steps(share.count..place.ty.shape.elements()) {
            piece[..count].fill(0.0);
            write_numbers(&mut *self.device, place, at, &piece[..count])?;
        }
        Ok(())
    }
}

/// First element and number of elements of each piece of a range.
fn steps(range: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let end = range.end;
    range.step_by(PIECE).map(move |at| (at, PIECE.min(end - at)))
}
