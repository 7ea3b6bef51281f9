//! How full a bounded structure is.

/// What is in use of a limit, in the unit of the limit (bytes or entries).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In use now.
    pub used: usize,
    /// The most there may be.
    pub limit: usize,
}

impl Usage {
    /// A use beside its limit.
    pub fn new(used: usize, limit: usize) -> Self {
        Self { used, limit }
    }
}
