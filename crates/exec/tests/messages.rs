//! Ranks that send messages, over a wire inside one process: the bits of thread ranks, and the end of all ranks when one
//! fails, hangs or is gone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "exchanges are addresses")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use half::bf16;
use plimsoll_exec::{Communicator, ExchangeKind, ExchangeOperands, LIMIT, Wire, message_rank, thread_ranks};
use plimsoll_graph::DType;
use plimsoll_graph::op::shard_elements;

type Rank = Arc<dyn Communicator>;
/// Messages that are under way from each rank (rows) to each rank.
type Post = Arc<Mutex<Vec<Vec<VecDeque<Vec<u8>>>>>>;

const KINDS: [ExchangeKind; 4] = [
    ExchangeKind::AllReduce,
    ExchangeKind::ReduceScatter,
    ExchangeKind::AllGather,
    ExchangeKind::Broadcast { root: 1 },
];

/// Counters of the mailboxes that a test reads.
#[derive(Default)]
struct Seen {
    /// Mailboxes that were closed in order.
    closed: AtomicUsize,
    /// Messages of rank 0.
    sent_by_first: AtomicUsize,
}

/// One rank's messages.
struct Mailbox {
    rank: usize,
    ranks: usize,
    post: Post,
    /// The last message of each rank, in words that are aligned for elements.
    inboxes: Vec<(Vec<u64>, usize)>,
    seen: Arc<Seen>,
}

impl Wire for Mailbox {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn arenas_ahead(&self) -> usize {
        if self.rank == 0 { self.ranks } else { 1 }
    }

    fn send(&mut self, to: usize, head: &[u8], body: &[u8]) -> Result<(), String> {
        self.post.lock().unwrap()[self.rank][to].push_back([head, body].concat());
        self.seen.sent_by_first.fetch_add(usize::from(self.rank == 0), Ordering::Relaxed);
        Ok(())
    }

    fn sending_to(&mut self) -> Result<Option<usize>, String> {
        Ok(None)
    }

    fn receive(&mut self, from: usize) -> Result<bool, String> {
        let message = self.post.lock().unwrap()[from][self.rank].pop_front();
        let Some(message) = message else { return Ok(false) };
        let words = message.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        });
        self.inboxes[from] = (words.collect(), message.len());
        Ok(true)
    }

    fn inbox(&self, from: usize) -> &[u8] {
        let (words, length) = &self.inboxes[from];
        // SAFETY: words are bytes too, and the message is no longer than they are.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), *length) }
    }

    fn close(self) {
        self.seen.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ranks that exchange messages through mailboxes. Of `ranks` ranks only the first `present` take part.
fn message_ranks(ranks: usize, present: usize, limit: Duration, seen: &Arc<Seen>) -> Vec<Rank> {
    let post: Post = Arc::new(Mutex::new(vec![vec![VecDeque::new(); ranks]; ranks]));
    let open = |rank: usize| {
        let (post, seen) = (Arc::clone(&post), Arc::clone(seen));
        let wire = Mailbox { rank, ranks, post, inboxes: vec![(Vec::new(), 0); ranks], seen };
        message_rank(limit, move || Ok(wire)).unwrap()
    };
    (0..present).map(open).collect()
}

fn of_messages(ranks: usize, limit: Duration) -> Vec<Rank> {
    message_ranks(ranks, ranks, limit, &Arc::default())
}

/// Runs `body` on a thread for each rank and returns the results in the order of ranks.
fn each<T: Send>(world: Vec<Rank>, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = world.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Numbers whose sum depends on the order in which they are added.
fn numbers(rank: usize, count: usize) -> Vec<f32> {
    let spread = [1e8, 1.0, -1e8, 3.0];
    (0..count).map(|i| spread[(rank + i) % 4] * (1.0 + (i * 37 % 101) as f32 / 7.0)).collect()
}

/// One exchange of `count` elements; returns the bytes at the destination and those counted as sent.
fn exchanged(rank: &Rank, kind: ExchangeKind, dtype: DType, count: usize) -> Result<(Vec<u8>, u64), String> {
    let (ranks, own) = (rank.ranks(), rank.rank());
    let share = shard_elements(count, ranks);
    let elements = numbers(own, if kind == ExchangeKind::AllGather { share } else { count });
    let mut source: Vec<u8> = match dtype {
        DType::Bf16 => elements.iter().flat_map(|&x| bf16::from_f32(x).to_ne_bytes()).collect(),
        _ => elements.iter().flat_map(|x| x.to_ne_bytes()).collect(),
    };
    let room = if kind == ExchangeKind::ReduceScatter { share } else { count };
    let mut destination = vec![7u8; room * dtype.bytes()];
    let (from, to) = (source.as_mut_ptr().cast_const(), destination.as_mut_ptr());
    let operands =
        ExchangeOperands { kind, dtype, source: from, destination: to, whole: count, share, word: false };
    // SAFETY: both vectors live until the wait is over or the rank has left.
    let number = unsafe { rank.start(operands) }.map_err(|error| error.to_string())?;
    let waited = rank.wait(number).map_err(|error| error.to_string());
    waited.inspect_err(|error| rank.leave(error))?;
    Ok((destination, rank.sent()))
}

#[test]
fn messages_give_the_bits_of_threads_in_every_exchange() {
    for ranks in [2, 3, 4] {
        // Some counts are larger than one message holds, and some leave the last shares short.
        for count in [1, 3, 600, 5000, 700_001] {
            for kind in KINDS {
                for dtype in [DType::F32, DType::Bf16] {
                    let body = |rank: Rank| {
                        let result = exchanged(&rank, kind, dtype, count).unwrap();
                        // No rank leaves while another still waits.
                        rank.gather(&[0], &mut vec![0; ranks]).unwrap();
                        rank.part();
                        result
                    };
                    let by_threads = each(thread_ranks(ranks, LIMIT).unwrap(), body);
                    let by_messages = each(of_messages(ranks, LIMIT), body);
                    assert!(by_messages == by_threads, "{ranks} ranks, {} of {count} {dtype}", kind.name());
                }
            }
        }
    }
}

#[test]
fn exchanges_that_are_under_way_together_come_in_their_order() {
    let results = each(of_messages(3, LIMIT), |rank| {
        let mut places: Vec<Vec<f32>> =
            (1..=20).map(|n| vec![(n * (rank.rank() + 1)) as f32; 100 * n]).collect();
        let start = |place: &mut Vec<f32>| {
            let (at, whole) = (place.as_mut_ptr().cast::<u8>(), place.len());
            let (kind, dtype, share) = (ExchangeKind::AllReduce, DType::F32, whole.div_ceil(3));
            let operands =
                ExchangeOperands { kind, dtype, source: at, destination: at, whole, share, word: false };
            // SAFETY: the vector lives and is left alone until its exchange was waited for.
            unsafe { rank.start(operands) }.unwrap()
        };
        let under_way: Vec<u64> = places.iter_mut().map(start).collect();
        for number in under_way {
            rank.wait(number).unwrap();
        }
        rank.gather(&[0], &mut [0; 3]).unwrap();
        rank.part();
        places
    });
    for places in results {
        let sums: Vec<Vec<f32>> = (1..=20).map(|n| vec![(6 * n) as f32; 100 * n]).collect();
        assert_eq!(places, sums);
    }
}

#[test]
fn a_rank_that_fails_ends_all_others_with_its_reason() {
    let faults = each(of_messages(3, LIMIT), |rank| {
        if rank.rank() == 1 {
            rank.leave("its disk is gone");
        }
        let fault = exchanged(&rank, ExchangeKind::AllReduce, DType::F32, 100).unwrap_err();
        assert_eq!(rank.fault().as_ref(), Some(&fault));
        fault
    });
    assert_eq!(faults, ["rank 1 ended: its disk is gone"; 3]);
}

#[test]
fn a_rank_that_begins_something_else_is_named_with_both_exchanges() {
    let faults = each(of_messages(2, LIMIT), |rank| {
        exchanged(&rank, ExchangeKind::AllReduce, DType::F32, 100 + rank.rank()).unwrap_err()
    });
    assert_eq!(faults, ["rank 1 began all_reduce of 101 f32 where rank 0 began all_reduce of 100 f32"; 2]);
}

#[test]
fn a_rank_that_lives_and_does_not_come_is_named_after_the_limit() {
    let limit = Duration::from_millis(300);
    let given_up = AtomicUsize::new(0);
    let faults = each(of_messages(3, limit), |rank| {
        // The last rank comes after the others have given up.
        while rank.rank() == 2 && given_up.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        let fault = exchanged(&rank, ExchangeKind::AllReduce, DType::F32, 100).unwrap_err();
        given_up.fetch_add(1, Ordering::Relaxed);
        fault
    });
    assert_eq!(faults, ["rank 2 has not come to all_reduce of 100 f32 within 0.3 s"; 3]);
}

#[test]
fn a_rank_that_is_gone_is_found_by_its_silence_even_where_nobody_limits_the_wait() {
    let world = message_ranks(3, 2, Duration::from_millis(200), &Arc::default());
    let faults = each(world, |rank| rank.broadcast_from(2, &mut [0; 8]).unwrap_err().to_string());
    assert_eq!(faults, ["rank 2 has given no sign of life for 0.2 s"; 2]);
}

#[test]
fn others_wait_for_the_word_of_a_rank_that_is_busy_longer_than_the_limit() {
    let (limit, seen) = (Duration::from_millis(200), Arc::<Seen>::default());
    let told = each(message_ranks(2, 2, limit, &seen), |rank| {
        let mut word = [rank.rank() as u8; 4];
        // Six signs of life take as long as the limit, so these take twice as long.
        while rank.rank() == 0 && seen.sent_by_first.load(Ordering::Relaxed) < 12 {
            thread::yield_now();
        }
        rank.broadcast(&mut word).unwrap();
        rank.gather(&[0], &mut [0; 2]).unwrap();
        rank.part();
        word
    });
    assert_eq!(told, [[0; 4]; 2]);
}

#[test]
fn only_a_world_that_ended_well_is_closed_in_order() {
    let (well, ill) = (Arc::<Seen>::default(), Arc::<Seen>::default());
    each(message_ranks(2, 2, LIMIT, &well), |rank| {
        rank.broadcast(&mut [1]).unwrap();
        rank.part();
        rank.leave("after the end nobody minds");
    });
    assert_eq!(well.closed.load(Ordering::Relaxed), 2);
    each(message_ranks(2, 2, LIMIT, &ill), drop);
    assert_eq!(ill.closed.load(Ordering::Relaxed), 0);
}
