//! Alters bytes as files are damaged or forged: bits, numbers, pieces moved and repeated, and words that parsers trip over. In
//! JSON whole values are changed as well, so that what is altered is still read to its end.

use serde_json::{Value as Json, json};

/// Words to put in, for text and for JSON.
const WORDS: [&str; 22] = [
    "-1",
    "0",
    "18446744073709551616",
    "1e999",
    "-0.0",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[",
    "\"\\ud800\"",
    "{{",
    "}}",
    "{%",
    "%}",
    "\u{10ffff}",
    "\n",
    "\0",
    "é",
    "9223372036854775807",
    "../",
];

/// A source of alterations that repeats itself for the same seed and round.
pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64, round: u64) -> Mutator {
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9)
            ^ round.wrapping_mul(0x94d0_49bb_1331_11eb);
        let mut mutator = Mutator(mixed | 1);
        for _ in 0..4 {
            mutator.draw();
        }
        mutator
    }

    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }

    /// One to six alterations.
    pub(crate) fn altered(&mut self, original: &[u8]) -> Vec<u8> {
        if self.below(3) > 0
            && let Ok(mut json) = serde_json::from_slice::<Json>(original)
        {
            for _ in 0..=self.below(3) {
                self.alter_json(&mut json);
            }
            return json.to_string().into_bytes();
        }
        let mut bytes = original.to_vec();
        for _ in 0..=self.below(6) {
            self.alter(&mut bytes);
        }
        bytes
    }

    fn alter(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        let len = self.below(24).min(bytes.len() - at);
        match self.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.draw() as u8,
            2 => drop(bytes.drain(at..at + len)),
            3 => {
                let piece = bytes[at..at + len].to_vec();
                let to = self.below(bytes.len() + 1);
                drop(bytes.splice(to..to, piece));
            }
            4 => {
                let piece = bytes[at..at + len].repeat(1 + self.below(40));
                drop(bytes.splice(at..at, piece));
            }
            5 => bytes.truncate(at),
            6 => self.alter_number(bytes, at),
            _ => {
                let word = WORDS[self.below(WORDS.len())];
                drop(bytes.splice(at..at + len.min(4), word.bytes()));
            }
        }
    }

    /// Replaces a value somewhere inside, or removes one.
    fn alter_json(&mut self, json: &mut Json) {
        let deeper = self.below(8) > 0;
        match json {
            Json::Object(fields) if deeper && !fields.is_empty() => {
                let name = fields.keys().nth(self.below(fields.len())).cloned().unwrap_or_default();
                match self.below(12) {
                    0 => drop(fields.remove(&name)),
                    1 => drop(fields.insert(format!("{name}x"), Json::Null)),
                    _ => fields.get_mut(&name).into_iter().for_each(|value| self.alter_json(value)),
                }
            }
            Json::Array(items) if deeper && !items.is_empty() => {
                let at = self.below(items.len());
                match self.below(8) {
                    0 => drop(items.remove(at)),
                    1 => items.push(items[at].clone()),
                    _ => self.alter_json(&mut items[at]),
                }
            }
            Json::Number(number) if deeper => {
                let near = number.as_i64().unwrap_or(1).wrapping_add(self.below(5) as i64 - 2);
                *json = if self.below(2) == 0 { json!(near) } else { self.value() };
            }
            other => *other = self.value(),
        }
    }

    fn value(&mut self) -> Json {
        let values = [
            json!(0),
            json!(-1),
            json!(1),
            json!(u64::MAX),
            json!(1u64 << 62),
            json!(1u64 << 31),
            json!(0.5),
            json!(1e300),
            json!(""),
            json!("a"),
            json!("((((a*)*)*)*"),
            json!("../../x"),
            json!(null),
            json!(true),
            json!([]),
            json!({}),
            json!([[[[[[[[0]]]]]]]]),
            json!({ "type": "Sequence", "normalizers": [] }),
        ];
        let at = self.below(values.len());
        values[at].clone()
    }

    /// Replaces the next number by another one.
    fn alter_number(&mut self, bytes: &mut Vec<u8>, from: usize) {
        let Some(begin) = bytes[from..].iter().position(u8::is_ascii_digit).map(|at| from + at) else {
            return;
        };
        let len = bytes[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let numbers =
            ["0", "1", "2", "255", "65536", "4294967295", "4611686018427387904", "99999999999999999999"];
        let number = numbers[self.below(numbers.len())];
        drop(bytes.splice(begin..begin + len, number.bytes()));
    }
}
