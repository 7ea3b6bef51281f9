//! Kubernetes quantities (`resource.Quantity`): `500m`, `1.5Gi`, `12e6`. PURE, exact, without floating point.
//!
//! The API's Go type keeps either a scaled 64-bit number or a big decimal; parsing keeps at most nine decimal
//! places, rounding up. One count of billionths holds the same values.

use std::fmt;

mod formatted;

pub(crate) use formatted::{FormattedQuantity, shown, shown_bytes, shown_count};

const NANO: u128 = 1_000_000_000;

/// A quantity in billionths of a unit.
///
/// Saturates at ±1.7e29 units, far above what the API's accessors can return. Deviation: where Go's accessors
/// overflow (more than 2^63-1 units) they return 0 or wrap around; here the value stays at the largest number,
/// so that an absurd limit is not read as "no limit".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

/// An invalid quantity; the API's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantityError(&'static str);

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for QuantityError {}

const FORMAT_WRONG: QuantityError = QuantityError(
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
);
const SUFFIX_WRONG: QuantityError = QuantityError("unable to parse quantity's suffix");

/// Multiplier of a suffix.
#[derive(Clone, Copy)]
enum Suffix {
    /// A power of two: `Ki` is 10.
    Binary(u32),
    /// A power of ten: `m` is -3.
    Decimal(i64),
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// From whole units: bytes.
    pub fn from_units(units: i64) -> Self {
        Self(i128::from(units) * 1_000_000_000)
    }

    /// From thousandths: millicores.
    pub fn from_millis(millis: i64) -> Self {
        Self(i128::from(millis) * 1_000_000)
    }

    /// Parses a quantity as `ParseQuantity` does: a sign, digits with at most one point, a suffix. Without a digit it is zero
    /// (`Mi` is 0), as there.
    ///
    /// Finer than a billionth is rounded away from zero; binary suffixes are capped at 2^63-1 units.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(FORMAT_WRONG);
        }
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (whole, rest) = digits(unsigned);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => digits(rest),
            None => ("", rest),
        };
        let letters = rest.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
        let (_, excess) = digits(letters.strip_prefix(['-', '+']).unwrap_or(letters));
        if !excess.is_empty() {
            return Err(FORMAT_WRONG);
        }
        let suffix = suffix(rest)?;
        let magnitude = i128::try_from(magnitude(whole, fraction, suffix)).unwrap_or(i128::MAX);
        Ok(Self(if text.starts_with('-') { -magnitude } else { magnitude }))
    }

    /// Billionths: the exact value, for writing it.
    pub fn billionths(self) -> i128 {
        self.0
    }

    /// Whole units, rounded away from zero (`Value`).
    pub fn value(self) -> i64 {
        self.scaled(1_000_000_000)
    }

    /// Thousandths, rounded away from zero (`MilliValue`).
    pub fn milli_value(self) -> i64 {
        self.scaled(1_000_000)
    }

    fn scaled(self, unit: i128) -> i64 {
        let quotient = self.0 / unit;
        let rounded = if self.0 % unit == 0 { quotient } else { quotient + self.0.signum() };
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }

    /// True for zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// True above zero (`Sign() == 1`).
    pub fn is_positive(self) -> bool {
        self.0 > 0
    }
}

impl std::ops::Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Splits the leading digits off.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

fn suffix(text: &str) -> Result<Suffix, QuantityError> {
    Ok(match text {
        "n" => Suffix::Decimal(-9),
        "u" => Suffix::Decimal(-6),
        "m" => Suffix::Decimal(-3),
        "" => Suffix::Decimal(0),
        "k" => Suffix::Decimal(3),
        "M" => Suffix::Decimal(6),
        "G" => Suffix::Decimal(9),
        "T" => Suffix::Decimal(12),
        "P" => Suffix::Decimal(15),
        "E" => Suffix::Decimal(18),
        "Ki" => Suffix::Binary(10),
        "Mi" => Suffix::Binary(20),
        "Gi" => Suffix::Binary(30),
        "Ti" => Suffix::Binary(40),
        "Pi" => Suffix::Binary(50),
        "Ei" => Suffix::Binary(60),
        _ => {
            let exponent = text.strip_prefix(['e', 'E']).ok_or(SUFFIX_WRONG)?;
            Suffix::Decimal(exponent.parse().map_err(|_| SUFFIX_WRONG)?)
        }
    })
}

/// Billionths, rounded up, saturating.
fn magnitude(whole: &str, fraction: &str, suffix: Suffix) -> u128 {
    let (multiplier, divide_by_ten) = match suffix {
        Suffix::Binary(power) => (Some(NANO << power), 0),
        Suffix::Decimal(exponent) if exponent >= 0 => {
            (u32::try_from(exponent).ok().and_then(power_of_ten), 0)
        }
        Suffix::Decimal(exponent) => (Some(NANO), exponent.unsigned_abs()),
    };
    let whole_number =
        whole.bytes().try_fold(0u128, |n, d| n.checked_mul(10)?.checked_add(u128::from(d - b'0')));
    if whole_number == Some(0) && fraction.bytes().all(|d| d == b'0') {
        return 0;
    }
    let (Some(whole_number), Some(multiplier)) = (whole_number, multiplier) else { return u128::MAX };
    // From the last digit to the first: the floor of nested divisions is the floor of the whole division.
    let mut inexact = false;
    let mut below_one = 0u128;
    for digit in fraction.bytes().rev() {
        let sum = below_one + u128::from(digit - b'0') * multiplier;
        inexact |= !sum.is_multiple_of(10);
        below_one = sum / 10;
    }
    let mut nanos = whole_number.saturating_mul(multiplier).saturating_add(below_one);
    for _ in 0..divide_by_ten.min(40) {
        inexact |= !nanos.is_multiple_of(10);
        nanos /= 10;
    }
    nanos = nanos.saturating_add(u128::from(inexact));
    match suffix {
        // ParseQuantity caps binary quantities, and these only.
        Suffix::Binary(_) => nanos.min(u128::from(i64::MAX.unsigned_abs()) * NANO),
        Suffix::Decimal(_) => nanos,
    }
}

/// Billionths in ten to that power of units; `None` on overflow.
fn power_of_ten(exponent: u32) -> Option<u128> {
    if exponent > 27 { None } else { Some(NANO * 10u128.pow(exponent)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix_multiplies() {
        for (text, nanos) in [
            ("0", 0),
            ("1n", 1),
            ("1u", 1_000),
            ("1m", 1_000_000),
            ("1", 1_000_000_000),
            ("+1", 1_000_000_000),
            ("-1", -1_000_000_000),
            ("1k", 1_000_000_000_000),
            ("1M", 1_000_000_000_000_000),
            ("1G", 1_000_000_000_000_000_000),
            ("1T", 1_000_000_000_000_000_000_000),
            ("1P", 1_000_000_000_000_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000_000_000_000),
            ("1Ki", 1_024_000_000_000),
            ("1.5Gi", 1_610_612_736_000_000_000),
            ("1e3", 1_000_000_000_000),
            ("1E-3", 1_000_000),
            ("1.", 1_000_000_000),
            (".5", 500_000_000),
            ("00012", 12_000_000_000),
            ("0.0000000001", 1),
            ("-0.0000000001", -1),
            ("0.1Ki", 102_400_000_000),
            ("Mi", 0),
            (".", 0),
            ("-", 0),
        ] {
            assert_eq!(Quantity::parse(text), Ok(Quantity(nanos)), "{text}");
        }
    }

    #[test]
    fn accessors_round_away_from_zero() {
        for (text, value, millis) in [
            ("1500m", 2, 1_500),
            ("1n", 1, 1),
            ("0.0001", 1, 1),
            ("-1500m", -2, -1_500),
            ("100Mi", 104_857_600, 104_857_600_000),
            ("0", 0, 0),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.value(), quantity.milli_value()), (value, millis), "{text}");
        }
    }

    #[test]
    fn a_value_that_overflows_saturates() {
        for text in ["8Ei", "9999999999999999999999999999999999999999", "1e99", "1e99999999999999", "16Ei"] {
            let value = Quantity::parse(text).map(Quantity::value);
            assert!(value == Ok(i64::MAX) || value == Err(SUFFIX_WRONG), "{text}: {value:?}");
        }
        assert_eq!(Quantity::parse("0e99").map(Quantity::value), Ok(0));
        assert_eq!(Quantity::parse("1e-99999").map(Quantity::value), Ok(1), "the smallest value, not zero");
    }

    #[test]
    fn an_invalid_quantity_is_refused() {
        for text in ["", " ", "abc", "1x", "1.2.3", "1Kib", "--1", "1 Gi", "1ee3", "1e", "1mi", "ü"] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sums_and_order_are_exact() {
        let a = Quantity::parse("0.1").unwrap();
        let b = Quantity::parse("200m").unwrap();
        assert_eq!(a + b, Quantity::from_millis(300));
        assert!(a < b && (a - a).is_zero() && b.is_positive());
        assert_eq!(Quantity::from_units(1), Quantity::parse("1000m").unwrap());
    }
}
