//! The runtime's streaming server: `exec`, `attach` and `port-forward`.
//!
//! ```text
//!     command ──► agent ──► CRI Exec, Attach, PortForward: a URL, good for one minute and one connection
//!     command ◄──────── SPDY/3.1 ────────► the runtime's streaming server (loopback) ◄──► container
//! ```
//!
//! The agent only requests the URL (`node::streams`); the bytes never pass through it. All this runs in the command's own
//! process: `frame` (PURE) encodes and decodes SPDY, `upgrade` opens the connection, `command` copies a command's streams,
//! `status` (PURE) parses how it ended, `forward` copies one forwarded connection.
//!
//! SPDY and not WebSocket, as kubectl before 1.31: the WebSocket protocol of containerd 1.6 cannot signal the end of standard
//! input.
//!
//! [`server`] is the other end, for the containers that smolet runs itself.
//!
//! There is no flow control but TCP's: spdystream ignores `WINDOW_UPDATE` and sends none, so neither side may wait for it. Unread
//! bytes here hold up the server, and so the container. That is why each forwarded connection has a SPDY connection of its own: a
//! stalled one holds up no other.

pub mod command;
pub mod connection;
pub mod forward;
pub mod frame;
pub mod server;
pub mod status;
pub mod upgrade;

pub use connection::Connection;
