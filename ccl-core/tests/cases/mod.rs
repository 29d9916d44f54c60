//! Calls drawn from seeds, and what they must come to by the definition of the collective.

use ccl_core::algorithms;
use ccl_core::cluster::{Cluster, Faults, Outcome, Random, Settings};
use ccl_core::kernels::Level;
use ccl_core::plan::{Collective, Placement, Plan, Rank};
use ccl_core::{DataType, Factor, ReduceOp};
use std::sync::Arc;

/// A call and its inputs, drawn from a seed.
pub(crate) struct Case {
    pub(crate) plan: Arc<Plan>,
    pub(crate) settings: Settings,
    /// Every rank's send buffer as small integers, which all types and partial sums hold exactly.
    pub(crate) values: Vec<Vec<i64>>,
}

impl Case {
    /// A call of a plan that needs so many credits.
    pub(crate) fn of(
        plan: Arc<Plan>,
        needed: u32,
        counts: &[usize],
        tile_bytes: &[usize],
        random: &mut Random,
    ) -> Case {
        let ranks = plan.spec.ranks;
        let dtype = *random.pick(&DataType::ALL);
        let op = loop {
            let op = *random.pick(&[&ReduceOp::ALL[..], &[twice(dtype)]].concat());
            // Elsewhere the mean of floats rounds, and has a test of its own.
            if op.check(dtype).is_ok() && (op != ReduceOp::Avg || [1, 2, 4, 8].contains(&ranks)) {
                break op;
            }
        };
        let count = *random.pick(counts);
        let settings = Settings {
            count,
            dtype,
            op,
            tile_bytes: *random.pick(tile_bytes),
            credits: needed + random.up_to(4) as u32 - 1,
            in_place: random.bits().is_multiple_of(2),
            level: *random.pick(&levels()),
            seed: random.bits(),
            faults: Faults::default(),
            shortcuts: random.bits().is_multiple_of(2),
        };
        // Sums of 9 ones do not fit the 2 bits of E5M2's mantissa; sums of 8 do.
        let unsigned = [DataType::U8, DataType::U16, DataType::U32, DataType::U64].contains(&dtype);
        let value = |rank: Rank, random: &mut Random| match op {
            ReduceOp::Prod if rank > 8 => 1,
            ReduceOp::Prod => *random.pick(&[1, 1, 1, 2]),
            _ if rank >= 8 => 0,
            _ if unsigned => *random.pick(&[0, 1]),
            _ => *random.pick(&[-1, 0, 1]),
        };
        let values = (0..ranks).map(|rank| {
            let blocks = plan.spec.collective.input_blocks(ranks, rank, plan.spec.root);
            (0..count * blocks as usize).map(|_| value(rank, random)).collect()
        });
        let values = values.collect();
        Case { plan, settings, values }
    }

    pub(crate) fn run(&self) -> Outcome {
        let inputs: Vec<_> = self.values.iter().map(|v| encode_all(self.settings.dtype, v)).collect();
        Cluster::new(&self.plan, &self.settings, &inputs).expect("a valid case").run()
    }

    /// What `rank` must have, from the definition of the collective.
    pub(crate) fn expected(&self, rank: Rank) -> Vec<u8> {
        let (spec, count) = (&self.plan.spec, self.settings.count);
        let block = |from: Rank, block: u32| {
            let start = block as usize * count;
            self.values[from as usize][start..start + count].iter().map(|v| *v as f64).collect::<Vec<_>>()
        };
        let all = || 0..spec.ranks;
        let reduced = |number: u32| {
            let blocks: Vec<_> = all().map(|from| block(from, number)).collect();
            let each = (0..count).map(|i| self.combine(blocks.iter().map(|b| b[i])));
            each.collect::<Vec<_>>()
        };
        let values = match spec.collective {
            Collective::AllReduce => reduced(0),
            Collective::Reduce if rank == spec.root => reduced(0),
            Collective::Broadcast => block(spec.root, 0),
            Collective::AllGather => all().flat_map(|from| block(from, 0)).collect(),
            Collective::ReduceScatter => reduced(rank),
            Collective::AllToAll => all().flat_map(|from| block(from, rank)).collect(),
            Collective::Gather if rank == spec.root => all().flat_map(|from| block(from, 0)).collect(),
            Collective::Scatter => block(spec.root, rank),
            Collective::Reduce | Collective::Gather | Collective::SendRecv => Vec::new(),
        };
        values.iter().flat_map(|v| encode(self.settings.dtype, *v)).collect()
    }

    fn combine(&self, values: impl Iterator<Item = f64>) -> f64 {
        let n = self.plan.spec.ranks as f64;
        match self.settings.op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Prod => values.product(),
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Avg if self.settings.dtype.is_float() => values.sum::<f64>() / n,
            ReduceOp::Avg => (values.sum::<f64>() / n).trunc(),
            ReduceOp::PreMulSum(_) => values.sum::<f64>() * 2.0,
            ReduceOp::Band => values.fold(-1, |bits, v| bits & v as i64) as f64,
            ReduceOp::Bor => values.fold(0, |bits, v| bits | v as i64) as f64,
            ReduceOp::Bxor => values.fold(0, |bits, v| bits ^ v as i64) as f64,
        }
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} {:?} {:?}", self.plan.algorithm, self.plan.spec, self.settings)
    }
}

/// The sum of doubled values.
fn twice(dtype: DataType) -> ReduceOp {
    let factor = if dtype.is_float() { Factor::float(dtype, 2.0) } else { Factor::integer(dtype, 2) };
    ReduceOp::PreMulSum(factor.expect("of the type's kind"))
}

pub(crate) fn draw_plan(random: &mut Random) -> Plan {
    loop {
        let algorithm = *random.pick(algorithms::all());
        let collective = *random.pick(&Collective::ALL);
        let ranks = random.up_to(9) as u32;
        let root = if collective.rooted() { random.up_to(ranks as u64) as u32 - 1 } else { 0 };
        let hosts = random.up_to(ranks as u64) as u32;
        let placement = Placement::even(ranks, hosts).unwrap_or(ranks.into());
        if let Some(plan) = algorithms::plan(algorithm, collective, placement, root) {
            return plan;
        }
    }
}

fn levels() -> Vec<Level> {
    Level::ALL.into_iter().filter(|l| l.is_available()).collect()
}

fn encode_all(dtype: DataType, values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| encode(dtype, *v as f64)).collect()
}

/// The bytes of a value that the type holds exactly (integers: modulo their range).
fn encode(dtype: DataType, value: f64) -> Vec<u8> {
    let integer = value as i64;
    match dtype {
        DataType::I8 | DataType::U8 => (integer as u8).to_ne_bytes().to_vec(),
        DataType::I16 | DataType::U16 => (integer as u16).to_ne_bytes().to_vec(),
        DataType::I32 | DataType::U32 => (integer as u32).to_ne_bytes().to_vec(),
        DataType::I64 | DataType::U64 => (integer as u64).to_ne_bytes().to_vec(),
        DataType::F16 => half::f16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::BF16 => half::bf16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => value.to_ne_bytes().to_vec(),
        DataType::F8E4M3 => vec![eight_bits(value, 3, 7)],
        DataType::F8E5M2 => vec![eight_bits(value, 2, 15)],
    }
}

/// The code of a normal number (or zero) that an 8-bit float holds exactly.
fn eight_bits(value: f64, mantissa: u32, bias: i64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value == 0.0 {
        return sign;
    }
    let exponent = value.abs().log2().floor();
    let fraction = (value.abs() / exponent.exp2() - 1.0) * f64::from(1 << mantissa);
    assert_eq!(fraction.fract(), 0.0, "{value} is not exact");
    sign | (((exponent as i64 + bias) as u8) << mantissa) | fraction as u8
}

/// Whether two results are equal; which zero a sum of zeros is does not matter.
pub(crate) fn same(dtype: DataType, a: &[u8], b: &[u8]) -> bool {
    let zero = |bytes: &[u8]| {
        let (last, others) = bytes.split_last().expect("elements are not empty");
        dtype.is_float() && last & 0x7f == 0 && others.iter().all(|b| *b == 0)
    };
    let pairs = || a.chunks(dtype.size()).zip(b.chunks(dtype.size()));
    a.len() == b.len() && pairs().all(|(a, b)| a == b || (zero(a) && zero(b)))
}
