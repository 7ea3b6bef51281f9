//! Errors of a call: gRPC status codes, and how HTTP responses map to them. PURE.

use std::fmt;

use hyper::HeaderMap;
use hyper::header::CONTENT_TYPE;
use hyper::http::StatusCode;

use crate::limits::GRPC_STATUS_MESSAGE_BYTES_MAX;

/// A gRPC status code; codes of later versions are kept unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    /// No error.
    pub const OK: Self = Self(0);
    /// The call was cancelled by its peer.
    pub const CANCELLED: Self = Self(1);
    /// The server gave no specific code.
    pub const UNKNOWN: Self = Self(2);
    /// The request is malformed, or names what cannot be.
    pub const INVALID_ARGUMENT: Self = Self(3);
    /// The server reached the call's deadline.
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    /// The requested object does not exist.
    pub const NOT_FOUND: Self = Self(5);
    /// The object to create exists already.
    pub const ALREADY_EXISTS: Self = Self(6);
    /// Not allowed.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// A quota is exhausted.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    /// The object is not in the state that the call needs.
    pub const FAILED_PRECONDITION: Self = Self(9);
    /// The server does not implement the method.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// Broken invariants, also in HTTP/2.
    pub const INTERNAL: Self = Self(13);
    /// The server cannot accept calls now.
    pub const UNAVAILABLE: Self = Self(14);
    /// The caller is not authenticated.
    pub const UNAUTHENTICATED: Self = Self(16);

    /// The code for an HTTP status without a gRPC status (gRPC's `http-grpc-status-mapping.md`).
    pub fn of_http(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Self::INTERNAL,
            401 => Self::UNAUTHENTICATED,
            403 => Self::PERMISSION_DENIED,
            404 => Self::UNIMPLEMENTED,
            429 | 502 | 503 | 504 => Self::UNAVAILABLE,
            _ => Self::UNKNOWN,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcError {
    /// No connection, or it was lost before the response: whether the server executed the call is unknown.
    Unavailable(String),
    /// The deadline passed on this side first; the call was cancelled at the server.
    DeadlineExceeded(String),
    /// The server returned this status.
    Status {
        /// Its code.
        code: Code,
        /// The server's message, truncated to `limits::GRPC_STATUS_MESSAGE_BYTES_MAX`.
        message: String,
    },
    /// The response violates HTTP/2, gRPC or protobuf, or a message exceeds its limit.
    Protocol(String),
}

impl fmt::Display for GrpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(m) | Self::DeadlineExceeded(m) | Self::Protocol(m) => f.write_str(m),
            Self::Status { code, message } => write!(f, "{message} (gRPC status {})", code.0),
        }
    }
}

impl std::error::Error for GrpcError {}

/// The status in a block of headers or trailers; `None` when it has no `grpc-status`.
///
/// A `grpc-status` that is not a number counts as `UNKNOWN`, as in grpc-go.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<Result<(), GrpcError>> {
    let raw = headers.get("grpc-status")?;
    let code = raw.to_str().ok().and_then(|text| text.parse().ok()).map_or(Code::UNKNOWN, Code);
    if code == Code::OK {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(|raw| percent_decoded(raw.as_bytes())).unwrap_or_default();
    Some(Err(GrpcError::Status { code, message }))
}

/// Checks a response head. `Ok(true)` = the response is complete (trailers-only, status OK).
pub(super) fn of_head(status: StatusCode, headers: &HeaderMap) -> Result<bool, GrpcError> {
    if let Some(result) = of_headers(headers) {
        return result.map(|()| true);
    }
    let grpc = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if status == StatusCode::OK && grpc {
        return Ok(false);
    }
    let message = if status == StatusCode::OK {
        "the server answers HTTP/2, but not gRPC (no content-type application/grpc)".to_owned()
    } else {
        format!("the server answered with HTTP status {}", status.as_u16())
    };
    Err(GrpcError::Status { code: Code::of_http(status), message })
}

/// Decodes `grpc-message`: percent-encoded UTF-8. Invalid escapes are kept, invalid UTF-8 is replaced, and the text is
/// truncated to the limit.
fn percent_decoded(raw: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(raw.len().min(GRPC_STATUS_MESSAGE_BYTES_MAX));
    let mut rest = raw;
    while let (Some((&first, tail)), true) = (rest.split_first(), bytes.len() < GRPC_STATUS_MESSAGE_BYTES_MAX)
    {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    crate::text::cut(&mut text, GRPC_STATUS_MESSAGE_BYTES_MAX);
    text
}

/// Encodes a text for `grpc-message`: every byte but printable ASCII, and the percent sign, is escaped. It is cut to the limit.
pub(super) fn percent_encoded(text: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = text.to_owned();
    crate::text::cut(&mut text, GRPC_STATUS_MESSAGE_BYTES_MAX);
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
        }
    }
    encoded
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_percent_decoded() {
        for (raw, text) in [
            ("plain words", "plain words"),
            ("100%25 gone", "100% gone"),
            ("caf%C3%A9%0Aline", "café\nline"),
            ("broken %zz and %4", "broken %zz and %4"),
            ("%", "%"),
            ("bad utf-8 %FF.", "bad utf-8 \u{fffd}."),
        ] {
            assert_eq!(percent_decoded(raw.as_bytes()), text, "{raw}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_again() {
        for (text, raw) in
            [("plain words", "plain words"), ("100% gone", "100%25 gone"), ("café\nline", "caf%C3%A9%0Aline")]
        {
            assert_eq!(percent_encoded(text), raw);
            assert_eq!(percent_decoded(raw.as_bytes()), text);
        }
        let long = percent_encoded(&"é".repeat(GRPC_STATUS_MESSAGE_BYTES_MAX));
        assert!(long.len() <= 3 * GRPC_STATUS_MESSAGE_BYTES_MAX);
        assert!(percent_decoded(long.as_bytes()).chars().all(|c| c == 'é'));
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let raw = "%C3%A9".repeat(GRPC_STATUS_MESSAGE_BYTES_MAX);
        let text = percent_decoded(raw.as_bytes());
        assert!(
            text.len() <= GRPC_STATUS_MESSAGE_BYTES_MAX && text.len() > GRPC_STATUS_MESSAGE_BYTES_MAX - 4
        );
        assert!(text.chars().all(|c| c == 'é'));
    }

    #[test]
    fn http_statuses_map_as_grpc_says() {
        for (http, code) in [
            (400, Code::INTERNAL),
            (401, Code::UNAUTHENTICATED),
            (403, Code::PERMISSION_DENIED),
            (404, Code::UNIMPLEMENTED),
            (429, Code::UNAVAILABLE),
            (502, Code::UNAVAILABLE),
            (503, Code::UNAVAILABLE),
            (504, Code::UNAVAILABLE),
            (500, Code::UNKNOWN),
            (302, Code::UNKNOWN),
        ] {
            assert_eq!(Code::of_http(StatusCode::from_u16(http).unwrap()), code, "{http}");
        }
    }

    #[test]
    fn a_status_that_is_no_number_is_unknown() {
        let mut headers = HeaderMap::new();
        assert_eq!(of_headers(&headers), None);
        headers.insert("grpc-status", "x".parse().unwrap());
        let unknown = GrpcError::Status { code: Code::UNKNOWN, message: String::new() };
        assert_eq!(of_headers(&headers), Some(Err(unknown)));
        headers.insert("grpc-status", "0".parse().unwrap());
        assert_eq!(of_headers(&headers), Some(Ok(())));
    }
}
