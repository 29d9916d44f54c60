//! To come.

/// To come.
pub struct LocalHub;
/// To come.
pub struct LocalTransport;
