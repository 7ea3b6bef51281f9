//! A container's log in chunks: each is read on a thread once the client has read the one before. Each has a deadline and takes
//! none of the turns of the agent's own work: a container may control the file system of its log.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use async_io::Async;
use http_body_util::{Either, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use smol::stream::StreamExt as _;

use super::request::{LogRequest, Refusal, TEXT};
use crate::blocking::{Blocking, Location};
use crate::clock::SharedClock;
use crate::limits::{NODE_LOG_BYTES, NODE_LOG_PAUSE};
use crate::logs::follow::{Follower, NextAction};
use crate::logs::line::{Sink, Stream};
use crate::logs::read::{LogReader, Part};
use crate::model::PodUid;
use crate::server::node_question::NodeQuestion;
use crate::server::{Answer, Body, QuerySender, Question, STOPPING};

/// Inputs for reading logs.
#[derive(Clone)]
pub(super) struct Reading {
    pub(super) asker: QuerySender,
    pub(super) blocking: Rc<Blocking>,
    pub(super) clock: SharedClock,
}

/// Location of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogLocation {
    path: PathBuf,
    running: bool,
}

impl Reading {
    /// The requested log.
    ///
    /// # Errors
    /// The kubelet's message: no such pod or container, the container has not started, its log cannot be read.
    pub(super) async fn show(self, request: LogRequest) -> Result<Response<Body>, Refusal> {
        let place = self.place(&request).await?;
        let shown = request.shown(self.clock.now().wall);
        let follow = request.follow && place.running;
        let part = Part { tail: request.tail, follow };
        let path = place.path.clone();
        // A log collector may have the directory mounted, and redirect its path. The directory of the pod's logs identifies the
        // pod.
        let pod = place.path.ancestors().nth(2).and_then(|dir| dir.file_name()?.to_str()).map(PodUid::from);
        let location = self.blocking.location_of(&place.path, pod.as_ref()).await;
        let opened = self.blocking.run_at(&location, move || {
            let mut source = if follow {
                let mut follower = Follower::new()?;
                follower.add(&path, || LogReader::open(&path, part, shown))?;
                Source::Followed(follower)
            } else {
                Source::Read(LogReader::open(&path, part, shown)?)
            };
            source.readable().map(|readable| (source, readable))
        });
        let failed = |error: io::Error| (400, format!("failed to read the container's log: {error}"));
        let opened = opened.await.map_err(io::Error::other).and_then(|opened| opened);
        let (source, readable) = opened.map_err(failed)?;
        let readable = readable.map(Async::new_nonblocking).transpose().map_err(failed)?;
        let piece = LogChunk { bytes: Vec::new(), only: request.only, left: request.bytes_max };
        let shower = LogWriter { reading: self, request, place, location, readable };
        let pieces = smol::stream::unfold(Some((shower, source, piece)), |state| async move {
            let (shower, source, piece) = state?;
            match shower.next(source, piece).await {
                Ok(None) => None,
                Ok(Some((bytes, rest))) => Some((Ok(Frame::data(bytes)), rest)),
                // The response is truncated, which the client detects.
                Err(error) => Some((Err(error), None)),
            }
        });
        let mut response = Response::new(Either::Right(StreamBody::new(pieces.boxed_local())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
        Ok(response)
    }

    /// The location, by a query of the loop.
    async fn place(&self, request: &LogRequest) -> Result<LogLocation, Refusal> {
        let question = NodeQuestion::Log {
            target: request.target.clone(),
            container: request.container.clone(),
            previous: request.previous,
        };
        match self.asker.ask(&Question::Node(Box::new(question))).await {
            Some(Answer::Found(text)) => {
                let location: Value = serde_json::from_str(&text).unwrap_or_default();
                let path = location["path"].as_str().unwrap_or_default();
                Ok(LogLocation { path: path.into(), running: location["running"] == true })
            }
            Some(Answer::Refused(status, why)) => Err((status, why)),
            Some(_) | None => Err((503, STOPPING.to_owned())),
        }
    }
}

enum Source {
    Read(LogReader),
    Followed(Follower),
}

impl Source {
    /// A descriptor that becomes readable when a followed log has grown.
    fn readable(&mut self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Read(_) => Ok(None),
            Self::Followed(follower) => follower.readable(),
        }
    }

    /// Reads the next chunk. I/O, blocking.
    fn step(&mut self, piece: &mut LogChunk, runs: bool) -> io::Result<NextAction> {
        let mut chunk = [0; NODE_LOG_BYTES];
        match self {
            Self::Read(reader) => {
                Ok(if reader.pump(&mut chunk, piece)? { NextAction::More } else { NextAction::Over })
            }
            Self::Followed(follower) => follower.step(&mut chunk, piece, runs),
        }
    }
}

/// A chunk of log that was read and is not sent yet.
struct LogChunk {
    bytes: Vec<u8>,
    only: Option<Stream>,
    /// Bytes left of `limitBytes`.
    left: Option<u64>,
}

impl Sink for LogChunk {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.only.is_some_and(|only| only != stream) {
            return Ok(());
        }
        let mut bytes = bytes;
        if let Some(left) = &mut self.left {
            bytes = &bytes[..bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX))];
            *left -= bytes.len() as u64;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct LogWriter {
    reading: Reading,
    request: LogRequest,
    place: LogLocation,
    location: Location,
    readable: Option<Async<OwnedFd>>,
}

/// State for the next chunk.
type Remainder = Option<(LogWriter, Source, LogChunk)>;

impl LogWriter {
    /// The next bytes, as soon as there are some; `None` at the end.
    async fn next(self, mut source: Source, mut piece: LogChunk) -> io::Result<Option<(Bytes, Remainder)>> {
        loop {
            if piece.left == Some(0) {
                return Ok(None);
            }
            let runs = match &source {
                Source::Followed(follower) if follower.asks() => self.runs().await,
                Source::Followed(_) | Source::Read(_) => true,
            };
            let read = self.reading.blocking.run_at(&self.location, move || {
                let turn = source.step(&mut piece, runs);
                (source, piece, turn)
            });
            let turn;
            (source, piece, turn) = read.await.map_err(io::Error::other)?;
            let turn = turn?;
            let bytes = Bytes::from(std::mem::take(&mut piece.bytes));
            match turn {
                NextAction::Over if bytes.is_empty() => return Ok(None),
                NextAction::Over => return Ok(Some((bytes, None))),
                NextAction::More | NextAction::Until(_) if !bytes.is_empty() => {
                    return Ok(Some((bytes, Some((self, source, piece)))));
                }
                NextAction::More => {}
                NextAction::Until(at) => self.wait(at).await?,
            }
        }
    }

    /// Waits until there is something to read, or until that instant.
    async fn wait(&self, at: Instant) -> io::Result<()> {
        let timer = self.reading.clock.sleep(at.saturating_duration_since(Instant::now()));
        let Some(readable) = &self.readable else {
            timer.await;
            return Ok(());
        };
        let late = async {
            timer.await;
            Ok(false)
        };
        if smol::future::or(async { readable.readable().await.map(|()| true) }, late).await? {
            self.reading.clock.sleep(NODE_LOG_PAUSE).await;
        }
        Ok(())
    }

    /// Whether the container still runs, by a query of the loop.
    async fn runs(&self) -> bool {
        self.reading.place(&self.request).await.is_ok_and(|now| now == self.place)
    }
}
