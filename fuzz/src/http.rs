//! Bytes on the local socket, in pieces as the first byte says → a question → an answer: at most one question a
//! connection, an answer whenever one was asked, and an end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use smol::io::{AsyncRead, AsyncWrite};
use smolet::server::{Answer, QuerySender};

/// No answer here comes near.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// A client that sends its bytes, hangs up and reads all there is.
struct Client<'a> {
    sends: &'a [u8],
    piece: usize,
    got: &'a mut Vec<u8>,
}

impl AsyncRead for Client<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let bytes = into.len().min(self.piece);
        Poll::Ready(io::Read::read(&mut self.sends, &mut into[..bytes]))
    }
}

impl AsyncWrite for Client<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.got.extend_from_slice(bytes);
        assert!(self.got.len() < ANSWER_BYTES_MAX, "an answer without end");
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub fn run(data: &[u8]) {
    let Some((&piece, request)) = data.split_first() else { return };
    let (queries, asked) = smol::channel::bounded(1);
    let asker = QuerySender::new(queries);
    let mut got = Vec::new();
    let client = Client { sends: request, piece: usize::from(piece).max(1), got: &mut got };
    let mut questions = 0;
    let answering = async {
        while let Ok(query) = asked.recv().await {
            questions += 1;
            let _ = query.answer.try_send(Answer::Found(format!("{:?}", query.question).len().to_string()));
        }
        // The asker has gone, so the connection is about to end.
        std::future::pending::<()>().await;
    };
    smol::future::block_on(smol::future::or(asker.serve(client), answering));
    assert!(questions <= 1, "one request a connection");
    let code = got.strip_prefix(b"HTTP/1.").and_then(|head| head.get(2..5));
    match code {
        None => assert!(got.is_empty(), "{}", String::from_utf8_lossy(&got)),
        Some(b"200") => assert_eq!(questions, 1),
        Some(code) => assert!(questions == 0 && code[0] == b'4', "{}", String::from_utf8_lossy(&got)),
    }
}
