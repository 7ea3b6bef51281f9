//! gRPC over HTTP/2 on a Unix socket: framing, deadlines, size limits, reconnecting. Independent of the CRI.
//!
//! ```text
//!     Channel ──► link (connect on demand, back-off) ──► hyper's HTTP/2 client ──► Unix socket
//!        │
//!        ├─ unary         request → one message
//! |        ├─ unary_fields  request → one message, parsed field by field while it arrives
//! |        ├─ stream_fields request → messages, parsed in the same way
//!        ├─ server_stream request → Streaming
//!        └─ bidirectional (Sender, Streaming)
//! ```
//!
//! One connection carries all calls of a channel; [`unary_once`] makes one call on a socket of any kind, and closes it.
//! Every call may be dropped at any await: its HTTP/2 stream is then reset and the connection continues. Nothing is sent
//! while no call runs: no keep-alive pings (containerd answers them with GOAWAY `too_many_pings`), no reconnecting.
//!
//! `message` and `status` are PURE; `link` and `channel` do the I/O. [`server`] is the other side, for the CRI that smolet serves
//! itself.

mod channel;
mod link;
mod message;
mod once;
pub mod server;
mod status;
mod streaming;

pub use channel::{Call, Channel};
pub use message::{Deframer, Field, Fields, Sink, Value, WholeMessage};
pub(crate) use once::{Once, unary_once};
pub use status::{Code, GrpcError};
pub use streaming::{Sender, Streaming};
