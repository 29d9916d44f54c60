//! The same program several times side by side.

use crate::plan::{Lane, Move, Plan, Program, Sink, Source, Spec};

/// Lays `program`, written for `spec`, `copies` times side by side: every part is cut into as many, and
/// each copy has lanes and channels of its own. So any algorithm is spread over rails or threads.
///
/// Returns the program and the spec that it is for. All ranks must use the same number of copies.
///
/// # Panics
/// With no copies, or with so many that channels pass 65535.
pub fn widen(spec: &Spec, program: &Program, copies: u16) -> (Spec, Program) {
    assert!(copies > 0, "a program laid side by side 0 times");
    let wide = Spec { parts: spec.parts * u32::from(copies), ..*spec };
    let lanes = (0..copies).flat_map(|copy| {
        let place = Place { spec: *spec, wide, copy, copies };
        program.lanes.iter().map(move |lane| Lane {
            scratch: lane.scratch,
            moves: lane.moves.iter().map(|m| place.shift(m)).collect(),
        })
    });
    (wide, Program { lanes: lanes.collect() })
}

/// [`widen`] for all ranks.
///
/// # Panics
/// As [`widen`].
pub fn widen_plan(plan: &Plan, copies: u16) -> Plan {
    let programs = plan.programs.iter().map(|program| widen(&plan.spec, program, copies).1);
    let spec = Spec { parts: plan.spec.parts * u32::from(copies), ..plan.spec };
    Plan { spec, algorithm: plan.algorithm.clone(), programs: programs.collect() }
}

/// Where one copy lies.
#[derive(Clone, Copy)]
struct Place {
    spec: Spec,
    wide: Spec,
    copy: u16,
    copies: u16,
}

impl Place {
    fn shift(self, m: &Move) -> Move {
        let source = |s: &Source| match *s {
            Source::Input(chunk) => Source::Input(self.chunk(chunk)),
            Source::Output(chunk) => Source::Output(self.chunk(chunk)),
            Source::Scratch(piece) => Source::Scratch(piece),
            Source::Link(mut link) => {
                link.channel = self.channel(link.channel);
                Source::Link(link)
            }
        };
        let sink = |s: &Sink| match s {
            Sink::Output(chunk) => Sink::Output(self.chunk(*chunk)),
            Sink::Scratch(piece) => Sink::Scratch(*piece),
            Sink::Links(links) => {
                let mut links = links.clone();
                links.channel = self.channel(links.channel);
                Sink::Links(links)
            }
        };
        Move { from: m.from.iter().map(source).collect(), into: m.into.iter().map(sink).collect() }
    }

    /// Each copy has one stretch of every block.
    fn chunk(self, chunk: u32) -> u32 {
        let (block, part) = (chunk / self.spec.parts, chunk % self.spec.parts);
        self.wide.chunk(block, u32::from(self.copy) * self.spec.parts + part)
    }

    fn channel(self, channel: u16) -> u16 {
        let wide = channel.checked_mul(self.copies).and_then(|c| c.checked_add(self.copy));
        wide.expect("channels pass 65535")
    }
}
