//! What kernels are not made for.

/// The result of what can be refused here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no such operator, factor or kernel. Each text says what was wrong and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An operator or a factor that does not fit its type, or a reduction over no rank.
    #[error("invalid argument: {what}; {remedy}")]
    Invalid {
        /// What was passed.
        what: String,
        /// What would be right.
        remedy: String,
    },

    /// Kernels that this CPU cannot run.
    #[error("unsupported: {what}; {remedy}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What to use instead.
        remedy: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Invalid { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Unsupported { what: what.into(), remedy: remedy.into() }
    }
}
