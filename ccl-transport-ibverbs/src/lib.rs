//! # ccl-transport-ibverbs: links over RDMA
//!
//! Links between hosts over InfiniBand, RoCE and SoftRoCE.

#![deny(unsafe_code)]

pub mod choice;
