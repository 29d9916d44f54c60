//! The contract of transports, over one rail and over two.

mod hosts;

use ccl_fake_ibverbs::Fake;
use ccl_transport_ibverbs::IbTransport;
use std::sync::Once;

/// One world for all tests of this program: nothing goes wrong in it.
fn world() {
    static WORLD: Once = Once::new();
    WORLD.call_once(|| std::mem::forget(Fake::start(&hosts::script(4, 1))));
}

fn transports(ranks: u32) -> Vec<IbTransport> {
    world();
    hosts::transports(ranks, 8192, 4)
}

fn memory(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

ccl_core::transport_conformance!(transports);
ccl_core::offer_conformance!(transports, memory);

mod many_credits {
    use super::*;

    fn transports(ranks: u32) -> Vec<IbTransport> {
        world();
        hosts::transports(ranks, 4096, 33)
    }

    ccl_core::transport_conformance!(transports);
    ccl_core::offer_conformance!(transports, memory);
}

mod one_credit {
    use super::*;

    fn transports(ranks: u32) -> Vec<IbTransport> {
        world();
        hosts::transports(ranks, 4096, 1)
    }

    ccl_core::transport_conformance!(transports: credits_are_counted park_wakes a_seeded_stress);
}
