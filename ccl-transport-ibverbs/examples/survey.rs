//! What this host has for RDMA and what would be chosen: the survey as JSON, then the rails.
//!
//! ```text
//! cargo run -p ccl-transport-ibverbs --example survey
//! ```

// A program for people.
#![allow(clippy::print_stdout)]

use ccl_core::config::Config;
use ccl_transport_ibverbs::choice::{nearness, paths, patience, quality, rails};
use ccl_transport_ibverbs::survey;

fn main() -> ccl_core::Result<()> {
    let settings = Config::from_env()?.ib;
    let survey = survey(settings.library.as_deref())?;
    println!("{}", serde_json::to_string_pretty(&survey).expect("plain data"));
    let rails = rails::choose(&survey, &settings)?;
    println!("rails: {}", rails.why);
    for rail in &rails.value {
        println!(
            "  {rail}: {} Gb/s, MTU {}, {} ({})",
            rail.gbps, rail.active_mtu, rail.gids[0], rail.gid_why
        );
        println!("    traffic class {}", quality::traffic_class(rail, &settings));
        println!("    queue pairs {}", paths::queue_pairs(rail, &settings));
        println!("    {}", patience::choose(rails.value.len(), rail.software, &settings));
    }
    println!("  begins with {}", nearness::first(&rails.value, None, 0));
    Ok(())
}
