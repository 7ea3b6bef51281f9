//! Connections to registries by way of a proxy (CONNECT).

use std::net::TcpStream;

use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::proxy::Proxy;
use crate::limits::{REGISTRY_ANSWER_HEADERS_MAX, REGISTRY_PROXY_HEAD_BYTES_MAX};
use crate::net::Address;
use crate::stream::Socket;

/// Asks a proxy for a connection to this server.
///
/// # Errors
/// A sentence: the proxy refuses, or does not answer as a proxy.
pub(super) async fn tunnel(
    socket: &mut Socket<TcpStream>,
    proxy: &Proxy,
    to: &Address,
) -> Result<(), String> {
    let at = |why: String| format!("proxy {}: {why}", proxy.address);
    let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(authorization) = &proxy.authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(authorization);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    socket.write_all(request.as_bytes()).await.map_err(|error| at(error.to_string()))?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head is the server's.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == REGISTRY_PROXY_HEAD_BYTES_MAX {
            return Err(at("its response is too long".to_owned()));
        }
        let mut byte = [0];
        socket.read_exact(&mut byte).await.map_err(|error| at(error.to_string()))?;
        head.extend_from_slice(&byte);
    }
    let mut headers = [httparse::EMPTY_HEADER; REGISTRY_ANSWER_HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(&head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) | Err(_) => return Err(at("its response is no HTTP".to_owned())),
    }
    match response.code {
        Some(200..300) => Ok(()),
        Some(407) => {
            Err(at("it wants credentials; write them into HTTPS_PROXY as http://USER:PASSWORD@HOST:PORT"
                .to_owned()))
        }
        code => Err(at(format!("it refuses the connection with status {}", code.unwrap_or_default()))),
    }
}
