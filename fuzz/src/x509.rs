//! Bytes of a certificate, and of the text around one: whoever it names, it names by its own bytes; what is read of a text is
//! written and read again as the same.

use smolet::{tls, x509};

pub fn run(data: &[u8]) {
    certificate(data);
    for found in tls::certificates(data).iter().flatten() {
        certificate(found);
    }
    let pem = x509::pem("CERTIFICATE", data);
    assert!(pem.lines().all(|line| line.len() <= 64));
    let read = tls::certificates(pem.as_bytes()).unwrap_or_default();
    assert!(read.len() == 1 && *read[0] == *data);
}

fn certificate(der: &[u8]) {
    let holds = |text: &str| der.windows(text.len()).any(|part| part == text.as_bytes());
    if let Some((name, groups)) = x509::subject(der) {
        assert!(!name.is_empty() && holds(&name));
        let texts = groups.iter().chain([&name]).map(String::len).sum::<usize>();
        // Each stands in its own place, in three values and behind an identifier.
        assert!(texts + 11 * groups.len() < der.len());
        assert!(groups.iter().all(|group| group.is_empty() || holds(group)));
    }
    if let Some(validity) = x509::validity(der) {
        // Of any year there is a text.
        assert!(!format!("{} {}", validity.from, validity.until).is_empty());
    }
}
