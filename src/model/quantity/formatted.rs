//! A quantity with its format, which sums keep; written as Go's `resource.Quantity` writes it. PURE.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Quantity as Number;

/// Billionths in a unit: the finest fraction, as upstream.
const NANO: i128 = 1_000_000_000;

/// Format of a quantity; sums keep it, as upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `1500m`, `2k`.
    Decimal,
    /// `128Mi`.
    Binary,
    /// `12e3`.
    Exponent,
}

/// A quantity's value and its format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormattedQuantity {
    number: Number,
    format: Format,
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(i32, &str); 10] =
    [(-9, "n"), (-6, "u"), (-3, "m"), (0, ""), (3, "k"), (6, "M"), (9, "G"), (12, "T"), (15, "P"), (18, "E")];

impl FormattedQuantity {
    /// `NewMilliQuantity(.., DecimalSI)`.
    pub(crate) fn from_milli(milli: i64) -> Self {
        Self { number: Number::from_millis(milli), format: Format::Decimal }
    }

    /// `NewQuantity(.., BinarySI)`.
    pub(crate) fn from_bytes(bytes: i64) -> Self {
        Self { number: Number::from_units(bytes), format: Format::Binary }
    }

    /// `ParseQuantity`. An invalid quantity counts as zero: a source refuses such a pod earlier.
    pub(crate) fn of(quantity: &Quantity) -> Self {
        let text = quantity.0.trim();
        // `1E` is a suffix, `1E3` an exponent.
        let format = if text.ends_with('i') {
            Format::Binary
        } else if text.contains(['e', 'E']) && text.ends_with(|c: char| c.is_ascii_digit()) {
            Format::Exponent
        } else {
            Format::Decimal
        };
        match Number::parse(text) {
            Ok(number) => Self { number, format },
            Err(_) => Self { number: Number::ZERO, format: Format::Decimal },
        }
    }

    /// `Quantity.Add`: zero takes the other's format.
    pub(crate) fn plus(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { number: self.number + other.number, format }
    }

    pub(crate) fn cmp(self, other: Self) -> Ordering {
        self.number.cmp(&other.number)
    }

    pub(crate) fn is_zero(self) -> bool {
        self.number.is_zero()
    }

    /// `MilliValue`: thousandths, rounded up.
    pub(crate) fn milli(self) -> i64 {
        self.number.milli_value()
    }

    /// The canonical text (`CanonicalizeBytes`).
    pub(crate) fn to_quantity(self) -> Quantity {
        let nano = self.number.billionths();
        if nano == 0 {
            return Quantity("0".to_owned());
        }
        if self.format == Format::Binary && nano % NANO == 0 && nano.abs() >= 1024 * NANO {
            let (mut value, mut power) = (nano / NANO, 0);
            while value % 1024 == 0 && power + 1 < BINARY.len() {
                value /= 1024;
                power += 1;
            }
            return Quantity(format!("{value}{}", BINARY[power]));
        }
        // The largest power of a thousand that divides it.
        let (mut value, mut exponent) = (nano, -9);
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

/// A quantity in the canonical form.
pub(crate) fn shown(quantity: &Quantity) -> String {
    FormattedQuantity::of(quantity).to_quantity().0
}

/// `NewQuantity(.., BinarySI)` as text: `100Mi`.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    FormattedQuantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX)).to_quantity().0
}

/// `NewQuantity(.., DecimalSI)` as text: `5k`.
pub(crate) fn shown_count(count: u64) -> String {
    let number = Number::from_units(i64::try_from(count).unwrap_or(i64::MAX));
    FormattedQuantity { number, format: Format::Decimal }.to_quantity().0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> FormattedQuantity {
        FormattedQuantity::of(&Quantity(text.to_owned()))
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
