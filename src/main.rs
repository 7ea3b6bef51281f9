//! Arguments → Config → `node::run` → exit code; nothing else.

fn main() {}
