//! What the agent keeps on disk: its identity file. See [`identity`].

pub mod identity;
