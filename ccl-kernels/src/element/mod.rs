//! What buffers hold and how values are combined.

mod data_type;
mod factor;
pub(crate) mod format;
mod reduce_op;
#[cfg(test)]
pub(crate) mod reference;

pub use data_type::DataType;
pub use factor::Factor;
pub use reduce_op::ReduceOp;
