//! Alone in its process, because it takes away all descriptors.

use ccl_core::bootstrap::{Bootstrap, UniqueId};
use ccl_core::config::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn config() -> Config {
    Config::from_vars([("RDMACCL_SOCKET_IFNAME".to_string(), "=lo".to_string())]).unwrap()
}

/// Processor time of the root service's thread, in hundredths of a second.
fn ticks_of_root() -> u64 {
    let stat = loop {
        // A thread gives itself its name a little after its start.
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let read = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("stat")).ok()
        };
        if let Some(stat) = tasks.find_map(|task| read(task).filter(|stat| stat.contains("(rdmaccl-root)"))) {
            break stat;
        }
        std::thread::yield_now();
    };
    let fields: Vec<u64> =
        stat.rsplit_once(')').unwrap().1.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    fields[11] + fields[12]
}

#[test]
fn without_descriptors_the_root_neither_spins_nor_loses_a_rank() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..limit }).unwrap();
    let id = UniqueId::create(&config()).unwrap();
    let text = format!("{id:?}");
    let address = text.rsplit_once("127.0.0.1:").unwrap().1.split([']', ',']).next().unwrap().to_string();
    let before = ticks_of_root();
    let mut spare = vec![File::open("/proc/self/stat").unwrap(), File::open("/proc/self/stat").unwrap()];
    let mut hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    drop(spare.pop());
    // It takes the last descriptor and stays in the kernel's queue: the root has none to accept it with.
    let waiting = TcpStream::connect(format!("127.0.0.1:{address}")).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    drop(hoard.split_off(hoard.len() / 2));
    let spent = ticks_of_root() - before;
    assert!(spent < 25, "the root's thread ran for {spent} of 100 ticks");
    drop((hoard, spare));
    let end = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let id = &id;
            scope.spawn(move || Bootstrap::join(id, rank, 3, &config(), end).unwrap());
        }
    });
    drop(waiting);
}
