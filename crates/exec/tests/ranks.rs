//! Ranks as threads of one process: their sums to the bit, their traffic, and the end of all ranks when one fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "exchanges are addresses")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use half::bf16;
use plimsoll_exec::{Communicator, ExchangeKind, ExchangeOperands, LIMIT, thread_ranks};
use plimsoll_graph::DType;
use plimsoll_graph::op::shard_elements;

type Rank = Arc<dyn Communicator>;

/// Runs `body` on a thread for each rank and returns the results in the order of ranks.
fn each<T: Send>(ranks: usize, limit: Duration, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let world = thread_ranks(ranks, limit).unwrap();
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = world.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn operands<T>(
    kind: ExchangeKind,
    dtype: DType,
    [source, destination]: [&mut [T]; 2],
    [whole, share]: [usize; 2],
) -> ExchangeOperands {
    let (source, destination) = (source.as_ptr().cast(), destination.as_mut_ptr().cast());
    ExchangeOperands { kind, dtype, source, destination, whole, share, word: false }
}

/// Exchanges whole slices, and waits.
fn exchange<T>(
    rank: &Rank,
    kind: ExchangeKind,
    dtype: DType,
    places: [&mut [T]; 2],
    sizes: [usize; 2],
) -> Result<(), String> {
    let operands = operands(kind, dtype, places, sizes);
    // SAFETY: the slices are borrowed by the caller until the wait is over.
    let number = unsafe { rank.start(operands) }.map_err(|error| error.to_string())?;
    rank.wait(number).map_err(|error| {
        rank.leave(&error.to_string());
        error.to_string()
    })
}

/// Numbers whose sum depends on the order in which they are added.
fn numbers(rank: usize, count: usize) -> Vec<f32> {
    let spread = [1e8, 1.0, -1e8, 3.0];
    (0..count).map(|i| spread[(rank + i) % 4] * (1.0 + (i * 37 % 101) as f32 / 7.0)).collect()
}

/// The sum in the order of ranks.
fn summed(ranks: usize, count: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| numbers(rank, count)).collect();
    (0..count).map(|i| (1..ranks).fold(all[0][i], |sum, rank| sum + all[rank][i])).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_rank_gets_the_sum_in_the_order_of_ranks_to_the_bit() {
    for ranks in [1, 2, 3, 4] {
        for count in [1usize, 3, 257, 5000] {
            let share = count.div_ceil(ranks);
            let results = each(ranks, LIMIT, |rank| {
                let mut x = numbers(rank.rank(), count);
                let place = x.as_mut_ptr().cast::<u8>();
                let (kind, dtype) = (ExchangeKind::AllReduce, DType::F32);
                let (source, destination, whole) = (place.cast_const(), place, count);
                let in_place =
                    ExchangeOperands { kind, dtype, source, destination, whole, share, word: false };
                // SAFETY: the vector lives and is left alone until the wait.
                let number = unsafe { rank.start(in_place) }.unwrap();
                rank.wait(number).unwrap();
                x
            });
            for result in results {
                assert_eq!(bits(&result), bits(&summed(ranks, count)), "{ranks} ranks, {count} numbers");
            }
        }
    }
}

#[test]
fn sums_of_bf16_are_added_in_f32_and_rounded_once() {
    let of = |rank: usize| [1.0, 0.002_929_687_5, 0.002_929_687_5][rank];
    let results = each(3, LIMIT, |rank| {
        let mut x = vec![bf16::from_f32(of(rank.rank())); 40];
        let mut sum = vec![bf16::ZERO; 40];
        exchange(&rank, ExchangeKind::AllReduce, DType::Bf16, [&mut x, &mut sum], [40, 14]).unwrap();
        sum
    });
    let once = bf16::from_f32(of(0) + of(1) + of(2));
    let twice = bf16::from_f32(bf16::from_f32(of(0) + of(1)).to_f32() + of(2));
    assert_ne!(once, twice, "the case tells them apart");
    assert!(results.iter().flatten().all(|&sum| sum == once));
}

#[test]
fn shards_of_the_sum_are_those_of_an_all_reduce_and_gathered_they_are_the_whole() {
    for (ranks, count) in [(2, 600), (3, 1000), (4, 64)] {
        let share = shard_elements(count, ranks);
        let results = each(ranks, LIMIT, |rank| {
            let mut x = numbers(rank.rank(), count);
            let mut shard = vec![7.0f32; share];
            let sizes = [count, share];
            exchange(&rank, ExchangeKind::ReduceScatter, DType::F32, [&mut x, &mut shard], sizes).unwrap();
            let mut whole = vec![0.0f32; count];
            exchange(&rank, ExchangeKind::AllGather, DType::F32, [&mut shard, &mut whole], sizes).unwrap();
            (shard, whole)
        });
        let mut shards: Vec<f32> = results.iter().flat_map(|(shard, _)| shard.clone()).collect();
        assert!(shards.split_off(count).iter().all(|&past_the_end| past_the_end == 0.0));
        assert_eq!(bits(&shards), bits(&summed(ranks, count)));
        for (_, whole) in results {
            assert_eq!(bits(&whole), bits(&shards));
        }
    }
}

#[test]
fn words_go_from_rank_0_to_all_and_from_all_to_all_and_are_not_counted() {
    let results = each(3, LIMIT, |rank| {
        let own = [rank.rank() as u8, 40 + rank.rank() as u8];
        let mut told = own;
        rank.broadcast(&mut told).unwrap();
        let mut all = [0; 6];
        rank.gather(&own, &mut all).unwrap();
        assert!(rank.gather(&own, &mut [0; 5]).is_err(), "no room");
        (told, all, rank.sent())
    });
    assert_eq!(results, [([0, 40], [0, 40, 1, 41, 2, 42], 0); 3]);
}

#[test]
fn bytes_on_the_wire_are_counted_by_the_figures_of_zero() {
    for ranks in [1, 2, 4] {
        let (count, share) = (4096, 4096 / ranks);
        let sent = each(ranks, LIMIT, |rank| {
            let (mut x, mut y) = (numbers(0, count), vec![0.0f32; count]);
            let sizes = [count, share];
            let mut sent = Vec::new();
            for kind in [ExchangeKind::AllReduce, ExchangeKind::ReduceScatter, ExchangeKind::AllGather] {
                let before = rank.sent();
                exchange(&rank, kind, DType::F32, [&mut x, &mut y], sizes).unwrap();
                sent.push(rank.sent() - before);
            }
            sent
        });
        let part = (4 * count * (ranks - 1) / ranks) as u64;
        assert!(sent.iter().all(|sent| sent == &[2 * part, part, part]), "{ranks}: {sent:?}");
    }
}

#[test]
fn exchanges_that_are_under_way_together_end_in_their_order() {
    let results = each(2, LIMIT, |rank| {
        let mut values: Vec<Vec<f32>> = (0..50).map(|i| vec![(rank.rank() + i) as f32; 1 + i * 31]).collect();
        let mut started = Vec::new();
        for value in &mut values {
            let place = value.as_mut_ptr().cast::<u8>();
            let (kind, dtype) = (ExchangeKind::AllReduce, DType::F32);
            let (whole, share) = (value.len(), value.len().div_ceil(2));
            let (source, destination) = (place.cast_const(), place);
            let in_place = ExchangeOperands { kind, dtype, source, destination, whole, share, word: false };
            // SAFETY: the vectors live and are left alone until the waits.
            started.push(unsafe { rank.start(in_place) }.unwrap());
        }
        // The last is done only when all are.
        rank.wait(*started.last().unwrap()).unwrap();
        values
    });
    for values in results {
        for (i, value) in values.iter().enumerate() {
            assert!(value.iter().all(|x| x.to_bits() == ((2 * i + 1) as f32).to_bits()), "{i}");
        }
    }
}

/// Takes part in one sum.
fn sum(rank: &Rank, count: usize) -> Result<(), String> {
    let (mut x, mut y) = (vec![1.0f32; count], vec![0.0f32; count]);
    let share = count.div_ceil(rank.ranks());
    exchange(rank, ExchangeKind::AllReduce, DType::F32, [&mut x, &mut y], [count, share])
}

#[test]
fn a_rank_that_fails_ends_all_others_with_one_error_that_names_it_and_its_reason() {
    let results = each(4, LIMIT, |rank| {
        sum(&rank, 100)?;
        if rank.rank() == 2 {
            rank.leave("its disk is full");
            return Ok(());
        }
        let summed = sum(&rank, 100);
        assert_eq!(rank.fault().as_ref(), summed.as_ref().err());
        summed
    });
    let told = Err("rank 2 ended: its disk is full".to_owned());
    assert_eq!(results, [told.clone(), told.clone(), Ok(()), told]);
}

#[test]
fn a_rank_that_panics_ends_all_others() {
    let world = thread_ranks(2, LIMIT).unwrap();
    let [first, second] = <[Rank; 2]>::try_from(world).unwrap();
    let dead = thread::spawn(move || {
        let _rank = second;
        panic!("on purpose");
    });
    assert_eq!(sum(&first, 100), Err("rank 1 ended: it is gone".to_owned()));
    assert!(dead.join().is_err());
}

#[test]
fn a_rank_that_hangs_ends_all_others_within_the_limit_and_is_named() {
    let world = thread_ranks(3, Duration::from_millis(50)).unwrap();
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = world[..2].iter().map(|rank| scope.spawn(|| sum(rank, 64))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let told = Err("rank 2 has not come to all_reduce of 64 f32 within 0.05 s".to_owned());
    assert_eq!(results, [told.clone(), told.clone()]);
    assert_eq!(sum(&world[2], 64), told, "whoever comes later hears the same");
}

#[test]
fn ranks_that_begin_different_exchanges_are_told_both() {
    let results = each(2, LIMIT, |rank| sum(&rank, 64 + rank.rank()));
    let told = Err("rank 1 began all_reduce of 65 f32 where rank 0 began all_reduce of 64 f32".to_owned());
    assert_eq!(results, [told.clone(), told]);
}

#[test]
fn integers_are_not_summed() {
    let results = each(2, LIMIT, |rank| {
        let (mut x, mut y) = ([1i32; 4], [0i32; 4]);
        exchange(&rank, ExchangeKind::AllReduce, DType::I32, [&mut x, &mut y], [4, 2])
    });
    assert!(results.iter().all(|result| result == &Err("all_reduce sums f32 and bf16, and not i32".into())));
}

#[test]
fn a_rank_counts_the_time_for_which_it_has_waited() {
    let waited = each(2, LIMIT, |rank| {
        assert_eq!(rank.waited(), Duration::ZERO, "there was nothing to wait for");
        // An exchange may be done before its rank waits for it, but not all of so many.
        for _ in 0..100 {
            rank.gather(&[1], &mut [0; 2]).unwrap();
        }
        rank.waited()
    });
    assert!(waited.iter().all(|&waited| waited > Duration::ZERO), "{waited:?}");
}
