//! Events of sandboxes and containers, for everyone who subscribes.

use std::cell::RefCell;

use smol::channel::{Receiver, Sender, bounded};

use crate::cri::{RuntimeEvent, RuntimeEventKind};
use crate::limits::{RUNTIME_EVENTS_MAX, RUNTIME_SUBSCRIBERS_MAX};
use crate::model::PodUid;

/// The subscribers.
#[derive(Default)]
pub(super) struct Events {
    subscribers: RefCell<Vec<Sender<RuntimeEvent>>>,
}

impl Events {
    /// All events from now on. The channel closes when its reader is too slow. `None`: there are too many subscribers.
    pub(super) fn subscribe(&self) -> Option<Receiver<RuntimeEvent>> {
        let mut subscribers = self.subscribers.borrow_mut();
        subscribers.retain(|subscriber| !subscriber.is_closed());
        if subscribers.len() >= RUNTIME_SUBSCRIBERS_MAX {
            return None;
        }
        let (sender, receiver) = bounded(RUNTIME_EVENTS_MAX);
        subscribers.push(sender);
        Some(receiver)
    }

    pub(super) fn publish(&self, kind: RuntimeEventKind, id: &str, pod: &str) {
        let pod = (!pod.is_empty()).then(|| PodUid::from(pod));
        let event = RuntimeEvent { kind, id: id.into(), pod };
        self.subscribers.borrow_mut().retain(|subscriber| subscriber.try_send(event.clone()).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_subscriber_is_dropped_and_others_are_not() {
        let events = Events::default();
        let (slow, quick) = (events.subscribe().unwrap(), events.subscribe().unwrap());
        for _ in 0..=RUNTIME_EVENTS_MAX {
            events.publish(RuntimeEventKind::Exited, "c", "u");
            assert!(quick.try_recv().unwrap().pod.is_some());
        }
        while slow.try_recv().is_ok() {}
        assert!(slow.is_closed() && !quick.is_closed());
        drop(quick);
        let all: Vec<_> = (0..RUNTIME_SUBSCRIBERS_MAX).map(|_| events.subscribe().unwrap()).collect();
        assert!(events.subscribe().is_none());
        drop(all);
        assert!(events.subscribe().is_some());
    }
}
