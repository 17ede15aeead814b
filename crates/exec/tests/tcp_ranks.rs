//! Ranks that meet at an address: they compute the numbers of thread ranks, ignore strangers, and all end where one is
//! gone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll_exec::{Communicator, LIMIT, Meeting, tcp_rank, thread_ranks};

type Rank = Arc<dyn Communicator>;

/// A port that was free a moment ago, with free ones behind it.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn meeting(rank: usize, ranks: usize, port: u16) -> Meeting {
    Meeting {
        rank,
        ranks,
        arenas_ahead: if rank == 0 { ranks } else { 1 },
        address: "localhost".into(),
        port,
        run: "a run".into(),
        patience: Duration::from_secs(20),
    }
}

/// Runs `body` on a thread for each rank of a world over TCP.
fn each<T: Send>(ranks: usize, port: u16, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let run = move |rank: usize| body(tcp_rank(meeting(rank, ranks, port), LIMIT).unwrap());
        // Rank 0 comes last, as it does in a run, where it plans first.
        let threads: Vec<_> = (0..ranks).rev().map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().rev().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Words of every length that one message or several hold, from every rank to every other.
fn exchanged(rank: &Rank) -> Vec<Vec<u8>> {
    let own = rank.rank();
    let gathered = [0, 1, 1000, 3_000_000].map(|count: usize| {
        let piece: Vec<u8> = (0..count).map(|i| (i * 31 + own * 7) as u8).collect();
        let mut all = vec![0; count * rank.ranks()];
        rank.gather(&piece, &mut all).unwrap();
        all
    });
    let told = (0..rank.ranks()).map(|root| {
        let mut word = vec![own as u8; 70_000];
        rank.broadcast_from(root, &mut word).unwrap();
        word
    });
    let result = gathered.into_iter().chain(told).collect();
    rank.part();
    result
}

#[test]
fn ranks_over_tcp_exchange_what_threads_exchange() {
    for ranks in [2, 3, 4] {
        let by_tcp = each(ranks, port(), |rank| exchanged(&rank));
        let by_threads: Vec<_> = thread::scope(|scope| {
            let world = thread_ranks(ranks, LIMIT).unwrap();
            let threads: Vec<_> =
                world.into_iter().map(|rank| scope.spawn(move || exchanged(&rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(by_tcp == by_threads, "{ranks} ranks");
    }
}

#[test]
fn the_first_rank_of_a_machine_knows_how_many_arenas_are_to_come() {
    assert_eq!(
        each(3, port(), |rank| {
            rank.part();
            rank.arenas_ahead()
        }),
        [3, 1, 1]
    );
}

#[test]
fn a_port_that_another_program_has_is_passed_over() {
    // This listener takes calls and never answers, as a launcher's store may.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().port();
    let silent = thread::spawn(move || drop(taken.accept()));
    assert_eq!(each(2, at, |rank| exchanged(&rank).len()), [6, 6]);
    silent.join().unwrap();
}

#[test]
fn strangers_who_call_are_not_taken_for_ranks() {
    let at = port();
    let stranger = thread::spawn(move || {
        for _ in 0..200 {
            if let Ok(mut stream) = TcpStream::connect(("localhost", at)) {
                return stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            }
            thread::sleep(Duration::from_millis(5));
        }
    });
    let first = thread::spawn(move || exchanged(&tcp_rank(meeting(0, 2, at), LIMIT).unwrap()).len());
    stranger.join().unwrap();
    let second = exchanged(&tcp_rank(meeting(1, 2, at), LIMIT).unwrap()).len();
    assert_eq!((first.join().unwrap(), second), (6, 6));
}

#[test]
fn a_rank_that_is_gone_is_found_at_once_and_a_fault_is_told_to_all() {
    let faults = each(3, port(), |rank| {
        if rank.rank() == 1 {
            rank.leave("its disk is gone");
        }
        rank.gather(&[1], &mut [0; 3]).unwrap_err().to_string()
    });
    assert_eq!(faults, ["rank 1 ended: its disk is gone"; 3]);
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let impatient = Meeting { patience: Duration::from_millis(200), ..meeting(0, 2, port()) };
    let told = tcp_rank(impatient, LIMIT).unwrap_err().to_string();
    assert!(told.contains("rank 0 of 2 does not meet the others at localhost:"), "{told}");
    assert!(told.ends_with("rank 1 has not come in time"), "{told}");
    let impatient = Meeting { patience: Duration::from_millis(200), ..meeting(1, 2, port()) };
    let told = tcp_rank(impatient, LIMIT).unwrap_err().to_string();
    assert!(told.contains("rank 0 does not answer"), "{told}");
}
