//! # ccl-fake-ibverbs: a libibverbs for tests
//!
//! The C functions of libibverbs that the RDMA transport calls, over devices that exist in this process only. Queue pairs of
//! one process reach each other across devices, ports and threads. What a kernel and a network would check is checked: states,
//! keys, bounds, rights, limits, addresses, packet numbers, MTUs; and what they would do wrong is done by a script.
//! Nothing depends on time: faults come at the nth call or work request.
//!
//! A program opens it as it opens the real one, by `RDMACCL_IBVERBS=…/libccl_fake_ibverbs.so`, with the script in
//! `RDMACCL_FAKE_IBVERBS`. A test takes a [`Fake`], which finds the file beside the test's program, loads it, and runs scripts.
//!
//! Memory of the devices of ccl-fake-cuda can be registered by its dma-buf. Where such a device wants flushes, what is written there waits until
//! it is told to flush.
//!
//! # Scripts
//!
//! One command a line, or with `;` between; `#` begins a comment. Numbers may be hexadecimal (`0x`).
//!
//! | command | what it does |
//! | --- | --- |
//! | `device NAME [ports=1] [guid=G] [sysfs=FOLDER]` | a device; its ports are active, Ethernet, of MTU 4096 and without GIDs |
//! | `port NAME/P [link=ethernet\|infiniband] [state=down\|init\|armed\|active] [mtu=BYTES] [max_mtu=BYTES] [lid=L] [sm_lid=L] [gids=ENTRIES] [pkeys=ENTRIES] [width=CODE] [speed=CODE]` | sets up a port; changes of its state are events |
//! | `gid NAME/P INDEX ADDRESS [type=ib\|v1\|v2] [ifindex=I]` | sets an entry of the GID table: an IPv4 or IPv6 address |
//! | `nogid NAME/P INDEX` | clears one |
//! | `limit NAME [qp=] [qp_wr=] [sge=] [inline=] [cq=] [cqe=] [mr=] [mr_bytes=] [pd=] [ah=]` | what a device has |
//! | `memlock BYTES` | what may be registered in all |
//! | `fail VERB errno=E [nth=1] [times=1]` | the nth call from now on of `ibv_VERB` fails, and as many after it |
//! | `fail chained_send errno=E [nth=1] [times=1]` | the nth send from now on that is posted behind another one in the same call is refused, and as many after it: those before it are taken |
//! | `complete status=S [vendor=V] [nth=1] [on=NAME] [delivered=no]` | the nth send from now on ends with this status (`IBV_WC_RETRY_EXC_ERR`, or its number); `delivered=yes`: the peer has got it all the same |
//! | `lose NAME [nth=1] [times=1]` | the nth datagram that a device sends from now on is lost, and as many after it |
//! | `down NAME/P [after=0] [traffic=stall\|fail]` | the port goes down after so many sends from it; what is sent then waits until it is up, or fails as when retries are exhausted |
//! | `up NAME/P [after=0]` | the port comes up, after so many more sends that wait |
//! | `delay POLLS` | completions show up so many polls of their queue later |
//! | `pace NAME POLLS` | completions of a device show up so many polls of their queue after the one before; not those of what comes without bytes |
//! | `event NAME CODE [port=P]` | an asynchronous event, by its number |

#![deny(unsafe_code)]

mod abi;
#[allow(unsafe_code)]
mod ffi;
mod script;
mod world;

pub use ffi::Fake;
