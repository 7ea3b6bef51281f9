//! The certificate fields that a node needs: subject (`x509.CommonNameUserConversion`) and validity; and PEM encoding. PURE.
//!
//! A DER parser for just these fields. Any other form is rejected.

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::model::Wall;

/// `2.5.4.3`, common name.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// `2.5.4.10`, organization.
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0]`, the explicit tag of the version.
const VERSION: u8 = 0xa0;

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// `notBefore`.
    pub from: Wall,
    /// `notAfter`.
    pub until: Wall,
}

/// The common name, the last one as in Go, and the organizations of the certificate's subject. `None` without a common name, and
/// for an invalid certificate.
pub fn subject(certificate: &[u8]) -> Option<(String, Vec<String>)> {
    let mut fields = Der::before_validity(certificate)?;
    fields.next()?;
    let (mut name, mut groups) = (None, Vec::new());
    let mut parts = Der(fields.value(SEQUENCE)?);
    while !parts.0.is_empty() {
        let mut attributes = Der(parts.value(SET)?);
        while !attributes.0.is_empty() {
            let mut attribute = Der(attributes.value(SEQUENCE)?);
            match attribute.value(OBJECT_ID)? {
                COMMON_NAME => name = Some(attribute.text()?),
                ORGANIZATION => groups.push(attribute.text()?),
                _ => {}
            }
        }
    }
    Some((name.filter(|name| !name.is_empty())?, groups))
}

/// The validity; `None` for an invalid certificate.
pub fn validity(certificate: &[u8]) -> Option<Validity> {
    let mut times = Der(Der::before_validity(certificate)?.value(SEQUENCE)?);
    Some(Validity { from: times.time()?, until: times.time()? })
}

/// A block of PEM.
pub fn pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in BASE64_STANDARD.encode(der).as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

/// For tests: a certificate that is valid until that year, signed by itself, and its key.
#[cfg(test)]
pub(crate) fn self_signed(until: i32) -> (String, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let certificate = params.self_signed(&key).expect("a certificate");
    (pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", key.serialized_der()))
}

/// The rest of a DER encoding.
struct Der<'d>(&'d [u8]);

impl<'d> Der<'d> {
    /// Skips a certificate's fields before its validity.
    fn before_validity(certificate: &'d [u8]) -> Option<Self> {
        let mut fields = Der(Der(Der(certificate).value(SEQUENCE)?).value(SEQUENCE)?);
        let (first, _) = fields.next()?;
        // Serial number, after an optional version; then algorithm and issuer.
        let before = if first == VERSION { 3 } else { 2 };
        for _ in 0..before {
            fields.next()?;
        }
        Some(fields)
    }

    /// `YYMMDDhhmmssZ` until 2049, `YYYYMMDDhhmmssZ` for other years (RFC 5280).
    fn time(&mut self) -> Option<Wall> {
        let (tag, text) = self.next()?;
        let digits = text.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        let year_digits = match (tag, digits.len()) {
            (UTC_TIME, 12) => 2,
            (GENERALIZED_TIME, 14) => 4,
            _ => return None,
        };
        let number = |digits: &[u8]| digits.iter().fold(0, |all, digit| all * 10 + i64::from(digit - b'0'));
        let (year, rest) = digits.split_at_checked(year_digits)?;
        let year = match (tag, number(year)) {
            (UTC_TIME, year @ 50..) => 1900 + year,
            (UTC_TIME, year) => 2000 + year,
            (_, year) => year,
        };
        let [month, day, hours, minutes, seconds] =
            [0, 2, 4, 6, 8].map(|at| number(rest.get(at..at + 2).unwrap_or_default()));
        if !(1..=12).contains(&month)
            || !(1..=31).contains(&day)
            || hours > 23
            || minutes > 59
            || seconds > 60
        {
            return None;
        }
        Some(Wall::of_civil(year, month, day, (hours * 60 + minutes) * 60 + seconds))
    }

    /// The next value with its tag.
    fn next(&mut self) -> Option<(u8, &'d [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = match first {
            0..=0x7f => usize::from(first),
            // No certificate has 16 MiB.
            0x81..=0x83 => {
                let (length, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = behind;
                length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    fn value(&mut self, wanted: u8) -> Option<&'d [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, value)| value)
    }

    /// A string of the types in use today; in another one two parsers might read different names.
    fn text(&mut self) -> Option<String> {
        let (_, text) = self.next().filter(|(tag, _)| matches!(*tag, UTF8 | PRINTABLE | IA5))?;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let bytes = parts.concat();
        let length = bytes.len();
        let head = if length < 0x80 {
            vec![tag, u8::try_from(length).unwrap()]
        } else {
            vec![tag, 0x82, u8::try_from(length >> 8).unwrap(), u8::try_from(length & 0xff).unwrap()]
        };
        [head, bytes].concat()
    }

    fn attribute(oid: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        value(SEQUENCE, &[&value(OBJECT_ID, &[oid]), &value(tag, &[text])])
    }

    fn certificate(version: bool, attributes: &[Vec<u8>]) -> Vec<u8> {
        let sets: Vec<Vec<u8>> = attributes.iter().map(|of| value(SET, &[of])).collect();
        let name = value(SEQUENCE, &sets.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let version = if version { value(VERSION, &[&[2, 1, 2]]) } else { Vec::new() };
        let empty = value(SEQUENCE, &[]);
        let other = value(SEQUENCE, &[&value(SET, &[&attribute(COMMON_NAME, UTF8, b"the authority")])]);
        let fields = value(SEQUENCE, &[&version, &[2, 1, 1], &empty, &other, &empty, &name, &empty]);
        value(SEQUENCE, &[&fields, &empty])
    }

    fn named(name: &str, groups: &[&str]) -> (String, Vec<String>) {
        (name.to_owned(), groups.iter().map(|&group| group.to_owned()).collect())
    }

    #[test]
    fn a_subject_is_a_user_with_groups() {
        let cn = |text: &str| attribute(COMMON_NAME, UTF8, text.as_bytes());
        let o = |text: &str| attribute(ORGANIZATION, PRINTABLE, text.as_bytes());
        let other = attribute(&[0x55, 0x04, 0x06], PRINTABLE, b"DE");
        for (attributes, wanted) in [
            (
                vec![cn("kube-apiserver"), o("system:masters")],
                Some(named("kube-apiserver", &["system:masters"])),
            ),
            (vec![o("a"), other, o("b"), cn("ä")], Some(named("ä", &["a", "b"]))),
            (vec![cn("first"), cn("last")], Some(named("last", &[]))),
            (vec![cn(&"long".repeat(80))], Some(named(&"long".repeat(80), &[]))),
            (vec![o("system:masters")], None),
            (vec![cn("")], None),
            (vec![], None),
            // Another string type, and no string.
            (vec![attribute(COMMON_NAME, 0x1e, b"\0a")], None),
            (vec![attribute(COMMON_NAME, UTF8, b"\xff")], None),
        ] {
            assert_eq!(subject(&certificate(true, &attributes)), wanted, "{attributes:?}");
            assert_eq!(subject(&certificate(false, &attributes)), wanted, "{attributes:?}");
        }
    }

    fn made(valid: [(i32, u8, u8); 2]) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        [params.not_before, params.not_after] =
            valid.map(|(year, month, day)| rcgen::date_time_ymd(year, month, day));
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_validity_is_parsed() {
        for (from, until) in
            [((2026, 11, 23), (2027, 2, 28)), ((1999, 12, 31), (2051, 1, 1)), ((1975, 1, 1), (4096, 1, 1))]
        {
            let civil =
                |(year, month, day): (i32, u8, u8)| Wall::of_civil(year.into(), month.into(), day.into(), 0);
            let wanted = Validity { from: civil(from), until: civil(until) };
            assert_eq!(validity(&made([from, until])), Some(wanted), "{from:?} {until:?}");
        }
    }

    #[test]
    fn times_in_another_form_are_rejected() {
        let time = |tag: u8, text: &[u8]| Der(&value(tag, &[text])).time();
        let day = Wall::of_civil(2026, 11, 23, 3 * 3600 + 4 * 60 + 5);
        assert_eq!(time(UTC_TIME, b"261123030405Z"), Some(day));
        assert_eq!(time(GENERALIZED_TIME, b"20261123030405Z"), Some(day));
        assert_eq!(time(UTC_TIME, b"500101000000Z"), Some(Wall::of_civil(1950, 1, 1, 0)));
        for (tag, text) in [
            (UTC_TIME, b"20261123030405Z".as_slice()),
            (GENERALIZED_TIME, b"261123030405Z"),
            (UTC_TIME, b"261123030405"),
            (UTC_TIME, b"261323030405Z"),
            (UTC_TIME, b"261100030405Z"),
            (UTC_TIME, b"26112303040xZ"),
            (UTC_TIME, b"261123240405Z"),
            (UTC_TIME, b""),
            (UTF8, b"261123030405Z"),
        ] {
            assert_eq!(time(tag, text), None, "{tag} {text:?}");
        }
    }

    #[test]
    fn an_invalid_certificate_has_no_subject() {
        let whole = certificate(true, &[attribute(COMMON_NAME, UTF8, b"user")]);
        for cut in 0..whole.len() {
            assert_eq!(subject(&whole[..cut]), None, "cut at {cut}");
            assert_eq!(validity(&whole[..cut]), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut bent = whole.clone();
                bent[at] = byte;
                // Whatever the input, parsing terminates.
                let _ = (subject(&bent), validity(&bent));
            }
        }
        assert_eq!(subject(b""), None);
        assert_eq!(subject(&[SEQUENCE, 0x83, 0xff, 0xff, 0xff]), None);
    }
}
