//! Peers that do not fit, and addresses that do not answer, over real sockets.

use super::dial::Dialer;
use super::lobby::Lobby;
use super::net::{Connection, wait};
use super::session::Purpose;
use super::wire::{Member, Message, Refusal};
use super::*;
use crate::control::{self, Fact, Loss};
use id::Kind;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn config() -> Config {
    Config::from_vars([("RDMACCL_SOCKET_IFNAME".to_string(), "=lo".to_string())]).unwrap()
}

/// Where the root of an id on loopback listens.
fn root_of(id: &UniqueId) -> SocketAddr {
    id.addresses()[0]
}

/// An address at which nobody listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn the_id_of_a_job_that_is_over_is_refused_at_once_by_its_successor() {
    let living = UniqueId::create(&config()).unwrap();
    for addresses in [vec![root_of(&living)], vec![root_of(&living), nobody()]] {
        let stale = UniqueId::new(Key::random().unwrap(), &addresses, Kind::Given);
        let error = Bootstrap::join(&stale, 1, 2, &config(), soon()).unwrap_err();
        // Not a timeout: nothing was waited for.
        assert!(matches!(error.kind(), ErrorKind::Bootstrap { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("belongs to another job") && text.contains("give all ranks the id"), "{text}");
    }
    Bootstrap::join(&living, 0, 1, &config(), soon()).unwrap();
}

#[test]
fn a_root_of_another_version_is_named_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let id = UniqueId::new(Key::random().unwrap(), &[listener.local_addr().unwrap()], Kind::Given);
    let root = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 51]).unwrap();
        let mut answer = [0; 59];
        answer[..10].copy_from_slice(b"rdmaccl\x01\xe7\x03");
        stream.write_all(&answer).unwrap();
        // Until the other end has read it and closed.
        let _ = stream.read(&mut [0]);
    });
    let error = Bootstrap::join(&id, 0, 1, &config(), soon()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Bootstrap { .. }), "{error}");
    assert!(error.to_string().contains("protocol version 999, this one 3"), "{error}");
    root.join().unwrap();
}

#[test]
fn a_rank_of_another_version_is_told_ours_and_has_no_effect() {
    let id = UniqueId::create(&config()).unwrap();
    let mut stream = TcpStream::connect(root_of(&id)).unwrap();
    let mut hello = session::Session::dial(id.key(), Purpose::Join).unwrap();
    hello.outgoing()[8] = 99;
    stream.write_all(hello.outgoing()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[..11], *b"rdmaccl\x01\x03\x00\x02", "magic, our version, refused");
    assert!(answer[43..].iter().all(|byte| *byte == 0), "no proof for a stranger");
    Bootstrap::join(&id, 0, 1, &config(), soon()).unwrap();
}

#[test]
fn an_address_that_refuses_and_one_that_is_silent_are_passed_over() {
    let living = UniqueId::create(&config()).unwrap();
    // Its kernel takes calls; nobody answers them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [nobody(), silent.local_addr().unwrap(), root_of(&living)];
    let id = UniqueId::new(living.key(), &addresses, Kind::Given);
    Bootstrap::join(&id, 0, 1, &config(), soon()).unwrap();
}

#[test]
fn after_a_failed_exchange_every_later_one_says_so() {
    let id = UniqueId::create(&config()).unwrap();
    let turn = std::sync::Barrier::new(2);
    let past = || Instant::now() + Duration::from_millis(100);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (id, turn) = (&id, &turn);
            scope.spawn(move || {
                let mut joined = Bootstrap::join(id, rank, 2, &config(), soon()).unwrap();
                if rank == 0 {
                    let first = joined.all_gather_until(b"", past()).unwrap_err().to_string();
                    for error in [
                        joined.all_gather(b"").unwrap_err(),
                        joined.barrier().unwrap_err(),
                        transport_swap(&mut joined),
                    ] {
                        let ErrorKind::Broken(cause) = error.kind() else { panic!("{error}") };
                        assert_eq!(*cause, first);
                    }
                }
                turn.wait();
                if rank == 1 {
                    // It came too late, and learns it instead of waiting.
                    let late = joined.all_gather(b"").unwrap_err();
                    assert!(matches!(late.kind(), ErrorKind::Timeout { .. }), "{late}");
                    assert!(matches!(joined.barrier().unwrap_err().kind(), ErrorKind::Broken(_)));
                }
                turn.wait();
            });
        }
    });
}

fn transport_swap(joined: &mut Bootstrap) -> Error {
    use crate::transport::Exchange;
    joined.exchange(soon()).swap(&[(1, vec![])]).unwrap_err()
}

#[test]
fn one_who_left_is_told_to_all_who_wait_for_it() {
    let id = UniqueId::create(&config()).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..7 {
            let id = &id;
            scope.spawn(move || {
                let mut joined = Bootstrap::join(id, rank, 7, &config(), soon()).unwrap();
                if rank == 5 {
                    return;
                }
                // Rank 2 is no neighbour of rank 5, and must not wait for the deadline.
                let error = joined.all_gather(b"").unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::PeerLost { peer: 5, .. }), "{rank}: {error}");
            });
        }
    });
}

/// Takes in callers until one has proved itself and said something.
fn greet_one(lobby: &mut Lobby) -> (Connection, Message) {
    let end = soon();
    loop {
        assert!(Instant::now() < end, "nobody has come");
        let (sockets, strangers, wake) = lobby.watch();
        wait(sockets, None, strangers.iter_mut(), wake.unwrap_or(end)).unwrap();
        if let Some(caller) = lobby.greet(Instant::now()).pop() {
            return caller;
        }
    }
}

#[test]
fn a_rank_that_fails_to_join_excuses_itself_to_a_parent_that_has_not_spoken_yet() {
    let listen = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (vec![listener], address)
    };
    let (root_sockets, root_address) = listen();
    let (parent_sockets, parent_address) = listen();
    let (key, session) = (Key::random().unwrap(), Key::random().unwrap());
    let id = UniqueId::new(key, &[root_address], Kind::Given);
    let rank = std::thread::spawn(move || Bootstrap::join(&id, 1, 3, &config(), soon()).unwrap_err());

    let (mut root, _) = greet_one(&mut Lobby::new(root_sockets, key, &[Purpose::Join]));
    let parent = Member { host: "host".into(), pid: 1, addresses: vec![parent_address] };
    root.say(Message::Welcome { session: session.0, parent: Some(parent) });
    let (mut link, caller) = greet_one(&mut Lobby::new(parent_sockets, session, &[Purpose::Tree]));
    assert_eq!(caller, Message::Caller { rank: 1 });
    // The parent has let it in and has not got round to saying so when the root says that it is all over.
    root.say(Message::Refusal(Refusal::Left { rank: 2, cause: "it was killed".into() }));

    let error = rank.join().unwrap();
    assert!(matches!(error.kind(), ErrorKind::PeerLost { peer: 2, .. }), "{error}");
    let mut heard = Vec::new();
    while heard.len() < 2 {
        match link.hear() {
            Some(message) => heard.push(message),
            None => assert_eq!(link.closed, None, "it hung up having said {heard:?}"),
        }
    }
    let loss = Loss { rank: 2, cause: "it was killed".into(), state: Vec::new() };
    let said = [Fact::Lost(loss), Fact::Left(1)].map(|fact| Message::Control(control::Message::Fact(fact)));
    assert_eq!(heard, said);
}

#[test]
fn a_rank_that_was_given_up_while_it_slept_calls_again() {
    let id = UniqueId::create(&config()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let given = UniqueId::new(id.key(), &[listener.local_addr().unwrap(), root_of(&id)], Kind::Given);
    let key = id.key();
    // Answers as the root does and gives the caller up in the same breath.
    let impatient = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 51];
        stream.read_exact(&mut hello).unwrap();
        let mut session = session::Session::accept(key, &[Purpose::Join]).unwrap();
        session.feed(&hello);
        session.shake_hands().unwrap();
        stream.write_all(session.outgoing()).unwrap();
    });
    let mut dialer = Dialer::new(given.addresses(), key, Purpose::Join, vec![]).unwrap();
    // The hello leaves; then it sleeps, while the answer and the end come.
    wait(&[], None, std::iter::once(&mut dialer.connection), soon()).unwrap();
    dialer.connection.shake();
    impatient.join().unwrap();
    while !dialer.connect().unwrap() {
        let wake = dialer.wake();
        wait(&[], None, std::iter::once(&mut dialer.connection), wake).unwrap();
    }
    assert!(dialer.connection.closed.is_none());
}
