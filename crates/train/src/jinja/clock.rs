//! The date, for templates that tell it to the model. The time zone is UTC: the same data renders the same anywhere.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The fields of `strftime` that chat templates use; others stay as they are.
pub(crate) fn strftime(format: &str, seconds: u64) -> String {
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
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (weekday, month_name) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let _ = match characters.next() {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{:02}", year % 100),
            Some('m') => write!(text, "{month:02}"),
            Some('d') => write!(text, "{day:02}"),
            Some('B') => write!(text, "{month_name}"),
            Some('b') => write!(text, "{}", &month_name[..3]),
            Some('A') => write!(text, "{weekday}"),
            Some('a') => write!(text, "{}", &weekday[..3]),
            Some('H') => write!(text, "{:02}", second / 3600),
            Some('M') => write!(text, "{:02}", second / 60 % 60),
            Some('S') => write!(text, "{:02}", second % 60),
            None | Some('%') => write!(text, "%"),
            Some(other) => write!(text, "%{other}"),
        };
    }
    text
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
        let text = |seconds| strftime("%d %b %Y, %A %Y-%m-%d %H:%M:%S %y %B %a %% %q", seconds);
        assert_eq!(text(0), "01 Jan 1970, Thursday 1970-01-01 00:00:00 70 January Thu % %q");
        assert_eq!(text(951_827_696), "29 Feb 2000, Tuesday 2000-02-29 12:34:56 00 February Tue % %q");
        assert_eq!(text(1_735_689_599), "31 Dec 2024, Tuesday 2024-12-31 23:59:59 24 December Tue % %q");
    }
}
