//! A build without TLS has no API of its own.

use crate::addresses::NodeAddresses;
use crate::config::Config;
use crate::render::NodeSettings;

/// There is no port to bind.
pub(super) enum Listening {}

/// Nothing is bound.
#[expect(clippy::unnecessary_wraps, reason = "with TLS it may fail")]
pub(super) fn listen(_: &Config, _: &NodeSettings, _: &NodeAddresses) -> Result<Option<Listening>, String> {
    Ok(None)
}
