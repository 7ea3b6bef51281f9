//! One layer, from the hosts that have it into its sink. A cut connection goes on at the sink's offset.
//!
//! ```text
//!     Range from the offset ──► 206            the bytes that are missing
//!                            ├► 200            the host knows no Range: bytes that the sink has are read again and passed over
//!                            ├► 404, 401, a long Retry-After ...   this host is not asked for the blob again
//!                            ├► bytes that the sink cannot read    nor here: a mirror's damaged copy, or a page that says so
//!                            ├► taken late by the sink             the connection is closed meanwhile; then the same host again
//!                            ├► another digest                     from the beginning, REGISTRY_RESTARTS_MAX times
//!                            ├► 416, another size or range         at the offset, as often; the host knows no Range then, but for the size
//!                            ├► cut after bytes came               the same host again, after the first wait
//!                            └► cut, stalled, refused, 429, 5xx    the next host at once; a host again after a wait that grows
//!                                                                  until a byte arrives, REGISTRY_TRIES_MAX times
//! ```
//!
//! An `ETag` is of no interest: the digest says which bytes these are, whichever server they are from.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use hyper::Method;

use super::client::{Call, Client};
use super::endpoint::Endpoint;
use super::http::{Answer, within};
use super::sink::{BlobSink, SinkError};
use super::{Descriptor, RegistryError, RegistryResult};
use crate::limits::{
    REGISTRY_PROGRESS_BYTES_MIN, REGISTRY_RESTARTS_MAX, REGISTRY_RETRY_FIRST, REGISTRY_RETRY_MAX,
    REGISTRY_STALL_TIME, REGISTRY_TRIES_MAX,
};
use crate::model::Mono;

/// Why a part of a blob ended too early.
enum Ended {
    /// Later, at the offset.
    Cut { why: String, after: Option<Duration> },
    /// From the beginning.
    Wrong(String),
    /// The response has other bytes than those that were asked for, by its head: what has arrived stays.
    Head { why: String, refuses_ranges: bool },
    /// Another host may have it.
    Host(RegistryError),
    /// What has come cannot be read, and was not verified yet: another host may have what the digest says.
    Unread(String),
    /// The sink has failed.
    Sink(RegistryError),
}

impl From<SinkError> for Ended {
    fn from(error: SinkError) -> Self {
        match error {
            SinkError::Digest(why) => Self::Wrong(why),
            SinkError::Refused(why) => Self::Sink(RegistryError::Content(why)),
            SinkError::Failed(why) => Self::Sink(RegistryError::Store(why)),
        }
    }
}

/// The wait before the next attempt, after so many without progress.
pub(super) fn wait(tries: u32) -> Duration {
    REGISTRY_RETRY_FIRST.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(REGISTRY_RETRY_MAX)
}

/// A host that may have the blob.
struct Host<'a> {
    endpoint: &'a Endpoint,
    /// The first ones are asked first.
    place: usize,
    /// Attempts in a row without progress.
    tries: u32,
    /// When it may be asked again.
    from: Option<Mono>,
    restarts: u32,
    /// It refuses ranges: it is asked for all of the blob, and what has arrived is passed over.
    whole: bool,
}

/// Takes the host that is asked next: the first one that may be asked now, else the one that may be asked the earliest.
fn next<'a>(hosts: &mut VecDeque<Host<'a>>, now: Mono) -> Option<Host<'a>> {
    let ready = hosts.iter().position(|host| host.from.is_none_or(|from| from <= now));
    let earliest = || hosts.iter().enumerate().min_by_key(|(_, host)| host.from).map(|(index, _)| index);
    let index = ready.or_else(earliest)?;
    hosts.remove(index)
}

/// Fetches a layer of `repository`. `progress` is told the sink's offset.
///
/// # Errors
/// No host has it, or none sends all of it; it is not what its digest says; the sink has failed.
pub(super) async fn fetch<S: BlobSink>(
    client: &Client,
    endpoints: &[&Endpoint],
    repository: &str,
    blob: &Descriptor,
    sink: &mut S,
    progress: &dyn Fn(u64),
) -> RegistryResult<()> {
    let host = |(place, endpoint)| Host { endpoint, place, tries: 0, from: None, restarts: 0, whole: false };
    let in_order = client.answering_first(endpoints.iter().copied()).enumerate();
    let mut hosts: VecDeque<Host<'_>> = in_order.map(host).collect();
    let mut first = None;
    let mut same: Option<Host<'_>> = None;
    loop {
        let now = client.clock().now().mono;
        let Some(mut host) = same.take().or_else(|| next(&mut hosts, now)) else {
            return Err(first.unwrap_or_else(|| RegistryError::NotFound("no host to pull from".to_owned())));
        };
        if let Some(wait) = host.from.filter(|from| *from > now).map(|from| from.since(now)) {
            client.clock().sleep(wait).await;
        }
        let endpoint = host.endpoint;
        progress(sink.offset());
        let before = sink.offset();
        let source = Source { client, endpoint, repository, blob, whole: host.whole, progress };
        let ended = match source.part(sink).await {
            Ok(()) => match sink.finish().await {
                Ok(()) => return Ok(()),
                Err(error) => error.into(),
            },
            Err(ended) => ended,
        };
        match ended {
            Ended::Wrong(_) | Ended::Unread(_) => sink.restart().await.map_err(|error| store(&error))?,
            Ended::Head { refuses_ranges, .. } => host.whole |= refuses_ranges,
            Ended::Cut { .. } | Ended::Host(_) | Ended::Sink(_) => {}
        }
        match ended {
            Ended::Cut { why, after } => {
                let came = sink.offset().saturating_sub(before);
                let has_progress = came >= REGISTRY_PROGRESS_BYTES_MIN;
                host.tries = if has_progress { 1 } else { host.tries + 1 };
                if host.tries > REGISTRY_TRIES_MAX {
                    let (name, tries) = (endpoint.host(), host.tries);
                    let why = format!("{name}: {why} ({tries} attempts without progress)");
                    first.get_or_insert(RegistryError::unavailable(why));
                    continue;
                }
                log::debug!("layer {}: at {} of {} bytes: {why}", blob.digest, sink.offset(), blob.size);
                let wait = after.unwrap_or_default().max(wait(host.tries));
                host.from = Some(client.clock().now().mono + wait);
                if has_progress {
                    same = Some(host);
                } else {
                    let at = hosts.iter().position(|other| other.place > host.place);
                    hosts.insert(at.unwrap_or(hosts.len()), host);
                }
            }
            Ended::Wrong(why) | Ended::Head { why, .. } => {
                if host.restarts == REGISTRY_RESTARTS_MAX {
                    first.get_or_insert(RegistryError::Content(format!("{}: {why}", endpoint.host())));
                    continue;
                }
                let (digest, offset) = (blob.digest, sink.offset());
                log::warn!("layer {digest} of {}: {why}; fetching it from byte {offset} on", endpoint.host());
                host.restarts += 1;
                same = Some(host);
            }
            Ended::Host(error) => {
                first.get_or_insert(error);
            }
            Ended::Unread(why) => {
                let why = format!("{}: {why}", endpoint.host());
                log::warn!("layer {}: {why}; this host is not asked for it again", blob.digest);
                first.get_or_insert(RegistryError::Content(why));
            }
            Ended::Sink(error) => return Err(error),
        }
    }
}

fn store(error: &SinkError) -> RegistryError {
    RegistryError::Store(error.to_string())
}

/// A blob at a host.
struct Source<'a> {
    client: &'a Client,
    endpoint: &'a Endpoint,
    repository: &'a str,
    blob: &'a Descriptor,
    whole: bool,
    progress: &'a dyn Fn(u64),
}

impl Source<'_> {
    /// Fetches what is missing.
    async fn part<S: BlobSink>(&self, sink: &mut S) -> Result<(), Ended> {
        let (offset, size) = (sink.offset(), self.blob.size);
        if offset == size && size > 0 {
            return Ok(());
        }
        let part = format!("blobs/{}", self.blob.digest);
        let call = Call {
            method: Method::GET,
            endpoint: self.endpoint,
            repository: self.repository,
            part: &part,
            accept: "*/*",
            from: if self.whole { 0 } else { offset },
        };
        let mut answer = self.client.send(&call).await.map_err(|error| match error {
            error if error.asks_for_long_wait() => Ended::Host(error),
            RegistryError::Unreachable(why) => Ended::Cut { why, after: None },
            RegistryError::Unavailable { why, after } => Ended::Cut { why, after },
            error => Ended::Host(error.while_doing(&format!("blob {}", self.blob.digest))),
        })?;
        let mut passed_over = self.begin(&answer, offset)?;
        loop {
            let chunk = within(self.client.clock(), REGISTRY_STALL_TIME, answer.chunk()).await;
            let Some(chunk) = chunk.map_err(|why| Ended::Cut { why, after: None })? else { break };
            let skipped = usize::try_from(passed_over).unwrap_or(usize::MAX).min(chunk.len());
            passed_over -= skipped as u64;
            let bytes = &chunk[skipped..];
            if bytes.len() as u64 > size - sink.offset() {
                return Err(Ended::Wrong(format!("has more than the {size} bytes of the manifest")));
            }
            if !bytes.is_empty() {
                let put = self.put(sink, bytes, answer).await.map_err(|error| match error {
                    SinkError::Refused(why) => Ended::Unread(why),
                    error => error.into(),
                })?;
                (self.progress)(sink.offset());
                let closed = || Ended::Cut { why: "closed while the layer waited".to_owned(), after: None };
                answer = put.ok_or_else(closed)?;
            }
        }
        if sink.offset() < size {
            return Err(Ended::Cut { why: "the response ends too early".to_owned(), after: None });
        }
        self.client.keep(self.endpoint, answer.into_connection());
        Ok(())
    }

    /// Hands bytes to the sink. One that takes them late, because other layers have the memory or the disk is slow, does so without a
    /// connection: `None`. Servers cut one that nobody reads from, mostly after a minute.
    async fn put<S: BlobSink>(
        &self,
        sink: &mut S,
        bytes: &[u8],
        answer: Answer,
    ) -> Result<Option<Answer>, SinkError> {
        let mut write = pin!(sink.write(bytes));
        let soon = async { Some(write.as_mut().await) };
        let late = async {
            self.client.clock().sleep(REGISTRY_STALL_TIME).await;
            None
        };
        if let Some(written) = smol::future::or(soon, late).await {
            return written.map(|()| Some(answer));
        }
        drop(answer);
        write.await.map(|()| None)
    }

    /// Looks at the response's head: how many bytes of it the sink has already.
    fn begin(&self, answer: &Answer, offset: u64) -> Result<u64, Ended> {
        let size = self.blob.size;
        let head = |why, refuses_ranges| Ended::Head { why, refuses_ranges };
        match answer.status {
            416 => Err(head(format!("has no bytes from {offset} on, of {size} by the manifest"), true)),
            206 => {
                let range = answer.header("content-range").and_then(content_range);
                if range.is_some_and(|(from, all)| from == offset && all.is_none_or(|all| all == size)) {
                    Ok(0)
                } else {
                    Err(head(format!("answers with another range than {offset} to {size}"), true))
                }
            }
            _ => {
                let length = answer.header("content-length").and_then(|length| length.parse::<u64>().ok());
                match length {
                    Some(length) if length != size => {
                        Err(head(format!("has {length} bytes, {size} by the manifest"), false))
                    }
                    Some(_) | None => Ok(offset),
                }
            }
        }
    }
}

/// `bytes FROM-TO/ALL`: from and all.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, all) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (from, _) = range.split_once('-')?;
    let all = if all == "*" { None } else { Some(all.parse().ok()?) };
    Some((from.trim().parse().ok()?, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_waits() {
        for (text, range) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 5-9/*", Some((5, None))),
            ("bytes */10", None),
            ("items 5-9/10", None),
            ("bytes 5-9", None),
        ] {
            assert_eq!(content_range(text), range, "{text}");
        }
        let waits = (1..=REGISTRY_TRIES_MAX).map(|tries| wait(tries).as_millis());
        assert_eq!(waits.collect::<Vec<_>>(), [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
    }
}
