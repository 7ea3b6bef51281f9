//! PURE: the output of `smolet events`: `kubectl events`' columns, the most recent event last.

use super::style::{Style, Tone};
use super::text::{Cell, columns, human_duration};
use crate::events::{Event, EventKind};
use crate::model::Mono;

/// Selection and columns of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The pods' namespaces.
    pub namespaces: bool,
    /// The output is followed: columns keep their widths from one part to the next.
    pub followed: bool,
    /// An earlier part had the heading.
    pub continued: bool,
}

/// Least widths of the columns in followed output.
const STEADY: [usize; 5] = [12, 20, 7, 16, 30];

/// The table; empty when there is no event. Ages are by the monotonic clock.
pub fn events<'a>(events: impl Iterator<Item = Event<'a>>, shown: Shown, now: Mono, style: Style) -> String {
    let mut events = events.peekable();
    if events.peek().is_none() {
        return String::new();
    }
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    if !shown.continued {
        let texts = ["NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
        rows.push(row(shown, texts, Tone::Plain, style));
    }
    for event in events {
        let (word, tone) = match event.kind {
            EventKind::Normal => ("Normal", Tone::Plain),
            EventKind::Warning => ("Warning", Tone::Wait),
        };
        let kind = if event.is_of_node() { "Node" } else { "Pod" };
        let (seen, object) = (seen(&event, now), format!("{kind}/{}", event.name));
        let texts = [event.namespace(), &*seen, word, event.reason, &*object, event.message];
        rows.push(row(shown, texts, tone, style));
    }
    columns(&rows, 0, style)
}

/// Age, count and interval (kubectl's `getInterval`).
pub fn seen(event: &Event<'_>, now: Mono) -> String {
    let ago = |then: Mono| human_duration(i64::try_from(now.since(then).as_secs()).unwrap_or(i64::MAX));
    if event.count > 1 {
        format!("{} (x{} over {})", ago(event.last), event.count, ago(event.first))
    } else {
        ago(event.last)
    }
}

/// Namespace, last seen, type (in its tone), reason, object, message.
fn row(shown: Shown, texts: [&str; 6], of_type: Tone, style: Style) -> Vec<Cell> {
    let cells = texts.into_iter().enumerate().skip(usize::from(!shown.namespaces));
    let cell = |(column, text): (usize, &str)| {
        let tone = if column == 2 { of_type } else { Tone::Plain };
        match STEADY.get(column).filter(|_| shown.followed && !style.tabs()) {
            Some(&width) => Cell::toned(&format!("{text:<width$}"), tone),
            None => Cell::toned(text, tone),
        }
    };
    cells.map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventRing;
    use crate::model::PodKey;

    fn at(second: i64) -> Mono {
        Mono(second * 1_000_000_000)
    }

    fn ring() -> EventRing {
        let mut ring = EventRing::default();
        let (web, db) = (PodKey::new("default", "web-gw", "u1"), PodKey::new("prod", "db-gw", "u2"));
        ring.record((&web).into(), EventKind::Normal, "Started", "Container started", at(0));
        ring.record((&web).into(), EventKind::Warning, "BackOff", "Back-off\nrestarting", at(10));
        ring.record((&db).into(), EventKind::Normal, "Pulled", "Image is here", at(70));
        ring.record((&web).into(), EventKind::Warning, "BackOff", "Back-off\nrestarting", at(200));
        ring
    }

    #[test]
    fn looks_as_kubectl_events_and_counts() {
        let (ring, now) = (ring(), at(310));
        let shown = Shown { namespaces: true, ..Shown::default() };
        assert_eq!(
            events(ring.iter(), shown, now, Style::PLAIN),
            "NAMESPACE   LAST SEEN           TYPE      REASON    OBJECT       MESSAGE\n\
             default     5m10s               Normal    Started   Pod/web-gw   Container started\n\
             prod        4m                  Normal    Pulled    Pod/db-gw    Image is here\n\
             default     110s (x2 over 5m)   Warning   BackOff   Pod/web-gw   Back-off\\nrestarting\n"
        );
        assert_eq!(events(std::iter::empty(), shown, now, Style::PLAIN), "");
        let mut of_node = EventRing::default();
        let node = PodKey::new("", "gw", "gw");
        of_node.record((&node).into(), EventKind::Warning, "FreeDiskSpaceFailed", "No room", at(300));
        assert_eq!(
            events(of_node.iter(), shown, now, Style::PLAIN).lines().last(),
            Some("default     10s         Warning   FreeDiskSpaceFailed   Node/gw   No room")
        );
        let for_programs = events(ring.iter().take(1), shown, now, Style::PLAIN.with_tabs());
        assert_eq!(
            for_programs.lines().last(),
            Some("default\t5m10s\tNormal\tStarted\tPod/web-gw\tContainer started")
        );
    }

    #[test]
    fn what_is_followed_keeps_its_columns() {
        let ring = ring();
        let mut shown = Shown { followed: true, ..Shown::default() };
        let place = |text: &str| text.lines().map(|line| line.find("Pod/").unwrap_or(0)).max();
        let first = events(ring.iter().take(1), shown, at(310), Style::PLAIN);
        assert!(first.starts_with("LAST SEEN "), "{first}");
        shown.continued = true;
        let more = events(ring.iter().skip(1), shown, at(310), Style::PLAIN);
        assert!(!more.contains("LAST SEEN"), "{more}");
        assert_eq!(place(&first), place(&more), "{first}{more}");
    }
}
