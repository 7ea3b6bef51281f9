//! What smolet makes of the kernel's network, in network namespaces of the tests' own. Root only; `make network` runs it.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]

mod services;
mod space;
