//! The list of a cluster's servers at `/v1-k3s/apiservers` (`handlers.APIServers`). PURE.

use std::net::IpAddr;

use serde_json::json;

use crate::decode::json as reader;
use crate::decode::{Node, quoted};
use crate::kube::ServerUrl;
use crate::limits::{K3S_LIST_BYTES_MAX, K3S_SERVER_BYTES_MAX, K3S_SERVERS_MAX};
use crate::model::names;

/// The API's addresses, in lexical order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) servers: Vec<ServerUrl>,
    /// Why some listed entries were skipped, as a sentence.
    pub(crate) skipped: Option<String>,
}

impl List {
    /// Parses a JSON list of `HOST:PORT`, which is empty as long as the cluster does not know its servers.
    ///
    /// # Errors
    /// Not such a list, or a too long one.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > K3S_LIST_BYTES_MAX {
            return Err(format!("a list of more than {K3S_LIST_BYTES_MAX} bytes"));
        }
        match reader::read(bytes)? {
            Node::Null => Ok(Self::default()),
            tree @ Node::List(_) => Ok(Self::of(tree.items())),
            _ => Err("is no list".to_owned()),
        }
    }

    fn of(entries: &[Node]) -> Self {
        let (mut servers, mut wrong, mut count) = (Vec::<ServerUrl>::new(), None, 0);
        for entry in entries {
            let Some(server) = entry.text().and_then(address) else {
                wrong = wrong.or(Some(entry));
                count += 1;
                continue;
            };
            // The server's order varies from response to response.
            let place = servers.binary_search_by(|other| other.authority().cmp(&server.authority()));
            if let Err(place) = place {
                servers.insert(place, server);
            }
        }
        let skipped = match wrong {
            Some(first) => {
                let first = first.text().map_or_else(|| first.to_string(), quoted);
                Some(format!("entries skipped that are not HOST:PORT: {count}, such as {first}"))
            }
            None if servers.len() > K3S_SERVERS_MAX => {
                Some(format!("{} entries; only the first {K3S_SERVERS_MAX} are used", servers.len()))
            }
            None => None,
        };
        servers.truncate(K3S_SERVERS_MAX);
        Self { servers, skipped }
    }

    /// Parses what [`List::to_json`] wrote for the server that the user names; `None` when it was written for another one, which
    /// may belong to another cluster.
    pub(crate) fn kept(bytes: &[u8], named: &ServerUrl) -> Option<Vec<ServerUrl>> {
        let tree = reader::read(bytes).ok()?;
        let is_it = tree.field("server").and_then(Node::text) == Some(named.authority().as_str());
        let list = is_it.then(|| tree.field("apiservers").map(Node::items)).flatten()?;
        Some(Self::of(list).servers)
    }

    /// The list as JSON for the disk, with the server that the user names.
    pub(crate) fn to_json(&self, named: &ServerUrl) -> Vec<u8> {
        let servers: Vec<String> = self.servers.iter().map(ServerUrl::authority).collect();
        json!({"server": named.authority(), "apiservers": servers}).to_string().into_bytes()
    }
}

/// `HOST:PORT` with a valid host.
fn address(text: &str) -> Option<ServerUrl> {
    let (host, port) = text.rsplit_once(':').filter(|_| text.len() <= K3S_SERVER_BYTES_MAX)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match (bare.unwrap_or(host).parse::<IpAddr>(), bare) {
        (Ok(ip), bare) if ip.is_ipv6() == bare.is_some() && !ip.is_unspecified() && !ip.is_multicast() => {
            ip.to_string()
        }
        // No host name ends in a number: it is a malformed address, which other parsers may read as a different one.
        (Err(_), None)
            if names::subdomain(host).is_none()
                && !host.rsplit('.').take(1).any(|last| last.as_bytes()[0].is_ascii_digit()) =>
        {
            host.to_owned()
        }
        _ => return None,
    };
    // Without a sign or leading zeros.
    let port = port.parse().ok().filter(|number: &u16| *number > 0 && number.to_string() == port)?;
    Some(ServerUrl { host, port, prefix: String::new() })
}

/// Address of the supervisor of the server with that API: the same port, or, when the API's port differs from the supervisor's,
/// the port of the server that the user names (`proxy.setSupervisorPort`).
pub(super) fn supervisor(api: &ServerUrl, named: &ServerUrl, api_port: Option<u16>) -> ServerUrl {
    let port = if api_port.is_some() { named.port } else { api.port };
    ServerUrl { port, ..api.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(servers: &[ServerUrl]) -> Vec<String> {
        servers.iter().map(ServerUrl::authority).collect()
    }

    #[test]
    fn a_list_is_read_in_an_order_of_its_own() {
        let list = List::parse(br#"["10.0.0.2:6443","[fd00::1]:6443","10.0.0.1:6443","k3s.example:443"]"#);
        let list = list.unwrap();
        assert_eq!(
            texts(&list.servers),
            ["10.0.0.1:6443", "10.0.0.2:6443", "[fd00::1]:6443", "k3s.example:443"]
        );
        assert_eq!(list.skipped, None);
        for none in ["null", "[]"] {
            assert_eq!(List::parse(none.as_bytes()), Ok(List::default()), "it does not know yet");
        }
        for wrong in ["{}", "404 page not found", "\"10.0.0.1:6443\"", "7", ""] {
            assert!(List::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let long = format!("[{}\"10.0.0.1:1\"]", " ".repeat(K3S_LIST_BYTES_MAX));
        assert!(List::parse(long.as_bytes()).unwrap_err().contains("bytes"));
    }

    #[test]
    fn what_is_no_server_is_skipped() {
        let long = format!("{}.example:1", "a".repeat(K3S_SERVER_BYTES_MAX));
        for wrong in [
            "7",
            "null",
            "[\"10.0.0.9:1\"]",
            r#""""#,
            r#"":6443""#,
            r#""10.0.0.2""#,
            r#""10.0.0.2:""#,
            r#""10.0.0.2:0""#,
            r#""10.0.0.2:+1""#,
            r#""10.0.0.2:01""#,
            r#""10.0.0.2:65536""#,
            r#""10.0.0.2:6443/path""#,
            r#""https://10.0.0.2:6443""#,
            r#""somebody@10.0.0.2:6443""#,
            r#""10.0.0.2:6443\r\nHost: other:1""#,
            r#""0.0.0.0:6443""#,
            r#""[::]:6443""#,
            r#""224.0.0.1:6443""#,
            r#""fd00::1:6443""#,
            r#""[10.0.0.2]:6443""#,
            r#""[fd00::1:6443""#,
            r#""10.0.0.256:6443""#,
            r#""10.1:6443""#,
            r#""0x7f.1:6443""#,
            r#""k3s_server:6443""#,
            r#""../../etc:6443""#,
            &format!("\"{long}\""),
        ] {
            let list = List::parse(format!("[\"10.0.0.1:6443\",{wrong}]").as_bytes()).unwrap();
            assert_eq!(texts(&list.servers), ["10.0.0.1:6443"], "{wrong}");
            let why = list.skipped.unwrap();
            assert!(why.starts_with("entries skipped that are not HOST:PORT: 1"), "{why}");
            assert!(why.len() < 300 && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn there_are_so_many_and_each_once() {
        let many: Vec<String> = (1..=99).chain(1..=99).map(|n| format!("\"10.0.0.{n}:6443\"")).collect();
        let list = List::parse(format!("[{}]", many.join(",")).as_bytes()).unwrap();
        assert_eq!(list.servers.len(), K3S_SERVERS_MAX);
        assert_eq!(list.skipped.as_deref(), Some("99 entries; only the first 8 are used"));
    }

    #[test]
    fn what_is_kept_counts_for_the_same_server_only() {
        let named = ServerUrl::parse("https://10.0.0.1:6443").unwrap();
        let list = List::parse(br#"["10.0.0.1:6443","10.0.0.2:6443"]"#).unwrap();
        let bytes = list.to_json(&named);
        assert_eq!(List::kept(&bytes, &named), Some(list.servers));
        let other = ServerUrl::parse("https://192.168.0.1:6443").unwrap();
        assert_eq!(List::kept(&bytes, &other), None);
        for damaged in ["", "}", "[]", r#"{"server":"10.0.0.1:6443"}"#] {
            assert_eq!(List::kept(damaged.as_bytes(), &named), None, "{damaged}");
        }
        let edited = br#"{"server":"10.0.0.1:6443","apiservers":["x",1,"10.0.0.2:6443"]}"#;
        assert_eq!(texts(&List::kept(edited, &named).unwrap()), ["10.0.0.2:6443"]);
    }

    #[test]
    fn a_supervisor_is_behind_its_api_or_beside_it() {
        let named = ServerUrl::parse("https://10.0.0.1:9345").unwrap();
        let api = address("[fd00::1]:6443").unwrap();
        assert_eq!(supervisor(&api, &named, None).authority(), "[fd00::1]:6443");
        assert_eq!(supervisor(&api, &named, Some(6443)).authority(), "[fd00::1]:9345");
    }
}
