//! A weight that bitsandbytes has quantised, in a model's folder.
//!
//! ```text
//! <module>.weight                               u8, two 4-bit codes in a byte
//! <module>.weight.absmax                        f32, or u8 where scales are in eight bits
//! <module>.weight.nested_absmax                 f32, their scales
//! <module>.weight.quant_state.bitsandbytes__nf4 u8, a JSON object: shape, element type, sizes of blocks, offset
//! <module>.weight.quant_map, .nested_quant_map  f32, the tables, which are always the same
//! <module>.weight, <module>.SCB                 i8 and f32, where codes have eight bits
//! <module>.weight_format                        u8, the order of these codes: 0 is by rows
//! ```
//!
//! Nothing in the folder is trusted: shapes, block sizes and tables must be those known here.

use plimsoll_exec::quantised::{NF4, SCALES, decode_int8, decode_nf4, decode_scale};
use plimsoll_graph::op::{NF4_BLOCK, NF4_SECOND_BLOCK, Quantised};
use safetensors::Dtype;
use serde::Deserialize;

use super::{FileError, ModelFolder, TensorFile};

/// End of the name of a weight's description.
const STATE: &str = ".quant_state.bitsandbytes__nf4";
/// The most bytes of that description.
const STATE_BYTES: u64 = 64 << 10;
/// How far the tables of a file may be from ours: roundings of another machine.
const TABLE_ROUNDING: f32 = 1e-6;
/// Ends of the names of tensors that belong to a 4-bit weight.
const BELONGING: [&str; 5] = [".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", STATE];

/// The description of a 4-bit weight.
#[derive(Deserialize)]
struct Description {
    quant_type: String,
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f64>,
}

/// A quantised weight that lies in a folder.
#[derive(Debug)]
pub struct QuantisedTensor<'a> {
    folder: &'a ModelFolder,
    file: &'a TensorFile,
    name: String,
    /// The form of the codes.
    pub form: Quantised,
    /// Extents `(out, in)` of the tensor.
    pub shape: [usize; 2],
    /// The element type of the dequantised numbers.
    pub dtype: Dtype,
    /// Added to scales in eight bits.
    pub(crate) offset: f32,
}

impl<'a> QuantisedTensor<'a> {
    /// The weight called `name`, if it is quantised.
    ///
    /// # Errors
    ///
    /// When it is quantised in an unknown way, or its parts do not fit each other.
    pub fn find(folder: &'a ModelFolder, name: &str) -> Result<Option<QuantisedTensor<'a>>, FileError> {
        let Some((file, _)) = folder.find([name]) else { return Ok(None) };
        let stored = file.tensor(name)?;
        let tensor = match (stored.dtype, folder.find([format!("{name}{STATE}").as_str()])) {
            (Dtype::I8, _) => {
                let &[rows, columns] = &stored.shape[..] else {
                    return Err(FileError::wrong(
                        file.path(),
                        format!("holds `{name}` as {:?}", stored.shape),
                    ));
                };
                let (form, shape) = (Quantised::Int8, [rows, columns]);
                QuantisedTensor {
                    folder,
                    file,
                    name: name.to_owned(),
                    form,
                    shape,
                    dtype: Dtype::F16,
                    offset: 0.0,
                }
            }
            (Dtype::U8, Some((described, key))) => {
                QuantisedTensor::described(folder, file, name, &description(described, key)?)?
            }
            (Dtype::U8, None) => {
                let why =
                    format!("holds `{name}` in few bits and no `{name}{STATE}`; only nf4 and int8 are read");
                return Err(FileError::wrong(file.path(), why));
            }
            _ => return Ok(None),
        };
        tensor.check()?;
        Ok(Some(tensor))
    }

    fn described(
        folder: &'a ModelFolder,
        file: &'a TensorFile,
        name: &str,
        state: &Description,
    ) -> Result<QuantisedTensor<'a>, FileError> {
        let wrong = |why: String| FileError::wrong(file.path(), format!("describes `{name}` with {why}"));
        let &[rows, columns] = &state.shape[..] else {
            return Err(wrong(format!("shape {:?}", state.shape)));
        };
        let second = state.nested_blocksize.unwrap_or(NF4_SECOND_BLOCK);
        if state.quant_type != "nf4" || state.blocksize != NF4_BLOCK || second != NF4_SECOND_BLOCK {
            let Description { quant_type, blocksize, .. } = state;
            return Err(wrong(format!(
                "{quant_type} in blocks of {blocksize} and {second}; nf4 in blocks of 64 and 256 is read"
            )));
        }
        let dtype = match state.dtype.as_str() {
            "float32" => Dtype::F32,
            "bfloat16" => Dtype::BF16,
            "float16" => Dtype::F16,
            other => {
                return Err(wrong(format!("element type {other}; float32, bfloat16 or float16 is read")));
            }
        };
        let double = state.nested_blocksize.is_some();
        let form = if double { Quantised::Nf4Double } else { Quantised::Nf4 };
        let offset = state.nested_offset.unwrap_or(0.0) as f32;
        Ok(QuantisedTensor {
            folder,
            file,
            name: name.to_owned(),
            form,
            shape: [rows, columns],
            dtype,
            offset,
        })
    }

    /// Every part must have the size that the shape asks for, and every table the numbers that kernels here use.
    fn check(&self) -> Result<(), FileError> {
        if let Some(why) = self.form.refuses(self.shape[1]) {
            return Err(FileError::wrong(self.file.path(), format!("holds `{}`, which {why}", self.name)));
        }
        let ranges = self.form.ranges(self.shape);
        for (suffix, ty) in ranges.into_iter().filter(|(suffix, _)| *suffix != ".nested_offset") {
            let (file, name) = self.part(suffix)?;
            let (has, wanted) = (file.tensor(&name)?.bytes, ty.bytes() as u64);
            if has != wanted {
                let why = format!("holds {has} bytes of `{name}`, and {:?} needs {wanted}", self.shape);
                return Err(FileError::wrong(file.path(), why));
            }
        }
        match self.form {
            Quantised::Int8 => self.check_order(),
            Quantised::Nf4 => self.check_table(".quant_map", &NF4),
            Quantised::Nf4Double => {
                self.check_table(".quant_map", &NF4)?;
                self.check_table(".nested_quant_map", &SCALES.numbers)
            }
        }
    }

    /// Codes of eight bits must lie by rows. Releases of bitsandbytes before 0.45 could save them in the tiles of a GPU's
    /// products, and said so in a number beside them; the earliest wrote no number, and only rows.
    fn check_order(&self) -> Result<(), FileError> {
        let name = format!("{}.weight_format", self.module());
        let Some((file, name)) = self.folder.find([name.as_str()]) else { return Ok(()) };
        let mut order = [0];
        file.read_bytes(name, 0, &mut order)?;
        if order == [0] {
            return Ok(());
        }
        let why = format!(
            "holds `{name}` = {}, codes in an order of GPUs; save the model with bitsandbytes 0.45 or later, which writes 0",
            order[0]
        );
        Err(FileError::wrong(file.path(), why))
    }

    fn check_table(&self, suffix: &str, known: &[f32]) -> Result<(), FileError> {
        let (file, name) = self.part(suffix)?;
        let mut table = vec![0.0; known.len()];
        file.read(&name, 0, &mut table)?;
        // bitsandbytes sets the least entry to -1 while it searches the table, and files may contain that.
        let near = |(index, (a, b)): (usize, (&f32, &f32))| {
            (a - b).abs() <= TABLE_ROUNDING || index == 0 && (a + 1.0).abs() <= TABLE_ROUNDING
        };
        if table.iter().zip(known).enumerate().all(near) {
            return Ok(());
        }
        Err(FileError::wrong(
            file.path(),
            format!("holds `{name}` with other numbers than bitsandbytes writes"),
        ))
    }

    /// The tensor of a range, by the suffix of the weight's name in the arena.
    fn part(&self, suffix: &str) -> Result<(&'a TensorFile, String), FileError> {
        let name = match suffix {
            ".SCB" => format!("{}.SCB", self.module()),
            _ => format!("{}{suffix}", self.name),
        };
        let found = self.folder.find([name.as_str()]).map(|(file, _)| file);
        let missing = || FileError::wrong(self.folder.path(), format!("holds no tensor `{name}`"));
        Ok((found.ok_or_else(missing)?, name))
    }

    /// Bytes of a range as they lie in the file, from byte `first` on.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub(crate) fn bytes(&self, suffix: &str, first: u64, bytes: &mut [u8]) -> Result<(), FileError> {
        let (file, name) = self.part(suffix)?;
        file.read_bytes(&name, first, bytes)
    }

    /// Numbers of `count` rows from row `first` on.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn rows(&self, first: usize, numbers: &mut [f32]) -> Result<(), FileError> {
        let columns = self.shape[1];
        let count = numbers.len() / columns;
        if self.form == Quantised::Int8 {
            let (mut codes, mut scales) = (vec![0; columns], vec![0.0; count]);
            let (file, name) = self.part(".SCB")?;
            file.read(&name, first, &mut scales)?;
            for (row, numbers) in numbers.chunks_exact_mut(columns).enumerate() {
                self.bytes("", ((first + row) * columns) as u64, &mut codes)?;
                decode_int8(&codes, scales[row], numbers);
            }
            return Ok(());
        }
        let scales = self.scales(first * columns / NF4_BLOCK, count * columns / NF4_BLOCK)?;
        let mut codes = vec![0; count * columns / 2];
        self.bytes("", (first * columns / 2) as u64, &mut codes)?;
        decode_nf4(&codes, scales, numbers);
        Ok(())
    }

    /// Scales of `count` blocks from block `first` on.
    fn scales(&self, first: usize, count: usize) -> Result<Vec<f32>, FileError> {
        let mut scales = vec![0.0; count];
        if self.form == Quantised::Nf4 {
            let (file, name) = self.part(".absmax")?;
            file.read(&name, first, &mut scales)?;
            return Ok(scales);
        }
        let begin = first / NF4_SECOND_BLOCK;
        let mut second = vec![0.0; (first + count).div_ceil(NF4_SECOND_BLOCK) - begin];
        let (file, name) = self.part(".nested_absmax")?;
        file.read(&name, begin, &mut second)?;
        let mut codes = vec![0; count];
        self.bytes(".absmax", first as u64, &mut codes)?;
        for (block, (scale, code)) in (first..).zip(scales.iter_mut().zip(codes)) {
            *scale = decode_scale(code, second[block / NF4_SECOND_BLOCK - begin], self.offset);
        }
        Ok(scales)
    }

    /// The name of the layer that the tensor belongs to.
    fn module(&self) -> &str {
        self.name.trim_end_matches(".weight")
    }

    /// Names of the stored tensors that this tensor is made of.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let module = self.module();
        let beside = BELONGING.iter().map(|suffix| format!("{}{suffix}", self.name));
        let ends = [self.name.clone(), format!("{module}.SCB"), format!("{module}.weight_format")];
        ends.into_iter().chain(beside).collect::<Vec<String>>().into_iter()
    }
}

fn description(file: &TensorFile, name: &str) -> Result<Description, FileError> {
    let size = file.tensor(name)?.bytes;
    let unreadable = |why: String| FileError::wrong(file.path(), format!("holds `{name}`, {why}"));
    if size > STATE_BYTES {
        return Err(unreadable(format!("which has {size} bytes and no description")));
    }
    let mut bytes = vec![0; size as usize];
    file.read_bytes(name, 0, &mut bytes)?;
    serde_json::from_slice(&bytes).map_err(|fault| unreadable(format!("which is no description: {fault}")))
}
