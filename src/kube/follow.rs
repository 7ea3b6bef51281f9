//! The reflector (client-go `Reflector`): lists and watches a collection, so that its follower has the server's state whatever
//! happens to the connection.
//!
//! ```text
//!     list (pages) ──► resourceVersion ──► watch ──► bookmark, change … ──► end ──► watch from there
//!       ▲                                    │
//!       └── 410, or an event that is none ◄──┘
//! ```
//!
//! One object is held at a time, however many the response has. When there are too many collections for a watch each, some are
//! listed periodically instead ([`Watches`]).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::client::{Client, refusal};
use super::path::{Resource, escape};
use super::split::{Shape, SplitError, Splitter};
use super::{KubeError, RetryWait, seed};
use crate::decode::Node;
use crate::decode::json;
use crate::limits::{
    KUBE_CALL_TIME, KUBE_LIST_AGAIN, KUBE_LIST_PERIOD, KUBE_LIST_SPACING, KUBE_OBJECT_BYTES_MAX,
    KUBE_PAGE_ITEMS, KUBE_WATCH_SHORT, KUBE_WATCH_TIME,
};
use crate::model::Mono;

/// A collection of objects.
#[derive(Clone, Debug)]
pub struct Collection {
    /// Their resource.
    pub resource: Resource,
    /// Their namespace; empty: all.
    pub namespace: Box<str>,
    /// `spec.nodeName=gw-1`; empty: all.
    pub field_selector: Box<str>,
    /// `!service.kubernetes.io/headless`; empty: all.
    pub label_selector: &'static str,
}

impl Collection {
    /// All objects of a resource.
    pub fn all(resource: Resource) -> Self {
        Self { resource, namespace: Box::default(), field_selector: Box::default(), label_selector: "" }
    }

    fn path(&self, query: &str) -> String {
        let mut path = self.resource.path(&self.namespace);
        path.push('?');
        path.push_str(query);
        for (key, selector) in
            [("&fieldSelector=", &*self.field_selector), ("&labelSelector=", self.label_selector)]
        {
            if !selector.is_empty() {
                path.push_str(key);
                escape(&mut path, selector);
            }
        }
        path
    }
}

/// The receiver of a collection's changes (client-go's `Store`). Its methods run on the loop's thread and never wait.
pub trait Follower {
    /// A list begins: an object that is not reported before the next [`Follower::settled`] no longer exists.
    fn list_begins(&mut self);
    /// The object was listed, added or modified.
    fn apply(&mut self, object: Node);
    /// The object was deleted.
    fn delete(&mut self, object: &Node);
    /// An object exceeds the size limit and is skipped.
    fn skipped(&mut self) {}
    /// Space is free again for objects that were dropped: the collection is to be listed again.
    fn has_room(&self) -> bool {
        false
    }
    /// The list is complete.
    fn settled(&mut self);
    /// The list or the watch failed; it is retried.
    fn lost(&mut self, why: &KubeError);
    /// A shorter retry delay after this failure, which then does not count as lost.
    fn again_in(&mut self, _why: &KubeError) -> Option<Duration> {
        None
    }
    /// The object is immutable: it is not followed any further.
    fn is_final(&self) -> bool {
        false
    }
}

/// The watches of collections that may be numerous, each a stream of the one connection.
///
/// Full: a further collection is listed once in `KUBE_LIST_PERIOD` (the kubelet does so with all under
/// `configMapAndSecretChangeDetectionStrategy: Cache`), from the server's cache, until a watch is free.
#[derive(Clone, Default)]
pub struct Watches(Rc<Counts>);

#[derive(Default)]
struct Counts {
    watched: Cell<u32>,
    listed: Cell<u32>,
}

/// One counted watch, until it is dropped.
struct Counted<'a>(&'a Cell<u32>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Follows the collection for `follower` until dropped.
pub async fn follow<T>(client: &Client, collection: &Collection, follower: &mut dyn Follower) -> T {
    follow_or_list(client, collection, follower, None).await
}

/// The same; with `watches` and a number, the collection is watched while fewer watches than that are in use, else listed.
pub async fn follow_or_list<T>(
    client: &Client,
    collection: &Collection,
    follower: &mut dyn Follower,
    watches: Option<(&Watches, u32)>,
) -> T {
    let clock = client.clock().clone();
    let own = seed(&collection.field_selector) ^ seed(&collection.namespace).rotate_left(1);
    let mut wait = RetryWait::new(client.seed() ^ own);
    let mut from = Start::Anywhere;
    let mut was_expired = false;
    let mut listed = clock.now().mono;
    loop {
        let ended =
            Box::pin(once(client, collection, follower, &mut from, &mut listed, &mut wait, watches)).await;
        let expired = ended.as_ref().is_err_and(KubeError::is_expired);
        let at_once = expired && !was_expired;
        was_expired = expired;
        let why = match (ended, watches) {
            (Ok(AfterList::Never), _) => return std::future::pending().await,
            (Ok(AfterList::Later), Some((Watches(counts), _))) => {
                let _listed = Counted::new(&counts.listed);
                let period = KUBE_LIST_PERIOD.max(KUBE_LIST_SPACING * counts.listed.get());
                clock.sleep(wait.spread(period)).await;
                continue;
            }
            (Ok(AfterList::Now | AfterList::Later), _) => continue,
            (Err(why), _) => why,
        };
        if expired {
            // Listed again from the server's newest state: once without a wait, however long the server was unreachable before;
            // an old server's cache may be behind.
            from = Start::Newest;
        }
        if at_once {
            continue;
        }
        if let Some(soon) = follower.again_in(&why) {
            clock.sleep(soon).await;
            continue;
        }
        follower.lost(&why);
        clock.sleep(wait.failed()).await;
    }
}

/// The step after a list or a watch that ended well.
enum AfterList {
    /// Watch.
    Now,
    /// List again after a wait: no watch is free.
    Later,
    /// Stop.
    Never,
}

/// Where to continue.
enum Start {
    /// With a list of any state of the server, as the kubelet's first.
    Anywhere,
    /// With a list of the newest state.
    Newest,
    /// With a list not older than this resource version.
    NotBefore(Box<str>),
    /// With a watch from this resource version.
    Version(Box<str>),
}

impl Start {
    /// Makes the next list not older than the last known version.
    fn again(&mut self) {
        if let Self::Version(version) = self {
            *self = Self::NotBefore(std::mem::take(version));
        }
    }
}

async fn once(
    client: &Client,
    collection: &Collection,
    follower: &mut dyn Follower,
    from: &mut Start,
    listed: &mut Mono,
    wait: &mut RetryWait,
    watches: Option<(&Watches, u32)>,
) -> Result<AfterList, KubeError> {
    if !matches!(from, Start::Version(_)) {
        *listed = client.clock().now().mono;
        let version = list(client, collection, follower, from).await?;
        *from = Start::Version(version);
        wait.succeeded();
    }
    if follower.is_final() {
        return Ok(AfterList::Never);
    }
    if watches.is_some_and(|(Watches(counts), watches_max)| counts.watched.get() >= watches_max) {
        from.again();
        return Ok(AfterList::Later);
    }
    let Start::Version(version) = from else { return Ok(AfterList::Now) };
    let _watched = watches.map(|(Watches(counts), _)| Counted::new(&counts.watched));
    let begun = client.clock().now().mono;
    let count = watch(client, collection, follower, version, begun, *listed).await;
    match count {
        Ok(_) if follower.has_room() => {
            from.again();
            wait.succeeded();
            Ok(AfterList::Now)
        }
        Ok(0) if client.clock().now().mono.since(begun) < KUBE_WATCH_SHORT => {
            // client-go's "very short watch".
            from.again();
            Err(KubeError::Unreachable("a watch ended as soon as it began".to_owned()))
        }
        Ok(0) => {
            // A server sends bookmarks about once a minute: one that is silent may have been restored from a backup, and not have come to
            // this version yet.
            from.again();
            wait.succeeded();
            Ok(AfterList::Now)
        }
        Ok(_) => {
            wait.succeeded();
            Ok(AfterList::Now)
        }
        Err(error) => {
            // A broken connection says nothing about the version; a malformed watch does.
            if !matches!(error, KubeError::Unreachable(_)) {
                from.again();
            }
            Err(error)
        }
    }
}

/// Lists the collection; returns its resource version.
async fn list(
    client: &Client,
    collection: &Collection,
    follower: &mut dyn Follower,
    from: &Start,
) -> Result<Box<str>, KubeError> {
    let mut query = format!("limit={KUBE_PAGE_ITEMS}");
    match from {
        Start::Anywhere => query.push_str("&resourceVersion=0"),
        Start::Newest => {}
        Start::NotBefore(version) | Start::Version(version) => {
            query.push_str("&resourceVersionMatch=NotOlderThan&resourceVersion=");
            escape(&mut query, version);
        }
    }
    follower.list_begins();
    loop {
        let mut opened = client.open(&collection.path(&query)).await?;
        let mut splitter = Splitter::new(Shape::List);
        let mut wrong = None;
        while let Some(bytes) = opened.next(client, KUBE_CALL_TIME).await? {
            let fed = splitter.feed(&bytes, &mut |item| match item.map(json::read) {
                Some(Ok(object)) => follower.apply(object),
                Some(Err(error)) => wrong = Some(error),
                None => {
                    too_long(collection);
                    follower.skipped();
                }
            });
            fed.map_err(|error| malformed(collection, error))?;
        }
        if let Some(error) = wrong {
            return Err(KubeError::Protocol(format!("a list of {}: {error}", collection.resource.plural)));
        }
        let head = splitter.head().and_then(|head| json::read(head).ok());
        let metadata = head.as_ref().and_then(|head| head.field("metadata"));
        let text = |field| metadata.and_then(|m| m.field(field)).and_then(Node::text).unwrap_or_default();
        match text("continue") {
            "" if text("resourceVersion").is_empty() => {
                return Err(malformed(collection, SplitError::Malformed));
            }
            "" => {
                follower.settled();
                return Ok(text("resourceVersion").into());
            }
            next => {
                query = format!("limit={KUBE_PAGE_ITEMS}&continue=");
                escape(&mut query, next);
            }
        }
    }
}

/// Watches from `version`, which it advances; ends when the server ends the watch, or when the follower has space again and the
/// last list is long enough ago. Returns the number of events.
async fn watch(
    client: &Client,
    collection: &Collection,
    follower: &mut dyn Follower,
    version: &mut Box<str>,
    begun: Mono,
    listed: Mono,
) -> Result<u64, KubeError> {
    let mut query = format!(
        "watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion=",
        KUBE_WATCH_TIME.as_secs()
    );
    escape(&mut query, version);
    let mut opened = client.open(&collection.path(&query)).await?;
    let mut splitter = Splitter::new(Shape::Documents);
    let mut count = 0;
    loop {
        // A watch that the server does not end is on a dead connection.
        let age = client.clock().now().mono.since(begun);
        let left = (KUBE_WATCH_TIME + KUBE_CALL_TIME).saturating_sub(age).max(Duration::from_secs(1));
        let due = follower.has_room().then_some(listed + KUBE_LIST_AGAIN);
        let again = async {
            match due {
                Some(at) => client.clock().sleep_until(at).await,
                None => std::future::pending().await,
            }
            Ok(None)
        };
        let Some(bytes) = smol::future::or(opened.next(client, left), again).await? else {
            return Ok(count);
        };
        let mut failure = None;
        let before = count;
        let fed = splitter.feed(&bytes, &mut |item| {
            if failure.is_some() {
                return;
            }
            count += 1;
            match item.map(json::read) {
                Some(Ok(event)) => failure = take(event, follower, version).err(),
                Some(Err(error)) => failure = Some(KubeError::Protocol(format!("a watch: {error}"))),
                None => too_long(collection),
            }
        });
        fed.map_err(|error| malformed(collection, error))?;
        splitter.shrink();
        if count > before {
            follower.settled();
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
}

/// Applies one event of a watch; `version` becomes the object's resource version.
///
/// # Errors
/// It is not a watch event, or an `ERROR` event.
pub fn take(event: Node, follower: &mut dyn Follower, version: &mut Box<str>) -> Result<(), KubeError> {
    let (mut kind, mut object) = (Box::from(""), Node::Null);
    if let Node::Map(entries) = event {
        for (key, value) in entries {
            match (&*key, value) {
                ("type", Node::Text(text)) => kind = text,
                ("object", value) => object = value,
                (_, _) => {}
            }
        }
    }
    if &*kind == "ERROR" {
        let code = match object.field("code") {
            Some(Node::Int(code)) => u16::try_from(*code).unwrap_or(500),
            _ => 500,
        };
        return Err(refusal(code, &object));
    }
    let at = object.field("metadata").and_then(|m| m.field("resourceVersion")).and_then(Node::text);
    let Some(at) = at.map(Box::from) else {
        return Err(KubeError::Protocol("a watch: an event without a resourceVersion".to_owned()));
    };
    match &*kind {
        "ADDED" | "MODIFIED" => follower.apply(object),
        "DELETED" => follower.delete(&object),
        // Bookmarks, and event types of future servers.
        _ => {}
    }
    *version = at;
    Ok(())
}

fn too_long(collection: &Collection) {
    log::warn!(
        "API server: one of the {} is larger than {KUBE_OBJECT_BYTES_MAX} bytes; ignored",
        collection.resource.plural
    );
}

fn malformed(collection: &Collection, error: SplitError) -> KubeError {
    let what = match error {
        SplitError::Malformed => "is no list of objects",
        SplitError::Head => "has too much besides its objects",
    };
    KubeError::Protocol(format!("the API server's answer for {} {what}", collection.resource.plural))
}
