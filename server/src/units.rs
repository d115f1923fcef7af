//! Quantities in words for people: sizes, counts, shares, durations, times.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};
use std::time::Duration;

/// A size in binary units with three significant digits: `142 KiB`, `67.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // 1023.5 would be printed as "1024".
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// A number of things: exact below a million (`89,514`), else in decimal units (`35.4 M`).
pub fn count(number: u64) -> String {
    const UNITS: [&str; 4] = ["M", "G", "T", "P"];
    if number < 1_000_000 {
        return thousands(number);
    }
    let mut value = number as f64 / 1e6;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Every digit, in groups of three: `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `part` of `whole` in percent: `0.25 %`, and two significant digits where it is less than 0.1 %.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    if part == whole {
        return "100 %".to_owned();
    }
    if share >= 0.095 {
        // What is not all of it is never called 100 %.
        return format!("{:.2} %", share.min(99.99));
    }
    let decimals = (1.0 - share.log10().floor()).clamp(2.0, 12.0) as usize;
    format!("{share:.decimals$} %")
}

/// How many times `large` is `small`: `487x`, `3.4x`.
pub fn ratio(large: u64, small: u64) -> String {
    if small == 0 {
        return "-".to_owned();
    }
    let ratio = large as f64 / small as f64;
    if ratio < 9.95 {
        format!("{ratio:.1}x")
    } else {
        format!("{}x", thousands(ratio.round() as u64))
    }
}

/// What one of `count` things takes of `bytes`: `1.62 B`.
pub fn bytes_per(bytes: u64, count: u64) -> String {
    if count == 0 {
        return "-".to_owned();
    }
    format!("{:.2} B", bytes as f64 / count as f64)
}

/// A duration: `0.42 s`, `16 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 9.95 {
        return format!("{seconds:.2} s");
    }
    if seconds < 59.5 {
        return format!("{seconds:.0} s");
    }
    let seconds = seconds.round() as u64;
    if seconds < 3600 {
        return format!("{} min {} s", seconds / 60, seconds % 60);
    }
    let minutes = (seconds + 30) / 60;
    format!("{} h {} min", minutes / 60, minutes % 60)
}

/// Seconds as a [`duration`].
pub fn seconds(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// A time to wait for, in whole seconds: `16 s`, `3 min 20 s`.
pub fn time_left(left: Duration) -> String {
    let seconds = left.as_secs_f64().ceil();
    if seconds < 60.0 {
        return format!("{seconds:.0} s");
    }
    duration(left)
}

/// Bytes in a time as a rate: `410 MiB/s`.
pub fn rate(count: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    format!("{}/s", bytes((count as f64 / seconds) as u64))
}

/// One thing or several: `1 file`, `1,204 files`.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        thousands(number),
        if number == 1 { one } else { many }
    )
}

/// Milliseconds since 1970 as RFC 3339 in UTC.
pub fn rfc3339(time_ms: i64) -> String {
    timestamp(time_ms).to_string()
}

/// Milliseconds since 1970 in the user's time zone: `2026-11-30 17:15:02 +01:00`.
pub fn local_time(time_ms: i64) -> String {
    ZonedDateTime::new(timestamp(time_ms), TimeZone::system())
        .strftime("%Y-%m-%d %H:%M:%S %:z")
        .to_string()
}

/// The time now, in milliseconds since 1970.
pub fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

fn timestamp(time_ms: i64) -> Timestamp {
    Timestamp::from_millisecond(time_ms).unwrap_or(if time_ms < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    })
}

fn three_digits(value: f64) -> String {
    if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_three_digits_and_never_reach_the_next_unit() {
        let cases = [
            (0, "0 B"),
            (812, "812 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (145_408, "142 KiB"),
            (70_778_880, "67.5 MiB"),
            (1_048_575, "1.0 MiB"),
            (8 << 30, "8.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (size, text) in cases {
            assert_eq!(bytes(size), text, "{size}");
        }
    }

    #[test]
    fn counts_are_exact_below_a_million() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (89_514, "89,514"),
            (999_999, "999,999"),
            (35_400_000, "35.4 M"),
            (999_960_000, "1.0 G"),
            (405_000_000_000, "405 G"),
        ];
        for (number, text) in cases {
            assert_eq!(count(number), text, "{number}");
        }
        assert_eq!(thousands(1_234_567), "1,234,567");
    }

    #[test]
    fn shares_show_what_small_ones_are_and_only_all_is_all() {
        assert_eq!(percent(89_514, 35_400_000), "0.25 %");
        assert_eq!(percent(0, 5), "0 %");
        assert_eq!(percent(0, 0), "0 %");
        assert_eq!(percent(5, 5), "100 %");
        assert_eq!(percent(999_999, 1_000_000), "99.99 %");
        assert_eq!(percent(1, 100_000), "0.0010 %");
        assert_eq!(percent(5, 10_000), "0.050 %");
    }

    #[test]
    fn ratios_and_rates() {
        assert_eq!(ratio(70_778_880, 145_408), "487x");
        assert_eq!(ratio(34, 10), "3.4x");
        assert_eq!(ratio(5, 0), "-");
        assert_eq!(bytes_per(145_012, 89_514), "1.62 B");
        assert_eq!(rate(410 << 20, Duration::from_secs(1)), "410 MiB/s");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let cases = [
            (0.424, "0.42 s"),
            (16.2, "16 s"),
            (59.6, "1 min 0 s"),
            (200.0, "3 min 20 s"),
            (7500.0, "2 h 5 min"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
        assert_eq!(time_left(Duration::from_millis(15_200)), "16 s");
        assert_eq!(time_left(Duration::from_secs(200)), "3 min 20 s");
    }

    #[test]
    fn times_are_rfc_3339_and_extreme_ones_do_no_harm() {
        // `date -u -d @1767225600.25 --iso-8601=ns`
        assert_eq!(rfc3339(1_767_225_600_250), "2026-01-01T00:00:00.25Z");
        assert!(rfc3339(i64::MIN).starts_with('-'));
        assert!(!local_time(i64::MAX).is_empty());
    }
}
