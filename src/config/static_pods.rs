//! Manifests behind a URL: `staticPodURL`, `staticPodURLHeader`, `httpCheckFrequency`.

use std::time::Duration;

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};

use super::kubelet::GoDuration;
use super::{ConfigError, FileSettings};
use crate::decode::Node;
use crate::limits::FILE_CHECK_FREQUENCY;
use crate::net::http::HttpGet;

/// A manifest URL. The values of its headers are hidden from `Debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticPodUrl {
    /// The request.
    pub get: HttpGet,
    /// Period of the requests (`httpCheckFrequency`).
    pub period: Duration,
}

/// Errors contain neither header values nor the URL, which may contain a token.
pub(super) fn url(file: &FileSettings) -> Result<Option<StaticPodUrl>, ConfigError> {
    let Some(url) = file.text("staticPodURL").filter(|url| !url.is_empty()) else { return Ok(None) };
    let wrong = |why: &str| ConfigError(format!("staticPodURL: {why}"));
    let get = HttpGet::of_url(url, headers(file)?)
        .ok_or_else(|| wrong("must be a URL such as http://HOST/pods.yaml or https://HOST:PORT/pods.yaml"))?;
    let authority = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next());
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err(wrong("may not have a user and a password in it; use staticPodURLHeader"));
    }
    if get.tls && cfg!(not(feature = "tls")) {
        return Err(wrong(
            "this build has no TLS and fetches by http:// only; use one made without --no-default-features",
        ));
    }
    // 20 s, too.
    let period = GoDuration::or(file.time("httpCheckFrequency"), FILE_CHECK_FREQUENCY);
    Ok(Some(StaticPodUrl { get, period }))
}

fn headers(file: &FileSettings) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    let agent = concat!("smolet/", env!("CARGO_PKG_VERSION"));
    if let Some(Node::Map(given)) = file.node("staticPodURLHeader") {
        for (name, values) in given {
            let wrong = |why: &str| ConfigError(format!("staticPodURLHeader: {name:?}: {why}"));
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("is no header's name"))?;
            for value in values.items().iter().filter_map(Node::text) {
                let mut value =
                    HeaderValue::from_str(value).map_err(|_| wrong("has a value that no header may have"))?;
                value.set_sensitive(true);
                headers.append(header.clone(), value);
            }
        }
    }
    // As in Go, which takes it from the URL.
    headers.remove(HOST);
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(agent));
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Result<Option<StaticPodUrl>, String> {
        let text = format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{text}");
        url(&FileSettings::parse(text.as_bytes())?).map_err(|error| error.0)
    }

    #[test]
    fn a_url_is_asked_with_its_headers_and_none_of_their_values_is_shown() {
        assert_eq!(given(""), Ok(None));
        let of = given(
            "staticPodURL: http://[fd00::1]:8080/a b?c=d#e\nstaticPodURLHeader: {X-A: [one, two], Authorization: [Bearer hunter2]}",
        );
        let of = of.unwrap().unwrap();
        assert_eq!(of.get.to_string(), "http://[fd00::1]:8080/a%20b?c=d");
        assert_eq!(of.get.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(of.get.headers["authorization"], "Bearer hunter2");
        assert_eq!(of.period, Duration::from_secs(20));
        assert!(!format!("{of:?}").contains("hunter2"), "{of:?}");
        let of = given("staticPodURL: https://host\nhttpCheckFrequency: 5s");
        if cfg!(feature = "tls") {
            let of = of.unwrap().unwrap();
            assert_eq!((of.get.to_string().as_str(), of.period.as_secs()), ("https://host:443/", 5));
        } else {
            assert!(of.unwrap_err().contains("this build has no TLS"));
        }
    }

    #[test]
    fn what_is_no_url_or_header_is_refused_without_its_values() {
        for (text, why) in [
            ("staticPodURL: /hunter2", "staticPodURL: must be a URL such as"),
            ("staticPodURL: 'ftp://hunter2/'", "staticPodURL: must be a URL such as"),
            ("staticPodURL: 'http://'", "staticPodURL: must be a URL such as"),
            ("staticPodURL: 'http:///hunter2'", "staticPodURL: must be a URL such as"),
            ("staticPodURL: 'http://host:0/hunter2'", "staticPodURL: must be a URL such as"),
            ("staticPodURL: 'http://me:hunter2@host/'", "staticPodURL: may not have a user and a password"),
            (
                "staticPodURL: http://host/\nstaticPodURLHeader: {'a b': [hunter2]}",
                "staticPodURLHeader: \"a b\": is no header's name",
            ),
            (
                "staticPodURL: http://host/\nstaticPodURLHeader: {A: [\"hunter2\\n\"]}",
                "staticPodURLHeader: \"A\": has a value that no header may have",
            ),
            ("staticPodURLHeader: hunter2", "staticPodURLHeader: must be a map with lists of strings"),
        ] {
            let refused = given(text).unwrap_err();
            assert!(refused.starts_with(why) && !refused.contains("hunter2"), "{refused}");
        }
    }
}
