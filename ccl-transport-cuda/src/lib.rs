//! # ccl-transport-cuda: collectives on the memory of NVIDIA GPUs

pub mod program;
