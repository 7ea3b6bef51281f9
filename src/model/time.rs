//! Two clocks that are never mixed: monotonic time for durations, wall time for display. PURE.
//!
//! A gateway without an RTC boots with a time in the past and steps its wall clock later, so no duration is the difference of two
//! wall times, but for the age of a back-off after a reboot, where a wrong one only ends a wait.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Whole seconds, as in grace periods of the API and the CRI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub i64);

/// An instant on the monotonic clock, in nanoseconds since boot; may be negative for an instant before boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub i64);

/// An instant on the wall clock, in nanoseconds since the Unix epoch. For display only, never subtracted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub i64);

/// One reading of both clocks, as input for pure code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For durations.
    pub mono: Mono,
    /// For display.
    pub wall: Wall,
}

impl Mono {
    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;
    /// Saturates at the far future instead of wrapping.
    fn add(self, after: Duration) -> Mono {
        Mono(self.0.saturating_add(i64::try_from(after.as_nanos()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Mono {
    type Output = Mono;
    fn sub(self, before: Duration) -> Mono {
        Mono(self.0.saturating_sub(i64::try_from(before.as_nanos()).unwrap_or(i64::MAX)))
    }
}

impl Now {
    /// A runtime's wall timestamp as a monotonic instant, clamped to [boot, now]: after a step of the clock the age may be
    /// wrong, but never negative and never older than this boot.
    ///
    /// Called once per timestamp; the result is kept (`ContainerStatus::finished_mono`).
    pub fn mono_of(self, at: Wall) -> Mono {
        let age = self.wall.0.saturating_sub(at.0).max(0);
        Mono(self.mono.0.saturating_sub(age).clamp(0, self.mono.0.max(0)))
    }
}

impl Wall {
    /// The instant this many seconds after the beginning of a day of the Gregorian calendar, in UTC. Saturates at the range of
    /// 64 bits (1677, 2262).
    pub fn of_civil(year: i64, month: i64, day: i64, seconds: i64) -> Self {
        let seconds = days_from_civil(year, month, day).saturating_mul(86_400).saturating_add(seconds);
        Self(seconds.saturating_mul(1_000_000_000))
    }
}

/// RFC 3339 in UTC with second precision, as the API shows times: `2026-01-02T03:04:05Z`.
impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1_000_000_000);
        let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
        let of_day = seconds.rem_euclid(86_400);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            of_day / 3600,
            of_day / 60 % 60,
            of_day % 60
        )
    }
}

/// RFC 3339 in UTC with nine digits of the second's fraction (the kubelet's `RFC3339NanoFixed`).
#[derive(Clone, Copy, Debug)]
pub struct NanoFixed(pub Wall);

impl fmt::Display for NanoFixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.to_string();
        write!(f, "{}.{:09}Z", whole.trim_end_matches('Z'), self.0.0.rem_euclid(1_000_000_000))
    }
}

/// Year, month and day of a day number counted from 1970-01-01 (Hinnant's `civil_from_days`).
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The day number of a date, counted from 1970-01-01 (Hinnant's `days_from_civil`).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_is_shown_as_rfc_3339() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(Wall(seconds * 1_000_000_000).to_string(), shown);
        }
    }

    #[test]
    fn days_are_counted_both_ways() {
        for day in (-800_000..800_000).step_by(7) {
            let (year, month, of_month) = civil_from_days(day);
            assert_eq!(days_from_civil(year, month, of_month), day, "{year}-{month}-{of_month}");
        }
        assert_eq!(Wall::of_civil(2026, 1, 1, 1), Wall(1_767_225_601_000_000_000));
        assert_eq!(Wall::of_civil(9999, 1, 1, 0), Wall(i64::MAX));
    }

    #[test]
    fn fractions_have_nine_digits() {
        for (nanos, shown) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (1_120_000_000, "1970-01-01T00:00:01.120000000Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
        ] {
            assert_eq!(NanoFixed(Wall(nanos)).to_string(), shown);
        }
    }

    #[test]
    fn a_wall_time_is_clamped_between_boot_and_now() {
        let now = Now { mono: Mono(100), wall: Wall(1_000) };
        assert_eq!(now.mono_of(Wall(990)), Mono(90));
        assert_eq!(now.mono_of(Wall(5_000)), Mono(100), "in the future: the clock was set back");
        assert_eq!(now.mono_of(Wall(-5_000)), Mono(0), "before boot: the clock was set forward");
    }
}
