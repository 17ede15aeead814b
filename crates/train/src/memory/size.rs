//! Byte sizes as people write and read them: `16GiB` in, `16.0 GiB` out.
//!
//! A number without a unit is refused, because `--memory 16` could mean bytes, MiB or GiB, and a wrong guess is noticed
//! only much later. Fractions are computed in integers and rounded down to a byte, so that a budget is never larger
//! than stated. Absent: bits, `16G` and `16Gi`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes that parses from and prints as a size with a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size {
    /// The bytes.
    pub bytes: u64,
}

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// A number without a unit.
    NoUnit {
        /// The text as it was written.
        text: String,
    },
    /// Neither a number with a known unit nor a number alone.
    Unclear {
        /// The text as it was written.
        text: String,
    },
    /// More bytes than 64 bits can count.
    TooLarge {
        /// The text as it was written.
        text: String,
    },
}

/// Units in lower case, the form in which they are compared.
const UNITS: [(&str, u64); 11] = [
    ("b", 1),
    ("kb", 1000),
    ("mb", 1000 * 1000),
    ("gb", 1000 * 1000 * 1000),
    ("tb", 1000 * 1000 * 1000 * 1000),
    ("pb", 1000 * 1000 * 1000 * 1000 * 1000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("pib", 1 << 50),
];

/// Number of digits after the point that are read; the 19th is worth less than a byte even of a PiB.
const FRACTION_DIGITS: usize = 18;

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(written: &str) -> Result<Size, SizeError> {
        let text = written.trim();
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..number_end], text[number_end..].trim_start());
        let unclear = || SizeError::Unclear { text: text.to_owned() };
        let too_large = || SizeError::TooLarge { text: text.to_owned() };

        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if !all_digits(whole) || !all_digits(fraction) {
            return Err(unclear());
        }
        if unit.is_empty() {
            return Err(SizeError::NoUnit { text: text.to_owned() });
        }
        let unit = unit.to_ascii_lowercase();
        let (_, unit_bytes) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(unclear)?;

        // Only too many digits can make this parse fail.
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let bytes = u128::from(whole) * u128::from(unit_bytes) + fraction_of(fraction, unit_bytes);
        u64::try_from(bytes).map(|bytes| Size { bytes }).map_err(|_| too_large())
    }
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `0.digits × unit`, rounded down. `digits` holds ASCII digits only.
fn fraction_of(digits: &str, unit: u64) -> u128 {
    let (numerator, denominator) = digits
        .bytes()
        .take(FRACTION_DIGITS)
        .fold((0u128, 1u128), |(sum, scale), digit| (sum * 10 + u128::from(digit - b'0'), scale * 10));
    numerator * u128::from(unit) / denominator
}

/// Binary units and three significant digits; between 1000 and 1023 of a unit, all four.
impl Size {
    /// The text of a need, rounded up: a budget of the size that is read from it is no smaller.
    pub fn at_least(self) -> String {
        self.text(true)
    }

    /// Three significant digits, rounded to the nearest or up.
    fn text(self, up: bool) -> String {
        if self.bytes < 1024 {
            return format!("{} B", self.bytes);
        }
        let mut value = self.bytes as f64 / 1024.0;
        let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB"].into_iter();
        let mut unit = units.next().unwrap_or_default();
        // 1023.5 would be printed as 1024, which is 1.00 of the next unit.
        while value >= 1023.5 {
            let Some(larger) = units.next() else { break };
            (value, unit) = (value / 1024.0, larger);
        }
        // The bounds are where rounding would add a digit: 9.996 must become 10.0, not 10.00.
        let decimals = |value: f64| usize::from(value < 9.995) + usize::from(value < 99.95);
        if up {
            let parts = [1.0, 10.0, 100.0][decimals(value)];
            value = (value * parts).ceil() / parts;
        }
        let decimals = decimals(value);
        format!("{value:.decimals$} {unit}")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text(false))
    }
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::NoUnit { text } => {
                write!(f, "`{text}` has no unit; write {text}B, {text}MiB or {text}GiB")
            }
            SizeError::Unclear { text } => write!(
                f,
                "`{text}` is no size; write a number and a unit, such as 16GiB, 1.5GiB, 512MiB, 16GB or \
                 1234B (units: B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB)"
            ),
            SizeError::TooLarge { text } => {
                write!(f, "`{text}` is more than 64 bits can count; the largest size is 16777215TiB")
            }
        }
    }
}

impl std::error::Error for SizeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimal_and_binary_units_are_told_apart() {
        assert_eq!(bytes("16GiB"), 16 << 30);
        assert_eq!(bytes("16GB"), 16_000_000_000);
        assert_eq!(bytes("512MiB"), 512 << 20);
        assert_eq!(bytes("3kB"), 3000);
        assert_eq!(bytes("3KiB"), 3072);
        assert_eq!(bytes("2TB"), 2_000_000_000_000);
        assert_eq!(bytes("1234B"), 1234);
        assert_eq!(bytes("0B"), 0);
    }

    #[test]
    fn spaces_and_case_do_not_matter() {
        assert_eq!(bytes(" 64 MiB "), 64 << 20);
        assert_eq!(bytes("16gib"), 16 << 30);
        assert_eq!(bytes("16gb"), 16_000_000_000);
    }

    #[test]
    fn fractions_are_exact_and_rounded_down() {
        assert_eq!(bytes("1.5GiB"), 3 << 29);
        assert_eq!(bytes("0.3GB"), 300_000_000);
        assert_eq!(bytes("0.1KiB"), 102);
        assert_eq!(bytes("1.99999999999999999999999999999KiB"), 2047);
    }

    #[test]
    fn a_number_alone_is_refused_with_what_to_write_instead() {
        assert_eq!(fault("1234"), "`1234` has no unit; write 1234B, 1234MiB or 1234GiB");
    }

    #[test]
    fn anything_else_names_the_accepted_forms() {
        for text in ["16 gigs", "16G", "", "GiB", "-1GiB", "1e3MiB", "1.GiB", ".5GiB", "1.2.3GiB", "16 GiB x"]
        {
            let fault = fault(text);
            assert!(fault.starts_with(&format!("`{text}` is no size; write")), "{fault}");
            assert!(fault.contains("16GiB") && fault.contains("1234B"), "{fault}");
            let units = fault.split("units: ").nth(1).unwrap().trim_end_matches(')').to_lowercase();
            assert_eq!(units, UNITS.map(|(name, _)| name).join(", "), "all that are read are named");
        }
    }

    #[test]
    fn overflow_is_an_error_at_the_first_byte_too_many() {
        assert_eq!(bytes("18446744073709551615B"), u64::MAX);
        assert_eq!(bytes("16777215TiB"), 16_777_215 << 40);
        for text in ["18446744073709551616B", "16777216TiB", "99999999999999999999999TiB"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge { text: text.to_owned() }));
        }
    }

    #[test]
    fn sizes_print_with_three_significant_digits() {
        let cases: [(u64, &str); 10] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (10 * 1024 - 1, "10.0 KiB"),
            (512 << 20, "512 MiB"),
            (1013 << 20, "1013 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (16 << 30, "16.0 GiB"),
            (u64::MAX, "16384 PiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Size { bytes }.to_string(), text);
        }
        assert_eq!(format!("{:>10}|", Size { bytes: 1 << 30 }), "  1.00 GiB|");
    }

    #[test]
    fn a_need_is_never_printed_as_less_than_it_is() {
        let cases: [(u64, &str); 7] = [
            ((42 << 20) + 1, "42.1 MiB"),
            (42 << 20, "42.0 MiB"),
            ((10 << 10) - 1, "10.0 KiB"),
            (10_231, "10.0 KiB"),
            ((418 << 20) + 1, "419 MiB"),
            ((4 << 30) + 1, "4.01 GiB"),
            (1000, "1000 B"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Size { bytes }.at_least(), text);
        }
    }

    proptest! {
        #[test]
        fn a_printed_need_reads_back_as_enough(need in 0u64..1 << 50) {
            let read = bytes(&Size { bytes: need }.at_least());
            prop_assert!(read >= need, "{need} became {read}");
        }

        #[test]
        fn what_is_printed_reads_back_within_half_a_percent(bytes in 0u64..1 << 50) {
            let read = Size { bytes }.to_string().parse::<Size>().unwrap().bytes;
            prop_assert!(read.abs_diff(bytes) as f64 <= 0.005 * bytes as f64 + 1.0, "{bytes} became {read}");
        }
    }

    fn bytes(text: &str) -> u64 {
        text.parse::<Size>().unwrap().bytes
    }

    fn fault(text: &str) -> String {
        text.parse::<Size>().unwrap_err().to_string()
    }
}
