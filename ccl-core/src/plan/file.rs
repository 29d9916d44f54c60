//! Plans in files: JSON with a version, proved before they are handed out.

use super::{Plan, Program, Spec};
use crate::error::{Error, ErrorKind, Result, excerpt};
use crate::plan::{Collective, Rank};
use crate::verify::{Limits, Proof, verify};
use serde::{Deserialize, Serialize};

/// The version that this build writes and reads.
const VERSION: u32 = 1;

/// A longer text is refused unread: a plan for a thousand ranks takes a tenth of it.
pub const MAX_FILE_BYTES: usize = 1 << 28;

/// Longest name of an algorithm, in bytes: it stands in titles, logs and tables.
const MAX_NAME: usize = 64;

/// The fields at the top of a plan file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<P> {
    version: u32,
    collective: Collective,
    ranks: u32,
    #[serde(default)]
    root: Rank,
    parts: u32,
    #[serde(default = "super::one_host", skip_serializing_if = "super::is_one_host")]
    hosts: u32,
    algorithm: String,
    programs: P,
}

/// All that is read before the version is known to be ours.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

impl Plan {
    /// The plan as a JSON file, a line per rank.
    pub fn to_json(&self) -> String {
        let Spec { collective, ranks, root, parts, hosts } = self.spec;
        let (algorithm, programs) = (self.algorithm.clone(), &self.programs);
        let version = VERSION;
        let file = File { version, collective, ranks, root, parts, hosts, algorithm, programs };
        // Serialisation to a string fails only on maps without string keys and on failing implementations
        // of Serialize; these types derive theirs and have no maps.
        serde_json::to_string(&file).expect("plans serialise").replace("{\"lanes\":", "\n{\"lanes\":")
    }

    /// Reads a plan file, and proves the plan within `limits`. There is no way to get an unproved plan
    /// from a file. Unknown fields, other versions and texts over [`MAX_FILE_BYTES`] are refused.
    pub fn from_json(text: &str, limits: &Limits) -> Result<(Plan, Proof)> {
        let malformed = |cause: String| {
            // The cause may quote the file.
            Error::from(ErrorKind::Malformed { what: "plan file".into(), cause: excerpt(&cause) })
        };
        if text.len() > MAX_FILE_BYTES {
            return Err(malformed(format!("{} bytes long; at most {MAX_FILE_BYTES} are read", text.len())));
        }
        let head: Head = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        if head.version != VERSION {
            return Err(malformed(format!("version {}; this build reads version {VERSION}", head.version)));
        }
        let file: File<Vec<Program>> = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        let File { version: _, collective, ranks, root, parts, hosts, algorithm, programs } = file;
        if algorithm.is_empty() || algorithm.len() > MAX_NAME || algorithm.contains(char::is_control) {
            return Err(malformed(format!(
                "'{}' as the algorithm's name; give it 1 to {MAX_NAME} bytes of printable text",
                excerpt(&algorithm)
            )));
        }
        let plan = Plan { spec: Spec { collective, ranks, root, parts, hosts }, algorithm, programs };
        let proof = verify(&plan, limits).map_err(|fault| ErrorKind::PlanRejected(fault.to_string()))?;
        Ok((plan, proof))
    }
}
