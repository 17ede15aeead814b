//! Numbers as bytes of a device: f32 is copied directly, other types are encoded and decoded a piece at a time, without
//! a copy of the whole.

use half::{bf16, f16};
use plimsoll_graph::{DType, Type};
use plimsoll_plan::Tier;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::error::ExecError;
use crate::rounding::split;

/// Elements initialised, converted or moved to or from a tier at a time: bounded, because the bytes are outside the arena.
pub(crate) const PIECE: usize = 16 << 10;
/// Elements that are converted on the stack: scalars and short vectors.
const SMALL_PIECE: usize = 256;
/// Bytes of the widest element.
const WIDEST: usize = 4;

/// Values for a graph input.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Floats.
    F32(&'a [f32]),
    /// Integers.
    I32(&'a [i32]),
}

impl Data<'_> {
    pub(crate) fn ty(&self) -> (DType, usize) {
        match self {
            Data::F32(values) => (DType::F32, values.len()),
            Data::I32(values) => (DType::I32, values.len()),
        }
    }
}

/// A range that the caller writes or reads, of the arena or of a tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) ty: Type,
    pub(crate) tier: Option<Tier>,
    pub(crate) offset: u64,
}

impl Place {
    /// The same place, from its byte `first` on.
    pub(crate) fn from(self, first: u64) -> Place {
        Place { offset: self.offset + first, ..self }
    }

    pub(crate) fn read(self, device: &dyn Device, bytes: &mut [u8]) -> Result<(), ExecError> {
        match self.tier {
            None => device.read(self.offset, bytes),
            Some(tier) => device.read_tier(tier, self.offset, bytes),
        }
    }

    pub(crate) fn write(self, device: &mut dyn Device, bytes: &[u8]) -> Result<(), ExecError> {
        match self.tier {
            None => device.write(self.offset, bytes),
            Some(tier) => device.write_tier(tier, self.offset, bytes),
        }
    }
}

/// Calls `body` with a buffer for `count` elements, or for a smaller piece of them, and the number of elements it
/// holds.
fn with_piece<T>(count: usize, body: impl FnOnce(&mut [u8], usize) -> T) -> T {
    if count <= SMALL_PIECE {
        return body(&mut [0; WIDEST * SMALL_PIECE], SMALL_PIECE);
    }
    // A transfer has a fixed cost, so elements are sent in few large pieces.
    let elements = count.min(PIECE);
    body(&mut vec![0; WIDEST * elements], elements)
}

/// Refuses a range that is not all there.
pub(crate) fn fits(name: &str, place: Place, first: usize, count: usize) -> Result<(), ExecError> {
    if first + count > place.ty.shape.elements() {
        return Err(ExecError::Mismatch(format!(
            "`{name}` is {}, asked for {count} numbers from {first}",
            place.ty
        )));
    }
    Ok(())
}

/// Reads elements `first …` of a range of any type.
pub(crate) fn read_numbers(
    device: &dyn Device,
    name: &str,
    place: Place,
    first: usize,
    values: &mut [f32],
) -> Result<(), ExecError> {
    fits(name, place, first, values.len())?;
    read_each(place, first, values, |place, bytes| place.read(device, bytes))
}

/// Reads an output of the schedule that ran last.
pub(crate) fn read_output(
    device: &dyn Device,
    name: &str,
    place: Place,
    values: &mut [f32],
) -> Result<(), ExecError> {
    fits(name, place, 0, values.len())?;
    read_each(place, 0, values, |place, bytes| device.read_output(place.offset, bytes))
}

/// Reads elements in pieces.
fn read_each(
    place: Place,
    first: usize,
    values: &mut [f32],
    read: impl Fn(Place, &mut [u8]) -> Result<(), ExecError>,
) -> Result<(), ExecError> {
    let (dtype, width) = (place.ty.dtype, place.ty.dtype.bytes());
    if dtype == DType::F32 {
        return read(place.from((width * first) as u64), values.as_mut_bytes());
    }
    with_piece(values.len(), |bytes, elements| {
        for (piece, values) in values.chunks_mut(elements).enumerate() {
            let bytes = &mut bytes[..width * values.len()];
            read(place.from((width * (first + elements * piece)) as u64), bytes)?;
            decode_numbers(dtype, bytes, values);
        }
        Ok(())
    })
}

/// Writes an input of the schedule that runs next, which is of the type of `data`.
pub(crate) fn write_input(device: &mut dyn Device, place: Place, data: Data) -> Result<(), ExecError> {
    match data {
        Data::F32(values) => device.write_input(place.offset, values.as_bytes()),
        Data::I32(values) => device.write_input(place.offset, values.as_bytes()),
    }
}

/// Writes elements `first …` of a range of any float type or code.
pub(crate) fn write_numbers(
    device: &mut dyn Device,
    place: Place,
    first: usize,
    values: &[f32],
) -> Result<(), ExecError> {
    let dtype = place.ty.dtype;
    if dtype == DType::F32 {
        return place.from((dtype.bytes() * first) as u64).write(device, values.as_bytes());
    }
    write_each(device, place, first, values, |value, bytes| encode(dtype, value, bytes))
}

/// Writes elements `first …` of two ranges that together are f32: the nearest bf16, and the half that completes it.
pub(crate) fn write_halves(
    device: &mut dyn Device,
    [upper, lower]: [Place; 2],
    first: usize,
    values: &[f32],
) -> Result<(), ExecError> {
    write_each(device, upper, first, values, |value, bytes| {
        bytes.copy_from_slice(&split(value).0.to_ne_bytes());
    })?;
    write_each(device, lower, first, values, |value, bytes| {
        bytes.copy_from_slice(&split(value).1.to_ne_bytes());
    })
}

/// Writes elements in pieces.
fn write_each<T: Copy>(
    device: &mut dyn Device,
    place: Place,
    first: usize,
    values: &[T],
    encode: impl Fn(T, &mut [u8]),
) -> Result<(), ExecError> {
    let width = place.ty.dtype.bytes();
    with_piece(values.len(), |bytes, elements| {
        for (piece, values) in values.chunks(elements).enumerate() {
            let bytes = &mut bytes[..width * values.len()];
            for (bytes, &value) in bytes.chunks_exact_mut(width).zip(values) {
                encode(value, bytes);
            }
            place.from((width * (first + elements * piece)) as u64).write(device, bytes)?;
        }
        Ok(())
    })
}

/// The bytes of an element, as many as its type has.
fn encode(dtype: DType, value: f32, bytes: &mut [u8]) {
    match dtype {
        DType::F32 => bytes.copy_from_slice(&value.to_ne_bytes()),
        DType::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
        DType::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
        DType::I32 => bytes.copy_from_slice(&(value.round_ties_even() as i32).to_ne_bytes()),
        DType::I16 => bytes.copy_from_slice(&(value.round_ties_even() as i16).to_ne_bytes()),
        DType::U8 => bytes.copy_from_slice(&[value.round_ties_even() as u8]),
    }
}

/// Decodes elements as they are stored: f32 holds every element type of state exactly.
pub fn decode_numbers(dtype: DType, bytes: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(dtype.bytes())) {
        *value = decode(dtype, bytes);
    }
}

/// Decodes an element from its `bytes`.
fn decode(dtype: DType, bytes: &[u8]) -> f32 {
    let pair = || [bytes[0], bytes[1]];
    let quad = || [bytes[0], bytes[1], bytes[2], bytes[3]];
    match dtype {
        DType::F32 => f32::from_ne_bytes(quad()),
        DType::Bf16 => bf16::from_ne_bytes(pair()).to_f32(),
        DType::F16 => f16::from_ne_bytes(pair()).to_f32(),
        DType::I32 => i32::from_ne_bytes(quad()) as f32,
        DType::I16 => f32::from(i16::from_ne_bytes(pair())),
        DType::U8 => f32::from(bytes[0]),
    }
}
