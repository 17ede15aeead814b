//! The steps of a program: launches, products of the library, copies and fills.

use std::fmt;

use plimsoll_exec::ExecError;

use super::library::{Attention, Product, RankExchange};
use super::place::Place;

/// Ids and scores that a kernel checks while it runs. The device keeps one word for each table size and reads it when it next
/// waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// Ids of rows of a table with this many rows.
    Token {
        /// Rows of the table.
        rows: usize,
    },
    /// Targets among this many words.
    Target {
        /// Words of the vocabulary.
        words: usize,
    },
    /// Scores of experts, which must be numbers; the id is the expert's.
    Score {
        /// The block that the router lies in; empty if that is not known.
        block: String,
    },
    /// Indices among this many experts.
    Expert {
        /// Experts of a router.
        experts: usize,
    },
}

impl Check {
    /// The same check without a name: one for all routers.
    #[must_use]
    pub fn nameless(self) -> Check {
        if let Check::Score { .. } = self { Check::Score { block: String::new() } } else { self }
    }

    /// The error for an id outside its range, in the CPU's words.
    pub fn fault(&self, id: i32) -> ExecError {
        ExecError::Data(match self {
            Check::Token { rows } => format!("token id {id} is outside the vocabulary of {rows}"),
            Check::Target { words } => format!("target {id} is outside the vocabulary of {words}"),
            Check::Expert { experts } => format!("expert {id} is outside the {experts} experts"),
            Check::Score { block } => {
                let why = format!("the router's score of expert {id} is not a number");
                return ExecError::NotFinite(why).within(block);
            }
        })
    }
}

/// One argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// An address in the arena.
    Pointer(Place),
    /// The null address: an operand that is missing.
    Null,
    /// The address of the word where a check reports.
    Check(Check),
    /// 32 bits without a sign.
    U32(u32),
    /// 32 bits with a sign.
    I32(i32),
    /// 64 bits without a sign.
    U64(u64),
    /// 64 bits with a sign.
    I64(i64),
    /// A float.
    F32(f32),
    /// A struct that is passed by value, its fields in order, laid out as C does.
    Struct(Vec<Arg>),
}

impl Arg {
    /// Alignment in C.
    pub fn alignment(&self) -> usize {
        match self {
            Arg::Pointer(_) | Arg::Null | Arg::Check(_) | Arg::U64(_) | Arg::I64(_) => 8,
            Arg::U32(_) | Arg::I32(_) | Arg::F32(_) => 4,
            Arg::Struct(fields) => fields.iter().map(Arg::alignment).max().unwrap_or(1),
        }
    }

    /// Appends the bytes of the argument as a kernel expects them; `address` turns places into addresses and `check`
    /// names the word of a check.
    pub fn write(
        &self,
        to: &mut Vec<u8>,
        address: &dyn Fn(Place) -> u64,
        check: &mut dyn FnMut(Check) -> u64,
    ) {
        match self {
            Arg::Pointer(place) => to.extend(address(*place).to_ne_bytes()),
            Arg::Null => to.extend(0u64.to_ne_bytes()),
            Arg::Check(which) => to.extend(check(which.clone()).to_ne_bytes()),
            Arg::U32(number) => to.extend(number.to_ne_bytes()),
            Arg::I32(number) => to.extend(number.to_ne_bytes()),
            Arg::U64(number) => to.extend(number.to_ne_bytes()),
            Arg::I64(number) => to.extend(number.to_ne_bytes()),
            Arg::F32(number) => to.extend(number.to_ne_bytes()),
            Arg::Struct(fields) => {
                let mut bytes = Vec::new();
                for field in fields {
                    bytes.resize(bytes.len().next_multiple_of(field.alignment()), 0);
                    field.write(&mut bytes, address, check);
                }
                bytes.resize(bytes.len().next_multiple_of(self.alignment()), 0);
                to.append(&mut bytes);
            }
        }
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Name of the kernel.
    pub kernel: String,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x and y.
    pub block: [u32; 2],
    /// Bytes of shared memory beyond those that the kernel declares.
    pub shared: u32,
    /// Arguments, in the kernel's order.
    pub args: Vec<Arg>,
}

/// One thing a stream does.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamStep {
    /// Launches a kernel.
    Launch(Launch),
    /// Has the library multiply matrices.
    Product(Product),
    /// Has the library run attention or its derivative.
    Attention(Attention),
    /// Begins to exchange values with other ranks. The steps behind it run beside the exchange.
    Exchange(RankExchange),
    /// Has the steps behind it wait for an exchange.
    Await {
        /// The number of the exchange.
        exchange: usize,
    },
    /// Copies bytes within the arena; the ranges do not overlap.
    Copy {
        /// First byte read.
        from: Place,
        /// First byte written.
        to: Place,
        /// Number of bytes.
        bytes: u64,
    },
    /// Sets bytes to zero.
    Zero {
        /// First byte written.
        to: Place,
        /// Number of bytes.
        bytes: u64,
    },
}

impl fmt::Display for StreamStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamStep::Launch(launch) => {
                let ([x, y, z], [a, b]) = (launch.grid, launch.block);
                write!(f, "{}<<<{x}x{y}x{z}, {a}x{b}, {}>>>", launch.kernel, launch.shared)
            }
            StreamStep::Product(product) => write!(f, "product {:?}", product.signature),
            StreamStep::Attention(attention) => write!(f, "attention {:?}", attention.shape),
            StreamStep::Exchange(exchange) => {
                write!(f, "{} of {} {}", exchange.collective.name(), exchange.whole, exchange.dtype)
            }
            StreamStep::Await { exchange } => write!(f, "await exchange {exchange}"),
            StreamStep::Copy { from, to, bytes } => write!(f, "copy {}+{bytes} -> {}", from.0, to.0),
            StreamStep::Zero { to, bytes } => write!(f, "zero {}+{bytes}", to.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(arg: &Arg) -> Vec<u8> {
        let mut bytes = Vec::new();
        arg.write(&mut bytes, &|place| 0x1000 + place.0, &mut |_| 7);
        bytes
    }

    #[test]
    fn a_struct_is_laid_out_as_c_does() {
        let fields = vec![Arg::I32(1), Arg::Pointer(Place(2)), Arg::F32(0.0), Arg::I32(3), Arg::U32(4)];
        let all = bytes(&Arg::Struct(fields));
        assert_eq!(all.len(), 32, "padding before the pointer and at the end");
        assert_eq!(all[..4], 1i32.to_ne_bytes());
        assert_eq!(all[8..16], 0x1002u64.to_ne_bytes());
        assert_eq!(all[24..28], 4u32.to_ne_bytes());
    }

    #[test]
    fn a_missing_operand_is_the_null_address() {
        assert_eq!(bytes(&Arg::Null), [0; 8]);
        assert_eq!(bytes(&Arg::Check(Check::Token { rows: 3 })), 7u64.to_ne_bytes());
    }
}
