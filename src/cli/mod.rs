//! The command line: one file per subcommand, and what they print.
//!
//! `table`, `describe_text`, `yaml`, `style` and `text` are PURE: values and a time in, text out.

pub mod describe_text;
pub mod style;
pub mod table;
pub mod text;
pub mod yaml;
