//! A transaction in the making. PURE.

use super::rules::{Element, Kind, Op, Set};
use crate::model::SortedMap;

/// What is made comes first, then elements, and what nothing refers to any more is deleted last.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) made: Vec<Op>,
    removed: SortedMap<Set, Vec<Element>>,
    added: SortedMap<Set, Vec<Element>>,
    pub(super) deleted: Vec<Op>,
}

impl Draft {
    pub(super) fn add(&mut self, kind: Kind, element: Element) {
        self.added.entry((kind, element.family())).or_default().push(element);
    }

    /// Of two pods with one address both may remove it.
    pub(super) fn remove(&mut self, kind: Kind, element: Element) {
        let elements = self.removed.entry((kind, element.family())).or_default();
        if !elements.contains(&element) {
            elements.push(element);
        }
    }

    pub(super) fn into_ops(self) -> Vec<Op> {
        let mut ops = self.made;
        ops.extend(self.removed.into_iter().map(|(set, elements)| Op::DeleteElements(set, elements)));
        ops.extend(self.added.into_iter().map(|(set, elements)| Op::AddElements(set, elements)));
        ops.extend(self.deleted);
        ops
    }
}
