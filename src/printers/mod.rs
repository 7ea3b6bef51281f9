//! Text for people: tables, `describe`, events, usage and YAML, as kubectl's printers write them. PURE: values and a time in,
//! text out.

pub mod describe;
pub mod events;
pub mod style;
pub mod table;
pub mod text;
pub mod top;
pub mod yaml;
