//! Bytes of a TLS peer, in pieces as the first byte says: of a client to the node's own API, of an API server to the node, of a
//! client's certificates, or bent on their way between both ends of a true handshake. Nobody gets through with bytes that were
//! made before, what is said back is short, and nothing is read that was not sent.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_rustls::pki_types::{CertificateDer, ServerName};
use futures_rustls::rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use smolet::config::{Authorization, NodeApi};
use smolet::kube;
use smolet::node_api::handshake::Accepting;
use smolet::x509;

/// Of clients and of the server. Nobody has its key any more.
const AUTHORITY: &[u8] = include_bytes!("authority.pem");
/// A handshake's answer to bytes that are none comes nowhere near.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// What a client says after its handshake.
const SAID: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: gw\r\n\r\n";
/// TLS 1.3 takes two, TLS 1.2 three.
const ROUNDS_MAX: usize = 6;

/// Both ends, as the agent makes them.
struct Ends {
    node: Accepting,
    accepts: Arc<ServerConfig>,
    connects: Arc<ClientConfig>,
    /// To the node itself.
    visits: Arc<ClientConfig>,
}

impl Ends {
    /// With a key that is made now, and is gone from the disk at once.
    fn made() -> Result<Self, String> {
        let said = |error: std::io::Error| error.to_string();
        let root = std::env::temp_dir().join(format!("smolet-fuzz-tls-{}", std::process::id()));
        std::fs::create_dir_all(&root).map_err(said)?;
        let client_ca = root.join("authority.pem");
        std::fs::write(&client_ca, AUTHORITY).map_err(said)?;
        let settings = NodeApi {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            certificate: None,
            client_ca: Some(client_ca),
            anonymous: false,
            token_ttl: None,
            authorization: Authorization::Everything,
            tls13_only: false,
            cipher_suites: Vec::new(),
            stream_idle_max: Duration::from_secs(1),
            healthz: None,
            system_logs: None,
        };
        let node = Accepting::new(&settings, &root)?;
        let own = std::fs::read(root.join("pki/smolet.crt")).map_err(said)?;
        std::fs::remove_dir_all(&root).map_err(said)?;
        let mut visits = kube::handshake::config(&own)?;
        visits.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connects = Arc::new(kube::handshake::config(AUTHORITY)?);
        Ok(Self { accepts: node.config(), node, connects, visits: Arc::new(visits) })
    }

    fn server(&self) -> Connection {
        match ServerConnection::new(self.accepts.clone()) {
            Ok(connection) => connection.into(),
            Err(error) => panic!("{error}"),
        }
    }

    fn client(config: &Arc<ClientConfig>) -> Connection {
        let name = ServerName::try_from("gw").map(|name| ClientConnection::new(config.clone(), name));
        match name {
            Ok(Ok(connection)) => connection.into(),
            other => panic!("{other:?}"),
        }
    }
}

static ENDS: OnceLock<Result<Ends, String>> = OnceLock::new();

pub fn run(data: &[u8]) {
    let Some((&first, said)) = data.split_first() else { return };
    let ends = match ENDS.get_or_init(Ends::made) {
        Ok(ends) => ends,
        Err(why) => panic!("{why}"),
    };
    let piece = usize::from(first >> 2) + 1;
    match first & 3 {
        0 => feed(ends.server(), said, piece),
        1 => feed(Ends::client(&ends.connects), said, piece),
        2 => shown(ends, said, piece),
        _ => bent(ends, said),
    }
}

/// What was said before cannot be the end of a handshake that begins now.
fn feed(mut connection: Connection, said: &[u8], piece: usize) {
    let mut answer = Vec::new();
    for mut piece in said.chunks(piece) {
        while !piece.is_empty() {
            let taken = connection.read_tls(&mut piece).is_ok_and(|bytes| bytes > 0);
            let sound = taken && connection.process_new_packets().is_ok();
            while connection.wants_write() {
                assert!(connection.write_tls(&mut answer).is_ok());
            }
            assert!(connection.is_handshaking() && answer.len() <= ANSWER_BYTES_MAX);
            if !sound {
                return;
            }
        }
    }
}

/// A client's certificates, the first as long as the piece says.
fn shown(ends: &Ends, said: &[u8], piece: usize) {
    let (own, other) = said.split_at(said.len().min(16 * piece));
    for certificates in [&[said][..], &[own, other]] {
        let certificates: Vec<_> = certificates.iter().map(|der| CertificateDer::from(*der)).collect();
        if ends.node.knows(&certificates) {
            // Two readers of the same certificate.
            assert!(x509::validity(&certificates[0]).is_some());
        }
        let _ = x509::subject(&certificates[0]);
    }
}

/// A handshake and a request, with bytes changed on their way: each three bytes say where (of both directions' bytes, in their
/// order) and how.
fn bent(ends: &Ends, edits: &[u8]) {
    let (mut client, mut server) = (Ends::client(&ends.visits), ends.server());
    assert!(client.writer().write_all(SAID).is_ok());
    let (edits, _) = edits.as_chunks::<3>();
    let mut wire = Wire { edits, at: 0, is_bent: false };
    for _ in 0..ROUNDS_MAX {
        if !(wire.carry(&mut client, &mut server) && wire.carry(&mut server, &mut client)) {
            break;
        }
    }
    let mut got = [0; SAID.len() + 1];
    let bytes = server.reader().read(&mut got).unwrap_or_default();
    assert!(SAID.starts_with(&got[..bytes]));
    assert!(wire.is_bent || bytes == SAID.len(), "a sound handshake");
}

struct Wire<'e> {
    edits: &'e [[u8; 3]],
    /// How many bytes it has carried.
    at: usize,
    is_bent: bool,
}

impl Wire<'_> {
    /// Whether the other end goes on.
    fn carry(&mut self, from: &mut Connection, to: &mut Connection) -> bool {
        let mut bytes = Vec::new();
        while from.wants_write() {
            assert!(from.write_tls(&mut bytes).is_ok());
        }
        assert!(bytes.len() <= ANSWER_BYTES_MAX);
        for [high, low, change] in self.edits {
            let at = usize::from(u16::from_be_bytes([*high, *low])).checked_sub(self.at);
            if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
                *byte ^= change;
                self.is_bent |= *change != 0;
            }
        }
        self.at += bytes.len();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            if !(to.read_tls(&mut rest).is_ok() && to.process_new_packets().is_ok()) {
                return false;
            }
        }
        true
    }
}
