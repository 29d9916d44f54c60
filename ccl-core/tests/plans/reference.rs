//! An interpreter of plans that shares nothing with the verifier: queues, text for terms, lanes chosen by
//! dice, several tiles. What it computes, no proof may contradict.

use ccl_core::plan::{Move, Plan, Rank, Sink, Source};
use std::collections::{HashMap, VecDeque};

/// The output chunks of every tile and rank, or why it stopped.
pub(crate) type Outcome = Result<Vec<Vec<Vec<String>>>, String>;

/// A link: from, to, channel.
type Name = (Rank, Rank, u16);

/// Whether a move of a rank (rank, lane, step) takes a shorter way.
pub(crate) type Allowed<'a> = &'a dyn Fn(usize, usize, usize) -> bool;

/// What is in a link.
#[derive(Clone)]
enum Message {
    /// What was sent.
    Term(String),
    /// Where it lies: tile, rank, output chunk. It is read when it is received.
    Place(usize, usize, usize),
    /// It is where it goes.
    Landed,
}

struct Machine<'a> {
    plan: &'a Plan,
    credits: usize,
    in_place: bool,
    /// Moves that send by reference.
    refers: Allowed<'a>,
    /// Where what is sent on a link goes: rank and output chunk; only if its receiver has offered that.
    landings: HashMap<Name, (usize, usize)>,
    links: HashMap<Name, VecDeque<Message>>,
    /// By tile, rank, chunk.
    outputs: Vec<Vec<Vec<Option<String>>>>,
}

/// Runs `tiles` tiles; `seed` chooses which lane moves next.
pub(crate) fn run(plan: &Plan, credits: u32, tiles: usize, seed: u64, in_place: bool) -> Outcome {
    run_with_shortcuts(plan, credits, tiles, seed, in_place, &|_, _, _| false, &|_, _, _| false)
}

/// The same, where some moves send the place of a chunk and not its content, and what comes to some moves is written by
/// its sender into the chunk where it goes.
pub(crate) fn run_with_shortcuts(
    plan: &Plan,
    credits: u32,
    tiles: usize,
    seed: u64,
    in_place: bool,
    refers: Allowed<'_>,
    offers: Allowed<'_>,
) -> Outcome {
    let spec = plan.spec;
    let mut memory = vec![];
    for tile in 0..tiles {
        let mut ranks = vec![];
        for rank in 0..spec.ranks {
            let mut chunks = vec![None; spec.output_chunks(rank) as usize];
            for input in 0..spec.input_chunks(rank) {
                if let Some(cell) = shared_cell(plan, rank, input).filter(|_| in_place) {
                    chunks[cell] = Some(leaf(tile, rank, input));
                }
            }
            ranks.push(chunks);
        }
        memory.push(ranks);
    }
    let credits = credits as usize;
    let (links, landings) = (HashMap::new(), landings(plan, offers));
    let mut machine = Machine { plan, credits, in_place, refers, landings, links, outputs: memory };
    let mut lanes = vec![];
    for (rank, program) in plan.programs.iter().enumerate() {
        for lane in 0..program.lanes.len() {
            lanes.push((rank, lane, 0usize, vec![None; program.lanes[lane].scratch as usize]));
        }
    }
    let mut dice = seed;
    let total = |rank: usize, lane: usize| plan.programs[rank].lanes[lane].moves.len() * tiles;
    loop {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let start = (dice >> 33) as usize;
        let mut moved = false;
        for i in 0..lanes.len() {
            let at = (start + i) % lanes.len();
            let (rank, lane, done, scratch) = &mut lanes[at];
            if *done < total(*rank, *lane) && machine.step(*rank, *lane, *done, scratch)? {
                *done += 1;
                moved = true;
                break;
            }
        }
        if !moved {
            break;
        }
    }
    if lanes.iter().any(|(rank, lane, done, _)| *done < total(*rank, *lane)) {
        return Err("stuck".into());
    }
    if machine.links.values().any(|queue| !queue.is_empty()) {
        return Err("pieces left in a link".into());
    }
    let full = |chunks: Vec<Option<String>>| chunks.into_iter().collect::<Option<Vec<_>>>();
    let tile = |ranks: Vec<Vec<Option<String>>>| ranks.into_iter().map(full).collect::<Option<Vec<_>>>();
    machine.outputs.into_iter().map(tile).collect::<Option<Vec<_>>>().ok_or("a chunk is unwritten".into())
}

/// Where what is sent on a link goes, for all receivers that offer that.
fn landings(plan: &Plan, offers: Allowed<'_>) -> HashMap<Name, (usize, usize)> {
    let mut landings = HashMap::new();
    for (rank, program) in plan.programs.iter().enumerate() {
        for (lane, code) in program.lanes.iter().enumerate() {
            for (step, m) in code.moves.iter().enumerate().filter(|(step, _)| offers(rank, lane, *step)) {
                let [Source::Link(link)] = m.from[..] else {
                    panic!("move {step} offers and receives nothing")
                };
                let chunk = m.into.iter().find_map(|s| if let Sink::Output(c) = s { Some(*c) } else { None });
                let chunk = chunk.expect("a move that offers has an output") as usize;
                let known = landings.insert((link.peer, rank as Rank, link.channel), (rank, chunk));
                assert!(known.is_none(), "two moves offer for one link");
            }
        }
    }
    landings
}

fn leaf(tile: usize, rank: Rank, chunk: u32) -> String {
    format!("{tile}.{rank}.{chunk}")
}

fn shared_cell(plan: &Plan, rank: Rank, input: u32) -> Option<usize> {
    let spec = plan.spec;
    let block = spec.collective.in_place_output(rank, input / spec.parts)?;
    let cell = block * spec.parts + input % spec.parts;
    (cell < spec.output_chunks(rank)).then_some(cell as usize)
}

impl Machine<'_> {
    /// The output chunk in which what a move sends lies. `None`: nowhere, or in an input that nobody writes.
    fn cell(&self, rank: Rank, m: &Move) -> Option<usize> {
        match m.from[..] {
            [Source::Input(c)] => shared_cell(self.plan, rank, c).filter(|_| self.in_place),
            [Source::Output(c)] => Some(c as usize),
            _ => m
                .into
                .iter()
                .find_map(|sink| if let Sink::Output(c) = sink { Some(*c as usize) } else { None }),
        }
    }

    /// Does a move if it can start.
    fn step(
        &mut self,
        rank: usize,
        lane: usize,
        done: usize,
        scratch: &mut [Option<String>],
    ) -> Result<bool, String> {
        let moves = &self.plan.programs[rank].lanes[lane].moves;
        let (tile, m) = (done / moves.len(), &moves[done % moves.len()]);
        let me = rank as Rank;
        if done.is_multiple_of(moves.len()) {
            scratch.fill(None);
        }
        for source in &m.from {
            if let Source::Link(l) = source
                && self.links.get(&(l.peer, me, l.channel)).is_none_or(|queue| queue.is_empty())
            {
                return Ok(false);
            }
        }
        for sink in &m.into {
            if let Sink::Links(l) = sink {
                let full = |p: &Rank| {
                    self.links.get(&(me, *p, l.channel)).is_some_and(|queue| queue.len() >= self.credits)
                };
                if l.peers.iter().any(full) {
                    return Ok(false);
                }
            }
        }
        let mut terms = vec![];
        for source in &m.from {
            let term = match *source {
                Source::Input(c) => match shared_cell(self.plan, me, c).filter(|_| self.in_place) {
                    Some(cell) => self.outputs[tile][rank][cell].clone(),
                    None => Some(leaf(tile, me, c)),
                },
                Source::Output(c) => self.outputs[tile][rank][c as usize].clone(),
                Source::Scratch(s) => scratch[s as usize].clone(),
                Source::Link(l) => {
                    let message = self.links.get_mut(&(l.peer, me, l.channel)).and_then(VecDeque::pop_front);
                    message.and_then(|message| match message {
                        Message::Term(term) => Some(term),
                        Message::Place(tile, rank, cell) => self.outputs[tile][rank][cell].clone(),
                        Message::Landed => {
                            let (rank, cell) = self.landings[&(l.peer, me, l.channel)];
                            self.outputs[tile][rank][cell].clone()
                        }
                    })
                }
            };
            terms.push(term.ok_or("reads what is not there")?);
        }
        let term = if terms.len() == 1 { terms.remove(0) } else { format!("({})", terms.join("+")) };
        let cell = if (self.refers)(rank, lane, done % moves.len()) { self.cell(me, m) } else { None };
        let message = cell.map_or(Message::Term(term.clone()), |cell| Message::Place(tile, rank, cell));
        for sink in &m.into {
            match sink {
                Sink::Output(c) => self.outputs[tile][rank][*c as usize] = Some(term.clone()),
                Sink::Scratch(s) => scratch[*s as usize] = Some(term.clone()),
                Sink::Links(l) => {
                    for &peer in &l.peers {
                        let name = (me, peer, l.channel);
                        let message = match self.landings.get(&name) {
                            None => message.clone(),
                            Some(&(rank, cell)) => {
                                self.outputs[tile][rank][cell] = Some(term.clone());
                                Message::Landed
                            }
                        };
                        self.links.entry(name).or_default().push_back(message);
                    }
                }
            }
        }
        Ok(true)
    }
}
