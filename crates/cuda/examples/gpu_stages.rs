//! Questions to a GPU beside the conformance cases: numbers drawn on it, the memory it takes, rates of products.
//!
//! `gpu_stages STAGE CACHE-FOLDER`, STAGE being `faults`, `draws`, `lost`, `memory`, `products`, `attention`,
//! `experts`, `plans`, `ranks`, or `kernels`, which only tells their fingerprints. Each result is one line of JSON;
//! the program fails when one is wrong. `scripts/gpu_check.sh` runs it with time limits.
#![allow(clippy::print_stdout, reason = "an example that reports")]

use std::path::PathBuf;

use plimsoll_cuda::kernels::SOURCES;
use plimsoll_cuda::lower::{Addend, Limits, Place, Product, Signature};
use plimsoll_cuda::{
    AttentionTable, CudaDevice, CudaOptions, CudaTarget, Libraries, Products, faulty_cases, library_folders,
};
use plimsoll_exec::conformance::judge;
use plimsoll_exec::{Data, Device, Draw, Engine, ExecError, LIMIT, MemoryPool, cases, init, thread_ranks};
use plimsoll_graph::op::{Collective, Mask, Sorting};
use plimsoll_graph::{DType, Graph, GraphError, Init, Op, Value};
use plimsoll_plan::{Costed, Judged, Program, Role, Scratch, Space, Strategy, plan, runnable};

fn main() -> Result<(), ExecError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [stage, cache] = &arguments[..] else {
        return Err(ExecError::Mismatch(
            "usage: gpu_stages faults|draws|lost|memory|products|attention|experts|plans|ranks|kernels CACHE-FOLDER"
                .into(),
        ));
    };
    match stage.as_str() {
        "faults" => faults(&mut open(cache)?),
        "draws" => draws(&mut open(cache)?),
        "lost" => lost(&mut open(cache)?),
        "memory" => memory(cache),
        "products" => products(&mut open(cache)?),
        "attention" => attention(&mut open(cache)?),
        "experts" => experts(&mut open(cache)?),
        "plans" => plans(&open(cache)?),
        "ranks" => ranks(open(cache)?),
        "kernels" => {
            for source in SOURCES {
                println!("{} {}", source.name, source.fingerprint());
            }
            Ok(())
        }
        other => Err(ExecError::Mismatch(format!("there is no stage `{other}`"))),
    }
}

fn open(cache: &str) -> Result<CudaDevice, ExecError> {
    let path: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    CudaDevice::open(&CudaOptions {
        target: CudaTarget { index: 0 },
        libraries: Libraries { folders: library_folders(environment.as_deref(), &path) },
        cache: cache.into(),
        products: Products::Library,
        limits: Limits::default(),
    })
}

/// Takes an arena that no schedule uses.
fn take(device: &mut CudaDevice, arena: u64) -> Result<(), ExecError> {
    device.reserve(Space { arena, ..Space::default() })?;
    device.map()
}

/// Ids outside their tables: the sentence of the CPU, when results are read, and good data judged well after it.
fn faults(device: &mut CudaDevice) -> Result<(), ExecError> {
    let mut cpu = plimsoll_devices::cpu(1)?;
    for case in faulty_cases() {
        let [expected, found] = [judge(&mut *cpu, &case, Scratch::Best), judge(device, &case, Scratch::Best)];
        println!("{{\"stage\":\"faults\",\"found\":{found:?},\"same\":{}}}", found == expected);
        if found != expected || found.is_ok() {
            return Err(ExecError::Device(format!("{found:?} instead of {expected:?}")));
        }
    }
    let good = cases::all().into_iter().find(|case| case.op.name() == "embedding");
    let verdict = good.map(|case| judge(device, &case, Scratch::Best));
    if matches!(verdict, Some(Ok(_))) {
        Ok(())
    } else {
        Err(ExecError::Device(format!("afterwards: {verdict:?}")))
    }
}

/// Initial numbers of the GPU against the CPU's, bit by bit.
fn draws(device: &mut CudaDevice) -> Result<(), ExecError> {
    const COUNT: usize = 1 << 22;
    take(device, 4 * COUNT as u64)?;
    let mut other = 0;
    for (kind, init) in
        [("normal", Init::Normal(0.02)), ("uniform", Init::Uniform(0.5)), ("fill", Init::Fill(1.5))]
    {
        for offset in [0, 1, 7_000_003] {
            let (name, seed) = ("blocks.3.mlp.up.weight", 0x1234_5678_9abc);
            device.draw_part(&Draw { init: &init, name, seed }, (0, DType::F32), (offset, COUNT))?;
            let mut bytes = vec![0; 4 * COUNT];
            device.read(0, &mut bytes)?;
            let mut expected = vec![0.0; COUNT];
            init::fill(&init, name, seed, offset, &mut expected);
            let (words, _) = bytes.as_chunks::<4>();
            let differ = words.iter().zip(&expected).filter(|(a, b)| **a != b.to_le_bytes()).count();
            println!(
                "{{\"stage\":\"draws\",\"kind\":\"{kind}\",\"offset\":{offset},\"count\":{COUNT},\"differ\":{differ}}}"
            );
            other += differ;
        }
    }
    if other > 0 { Err(ExecError::Device(format!("{other} numbers differ from the CPU's"))) } else { Ok(()) }
}

/// A product of square matrices.
fn square(size: usize, dtype: DType) -> Signature {
    let ([m, n, k], dtypes) = ([size; 3], [dtype; 3]);
    let (transpose_a, transpose_b, addend) = (false, true, Addend::None);
    Signature { m, n, k, batch: 1, transpose_a, transpose_b, dtypes, addend, alignment: 256 }
}

/// A GPU that is lost: after a product on addresses without memory each call says so, and the process ends by itself.
fn lost(device: &mut CudaDevice) -> Result<(), ExecError> {
    const ARENA: u64 = 64 << 20;
    take(device, ARENA)?;
    let (signature, outside) = (square(1024, DType::Bf16), Place(ARENA));
    let product =
        Product { signature, a: outside, b: outside, c: outside, addend: None, workspace: Place(32 << 20) };
    let faults = [
        device.time_product(&product, 1).map(drop),
        device.read(0, &mut [0; 4]),
        device.write(0, &[0; 4]),
        device.pool().map(drop),
    ];
    for fault in faults {
        println!("{{\"stage\":\"lost\",\"found\":{fault:?}}}");
        if !matches!(&fault, Err(ExecError::Device(why)) if why.starts_with("the GPU failed: ")) {
            return Err(ExecError::Mismatch(format!("{fault:?} of a GPU that is lost")));
        }
    }
    Ok(())
}

/// Bytes of the card that the process takes, before and with an arena.
fn memory(cache: &str) -> Result<(), ExecError> {
    let mut device = open(cache)?;
    let taken = |device: &CudaDevice| match device.pool() {
        Ok(MemoryPool::Own { taken, .. }) => Ok(taken),
        Ok(MemoryPool::Process) => Ok(0),
        Err(error) => Err(error),
    };
    let outside = taken(&device)?;
    for gib in [1u64, 20] {
        take(&mut device, gib << 30)?;
        let with = taken(&device)?;
        println!(
            "{{\"stage\":\"memory\",\"outside\":{outside},\"arena\":{},\"taken\":{with},\"beside\":{}}}",
            gib << 30,
            with - (gib << 30)
        );
    }
    Ok(())
}

/// Rates of the products of `cuda.md`, in bf16, on normal numbers.
fn products(device: &mut CudaDevice) -> Result<(), ExecError> {
    take(device, 24 << 30)?;
    // Three operands of at most 6 GiB each, then scratch.
    let places = [Place(0), Place(6 << 30), Place(12 << 30)];
    let workspace = Place(20 << 30);
    for place in [places[0], places[1]] {
        let numbers = Draw { init: &Init::Normal(1.0), name: "numbers", seed: 1 };
        device.draw_part(&numbers, (place.0, DType::Bf16), (0, 3 << 30))?;
    }
    let shapes = [
        (16384, 2048, 2048),
        (16384, 8192, 2048),
        (16384, 2048, 8192),
        (16384, 128_256, 2048),
        (8192, 14336, 4096),
        (32768, 4864, 896),
        (8192, 8192, 8192),
    ];
    let half = [DType::Bf16; 3];
    for (rows, out, input) in shapes {
        let of = |m, n, k, transpose_a, transpose_b, dtypes, addend| {
            let signature =
                Signature { m, n, k, batch: 1, transpose_a, transpose_b, dtypes, addend, alignment: 256 };
            let [a, b, c] = places;
            Product { signature, a, b, c, addend: None, workspace }
        };
        let weight =
            |dtype, addend| of(out, input, rows, true, false, [DType::Bf16, DType::Bf16, dtype], addend);
        for (what, product) in [
            ("forward", of(rows, out, input, false, true, half, Addend::None)),
            ("input gradient", of(rows, input, out, false, false, half, Addend::None)),
            ("weight gradient", weight(DType::Bf16, Addend::None)),
            ("weight gradient added in bf16", weight(DType::Bf16, Addend::Result)),
            ("weight gradient added in f32", weight(DType::F32, Addend::Result)),
        ] {
            let seconds = device.time_product(&product, 10)?;
            let flops = 2.0 * rows as f64 * out as f64 * input as f64;
            let scratch = device.product_workspace(&product).unwrap_or(0);
            println!(
                "{{\"stage\":\"products\",\"rows\":{rows},\"out\":{out},\"in\":{input},\"what\":\"{what}\",\
                 \"tflops\":{:.0},\"workspace\":{scratch}}}",
                flops / seconds / 1e12
            );
        }
    }
    for place in [places[0], places[1]] {
        let numbers = Draw { init: &Init::Normal(1.0), name: "numbers", seed: 1 };
        device.draw_part(&numbers, (place.0, DType::F32), (0, 1 << 27))?;
    }
    let [a, b, c] = places;
    let signature = square(8192, DType::F32);
    let seconds = device.time_product(&Product { signature, a, b, c, addend: None, workspace }, 3)?;
    println!(
        "{{\"stage\":\"products\",\"what\":\"f32 8192\",\"tflops\":{:.1}}}",
        2.0 * 8192f64.powi(3) / seconds / 1e12
    );
    Ok(())
}

/// Attention and its derivative at the shapes of `cuda.md`, in bf16, causal, with and without documents, by the GPU's clock.
fn attention(device: &mut CudaDevice) -> Result<(), ExecError> {
    for [batch, heads, key_heads, length, width] in
        [[8, 32, 8, 2048, 64], [2, 32, 8, 4096, 128], [32, 14, 2, 1024, 64]]
    {
        for documents in [false, true] {
            let mask = Mask { causal: true, documents, window: None };
            let scale = 1.0 / (width as f32).sqrt();
            let graph = attention_graph([batch, heads, key_heads, length, width], mask, scale, documents)
                .map_err(|error| ExecError::Mismatch(error.to_string()))?;
            let seconds = median_seconds(device, graph, &|_| 0)?;
            for note in device.notes() {
                println!("{{\"stage\":\"attention\",\"note\":{note:?}}}");
            }
            let flops = 2.0 * (batch * heads * length * length * width) as f64;
            let [forward, backward] = [flops / seconds[0] / 1e12, 2.5 * flops / seconds[1] / 1e12];
            println!(
                "{{\"stage\":\"attention\",\"shape\":[{batch},{heads},{key_heads},{length},{width}],\"documents\":{documents},\
                 \"forward_ms\":{:.3},\"backward_ms\":{:.3},\"forward_tflops\":{forward:.1},\"backward_tflops\":{backward:.1}}}",
                1e3 * seconds[0],
                1e3 * seconds[1]
            );
        }
    }
    Ok(())
}

fn attention_graph(
    [batch, heads, key_heads, length, width]: [usize; 5],
    mask: Mask,
    scale: f32,
    documents: bool,
) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let q = g.input("q", [batch, length, heads, width], DType::Bf16); // (B, T, H, D)
    let [k, v] = ["k", "v"].map(|name| g.input(name, [batch, length, key_heads, width], DType::Bf16)); // (B, T, K, D)
    let d_o = g.input("do", [batch, length, heads, width], DType::Bf16); // (B, T, H, D)
    let starts: Vec<Value> =
        documents.then(|| g.input("starts", [batch, length], DType::I32)).into_iter().collect(); // (B, T)
    let inputs = [&[q, k, v][..], &starts].concat();
    let forward = g.apply_all(Op::Attention { mask, scale }, &inputs);
    let [o, lse] = [0, 1].map(|output| g.node(forward).outputs[output]);
    let inputs = [&[q, k, v, o, lse, d_o][..], &starts].concat();
    let backward = g.apply_all(Op::AttentionGrad { mask, scale }, &inputs);
    for (name, output) in ["dq", "dk", "dv"].into_iter().zip(g.node(backward).outputs.clone()) {
        g.output(name, output);
    }
    g.finish()
}

/// The median seconds of each action of a graph, on normal numbers; `integer` gives those of its inputs of integers.
fn median_seconds(
    device: &mut CudaDevice,
    graph: Graph,
    integer: &dyn Fn(usize) -> i32,
) -> Result<Vec<f64>, ExecError> {
    let facts = device.facts(&graph);
    let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
    let plan = plan(&program, Strategy::None, Scratch::Best)
        .map_err(|error| ExecError::Mismatch(error.to_string()))?;
    let (graph, schedule) = (&program.train.graph, &plan.schedules[&Role::Further]);
    device.reserve(Space { arena: plan.arena_bytes.0, ..Space::default() })?;
    let judged = Judged { role: Role::Further, graph, schedule };
    let judged = runnable(&[judged], plan.arena_bytes.0)
        .map_err(|(_, error)| ExecError::Mismatch(error.to_string()))?;
    let id = device.prepare(&judged[0])?;
    device.map()?;
    for &input in graph.inputs() {
        let (name, ty) = (&graph.value(input).name, graph.ty(input));
        let buffer = schedule.buffer_of(graph, input);
        let offset = buffer.map_or(0, |buffer| buffer.offset);
        if ty.dtype == DType::I32 {
            let bytes: Vec<u8> = (0..ty.shape.elements()).flat_map(|at| integer(at).to_le_bytes()).collect();
            device.write(offset, &bytes)?;
            continue;
        }
        let draw = Draw { init: &Init::Normal(1.0), name, seed: 1 };
        device.draw_part(&draw, (offset, ty.dtype), (0, ty.shape.elements()))?;
    }
    let mut seconds = vec![Vec::new(); schedule.actions.len()];
    for _ in 0..3 {
        device.run(id)?;
    }
    for _ in 0..20 {
        device.run_timed(id, &mut seconds)?;
    }
    let median = |mut each: Vec<f64>| {
        each.sort_by(f64::total_cmp);
        each[each.len() / 2]
    };
    Ok(seconds.into_iter().map(median).collect())
}

/// Every exchange in a world of one rank, whose sums and shards are the numbers themselves: NCCL takes no two ranks on one GPU.
fn ranks(mut device: CudaDevice) -> Result<(), ExecError> {
    device.join(thread_ranks(1, LIMIT)?.remove(0))?;
    let graph = exchanges().map_err(|error| ExecError::Mismatch(error.to_string()))?;
    let facts = device.facts(&graph);
    let program = Program { train: Costed { graph, facts }, evaluate: None, generate: None };
    let plan = plan(&program, Strategy::None, Scratch::Best)
        .map_err(|error| ExecError::Mismatch(error.to_string()))?;
    let mut engine = Engine::new(Box::new(device), &program, &plan, 1)?;
    let x: Vec<f32> = (0..NUMBERS).map(|at| (at as f32).sin()).collect();
    engine.run(Role::Further, &[("x", Data::F32(&x))])?;
    for name in ["own", "scattered", "gathered", "summed"] {
        let elements = engine.output_type(Role::Further, name).map_or(0, |ty| ty.shape.elements());
        let mut found = vec![f32::NAN; elements];
        engine.output(Role::Further, name, &mut found)?;
        // A shard is filled up with zeros.
        let same = x
            .iter()
            .chain(std::iter::repeat(&0.0))
            .zip(&found)
            .all(|(x, found)| x.to_bits() == found.to_bits());
        println!("{{\"stage\":\"ranks\",\"exchange\":\"{name}\",\"elements\":{elements},\"same\":{same}}}");
        if !same || elements < NUMBERS {
            return Err(ExecError::Device(format!("{name} is wrong")));
        }
    }
    Ok(())
}

/// Elements of the exchanged value. Their number is no multiple of a block, so shards have elements past the end.
const NUMBERS: usize = 5000;

fn exchanges() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [50, 100], DType::F32); // (N, C)
    let own = g.apply(Op::Collective(Collective::OwnShard { ranks: 1 }), &[x]); // (shard)
    let scattered = g.apply(Op::Collective(Collective::ReduceScatter { ranks: 1 }), &[x]); // (shard)
    let whole = g.shape(x);
    let gathered = g.apply(Op::Collective(Collective::AllGather { ranks: 1, whole }), &[scattered]); // (N, C)
    let summed = g.apply(Op::Collective(Collective::AllReduce { ranks: 1 }), &[gathered]); // (N, C)
    for (name, value) in [("own", own), ("scattered", scattered), ("gathered", gathered), ("summed", summed)]
    {
        g.output(name, value);
    }
    g.finish()
}

/// Plans of cuDNN on this GPU against those that were made without one. Versions differ in engines and scratch, so only the
/// table's own is judged.
fn plans(device: &CudaDevice) -> Result<(), ExecError> {
    let table = include_str!("../kernels/attention_plans.txt");
    let found = AttentionTable::on(device)?.to_string();
    let [ours, theirs] = [&found, table].map(|text| text.lines().next().unwrap_or_default());
    if ours != theirs {
        println!(
            "{{\"stage\":\"plans\",\"status\":\"NOT RUN\",\"why\":\"{ours} is here, {theirs} in the table\"}}"
        );
        return Ok(());
    }
    let mut differ = 0;
    for row in found.lines().filter(|row| !table.lines().any(|other| other == *row)) {
        println!("{{\"stage\":\"plans\",\"only_here\":{row:?}}}");
        differ += 1;
    }
    let rows = found.lines().count();
    println!("{{\"stage\":\"plans\",\"library\":\"{ours}\",\"rows\":{rows},\"differ\":{differ}}}");
    if differ == 0 {
        return Ok(());
    }
    Err(ExecError::Device(format!("{differ} of {rows} plans are not those of the table")))
}

/// Tokens, experts and widths of a mixture.
#[derive(Clone, Copy)]
struct Workload {
    tokens: usize,
    experts: usize,
    chosen: usize,
    /// Columns before the product and behind it.
    widths: [usize; 2],
}

/// The ops of experts in bf16, beside the library's product of as many rows with one weight.
fn experts(device: &mut CudaDevice) -> Result<(), ExecError> {
    let of = |tokens, experts, chosen, widths| Workload { tokens, experts, chosen, widths };
    for form in [
        of(16384, 8, 2, [4096, 14336]), // Mixtral 8x7B
        of(16384, 128, 8, [2048, 768]), // Qwen3-30B-A3B
        of(16384, 64, 8, [2048, 1024]), // OLMoE
        of(2048, 8, 2, [512, 1376]),    // s-moe
    ] {
        for (routing, spread) in [("even", true), ("half on one expert", false)] {
            let id = |at: usize| {
                let (token, copy) = (at / form.chosen, at % form.chosen);
                // Every second token goes to the first experts.
                let first = if spread || token % 2 == 0 { token.wrapping_mul(2_654_435_761) >> 7 } else { 0 };
                ((first + copy) % form.experts) as i32
            };
            let graph = experts_graph(form).map_err(|error| ExecError::Mismatch(error.to_string()))?;
            let seconds = median_seconds(device, graph, &id)?;
            report_experts(form, routing, &seconds);
        }
        library_rate(device, form)?;
    }
    Ok(())
}

fn experts_graph(form: Workload) -> Result<Graph, GraphError> {
    let Workload { tokens, experts, chosen, widths: [width, hidden] } = form;
    let mut g = Graph::new();
    let indices = g.input("indices", [tokens, chosen], DType::I32); // (N, k)
    let x = g.input("x", [tokens, width], DType::Bf16); // (N, C)
    let weights = g.input("weights", [tokens, chosen], DType::F32); // (N, k)
    let w = g.input("w", [experts, hidden, width], DType::Bf16); // (E, F, C)
    let copies = g.sort_by_expert(indices, Sorting { experts, tile: 1, capacity: None });
    let rows = g.dispatch(x, copies); // (R, C)
    let y = g.grouped_linear(rows, w, copies); // (R, F)
    let dx = g.apply(Op::GroupedLinearGradInput, &[w, y, copies.ranges]); // (R, C)
    let dw = g.apply(Op::GroupedLinearGradWeight, &[rows, y, copies.ranges]); // (E, F, C)
    let sum = g.combine(dx, copies, Some(weights)); // (N, C)
    let dweights = g.apply(Op::CombineGradWeights, &[dx, x, copies.places]); // (N, k)
    for (name, value) in [("dw", dw), ("sum", sum), ("dweights", dweights)] {
        g.output(name, value);
    }
    g.finish()
}

fn report_experts(form: Workload, routing: &str, seconds: &[f64]) {
    let Workload { tokens, experts, chosen, widths: [width, hidden] } = form;
    let flops = 2.0 * (tokens * chosen * width * hidden) as f64;
    let [forward, input, weight] = [2, 3, 4].map(|action| flops / seconds[action] / 1e12);
    let [sort, dispatch, combine, dweights] = [0, 1, 5, 6].map(|action| 1e6 * seconds[action]);
    println!(
        "{{\"stage\":\"experts\",\"shape\":[{tokens},{experts},{chosen},{width},{hidden}],\"routing\":\"{routing}\",\
         \"forward_tflops\":{forward:.0},\"input_tflops\":{input:.0},\"weight_tflops\":{weight:.0},\
         \"sort_us\":{sort:.0},\"dispatch_us\":{dispatch:.0},\"combine_us\":{combine:.0},\"dweights_us\":{dweights:.0}}}"
    );
}

/// The library's rates of the three products over all rows, in the arena that the graph left.
fn library_rate(device: &mut CudaDevice, form: Workload) -> Result<(), ExecError> {
    let (rows, [width, hidden]) = (form.tokens * form.chosen, form.widths);
    let bytes = |elements: usize| (2 * elements as u64).next_multiple_of(256);
    let (x, w, y) = (bytes(rows * width), bytes(hidden * width), bytes(rows * hidden));
    take(device, x + w + y + (64 << 20))?;
    let draw = Draw { init: &Init::Normal(1.0), name: "numbers", seed: 1 };
    device.draw_part(&draw, (0, DType::Bf16), (0, ((x + w + y) / 2) as usize))?;
    let [x, w, y, workspace] = [0, x, x + w, x + w + y].map(Place);
    let of = |[m, n, k]: [usize; 3], [transpose_a, transpose_b]: [bool; 2], [a, b, c]: [Place; 3]| {
        let (dtypes, addend) = ([DType::Bf16; 3], Addend::None);
        let signature =
            Signature { m, n, k, batch: 1, transpose_a, transpose_b, dtypes, addend, alignment: 256 };
        Product { signature, a, b, c, addend: None, workspace }
    };
    let products = [
        of([rows, hidden, width], [false, true], [x, w, y]),
        of([rows, width, hidden], [false, false], [y, w, x]),
        of([hidden, width, rows], [true, false], [y, x, w]),
    ];
    let flops = 2.0 * (rows * width * hidden) as f64;
    let mut rates = Vec::new();
    for product in &products {
        rates.push(flops / device.time_product(product, 10)? / 1e12);
    }
    println!(
        "{{\"stage\":\"experts\",\"library\":[{rows},{width},{hidden}],\"forward_tflops\":{:.0},\
         \"input_tflops\":{:.0},\"weight_tflops\":{:.0}}}",
        rates[0], rates[1], rates[2]
    );
    Ok(())
}
