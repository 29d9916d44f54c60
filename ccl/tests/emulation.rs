//! Calls by kernels between hosts over queue pairs: each rank, or two of them, on a host of its own, on a fake CUDA driver whose kernels are
//! threads of the CPU, and a fake libibverbs. `cargo xtask kernels` runs it; it needs g++.

use ccl::config::{Config, GpuDirect, Network};
use ccl::device::{DeviceBuffers, DeviceCall, DeviceLine, DeviceMemory, DeviceStream, driver};
use ccl::{Call, Collective, Communicator, DataType, ReduceOp, Result, UniqueId};
use ccl_transport_cuda::program::{MODULES, Module};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A device that runs kernels.
struct Gpu(ccl_fake_cuda::Fake);

fn gpu() -> Gpu {
    gpu_with("")
}

fn gpu_with(script: &str) -> Gpu {
    static OBJECT: LazyLock<PathBuf> =
        LazyLock::new(|| ccl_fake_cuda::compile_kernels(Path::new(env!("CARGO_TARGET_TMPDIR")), None));
    let object = &*OBJECT;
    Gpu(ccl_fake_cuda::Fake::start(&format!("devices 1; {script}; kernels {}", object.display())))
}

/// What a communicator leaves to a thread of the library is over soon after it.
impl Drop for Gpu {
    fn drop(&mut self) {
        let begin = Instant::now();
        while self.0.live() > 0 && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// So many hosts with two rails each, whose NICs the kernel shows on PCI Express if there is a folder for that.
fn rails(hosts: u32) -> ccl_fake_ibverbs::Fake {
    rails_of(hosts, None)
}

fn rails_of(hosts: u32, sysfs: Option<&Sysfs>) -> ccl_fake_ibverbs::Fake {
    let rail = |host: u32, rail: u32| {
        let name = format!("h{host}r{rail}");
        let place = sysfs.map_or_else(String::new, |sysfs| format!(" sysfs={}", sysfs.nic(&name).display()));
        format!("device {name}{place}; gid {name}/1 1 10.0.{rail}.{}\n", host + 1)
    };
    let script: String = (0..hosts).flat_map(|host| (0..2).map(move |r| rail(host, r))).collect();
    ccl_fake_ibverbs::Fake::start(&script)
}

/// A folder in which NICs are no software, gone with the test.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(name: &str) -> Sysfs {
        Sysfs(std::env::temp_dir().join(format!("rdmaccl-emulation-{name}-{}", std::process::id())))
    }

    fn nic(&self, name: &str) -> PathBuf {
        let (device, class) = (self.0.join(name).join("ffff:84:00.0"), self.0.join("class").join(name));
        std::fs::create_dir_all(&device).unwrap();
        std::fs::create_dir_all(&class).unwrap();
        std::os::unix::fs::symlink(device, class.join("device")).unwrap();
        class
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A GPU that gives out dma-bufs, of a generation; for whom others' writes are in order; and that the host can flush it.
fn direct(generation: u32, ordering: u32) -> String {
    format!(
        "attribute 75 {generation}; attribute 116 1; attribute 124 1; attribute 118 {ordering}; attribute 117 1"
    )
}

fn config(host: u32) -> Config {
    let mut config = Config::default();
    config.net = Network::Ib;
    config.host_id = Some(format!("host-{host}"));
    config.ib.library = Some(ccl_fake_ibverbs::Fake::library().to_string_lossy().into_owned());
    config.ib.hca = Some(format!("=h{host}r0,h{host}r1").parse().unwrap());
    // The kernel does not say where the fakes sit.
    config.gpudirect = GpuDirect::On;
    config.cuda_library = Some(ccl_fake_cuda::Fake::library().to_string_lossy().into_owned());
    (config.device_blocks, config.device_threads) = (Some(6), 8);
    // Half of it is how long a link may take to come back.
    config.timeout = Duration::from_secs(60);
    config
}

/// Runs `body` on each of `hosts × per_host` ranks.
fn on_hosts(shape: (u32, u32), body: impl Fn(&mut Communicator) + Sync) {
    on_hosts_with(shape, |_| {}, body);
}

/// The same with other settings.
fn on_hosts_with(
    (hosts, per_host): (u32, u32),
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Communicator) + Sync,
) {
    let id = UniqueId::create(&Config::default()).unwrap();
    let size = hosts * per_host;
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (id, change, body) = (id, &change, &body);
            scope.spawn(move || {
                let builder = Communicator::builder().rank(rank).size(size).unique_id(id).device(0);
                let mut config = config(rank / per_host);
                change(&mut config);
                let mut comm = builder.config(config).build().unwrap();
                assert!(comm.device_engine().is_some(), "kernels between hosts");
                body(&mut comm);
            });
        }
    });
}

/// Sums of so many numbers on devices.
fn sums(comm: &mut Communicator, counts: &[usize]) {
    try_sums(comm, counts).unwrap();
}

fn try_sums(comm: &mut Communicator, counts: &[usize]) -> Result<()> {
    let (rank, size) = (u64::from(comm.rank()), u64::from(comm.size()));
    let primary = driver().unwrap().device(0).unwrap().primary().unwrap();
    let mut line = DeviceLine::new(driver().unwrap(), 0, 1 << 20).unwrap();
    let stream = DeviceStream::new(&primary).unwrap();
    for &count in counts {
        let bytes: Vec<u8> = (0..count as u64).flat_map(|i| (i * 7 + rank).to_le_bytes()).collect();
        let mut memory = DeviceMemory::alloc(&primary, bytes.len().max(1)).unwrap();
        memory.write(0, &bytes).unwrap();
        let call = Call {
            collective: Collective::AllReduce,
            count,
            dtype: DataType::U64,
            op: ReduceOp::Sum,
            root: 0,
        };
        let all = 0..bytes.len();
        let calls =
            vec![DeviceCall::collective(call, DeviceBuffers::in_place(&mut memory, all.clone(), all))];
        line.run(comm, &stream, calls)?;
        let mut sums = vec![0; bytes.len()];
        memory.read(0, &mut sums).unwrap();
        let right = (0..count as u64).flat_map(|i| (i * 7 * size + size * (size - 1) / 2).to_le_bytes());
        assert!(right.eq(sums), "{count} numbers on rank {rank} of {size}");
    }
    Ok(())
}

#[test]
fn kernels_use_queue_pairs_between_hosts() {
    let (_gpu, fake) = (gpu(), rails(4));
    for shape in [(2, 1), (2, 2), (4, 1)] {
        let before = Work::of(&fake);
        on_hosts(shape, |comm| sums(comm, &[0, 1, 1000, 3000, 100_001]));
        Work::of(&fake).are_puts_since(before);
    }
}

/// A folder with what the fake takes for machine code, gone with the test.
struct Code(PathBuf);

impl Code {
    fn new() -> Code {
        let code = Code(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("code-{}", std::process::id())));
        for module in MODULES {
            code.put(module, module, "sm_90");
        }
        code
    }

    /// Code for this kind of device and made of one module, at the place of another.
    fn put(&self, at: &Module, of: &Module, kind: &str) {
        let file = self.0.join(ccl_transport_cuda::code::file((9, 0), at));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, ccl_fake_cuda::machine_code(kind, of.code)).unwrap();
    }

    /// How many modules a call's kernels were taken from here, and how many the driver has compiled.
    fn used(&self) -> (u64, u64) {
        let gpu = gpu();
        let before = (gpu.0.count("machine code"), gpu.0.count("cuModuleLoadDataEx"));
        let code = self.0.to_str().map(String::from);
        on_hosts_with((1, 2), |config| config.device_code.clone_from(&code), |comm| sums(comm, &[1000]));
        let taken = gpu.0.count("machine code") - before.0;
        (taken, gpu.0.count("cuModuleLoadDataEx") - before.1 - taken)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn machine_code_is_taken_where_it_fits_and_ptx_where_not() {
    let code = Code::new();
    // But for what measures, and for multicast, which ranks that share a device have not.
    let is_loaded = |module: &&Module| module.name != "measure" && !module.is_of_multicast();
    let all = MODULES.iter().filter(is_loaded).count() as u64;
    assert_eq!(code.used(), (all, 0));
    let named = |name| Module::named(name).unwrap();
    // For another kind of device: the driver is asked, refuses it, and compiles the PTX.
    code.put(named("interpret-i64"), named("interpret-i64"), "sm_80");
    assert_eq!(code.used(), (all - 1, 2));
    // Made of other PTX: it has another name, and nobody asks.
    let stale = Module { code: "// of another version", ..*named("finish") };
    let folder = code.0.join("sm_90");
    let names = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let finish = names().find(|path| path.to_string_lossy().contains("finish")).unwrap();
    std::fs::rename(finish, code.0.join(ccl_transport_cuda::code::file((9, 0), &stale))).unwrap();
    assert_eq!(code.used(), (all - 2, 3));
    // Cut off: the driver does not see it.
    let agree = names().find(|path| path.to_string_lossy().contains("agree")).unwrap();
    std::fs::write(agree, &ccl_fake_cuda::machine_code("sm_90", named("agree").code)[..40]).unwrap();
    assert_eq!(code.used(), (all - 3, 4));
}

/// What devices have done.
struct Work {
    sends: u64,
    puts: u64,
    /// Bytes of puts, and of everything else.
    put: u64,
    other: u64,
}

impl Work {
    fn of(fake: &ccl_fake_ibverbs::Fake) -> Work {
        let [sends, puts, put, all] =
            ["sends", "bare_writes", "bare_bytes", "bytes"].map(|name| fake.count(name));
        Work { sends, puts, put, other: all - put }
    }

    /// Kernels' pieces went from slot to slot, and nothing but words besides.
    fn are_puts_since(self, before: Work) {
        let (sends, puts) = (self.sends - before.sends, self.puts - before.puts);
        let (put, other) = (self.put - before.put, self.other - before.other);
        assert!(puts > 10 && put > 500_000, "{puts} puts of {put} bytes");
        assert!(other < 250 * (sends - puts), "{other} bytes in {} messages", sends - puts);
    }
}

/// Sums during which a request of rank 0 fails, whose queue pair is replaced.
fn sums_in_spite_of(failure: &str, comm: &mut Communicator, fake: &ccl_fake_ibverbs::Fake, counts: &[usize]) {
    // All queue pairs that these need are made here.
    sums(comm, &[3000]);
    // Who counts lets it fail: to the other rank it may happen before or after the end of those sums.
    let before = (comm.rank() == 0).then(|| {
        let before = fake.count("create_qp");
        fake.run(failure);
        before
    });
    sums(comm, counts);
    if let Some(before) = before {
        assert!(fake.count("create_qp") > before, "one was replaced");
    }
}

#[test]
fn a_queue_pair_that_fails_in_mid_call_is_replaced() {
    let (_gpu, fake) = (gpu(), rails(2));
    on_hosts((2, 1), |comm| {
        let failure = "complete status=IBV_WC_RETRY_EXC_ERR nth=20 on=h0r0";
        sums_in_spite_of(failure, comm, &fake, &[100_001; 4]);
    });
    // Whichever request it is that fails: the bytes, their word, a return of credits.
    for nth in [1, 2, 3, 5] {
        for delivered in ["yes", "no"] {
            let on = ["h0r0", "h0r1"][nth % 2];
            let failure =
                format!("complete status=IBV_WC_RETRY_EXC_ERR nth={nth} on={on} delivered={delivered}");
            on_hosts((2, 1), |comm| sums_in_spite_of(&failure, comm, &fake, &[30_001; 4]));
        }
    }
}

#[test]
fn a_link_that_does_not_come_back_ends_the_kernels_of_both() {
    let (_gpu, fake) = (gpu(), rails(2));
    on_hosts_with(
        (2, 1),
        |config| config.timeout = Duration::from_secs(4),
        |comm| {
            comm.set_timeout(Duration::from_secs(60));
            sums(comm, &[3000]);
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                fake.run("down h0r0/1 traffic=fail; down h0r1/1 traffic=fail");
            }
            let error = try_sums(comm, &[100_001]).unwrap_err().to_string();
            assert!(error.contains("h0r") && error.contains("h1r"), "rank {}: {error}", comm.rank());
        },
    );
}

/// Slots lie in the memory of devices that NICs know by dma-bufs: results are the same, nothing is copied, and no device needs a flush.
#[test]
fn nics_reach_the_memory_of_devices() {
    let sysfs = Sysfs::new("direct");
    let (gpu, fake) = (gpu_with(&direct(9, 100)), rails_of(4, Some(&sysfs)));
    for shape in [(2, 1), (2, 2), (4, 1)] {
        let before = Work::of(&fake);
        let exported = gpu.0.count("cuMemGetHandleForAddressRange");
        on_hosts(shape, |comm| sums(comm, &[0, 1, 1000, 3000, 100_001]));
        Work::of(&fake).are_puts_since(before);
        // Slots to and from each rank on other hosts, which both of a rank's NICs have.
        let wires = u64::from(2 * shape.0 * shape.1 * (shape.0 - 1) * shape.1);
        assert_eq!(gpu.0.count("cuMemGetHandleForAddressRange") - exported, wires);
    }
    assert_eq!(gpu.0.count("cuFlushGPUDirectRDMAWrites"), 0);
    all_are_gone(&fake);
}

/// A device that sees the writes of NICs only when it is told to.
#[test]
fn what_nics_have_written_is_flushed_where_the_device_needs_it() {
    let sysfs = Sysfs::new("flushed");
    let (gpu, _fake) = (gpu_with(&direct(9, 0)), rails_of(2, Some(&sysfs)));
    on_hosts((2, 1), |comm| sums(comm, &[1, 3000, 100_001]));
    assert!(gpu.0.count("cuFlushGPUDirectRDMAWrites") > 10);
}

/// Before compute capability 8 only what comes lies there.
#[test]
fn an_old_device_is_written_to_and_not_read() {
    let sysfs = Sysfs::new("old");
    let (gpu, fake) = (gpu_with(&direct(7, 100)), rails_of(2, Some(&sysfs)));
    let before = Work::of(&fake);
    on_hosts((2, 1), |comm| sums(comm, &[1, 3000, 100_001]));
    Work::of(&fake).are_puts_since(before);
    assert_eq!(gpu.0.count("cuMemGetHandleForAddressRange"), 2);
}

#[test]
fn a_queue_pair_that_fails_in_mid_call_is_replaced_where_nics_reach_devices() {
    let sysfs = Sysfs::new("failing");
    let (_gpu, fake) = (gpu_with(&direct(9, 0)), rails_of(2, Some(&sysfs)));
    for nth in [1, 2, 3] {
        let failure = format!("complete status=IBV_WC_RETRY_EXC_ERR nth={nth} on=h0r0");
        on_hosts((2, 1), |comm| sums_in_spite_of(&failure, comm, &fake, &[30_001; 4]));
    }
}

/// What a device does not give out, or a NIC does not take, leaves its slots in pinned memory, which are put as well.
#[test]
fn what_nics_do_not_take_goes_through_pinned_memory() {
    let faults = [
        ("fail cuMemGetHandleForAddressRange code=1 times=1000", ""),
        // To one rank, and from the other.
        ("fail cuMemGetHandleForAddressRange code=1 nth=2", ""),
        ("attribute 124 0", ""),
        ("attribute 117 0; attribute 118 0", ""),
        // After each rank has asked all four whether they would take any.
        ("", "fail reg_dmabuf_mr errno=EINVAL nth=10 times=1000"),
        ("", "fail reg_dmabuf_mr errno=EOPNOTSUPP times=1000"),
    ];
    for (of_gpu, of_nic) in faults {
        let sysfs = Sysfs::new("refused");
        let (gpu, fake) = (gpu_with(&format!("{}; {of_gpu}", direct(9, 100))), rails_of(2, Some(&sysfs)));
        fake.run(of_nic);
        let before = Work::of(&fake);
        on_hosts((2, 1), |comm| sums(comm, &[1, 3000, 100_001]));
        Work::of(&fake).are_puts_since(before);
        all_are_gone(&fake);
        drop(gpu);
    }
    // NICs that are software do not even get there.
    let (gpu, _fake) = (gpu_with(&direct(9, 100)), rails(2));
    on_hosts((2, 1), |comm| sums(comm, &[3000]));
    assert_eq!(gpu.0.count("cuMemGetHandleForAddressRange"), 0);
}

/// NICs that register no memory as long as a window: pieces are copied by the proxies at both ends, with the same results.
#[test]
fn without_windows_pieces_are_copied() {
    let (_gpu, fake) = (gpu(), rails(2));
    // A link's own memory is shorter; how long a window is, the library decides.
    let copied = [16 << 20, 4 << 20, 2 << 20, 1 << 20].into_iter().find(|bytes: &u64| {
        for host in 0..2 {
            for rail in 0..2 {
                fake.run(&format!("limit h{host}r{rail} mr_bytes={bytes}"));
            }
        }
        let before = Work::of(&fake);
        let short = |config: &mut Config| config.slot_bytes = Some(64 << 10);
        on_hosts_with((2, 1), short, |comm| sums(comm, &[1, 3000, 30_001]));
        let after = Work::of(&fake);
        let is_copied = after.puts == before.puts;
        assert_eq!(after.other - before.other > 200_000, is_copied, "through the links' slots, or put");
        is_copied
    });
    assert!(copied.is_some(), "all windows were taken");
}

/// No region is left, nor anything else; a thread of the library may be about to drop the last.
fn all_are_gone(fake: &ccl_fake_ibverbs::Fake) {
    let begin = Instant::now();
    while fake.live() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} are left", fake.live());
        std::thread::sleep(Duration::from_millis(1));
    }
}
