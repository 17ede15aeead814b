//! The date, for templates that tell it to the model. The time zone is UTC: the same data renders the same anywhere.
//!
//! Fields are those of Python's `datetime.now().strftime` on Linux in the C locale. A field that is absent here is
//! refused: written as it stands it would be learned. Absent are `%E`, `%O`, and flags and widths other than `-`. The
//! clock counts whole seconds, so `%f` is `000000`.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A day, counted from 1970, as year-month-day.
pub(crate) fn day(days: u64) -> String {
    let (year, month, day) = date(days);
    format!("{year}-{month:02}-{day:02}")
}

/// The time in a format of `strftime`.
///
/// # Errors
///
/// The error names the field that is unknown.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let moment = Moment::new(seconds);
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (plain, field) = match rest.strip_prefix('-') {
            Some(behind) => (true, behind.chars().next()),
            None => (false, rest.chars().next()),
        };
        let flag = if plain { "-" } else { "" };
        let Some(field) = field else {
            text.extend(["%", flag]);
            return Ok(text);
        };
        text.push_str(&moment.field(field, plain).ok_or_else(|| format!("%{flag}{field}"))?);
        rest = &rest[flag.len() + field.len_utf8()..];
    }
    text.push_str(rest);
    Ok(text)
}

/// A second of the calendar.
struct Moment {
    seconds: u64,
    /// Days since 1970.
    days: u64,
    year: u64,
    month: u64,
    day: u64,
}

impl Moment {
    fn new(seconds: u64) -> Moment {
        let days = seconds / 86_400;
        let (year, month, day) = date(days);
        Moment { seconds, days, year, month, day }
    }

    fn hour(&self) -> u64 {
        self.seconds / 3600 % 24
    }

    /// The hour on a clock face.
    fn of_twelve(&self) -> u64 {
        (self.hour() + 11) % 12 + 1
    }

    /// The day of the week, 0 for Sunday.
    fn weekday(&self) -> u64 {
        (self.days + 4) % 7
    }

    /// The day of the year, from 0.
    fn of_year(&self) -> u64 {
        self.days - first_day(self.year)
    }

    /// Year and week by ISO 8601, those of the Thursday of this week.
    fn iso(&self) -> (u64, u64) {
        let thursday = self.days + 3 - (self.weekday() + 6) % 7;
        let year = date(thursday).0;
        (year, (thursday - first_day(year)) / 7 + 1)
    }

    /// The text of a field; `plain` numbers are not padded.
    fn field(&self, field: char, plain: bool) -> Option<String> {
        if let Some((number, width, padding)) = self.number(field) {
            let digits = number.to_string();
            let missing = if plain { 0 } else { usize::saturating_sub(width, digits.len()) };
            return Some(padding.repeat(missing) + &digits);
        }
        if let Some(format) = combined(field) {
            return strftime(format, self.seconds).ok();
        }
        let (weekday, month) = (DAYS[self.weekday() as usize], MONTHS[self.month as usize - 1]);
        let half = if self.hour() < 12 { "AM" } else { "PM" };
        Some(match field {
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'p' => half.to_owned(),
            'P' => half.to_lowercase(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            // Python's time has no zone.
            'z' | 'Z' if !plain => String::new(),
            'f' if !plain => "000000".to_owned(),
            _ => return None,
        })
    }

    /// The number of a field, its least number of digits, and the padding before it.
    fn number(&self, field: char) -> Option<(u64, usize, &'static str)> {
        let (weekday, of_year) = (self.weekday(), self.of_year());
        let (number, width) = match field {
            'C' => (self.year / 100, 2),
            'd' | 'e' => (self.day, 2),
            'G' => (self.iso().0, 4),
            'g' => (self.iso().0 % 100, 2),
            'H' | 'k' => (self.hour(), 2),
            'I' | 'l' => (self.of_twelve(), 2),
            'j' => (of_year + 1, 3),
            'M' => (self.seconds / 60 % 60, 2),
            'm' => (self.month, 2),
            'S' => (self.seconds % 60, 2),
            's' => (self.seconds, 1),
            'U' => ((of_year + 7 - weekday) / 7, 2),
            'u' => ((weekday + 6) % 7 + 1, 1),
            'V' => (self.iso().1, 2),
            'W' => ((of_year + 7 - (weekday + 6) % 7) / 7, 2),
            'w' => (weekday, 1),
            'Y' => (self.year, 1),
            'y' => (self.year % 100, 2),
            _ => return None,
        };
        Some((number, width, if matches!(field, 'e' | 'k' | 'l') { " " } else { "0" }))
    }
}

/// The format that a field stands for.
fn combined(field: char) -> Option<&'static str> {
    Some(match field {
        'c' => "%a %b %e %H:%M:%S %Y",
        'D' | 'x' => "%m/%d/%y",
        'F' => "%Y-%m-%d",
        'R' => "%H:%M",
        'r' => "%I:%M:%S %p",
        'T' | 'X' => "%H:%M:%S",
        _ => return None,
    })
}

/// The number of the first day of a year, counted from 1970.
fn first_day(year: u64) -> u64 {
    let before = year - 1;
    365 * (year - 1970) + before / 4 - 1969 / 4 - (before / 100 - 1969 / 100) + before / 400 - 1969 / 400
}

/// Year, month and day of a day number since 1970. Years are counted from March, so that the leap day is the last of
/// its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let text = |seconds| strftime("%d %b %Y, %A %F %T %j %G-W%V-%u %-d %", seconds).unwrap();
        assert_eq!(text(0), "01 Jan 1970, Thursday 1970-01-01 00:00:00 001 1970-W01-4 1 %");
        assert_eq!(text(951_827_696), "29 Feb 2000, Tuesday 2000-02-29 12:34:56 060 2000-W09-2 29 %");
        assert_eq!(text(1_735_689_599), "31 Dec 2024, Tuesday 2024-12-31 23:59:59 366 2025-W01-2 31 %");
        assert_eq!(day(11_016), "2000-02-29");
    }

    #[test]
    fn the_first_day_of_a_year_is_the_first_of_january() {
        for year in 1970..2500 {
            assert_eq!(date(first_day(year)), (year, 1, 1));
        }
    }

    #[test]
    fn a_field_that_is_absent_is_refused_by_its_name() {
        for field in ["%q", "%-q", "%E", "%O", "%_", "%0", "%-z", "%-f", "%é", "%:"] {
            assert_eq!(strftime(&format!("on {field}y"), 0).unwrap_err(), *field);
        }
    }
}
