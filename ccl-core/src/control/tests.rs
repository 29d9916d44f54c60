//! The rules, one by one, on a single node.

use super::*;
use crate::cluster::Random;
use crate::plan::Rank;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// A node and what it said last.
struct Lone {
    node: Node,
    now: Duration,
}

impl Lone {
    fn new(rank: Rank, ranks: u32) -> Lone {
        let settings = Settings { rank, ranks, freeze: Some(1000 * MS), inquest: 1000 * MS };
        Lone { node: Node::new(settings, Duration::ZERO), now: Duration::ZERO }
    }

    /// Rank 1 of six, attached to rank 0 on link 0, with rank 5 attached to it on link 5. Both have spoken.
    fn inner() -> Lone {
        let mut lone = Lone::new(1, 6);
        for peer in [0, 5] {
            lone.handle(Event::Up { link: peer, peer });
            lone.hear(peer, Message::Ping { state: vec![peer as u8] });
        }
        lone
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.node.handle(self.now, event);
        self.node.actions().collect()
    }

    fn hear(&mut self, link: LinkId, message: Message) -> Vec<Action> {
        self.handle(Event::Heard { link, message })
    }

    fn command(&mut self, command: Command) -> Vec<Action> {
        self.handle(Event::Command(command))
    }

    /// Ticks whenever the node wants it; all actions but signs of life, and when.
    fn pass(&mut self, time: Duration) -> Vec<(Duration, Action)> {
        let end = self.now + time;
        let mut all = Vec::new();
        while let Some(wake) = self.node.wake().filter(|wake| *wake <= end) {
            self.now = wake.max(self.now);
            let actions = self.handle(Event::Tick).into_iter();
            let told = actions.filter(|a| !matches!(a, Action::Send { message: Message::Ping { .. }, .. }));
            all.extend(told.map(|action| (self.now, action)));
        }
        self.now = end;
        all
    }

    fn down(&mut self, link: LinkId) -> Vec<Action> {
        self.handle(Event::Down { link, cause: "reset".into(), state: Vec::new() })
    }

    fn refused(&mut self, peer: Rank) -> Vec<Action> {
        self.handle(Event::Unreached { peer, cause: "refused".into(), refused: true })
    }
}

fn send(link: LinkId, message: Message) -> Action {
    Action::Send { link, message }
}

fn loss(rank: Rank) -> Loss {
    Loss { rank, cause: "reset".into(), state: vec![rank as u8] }
}

fn lost(loss: &Loss) -> Message {
    Message::Fact(Fact::Lost(loss.clone()))
}

fn left(rank: Rank) -> Message {
    Message::Fact(Fact::Left(rank))
}

#[test]
fn a_link_that_closes_without_a_goodbye_is_a_loss_with_the_last_state() {
    let mut lone = Lone::inner();
    let actions = lone.down(5);
    assert_eq!(actions, [send(0, lost(&loss(5))), Action::Lost(loss(5))]);
    assert_eq!(lone.node.lost(), [loss(5)]);
    // Told once more, by another: nothing new.
    assert_eq!(lone.hear(0, lost(&loss(5))), []);
}

#[test]
fn of_two_links_one_is_enough() {
    let mut lone = Lone::inner();
    lone.handle(Event::Up { link: 9, peer: 5 });
    let again = lone.down(5);
    assert!(
        again.iter().all(|a| matches!(a, Action::Send { link: 9, .. })) && !lone.node.is_gone(5),
        "{again:?}"
    );
}

#[test]
fn a_link_on_which_nothing_was_said_is_looked_at_twice() {
    let mut lone = Lone::new(1, 6);
    lone.handle(Event::Up { link: 0, peer: 0 });
    lone.handle(Event::Up { link: 5, peer: 5 });
    assert_eq!(lone.down(5), [Action::Dial(5)]);
    assert_eq!(lone.refused(5), []);
    assert_eq!(lone.pass(260 * MS), [(250 * MS, Action::Dial(5))]);
    let actions = lone.refused(5);
    assert!(matches!(&actions[..], [_, Action::Lost(loss)] if loss.rank == 5), "{actions:?}");
}

#[test]
fn who_refuses_and_has_left_is_no_loss() {
    let mut lone = Lone::inner();
    lone.handle(Event::Up { link: 7, peer: 3 });
    lone.refused(2);
    lone.hear(7, left(2));
    assert_eq!(lone.refused(2), []);
    assert_eq!((lone.node.is_gone(2), lone.node.lost()), (true, &[][..]));
}

#[test]
fn the_next_attachment_is_dialled_at_once_after_a_loss_and_later_after_a_leave() {
    let mut lone = Lone::new(5, 6);
    lone.handle(Event::Up { link: 1, peer: 1 });
    lone.hear(1, Message::Ping { state: Vec::new() });
    assert_eq!(lone.down(1)[1..], [Action::Dial(0)]);
    assert_eq!(lone.node.attachment(), Some(0));

    let mut lone = Lone::new(5, 6);
    lone.handle(Event::Up { link: 1, peer: 1 });
    assert_eq!(lone.hear(1, left(1)), [Action::Left(1), send(1, left(1))]);
    assert_eq!(lone.pass(60 * MS), [(50 * MS, Action::Dial(0))]);
}

#[test]
fn silence_is_a_loss_and_whoever_wakes_from_it_finds_word_of_that() {
    let mut lone = Lone::inner();
    let actions = lone.pass(600 * MS);
    assert_eq!(actions, []);
    lone.hear(0, Message::Ping { state: Vec::new() });
    let actions = lone.pass(500 * MS);
    let [(time, Action::Send { link: 5, message }), (_, Action::Close(5)), rest @ ..] = &actions[..] else {
        panic!("{actions:?}");
    };
    let Message::Fact(Fact::Lost(loss)) = message else { panic!("{message:?}") };
    assert_eq!((*time, loss.rank, &loss.state[..]), (1000 * MS, 5, &[5][..]));
    assert_eq!(loss.cause, "no sign of life for 1.0 s: stopped, or its host is gone");
    let told = [send(0, lost(loss)), Action::Lost(loss.clone())];
    assert!(rest.iter().map(|(_, action)| action).eq(&told), "{rest:?}");
    // It wakes, and connects.
    let actions = lone.handle(Event::Up { link: 8, peer: 5 });
    assert_eq!(actions, [send(8, lost(loss)), Action::Close(8)]);
}

#[test]
fn whoever_is_dialled_and_does_not_answer_is_silent_whatever_became_of_the_dial() {
    let lost = |told: &[(Duration, Action)]| {
        let losses = told.iter().filter_map(|(time, action)| match action {
            Action::Lost(loss) => Some((*time, loss.rank, loss.cause.clone())),
            _ => None,
        });
        losses.collect::<Vec<_>>()
    };
    let orphan = || {
        let mut lone = Lone::new(5, 6);
        lone.handle(Event::Up { link: 1, peer: 1 });
        lone.hear(1, Message::Ping { state: Vec::new() });
        assert_eq!(lone.down(1)[1..], [Action::Dial(0)]);
        lone
    };
    // Somebody takes the call and says nothing.
    let told = orphan().pass(1050 * MS);
    assert_eq!(lost(&told), [(1000 * MS, 0, "not reached for 1.0 s: no answer".to_string())]);
    // Each dial fails by itself.
    let mut lone = orphan();
    lone.pass(700 * MS);
    lone.handle(Event::Unreached { peer: 0, cause: "timed out".into(), refused: false });
    let told = lone.pass(350 * MS);
    assert_eq!(lost(&told), [(1000 * MS, 0, "not reached for 1.0 s: timed out".to_string())]);
    // Whoever answers in time is not.
    let mut lone = orphan();
    lone.pass(900 * MS);
    lone.handle(Event::Up { link: 9, peer: 0 });
    assert_eq!(lost(&lone.pass(900 * MS)), []);
    // Who leaves accuses nobody.
    let mut lone = orphan();
    lone.command(Command::Leave);
    assert_eq!(lost(&lone.pass(3000 * MS)), []);
}

#[test]
fn who_was_stopped_itself_blames_nobody() {
    let mut lone = Lone::inner();
    lone.pass(300 * MS);
    lone.now += 60_000 * MS;
    lone.handle(Event::Tick);
    assert_eq!(lone.pass(600 * MS), []);
    // Those who go on being silent are found out all the same.
    let told = lone.pass(500 * MS);
    assert_eq!(told.iter().filter(|(_, a)| matches!(a, Action::Lost(_))).count(), 2, "{told:?}");
}

#[test]
fn who_is_told_of_its_own_loss_is_excluded_once_and_closes() {
    let mut lone = Lone::inner();
    let actions = lone.hear(0, lost(&loss(1)));
    let excluded = Action::Excluded { cause: "reset".into() };
    assert_eq!(actions, [send(5, lost(&loss(1))), excluded, Action::Close(0), Action::Close(5)]);
    assert!(lone.node.is_over() && lone.node.wake().is_none());
    assert_eq!(lone.hear(5, lost(&loss(1))), []);
    assert_eq!(lone.handle(Event::Up { link: 9, peer: 3 }), [Action::Close(9)]);
}

#[test]
fn a_rank_has_left_when_one_that_stays_knows() {
    let mut lone = Lone::inner();
    assert_eq!(lone.command(Command::Leave), [send(0, left(1)), send(5, left(1))]);
    // Rank 5 leaves too: it knows nothing that stays.
    assert_eq!(lone.hear(5, left(5)), [send(0, left(5)), Action::Left(5)]);
    assert!(!lone.node.is_over());
    assert_eq!(lone.hear(0, left(1)), [Action::Close(0), Action::Close(5)]);
    assert!(lone.node.is_over());
    let late = lone.handle(Event::Up { link: 9, peer: 3 });
    assert_eq!(late, [send(9, left(1)), Action::Close(9)]);
}

#[test]
fn nobody_waits_for_ever_to_leave() {
    let mut lone = Lone::inner();
    lone.command(Command::Leave);
    lone.pass(1001 * MS);
    assert!(lone.node.is_over());
    let mut alone = Lone::new(0, 1);
    alone.command(Command::Leave);
    assert!(alone.node.is_over());
}

fn vote(rank: Rank, head: Rank, decided: Option<Agreement>) -> Message {
    Message::Vote { number: 0, vote: Vote { rank, head, flags: 6, blob: Vec::new(), decided } }
}

fn agreement(flags: u64, gone: &[Rank]) -> Agreement {
    Agreement { flags, blob: Vec::new(), gone: gone.to_vec() }
}

#[test]
fn a_vote_is_a_promise_to_take_no_decision_of_a_lower_head() {
    let mut lone = Lone::new(5, 6);
    for link in [0, 1, 2] {
        lone.handle(Event::Up { link, peer: link });
    }
    lone.command(Command::Agree { flags: 3, blob: Vec::new() });
    lone.hear(1, lost(&loss(0)));
    let late = Message::Decision { number: 0, head: 0, agreement: agreement(7, &[]) };
    assert_eq!(lone.hear(2, late), []);
    let right = Message::Decision { number: 0, head: 1, agreement: agreement(2, &[0]) };
    let actions = lone.hear(1, right.clone());
    assert_eq!(actions, [send(2, right.clone()), Action::Agreed(agreement(2, &[0]))]);
    assert_eq!(lone.hear(2, right), []);
}

#[test]
fn a_head_repeats_what_somebody_has_decided() {
    let mut lone = Lone::new(0, 3);
    for link in [1, 2] {
        lone.handle(Event::Up { link, peer: link });
    }
    lone.command(Command::Agree { flags: 3, blob: Vec::new() });
    assert_eq!(lone.hear(1, vote(1, 0, None)), []);
    let decided = agreement(1, &[]);
    let actions = lone.hear(2, vote(2, 0, Some(decided.clone())));
    assert_eq!(actions.last(), Some(&Action::Agreed(decided.clone())));
    // Whoever missed it is told.
    let again = lone.hear(2, vote(1, 0, None));
    assert_eq!(again, [send(2, Message::Decision { number: 0, head: 0, agreement: decided })]);
}

#[test]
fn a_decision_holds_those_who_voted_and_names_those_who_are_gone() {
    let mut lone = Lone::new(0, 3);
    for link in [1, 2] {
        lone.handle(Event::Up { link, peer: link });
        lone.hear(link, Message::Ping { state: Vec::new() });
    }
    lone.command(Command::Agree { flags: 3, blob: Vec::new() });
    lone.hear(1, vote(1, 0, None));
    let actions = lone.down(2);
    assert_eq!(actions.last(), Some(&Action::Agreed(agreement(2, &[2]))));
}

#[test]
fn an_agreement_that_is_given_up_names_those_who_are_missing() {
    let agree = || Command::Agree { flags: 3, blob: Vec::new() };
    let mut head = Lone::new(0, 6);
    for link in [1, 2, 3, 4] {
        head.handle(Event::Up { link, peer: link });
    }
    head.command(agree());
    for rank in [1, 4] {
        head.hear(rank, vote(rank, 0, None));
    }
    assert_eq!(head.command(Command::GiveUp), [Action::Unagreed { absent: vec![2, 3, 5] }]);
    assert_eq!(head.command(Command::GiveUp), []);
    // Who passes votes on knows of those below it, and that its own goes nowhere.
    let mut inner = Lone::inner();
    inner.command(agree());
    assert_eq!(inner.command(Command::GiveUp), [Action::Unagreed { absent: vec![5] }]);
    let mut cut_off = Lone::new(5, 6);
    cut_off.handle(Event::Up { link: 1, peer: 1 });
    cut_off.hear(1, Message::Ping { state: Vec::new() });
    cut_off.down(1);
    cut_off.command(agree());
    assert_eq!(cut_off.command(Command::GiveUp), [Action::Unagreed { absent: vec![0] }]);
}

/// Anything that decodes.
fn babble(random: &mut Random) -> Message {
    let rank = |random: &mut Random| *random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 1 << 31, u32::MAX]);
    let number = |random: &mut Random| *random.pick(&[0, 1, 2, 3, 1 << 32, 5 << 32, u64::MAX - 1, u64::MAX]);
    let entries = |random: &mut Random| {
        (0..random.up_to(4)).map(|_| (rank(random), vec![1; 3])).collect::<Vec<Entry>>()
    };
    let gone =
        |random: &mut Random| Agreement { flags: 1, blob: vec![2], gone: vec![rank(random), rank(random)] };
    match random.up_to(12) {
        1 => Message::Ping { state: vec![0; 9] },
        2 if random.up_to(20) == 1 => {
            Message::Fact(Fact::Lost(Loss { rank: rank(random), cause: String::new(), state: Vec::new() }))
        }
        3 if random.up_to(20) == 1 => left(rank(random)),
        4 if random.up_to(20) == 1 => {
            Message::Fact(Fact::Ended(End { by: rank(random), kind: EndKind::Failed, text: String::new() }))
        }
        5 => Message::GatherUp { round: number(random), entries: entries(random) },
        6 => Message::GatherDown { round: number(random), entries: entries(random) },
        7 => Message::GatherFailed { round: number(random), absent: vec![rank(random); 3] },
        8 => {
            let decided = random.bits().is_multiple_of(2).then(|| gone(random));
            let vote = Vote { rank: rank(random), head: rank(random), flags: 0, blob: Vec::new(), decided };
            Message::Vote { number: number(random), vote }
        }
        9 => Message::Decision { number: number(random), head: rank(random), agreement: gone(random) },
        10 => Message::Inquire { by: rank(random), reason: Vec::new() },
        11 => Message::Question { inquest: number(random) },
        _ => Message::Answers { inquest: number(random), entries: entries(random) },
    }
}

#[test]
fn whatever_peers_say_a_node_stays_sound() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let rank = random.up_to(6) as Rank - 1;
        let mut lone = Lone::new(rank, 6);
        for step in 0..300 {
            let link = random.up_to(6) as LinkId;
            let peer = *random.pick(&[0, 1, 2, 3, 4, 5, 6, u32::MAX]);
            match random.up_to(20) {
                1 => drop(lone.handle(Event::Up { link: step + 10, peer })),
                2 => drop(lone.down(random.up_to(300) as LinkId)),
                3 => drop(lone.refused(peer)),
                4 => drop(lone.handle(Event::Unreached { peer, cause: String::new(), refused: false })),
                5 => drop(lone.command(Command::Gather { bytes: vec![0; 9], deadline: lone.now + 50 * MS })),
                6 => drop(lone.command(Command::Agree { flags: 1, blob: vec![1] })),
                7 => drop(lone.command(Command::GiveUp)),
                8 => drop(lone.command(Command::Report { inquest: step.into(), state: vec![3] })),
                9 => drop(lone.command(Command::Inquire { reason: vec![4] })),
                10 => drop(lone.pass(100 * MS)),
                _ if step < 10 => drop(lone.handle(Event::Up { link, peer: link % 6 })),
                _ => drop(lone.hear(link, babble(&mut random))),
            }
        }
        // Nothing piles up: all that is kept is of few rounds and of ranks that there are.
        assert!(lone.node.is_over() || lone.node.kept() <= 200, "seed {seed}: {}", lone.node.kept());
    }
}
