//! One layer, from the hosts that have it into its sink. A cut connection goes on at the sink's offset.
//!
//! ```text
//!     Range from the offset ──► 206            the bytes that are missing
//!                            ├► 200            the host knows no Range: bytes that the sink has are read again and passed over
//!                            ├► 404, 401 ...   the next host
//!                            ├► 416, another size, range, ETag or digest    from the beginning, REGISTRY_RESTARTS_MAX times
//!                            └► cut, stalled, 429, 5xx    again, after a wait that grows until a byte arrives
//! ```

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

/// Why a part of a blob ended too early.
enum Ended {
    /// Later, at the offset.
    Cut { why: String, after: Option<Duration> },
    /// From the beginning.
    Wrong(String),
    /// Another host may have it.
    Host(RegistryError),
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
    let mut endpoints = endpoints.iter();
    let mut first = None;
    let mut restarts = 0;
    'host: loop {
        let Some(endpoint) = endpoints.next() else {
            return Err(first.unwrap_or_else(|| RegistryError::NotFound("no host to pull from".to_owned())));
        };
        let mut source = Source { client, endpoint, repository, blob, etag: None, progress };
        let mut tries = 0;
        loop {
            progress(sink.offset());
            let before = sink.offset();
            let ended = match source.part(sink).await {
                Ok(()) => match sink.finish().await {
                    Ok(()) => return Ok(()),
                    Err(error) => error.into(),
                },
                Err(ended) => ended,
            };
            match ended {
                Ended::Cut { why, after } => {
                    let came = sink.offset().saturating_sub(before);
                    tries = if came >= REGISTRY_PROGRESS_BYTES_MIN { 1 } else { tries + 1 };
                    if tries > REGISTRY_TRIES_MAX {
                        let host = endpoint.host();
                        let why = format!("{host}: {why} ({tries} attempts without progress)");
                        first.get_or_insert(RegistryError::unavailable(why));
                        continue 'host;
                    }
                    log::debug!("layer {}: at {} of {} bytes: {why}", blob.digest, sink.offset(), blob.size);
                    client.clock().sleep(after.unwrap_or_default().max(wait(tries))).await;
                }
                Ended::Wrong(why) => {
                    if restarts == REGISTRY_RESTARTS_MAX {
                        let host = endpoint.host();
                        first.get_or_insert(RegistryError::Content(format!("{host}: {why}")));
                        restarts = 0;
                        sink.restart().await.map_err(|error| store(&error))?;
                        continue 'host;
                    }
                    log::warn!(
                        "layer {} of {}: {why}; fetching it from its beginning",
                        blob.digest,
                        endpoint.host()
                    );
                    restarts += 1;
                    source.etag = None;
                    sink.restart().await.map_err(|error| store(&error))?;
                }
                Ended::Host(error) => {
                    first.get_or_insert(error);
                    continue 'host;
                }
                Ended::Sink(error) => return Err(error),
            }
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
    /// Of the response that the sink's bytes are from.
    etag: Option<String>,
    progress: &'a dyn Fn(u64),
}

impl Source<'_> {
    /// Fetches what is missing.
    async fn part<S: BlobSink>(&mut self, sink: &mut S) -> Result<(), Ended> {
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
            from: offset,
        };
        let mut answer = self.client.send(&call).await.map_err(|error| match error {
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
                sink.write(bytes).await?;
                (self.progress)(sink.offset());
            }
        }
        if sink.offset() < size {
            return Err(Ended::Cut { why: "the response ends too early".to_owned(), after: None });
        }
        self.client.keep(self.endpoint, answer.into_connection());
        Ok(())
    }

    /// Looks at the response's head: how many bytes of it the sink has already.
    fn begin(&mut self, answer: &Answer, offset: u64) -> Result<u64, Ended> {
        let size = self.blob.size;
        let etag = answer.header("etag").map(str::to_owned);
        let is_other = |(now, before): (&String, &String)| now != before;
        if offset > 0 && etag.as_ref().zip(self.etag.as_ref()).is_some_and(is_other) {
            return Err(Ended::Wrong("its content has changed (another ETag)".to_owned()));
        }
        self.etag = etag;
        match answer.status {
            416 => Err(Ended::Wrong(format!("has no bytes from {offset} on, of {size} by the manifest"))),
            206 => {
                let range = answer.header("content-range").and_then(content_range);
                if range.is_some_and(|(from, all)| from == offset && all.is_none_or(|all| all == size)) {
                    Ok(0)
                } else {
                    Err(Ended::Wrong(format!("answers with another range than {offset} to {size}")))
                }
            }
            _ => {
                let length = answer.header("content-length").and_then(|length| length.parse::<u64>().ok());
                match length {
                    Some(length) if length != size => {
                        Err(Ended::Wrong(format!("has {length} bytes, {size} by the manifest")))
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
