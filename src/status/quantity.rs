//! Kubernetes quantities: read, added, compared and written as Go's `resource.Quantity` writes them.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Fractions are kept to the billionth, as upstream.
const NANO: i128 = 1_000_000_000;

/// How a quantity is written; kept through sums, as upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `1500m`, `2k`.
    Decimal,
    /// `128Mi`.
    Binary,
    /// `12e3`.
    Exponent,
}

/// A quantity's value, in billionths, and its format. Values beyond what 128 bits hold saturate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    nano: i128,
    format: Format,
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(i32, &str); 10] =
    [(-9, "n"), (-6, "u"), (-3, "m"), (0, ""), (3, "k"), (6, "M"), (9, "G"), (12, "T"), (15, "P"), (18, "E")];

impl Amount {
    /// `NewMilliQuantity(.., DecimalSI)`.
    pub(super) fn from_milli(milli: i64) -> Self {
        Self { nano: i128::from(milli) * (NANO / 1000), format: Format::Decimal }
    }

    /// `NewQuantity(.., BinarySI)`.
    pub(super) fn from_bytes(bytes: i64) -> Self {
        Self { nano: i128::from(bytes) * NANO, format: Format::Binary }
    }

    /// `ParseQuantity`. Text that is no quantity counts as zero: a source refuses such a pod before it gets here.
    pub(super) fn of(quantity: &Quantity) -> Self {
        parse(quantity.0.trim()).unwrap_or(Self { nano: 0, format: Format::Decimal })
    }

    /// `Quantity.Add`: zero takes the other's format.
    pub(super) fn plus(self, other: Self) -> Self {
        let format = if self.nano == 0 { other.format } else { self.format };
        Self { nano: self.nano.saturating_add(other.nano), format }
    }

    pub(super) fn cmp(self, other: Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }

    pub(super) fn is_zero(self) -> bool {
        self.nano == 0
    }

    pub(super) fn is_positive(self) -> bool {
        self.nano > 0
    }

    /// `MilliValue`: thousandths, rounded up.
    pub(super) fn milli(self) -> i64 {
        let unit = NANO / 1000;
        i64::try_from(self.nano.div_euclid(unit) + i128::from(self.nano.rem_euclid(unit) > 0))
            .unwrap_or(i64::MAX)
    }

    /// The canonical text (`CanonicalizeBytes`).
    pub(super) fn to_quantity(self) -> Quantity {
        if self.nano == 0 {
            return Quantity("0".to_owned());
        }
        let whole = self.nano % NANO == 0;
        if self.format == Format::Binary && whole && self.nano.abs() >= 1024 * NANO {
            let (mut value, mut power) = (self.nano / NANO, 0);
            while value % 1024 == 0 && power + 1 < BINARY.len() {
                value /= 1024;
                power += 1;
            }
            return Quantity(format!("{value}{}", BINARY[power]));
        }
        // The largest power of a thousand that leaves a whole number.
        let (mut value, mut exponent) = (self.nano, -9);
        while value % 1000 == 0 && exponent < 18 {
            value /= 1000;
            exponent += 3;
        }
        let suffix = DECIMAL.iter().find(|(power, _)| *power == exponent).map_or("", |(_, suffix)| suffix);
        Quantity(match self.format {
            Format::Exponent if exponent != 0 => format!("{value}e{exponent}"),
            Format::Exponent | Format::Decimal | Format::Binary => format!("{value}{suffix}"),
        })
    }
}

/// Sign, digits with at most one point, suffix.
fn parse(text: &str) -> Option<Amount> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    if integer.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }

    let (multiplier, power, format) = if let Some(power) = BINARY.iter().skip(1).position(|s| *s == suffix) {
        (1024_i128.checked_pow(u32::try_from(power + 1).ok()?)?, 0, Format::Binary)
    } else if let Some((power, _)) = DECIMAL.iter().find(|(_, s)| *s == suffix) {
        (1, *power, Format::Decimal)
    } else {
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        (1, exponent.parse::<i32>().ok()?.clamp(-60, 60), Format::Exponent)
    };

    // digits × 10^(power - fraction's length) × multiplier, in billionths; what is smaller rounds up.
    let mut value = 0_i128;
    for digit in integer.bytes().chain(fraction.bytes()) {
        value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    value = value.saturating_mul(multiplier);
    let scale = 9 + power - i32::try_from(fraction.len()).ok()?;
    let factor = 10_i128.checked_pow(scale.unsigned_abs());
    let nano = match (scale >= 0, factor) {
        (true, Some(factor)) => value.saturating_mul(factor),
        (true, None) if value > 0 => i128::MAX,
        (false, Some(factor)) => value.div_euclid(factor) + i128::from(value.rem_euclid(factor) > 0),
        (true | false, None) => i128::from(value > 0),
    };
    Some(Amount { nano: if negative { nano.saturating_neg() } else { nano }, format })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        Amount::of(&Quantity(text.to_owned()))
    }

    #[test]
    fn quantities_are_written_canonically() {
        for (text, canonical) in [
            ("0", "0"),
            ("0.5", "500m"),
            ("1500m", "1500m"),
            ("2000m", "2"),
            ("1000", "1k"),
            ("2102m", "2102m"),
            ("1024Mi", "1Gi"),
            ("1500Mi", "1500Mi"),
            ("0.5Gi", "512Mi"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("1.5Ki", "1536"),
            ("134217728", "134217728"),
            ("1e3", "1e3"),
            ("12E2", "1200"),
            ("+5", "5"),
            ("-3k", "-3k"),
            ("0.0000000001", "1n"),
            (".5", "500m"),
            ("nonsense", "0"),
            ("1.2.3", "0"),
            ("", "0"),
        ] {
            assert_eq!(amount(text).to_quantity().0, canonical, "{text}");
        }
    }

    #[test]
    fn sums_keep_the_first_format_unless_it_is_zero() {
        for (a, b, sum) in [
            ("64Mi", "64Mi", "128Mi"),
            ("2", "102m", "2102m"),
            ("0", "64Mi", "64Mi"),
            ("64Mi", "1000", "67109864"),
            ("1000", "24Ki", "25576"),
        ] {
            assert_eq!(amount(a).plus(amount(b)).to_quantity().0, sum, "{a} + {b}");
        }
    }

    #[test]
    fn thousandths_round_up_and_hostile_sizes_saturate() {
        assert_eq!(amount("0.0001").milli(), 1);
        assert_eq!(amount("10m").milli(), 10);
        assert_eq!(amount(&"9".repeat(300)).milli(), i64::MAX);
        assert_eq!(amount("1e999999").milli(), i64::MAX);
        assert_eq!(amount("1e-999").milli(), 1);
        assert_eq!(amount("128Mi").cmp(amount("134217728")), Ordering::Equal);
    }
}
