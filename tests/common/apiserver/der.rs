//! The subset of DER for names and keys in certificates and certificate signing requests.

const OID: u8 = 6;
const BIT_STRING: u8 = 3;
const OCTET_STRING: u8 = 4;
const BOOLEAN: u8 = 1;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The attributes of a request.
const CONTEXT_0: u8 = 0xa0;
/// `extensionRequest` of PKCS#9 and `subjectAltName` of X.509.
const EXTENSION_REQUEST: &[u64] = &[1, 2, 840, 113_549, 1, 9, 14];
const ALTERNATIVE_NAMES: &[u64] = &[2, 5, 29, 17];

/// Unread bytes. All methods return `None` for other bytes than expected.
#[derive(Clone, Copy)]
pub struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    /// The next value: its tag, its content, and all its bytes.
    fn value(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let all = self.0;
        let [tag, first, rest @ ..] = all else { return None };
        let (length, rest) = match first {
            // A long length, in so many bytes.
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            0..=0x7f => (usize::from(*first), rest),
            _ => return None,
        };
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((*tag, content, &all[..all.len() - after.len()]))
    }

    fn tagged(&mut self, wanted: u8) -> Option<&'a [u8]> {
        let before = *self;
        let (tag, content, _) = self.value()?;
        if tag == wanted {
            return Some(content);
        }
        *self = before;
        None
    }

    pub fn skip(&mut self) -> Option<()> {
        self.value().map(|_| ())
    }

    pub fn sequence(&mut self) -> Option<Der<'a>> {
        self.tagged(SEQUENCE).map(Der)
    }

    /// With all of its bytes, which are signed.
    pub fn whole_sequence(&mut self) -> Option<(Der<'a>, &'a [u8])> {
        let (tag, content, whole) = self.value()?;
        (tag == SEQUENCE).then_some((Der(content), whole))
    }

    /// A bit string of whole bytes.
    pub fn bits(&mut self) -> Option<&'a [u8]> {
        match self.tagged(BIT_STRING)? {
            [0, bytes @ ..] => Some(bytes),
            _ => None,
        }
    }

    fn oid(&mut self) -> Option<Vec<u64>> {
        let mut numbers = Vec::new();
        let mut number = 0_u64;
        for byte in self.tagged(OID)? {
            number = number.checked_mul(128)? | u64::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                numbers.push(std::mem::take(&mut number));
            }
        }
        // The first byte encodes two numbers.
        let first = *numbers.first()?;
        let top = (first / 40).min(2);
        numbers.splice(0..1, [top, first - 40 * top]);
        Some(numbers)
    }

    /// The attributes of a distinguished name with UTF-8 values: OID and text.
    pub fn name(mut self) -> Option<Vec<(Vec<u64>, String)>> {
        let mut parts = Vec::new();
        while let Some(set) = self.tagged(SET) {
            let mut set = Der(set);
            while let Some(mut part) = set.sequence() {
                let oid = part.oid()?;
                let (_, text, _) = part.value()?;
                parts.push((oid, String::from_utf8(text.to_vec()).ok()?));
            }
        }
        Some(parts)
    }

    /// From a request's attributes: the content of the extension `subjectAltName`.
    pub fn alternative_names(&mut self) -> Option<Vec<u8>> {
        let mut attributes = Der(self.tagged(CONTEXT_0)?);
        while let Some(mut attribute) = attributes.sequence() {
            if attribute.oid()? != EXTENSION_REQUEST {
                continue;
            }
            let mut extensions = Der(attribute.tagged(SET)?).sequence()?;
            while let Some(mut extension) = extensions.sequence() {
                let oid = extension.oid()?;
                let _critical = extension.tagged(BOOLEAN);
                let content = extension.tagged(OCTET_STRING)?;
                if oid == ALTERNATIVE_NAMES {
                    return Some(content.to_vec());
                }
            }
        }
        None
    }
}
