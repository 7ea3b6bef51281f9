//! How turns of one kind are divided (`turns`). PURE.

/// How turns are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// So many parties have a turn of their own each, whatever others hold.
    pub own: usize,
    /// Further turns. Of these a party never holds more than are left free behind it: alone it has half of them, the next
    /// one half of the others, and a party without any may always have the last one.
    pub common: usize,
}

impl Share {
    /// The most turns that are held at once.
    pub const fn most(self) -> usize {
        self.own + self.common
    }

    /// A party with so many turns may have one more, while so many parties hold so many in all.
    pub fn may_begin(self, of_party: usize, parties: usize, held: usize) -> bool {
        if of_party == 0 && parties < self.own {
            return true;
        }
        let left = (self.common + parties.min(self.own)).saturating_sub(held);
        of_party.saturating_sub(self.own.min(1)) < left
    }
}
