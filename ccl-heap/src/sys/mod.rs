//! Memory itself: [`heap`] has the slabs, [`pages`] does with them what only the kernel can, [`fork`] gives a child a copy,
//! and [`guarded`] lets one thread in at a time.

mod fork;
mod guarded;
pub(crate) mod heap;
mod pages;
