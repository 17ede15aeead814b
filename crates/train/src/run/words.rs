//! The words that rank 0 says to the others between steps, as bytes that every communicator can send.

use plimsoll_plan::Role;

/// A word, with all that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The run takes no more steps.
    End,
    /// Every rank reports its peak memory and its compute time.
    Figures,
    /// A step begins, behind so many steps and groups of data.
    Step { steps: u64, position: u64 },
    /// State follows, as it was after so many steps and groups of data.
    State { steps: u64, position: u64 },
    /// The rank that owns a piece of the divided state number `state` gives `count` bytes of the whole from byte `first` on.
    Piece { state: u64, first: u64, count: u64 },
    /// All ranks run a schedule, whose weights they divide. Only the inputs of rank 0 count.
    Pass { role: Role },
}

/// Bytes of a word: its kind and three numbers.
pub(crate) const WORD_BYTES: usize = 4 * size_of::<u64>();

impl Word {
    pub(crate) fn to_bytes(self) -> [u8; WORD_BYTES] {
        let numbers = match self {
            Word::End => [0; 4],
            Word::Figures => [5, 0, 0, 0],
            Word::Step { steps, position } => [1, steps, position, 0],
            Word::State { steps, position } => [2, steps, position, 0],
            Word::Piece { state, first, count } => [3, state, first, count],
            Word::Pass { role } => [4, role as u64, 0, 0],
        };
        let mut bytes = [0; WORD_BYTES];
        for (place, number) in bytes.chunks_exact_mut(size_of::<u64>()).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The word in these bytes; an unknown kind counts as the end.
    pub(crate) fn from_bytes(bytes: [u8; WORD_BYTES]) -> Word {
        let number = |at: usize| bytes[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        match number(0) {
            5 => Word::Figures,
            1 => Word::Step { steps: number(1), position: number(2) },
            2 => Word::State { steps: number(1), position: number(2) },
            3 => Word::Piece { state: number(1), first: number(2), count: number(3) },
            4 => role(number(1)).map_or(Word::End, |role| Word::Pass { role }),
            _ => Word::End,
        }
    }
}

/// The role of this number.
fn role(number: u64) -> Option<Role> {
    Role::ALL.into_iter().find(|&role| role as u64 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_wire() {
        let words = [
            Word::End,
            Word::Figures,
            Word::Step { steps: 7, position: 1 << 40 },
            Word::State { steps: 7, position: 8 },
            Word::Piece { state: 3, first: 1 << 33, count: 99 },
        ];
        for word in words.into_iter().chain(Role::ALL.map(|role| Word::Pass { role })) {
            assert_eq!(Word::from_bytes(word.to_bytes()), word);
        }
    }
}
