//! A client of the node's API: HTTP/1.1 over TLS, as bytes.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::Arc;

use async_io::{Async, Timer};
use futures_rustls::TlsConnector;
use futures_rustls::client::TlsStream;
use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{ALL_VERSIONS, ClientConfig, RootCertStore, SupportedProtocolVersion};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::agent::{NODE, PATIENCE};
use super::apiserver::Identity;

/// An answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub body: String,
}

/// One connection.
pub struct Client(TlsStream<Async<TcpStream>>);

impl Client {
    /// The same on that port, with an authority (PEM) to trust.
    pub fn connect(port: u16, authority: &str, identity: Option<&Identity>) -> io::Result<Self> {
        Self::connect_by(ALL_VERSIONS, port, authority, identity)
    }

    /// The same by one of these versions of TLS.
    pub fn connect_by(
        versions: &[&'static SupportedProtocolVersion],
        port: u16,
        authority: &str,
        identity: Option<&Identity>,
    ) -> io::Result<Self> {
        let shown = identity.map(|identity| (vec![identity.certificate.clone()], identity.key.clone()));
        Self::connect_over(tcp(Ipv4Addr::LOCALHOST, port)?, versions, authority, shown)
    }

    /// The same to a node of that name, as that identity.
    pub fn connect_to_node(
        node: &'static str,
        port: u16,
        authority: &str,
        identity: &Identity,
    ) -> io::Result<Self> {
        let shown = (vec![identity.certificate.clone()], identity.key.clone());
        Self::connect_as(node, tcp(Ipv4Addr::LOCALHOST, port)?, ALL_VERSIONS, authority, Some(shown))
    }

    /// A connection to a server of another name.
    pub fn connect_to(name: &'static str, port: u16, authority: &str) -> io::Result<Self> {
        Self::connect_as(name, tcp(Ipv4Addr::LOCALHOST, port)?, ALL_VERSIONS, authority, None)
    }

    /// The same over that connection, with a chain of certificates and the first one's key (PKCS#8).
    pub fn connect_over(
        socket: TcpStream,
        versions: &[&'static SupportedProtocolVersion],
        authority: &str,
        shown: Option<(Vec<CertificateDer<'static>>, Vec<u8>)>,
    ) -> io::Result<Self> {
        Self::connect_as(NODE, socket, versions, authority, shown)
    }

    fn connect_as(
        name: &'static str,
        socket: TcpStream,
        versions: &[&'static SupportedProtocolVersion],
        authority: &str,
        shown: Option<(Vec<CertificateDer<'static>>, Vec<u8>)>,
    ) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            Some((chain, key)) => {
                config.with_client_auth_cert(chain, PrivateKeyDer::Pkcs8(key.into())).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        within(async {
            let name = name.try_into().unwrap();
            TlsConnector::from(Arc::new(config)).connect(name, Async::new(socket)?).await.map(Self)
        })
    }

    /// As [`Client::send`] and [`Client::rest`], where the node may refuse.
    pub fn ask(mut self, path: &str, headers: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: gw\r\n{headers}\r\n");
        within(async {
            self.0.write_all(request.as_bytes()).await?;
            self.0.flush().await?;
            let mut bytes = Vec::new();
            self.0.read_to_end(&mut bytes).await?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    pub fn send(&mut self, bytes: &[u8]) {
        within(async {
            self.0.write_all(bytes).await?;
            self.0.flush().await
        })
        .expect("the node takes it");
    }

    /// What comes until there are so many bytes, or the text is at their end.
    pub fn until(&mut self, ends: impl Fn(&str) -> bool) -> String {
        let mut bytes = Vec::new();
        within(async {
            let mut piece = [0; 4096];
            while !ends(&String::from_utf8_lossy(&bytes)) {
                let read = self.0.read(&mut piece).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.extend_from_slice(&piece[..read]);
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)));
        String::from_utf8(bytes).unwrap()
    }

    /// The version and the suite of TLS that are spoken.
    pub fn spoken(&self) -> (String, String) {
        let connection = self.0.get_ref().1;
        let version = connection.protocol_version().expect("the handshake is over");
        let suite = connection.negotiated_cipher_suite().expect("the handshake is over").suite();
        (format!("{version:?}"), format!("{suite:?}"))
    }

    /// What comes until the connection is closed.
    pub fn end(mut self) -> String {
        let mut bytes = Vec::new();
        within(async { self.0.read_to_end(&mut bytes).await }).expect("it is closed in order");
        String::from_utf8(bytes).unwrap()
    }

    /// The answer to its end, out of its chunks.
    pub fn rest(mut self) -> Response {
        let mut bytes = Vec::new();
        let read = within(async { self.0.read_to_end(&mut bytes).await });
        read.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)));
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = if head.contains("transfer-encoding: chunked") { whole(body) } else { body.to_owned() };
        Response { status, body }
    }
}

fn whole(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a chunk's length");
        body.push_str(&rest[..length]);
        chunks = &rest[length + 2..];
        if length == 0 {
            break;
        }
    }
    body
}

/// A connection to that port of this machine, from one of its addresses.
pub fn tcp(from: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(socket.into())
}

fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    smol::block_on(smol::future::or(work, async {
        Timer::after(PATIENCE).await;
        Err(io::ErrorKind::TimedOut.into())
    }))
}
