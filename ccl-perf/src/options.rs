//! nccl-tests' options, with their letters and their meaning, and a few of our own.

use crate::Program;
use crate::operator::Operator;
use crate::sizes::{self, Step};
use ccl::DataType;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What a program of this crate was asked to do.
#[derive(Clone, Debug, Parser)]
#[command(
    about = "Measures a collective between processes or threads and checks its results",
    after_help = "Sizes take K, M and G. Under torchrun, srun or mpirun the program joins the ranks that \
                  they started; otherwise it starts its own. Exit status: 0, 1 for wrong data, 2 for an error."
)]
pub(crate) struct Options {
    /// JSON reports to draw with --plot; with any, nothing is measured
    #[arg(value_name = "JSON", requires = "plot")]
    pub(crate) reports: Vec<PathBuf>,

    /// Ranks per process, each a thread
    #[arg(short = 't', long = "nthreads", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,

    /// Rank processes to start [default: one per core, at least 2; 1 with -t]
    #[arg(short = 'g', long = "ngpus", alias = "nranks", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) processes: Option<u32>,

    /// First size in bytes
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "32M", value_parser = sizes::parse)]
    pub(crate) min: u64,

    /// Last size in bytes
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "32M", value_parser = sizes::parse)]
    pub(crate) max: u64,

    /// Bytes from one size to the next
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", default_value = "1M", value_parser = sizes::parse)]
    step_bytes: u64,

    /// Factor from one size to the next, instead of -i
    #[arg(short = 'f', long = "stepfactor", value_name = "N", default_value_t = 1)]
    step_factor: u64,

    /// Timed iterations per size
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,

    /// Iterations before the timed ones, for every size
    #[arg(short = 'w', long = "warmup_iters", value_name = "N", default_value_t = 5)]
    pub(crate) warmup: u32,

    /// Calls per iteration; the time is that of one call
    #[arg(short = 'm', long = "agg_iters", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) aggregate: u32,

    /// Times that the whole table is run; 0: for ever
    #[arg(short = 'N', long = "run_cycles", value_name = "N", default_value_t = 1)]
    pub(crate) cycles: u32,

    /// Checked calls per size and placement, each on fresh data; 0: none
    #[arg(short = 'c', long = "check", value_name = "N", default_value_t = 1)]
    pub(crate) check: u32,

    /// Operator: sum, prod, min, max, avg, mulsum, band, bor, bxor or all; the last three for integers
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    pub(crate) ops: Selection<Operator>,

    /// Type: int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, float, double, bfloat16,
    /// f8e4m3, f8e5m2 or all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float")]
    pub(crate) types: Selection<DataType>,

    /// Root of broadcast, reduce, gather and scatter; -1 or all: each in turn
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0", allow_hyphen_values = true,
          value_parser = parse_root)]
    pub(crate) root: Root,

    /// Time over ranks: 0 rank 0's, 1 average, 2 minimum, 3 maximum
    #[arg(short = 'a', long = "average", value_name = "0-3", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(crate) average: u8,

    /// Seconds after which a call that hangs is an error; 0: the library's default
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,

    /// Bytes by which the buffers miss the start of a page
    #[arg(short = 'u', long = "unalign", value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..4096))]
    pub(crate) unalign: u32,

    /// Buffers: 0 private memory, 1 or 2 memory of cclMemAlloc, which peers and the network use where it lies
    #[arg(short = 'R', long = "local_register", value_name = "0-2", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) local_register: u8,

    /// Where the buffers are: device takes those of this host in turn, through the CUDA driver
    #[arg(long, value_name = "host|device", default_value = "host", conflicts_with_all = ["local_register", "compare"])]
    pub(crate) memory: Place,

    /// Time every iteration and print least, largest, 99th percentile and variation
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0/1", default_value = "0",
          num_args = 0..=1, action = clap::ArgAction::Set, default_missing_value = "1", value_parser = flag)]
    pub(crate) per_iteration: bool,

    /// Print the time of day (UTC) with every row
    #[arg(short = 'S', long = "report_timestamps", value_name = "0/1", default_value = "0", action = clap::ArgAction::Set, value_parser = flag)]
    pub(crate) timestamps: bool,

    /// Write a JSON report, with nccl-tests' keys
    #[arg(short = 'J', long = "json", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the rows as CSV
    #[arg(short = 'F', long = "csv", alias = "output_file", value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Draw latency and bus bandwidth against size
    #[arg(long, value_name = "SVG")]
    pub(crate) plot: Option<PathBuf>,

    /// Use this algorithm instead of the chosen one
    #[arg(long, value_name = "NAME")]
    pub(crate) algo: Option<String>,

    /// Say for every size which algorithm runs, and the time against the one that was predicted
    #[arg(long)]
    pub(crate) explain: bool,

    /// Measure for every size all algorithms and lengths of pieces in turns, beside the chosen one
    #[arg(long, conflicts_with = "algo")]
    pub(crate) compare: bool,

    /// Launches of a CUDA graph: 0, since host memory has none
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value_t = 0, hide = true)]
    graphs: u32,

    /// Device kernel: 0, since host memory has none
    #[arg(short = 'D', long = "device_implementation", value_name = "N", default_value_t = 0, hide = true)]
    device_kernel: u32,

    #[command(flatten)]
    gpu: GpuOnly,

    /// Pretend that the ranks lie on so many hosts, in blocks: pieces from one to another go over the network
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) hosts: Option<u32>,

    /// Set by the launcher: its process id.
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) child_of: Option<i32>,
}

/// Options that choose among ways to drive a GPU.
#[derive(Clone, Debug, clap::Args)]
struct GpuOnly {
    #[arg(short = 'p', long = "parallel_init", hide = true)]
    parallel_init: Option<u32>,
    #[arg(short = 'z', long = "blocking", hide = true)]
    blocking: Option<u32>,
    #[arg(short = 'y', long = "stream_null", hide = true)]
    null_stream: Option<u32>,
    #[arg(short = 'C', long = "report_cputime", hide = true)]
    cpu_time: Option<u32>,
    #[arg(short = 'x', long = "cta_policy", hide = true)]
    cta_policy: Option<u32>,
    #[arg(short = 'V', long = "device_cta_count", hide = true)]
    device_ctas: Option<u32>,
    #[arg(short = 'M', long = "memory_report", hide = true)]
    memory_report: Option<u32>,
}

/// Where buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Place {
    /// In host memory.
    Host,
    /// On a device.
    Device,
}

/// One value, or all of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection<T>(pub(crate) Vec<T>);

impl FromStr for Selection<DataType> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Selection(DataType::ALL.to_vec()));
        }
        Ok(Selection(vec![text.parse().map_err(|e| format!("{e}, or all"))?]))
    }
}

impl FromStr for Selection<Operator> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Selection(Operator::all().collect()));
        }
        Ok(Selection(vec![text.parse().map_err(|e| format!("{e}, or all"))?]))
    }
}

/// Which ranks are the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// This one.
    One(u32),
    /// Each in turn.
    All,
}

fn parse_root(text: &str) -> Result<Root, String> {
    match text {
        "all" | "-1" => Ok(Root::All),
        _ => text.parse().map(Root::One).map_err(|_| format!("'{text}' is no root: a rank, -1 or all")),
    }
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("'{text}' is neither 0 nor 1")),
    }
}

impl Options {
    /// Reads the command line of a program; ends the process with clap's message where it cannot.
    pub(crate) fn from_command_line(program: Program) -> Options {
        Options::read(program, std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn read(
        program: Program,
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Options, clap::Error> {
        let refused = refused(program);
        let mut command = Options::command().name(program.name());
        for name in refused.names().chain(unused(program)) {
            command = command.mut_arg(name, |arg| arg.hide(true));
        }
        let matches = command.try_get_matches_from_mut(words)?;
        let options = Options::from_arg_matches(&matches)?;
        let given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let checked = match refused.options.iter().find(|(name, _)| given(name)) {
            Some((_, letter)) => Err(format!("{letter} {}: leave it out", refused.why)),
            None => options.check(),
        };
        checked.map_err(|why| command.error(ErrorKind::ValueValidation, why))?;
        Ok(options)
    }

    fn check(&self) -> Result<(), String> {
        self.sizes()?;
        // One operator and one type must fit; of several, those that do are run.
        if let ([op], [dtype]) = (&self.ops.0[..], &self.types.0[..]) {
            op.on(*dtype, 0).map_err(|error| error.to_string())?;
        }
        let gpu = &self.gpu;
        let wanted = [
            ("-G", Some(self.graphs), "CUDA graphs"),
            ("-D", Some(self.device_kernel), "a device kernel"),
            ("-C", gpu.cpu_time, "the time to launch a kernel"),
            ("-x", gpu.cta_policy, "a policy for thread blocks"),
            ("-V", gpu.device_ctas, "thread blocks"),
            ("-M", gpu.memory_report, "a report on device memory"),
        ];
        match wanted.into_iter().find(|(_, value, _)| value.is_some_and(|v| v != 0)) {
            Some((letter, _, what)) => {
                Err(format!("{letter} wants {what}, which host memory does not have: leave it out or give 0"))
            }
            None => Ok(()),
        }
    }

    /// How one size leads to the next.
    pub(crate) fn step(&self) -> Step {
        if self.step_factor > 1 { Step::Times(self.step_factor) } else { Step::Add(self.step_bytes) }
    }

    /// All sizes of a run.
    pub(crate) fn sizes(&self) -> Result<Vec<u64>, String> {
        sizes::sequence(self.min, self.max, self.step())
    }

    /// The deadline of a call, where one was given.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        (self.timeout > 0).then(|| Duration::from_secs(self.timeout))
    }

    /// Letters that were given and ask for what is always so on host memory.
    pub(crate) fn without_effect(&self) -> Vec<&'static str> {
        let gpu = &self.gpu;
        [("-p", gpu.parallel_init), ("-z", gpu.blocking), ("-y", gpu.null_stream)]
            .into_iter()
            .filter_map(|(letter, value)| value.filter(|&v| v != 0).map(|_| letter))
            .collect()
    }
}

/// Options that a program cannot obey, by name and letter, and why.
struct Refused {
    options: &'static [(&'static str, &'static str)],
    why: &'static str,
}

impl Refused {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.options.iter().map(|(name, _)| *name)
    }
}

fn refused(program: Program) -> Refused {
    if !program.moves_data() {
        let options = &[
            ("min", "-b"),
            ("max", "-e"),
            ("step_bytes", "-i"),
            ("step_factor", "-f"),
            ("ops", "-o"),
            ("types", "-d"),
            ("root", "-r"),
            ("unalign", "-u"),
            ("local_register", "-R"),
            ("memory", "--memory"),
            ("algo", "--algo"),
            ("explain", "--explain"),
            ("compare", "--compare"),
            ("plot", "--plot"),
        ];
        return Refused { options, why: "is about data, and a barrier moves none" };
    }
    if !program.has_choice() {
        let options = &[("algo", "--algo"), ("explain", "--explain"), ("compare", "--compare")];
        return Refused { options, why: "is about the choice of an algorithm, and here is none" };
    }
    Refused { options: &[], why: "" }
}

/// Options that change nothing for a program, and are taken from scripts that give them to all.
fn unused(program: Program) -> impl Iterator<Item = &'static str> {
    let all = [("ops", program.reduces()), ("root", program.rooted()), ("reports", program.moves_data())];
    all.into_iter().filter(|(_, used)| !used).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl::{Collective, ReduceOp};

    fn parse(line: &str) -> Options {
        Options::try_parse_from(std::iter::once("perf").chain(line.split_whitespace())).unwrap()
    }

    fn refused(line: &str) -> String {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        Options::read(Collective::AllReduce.into(), words).unwrap_err().to_string()
    }

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_nccl_tests() {
        let o = parse("");
        assert_eq!((o.min, o.max, o.step()), (32 << 20, 32 << 20, Step::Add(1 << 20)));
        assert_eq!((o.iterations, o.warmup, o.aggregate, o.cycles, o.check, o.average), (20, 5, 1, 1, 1, 1));
        assert_eq!(o.types.0, [DataType::F32]);
        assert_eq!(o.ops.0, [Operator::Plain(ReduceOp::Sum)]);
        assert_eq!((o.root, o.threads, o.processes), (Root::One(0), 1, None));
    }

    #[test]
    fn the_usual_line_is_understood() {
        let o = parse("-b 8 -e 128M -f 4 -g 8 -t 2 -d all -o all -r -1 -n 5 -w 0 -c 0 -I -J out.json");
        assert_eq!(o.sizes().unwrap().len(), 13);
        assert_eq!((o.processes, o.threads), (Some(8), 2));
        assert_eq!((o.types.0.len(), o.ops.0.len(), o.root), (14, 9, Root::All));
        assert!(o.per_iteration && o.json.is_some());
        assert_eq!(parse("--minbytes 1K --maxbytes 2K --stepbytes 512").sizes().unwrap(), [1024, 1536, 2048]);
        assert!(parse("-I 1").per_iteration && !parse("-I 0").per_iteration);
    }

    #[test]
    fn gpu_options_are_named_or_refused() {
        assert_eq!(parse("-z 1 -y 2 -p 0 -C 0").without_effect(), ["-z", "-y"]);
        assert!(refused("-G 4").contains("CUDA graphs"));
        assert!(refused("-D 1").contains("device kernel"));
        for letter in ["-C", "-x", "-V", "-M"] {
            assert!(refused(&format!("{letter} 1")).contains(&format!("{letter} wants")), "{letter}");
        }
    }

    #[test]
    fn a_barrier_refuses_options_about_data_and_takes_the_others() {
        let read = |line: &str| Options::read(Program::Barrier, line.split(' '));
        for line in [
            "-b 8",
            "-e 8",
            "-i 8",
            "-f 2",
            "-o max",
            "-d int8",
            "-r 1",
            "-u 4",
            "-R 1",
            "--explain",
            "--plot a",
        ] {
            let why = read(&format!("barrier_perf {line}")).unwrap_err().to_string();
            assert!(why.contains("a barrier moves none"), "{line}: {why}");
        }
        let options =
            read("barrier_perf -g 4 -n 5 -w 1 -m 2 -c 3 -a 3 -N 2 -I -S 1 -T 5 -J x --csv y").unwrap();
        assert_eq!((options.processes, options.cycles, options.check), (Some(4), 2, 3));
    }

    #[test]
    fn help_shows_what_counts_for_the_program() {
        let help = |program| Options::read(program, ["perf", "--help"]).unwrap_err().to_string();
        let all_reduce = help(Collective::AllReduce.into());
        assert!(
            all_reduce.contains("--op") && all_reduce.contains("--algo") && !all_reduce.contains("--root")
        );
        let scatter = help(Collective::Scatter.into());
        assert!(scatter.contains("--root") && !scatter.contains("--op "), "{scatter}");
        let barrier = help(Program::Barrier);
        assert!(
            barrier.contains("--iters") && !barrier.contains("--minbytes") && !barrier.contains("--plot")
        );
        assert!(!help(Program::AllToAllV).contains("--explain"));
    }

    #[test]
    fn where_there_is_no_choice_none_is_explained() {
        for program in [Program::AllToAllV, Program::Collective(Collective::SendRecv)] {
            for line in ["--algo ring", "--explain", "--compare"] {
                let words = format!("perf {line}");
                let why = Options::read(program, words.split(' ')).unwrap_err().to_string();
                assert!(why.contains("choice of an algorithm"), "{why}");
            }
            assert!(Options::read(program, "perf -b 8 -e 64 -f 2 -d int8 -u 3 --plot x".split(' ')).is_ok());
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_would_be_right() {
        assert!(refused("-b 64 -e 8").contains("larger"));
        assert!(refused("-d fp32").contains("one of int8"));
        assert!(refused("-o mean").contains("or all"));
        assert!(refused("-o band").contains("band on type float"));
        assert_eq!(parse("-o bxor -d all").check(), Ok(()));
        assert!(refused("-a 4").contains("0..=3"));
        assert!(refused("-n 0").contains("1.."));
        assert!(refused("-r x").contains("a rank, -1 or all"));
        assert!(refused("a.json").contains("--plot"));
    }
}
