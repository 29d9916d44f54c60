//! # ccl-fake-ibverbs: a libibverbs for tests
