//! Output for users: tables, `describe`, events, usage and YAML, as kubectl's printers format them. PURE: values and a time to
//! text.

pub mod describe;
pub mod events;
pub mod style;
pub mod table;
pub mod text;
pub mod top;
pub mod yaml;
