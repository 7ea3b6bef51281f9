//! The container hash (`kubecontainer.HashContainer`), which identifies the definition a container was created from. PURE.

/// FNV-1a, 32 bits, fed piece by piece.
#[derive(Clone, Copy)]
struct Fnv32(u32);

impl Fnv32 {
    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.byte(byte);
        }
    }
}

/// The hash of a container's name and image, the two fields the kubelet compares.
///
/// `HashContainer` marshals `{"image":…,"name":…}` with Go's JSON escaping and hashes the bytes as Go's `%#v` prints them:
/// `([]uint8)[123 34 …]`. Follows `pkg/kubelet/container/helpers.go`. Allocates nothing.
pub fn container_hash(name: &str, image: &str) -> u32 {
    let mut dump = Dump { hash: Fnv32(0x811c_9dc5), first: true };
    dump.hash.bytes(b"([]uint8)[");
    dump.json_text(b"{\"image\":\"");
    dump.json_string(image);
    dump.json_text(b"\",\"name\":\"");
    dump.json_string(name);
    dump.json_text(b"\"}");
    dump.hash.byte(b']');
    dump.hash.0
}

/// Feeds bytes into the hash as decimal numbers separated by one space.
struct Dump {
    hash: Fnv32,
    first: bool,
}

impl Dump {
    fn json_text(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if !std::mem::take(&mut self.first) {
                self.hash.byte(b' ');
            }
            if byte >= 100 {
                self.hash.byte(b'0' + byte / 100);
            }
            if byte >= 10 {
                self.hash.byte(b'0' + byte / 10 % 10);
            }
            self.hash.byte(b'0' + byte % 10);
        }
    }

    /// Go's `encoding/json` escaping with HTML escaping on.
    fn json_string(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '"' => self.json_text(b"\\\""),
                '\\' => self.json_text(b"\\\\"),
                '\n' => self.json_text(b"\\n"),
                '\r' => self.json_text(b"\\r"),
                '\t' => self.json_text(b"\\t"),
                '\u{8}' => self.json_text(b"\\b"),
                '\u{c}' => self.json_text(b"\\f"),
                '<' | '>' | '&' | '\0'..='\u{1f}' | '\u{2028}' | '\u{2029}' => self.unicode_escape(c as u32),
                _ => self.json_text(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }

    fn unicode_escape(&mut self, code: u32) {
        self.json_text(b"\\u");
        for shift in [12, 8, 4, 0] {
            self.json_text(&[b"0123456789abcdef"[(code >> shift & 15) as usize]]);
        }
    }
}
