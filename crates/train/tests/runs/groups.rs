//! Groups of state: one range in the arena, single tensors in files, the numbers of separate weights.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use plimsoll_exec::Data;
use plimsoll_graph::{DType, Graph, GraphError, Init, Shape, Value};
use plimsoll_train::files::{ModelFolder, ModelFormat, TensorFile, TensorSpec, TensorWriter};
use plimsoll_train::{Optimizer, Options, Run, StateStorage, WeightStorage};
use tempfile::TempDir;

const ROWS: usize = 8;
const WIDTH: usize = 12;
const EXPERTS: usize = 3;
const HIDDEN: usize = 20;
const LABELS: usize = 5;

fn part(index: usize) -> String {
    format!("experts.{index}.up.weight")
}

/// Rows through the up-projections of all experts, one behind the other: (N, E·F).
fn projected(g: &mut Graph, x: Value, grouped: bool) -> Value {
    let (init, shape) = (Init::Normal(0.3), Shape::from([HIDDEN, WIDTH]));
    if grouped {
        let parts: Vec<(String, Shape)> = (0..EXPERTS).map(|index| (part(index), shape)).collect();
        let w = g.param_group("experts.up", [EXPERTS * HIDDEN, WIDTH], init, &parts); // (E·F, C)
        return g.linear(x, w, None);
    }
    let parts: Vec<Value> = (0..EXPERTS)
        .map(|index| {
            let w = g.param(&part(index), shape, init.clone()); // (F, C)
            g.linear(x, w, None) // (N, F)
        })
        .collect();
    g.concat(&parts, 1)
}

fn model(grouped: bool) -> impl Fn(usize) -> Result<Graph, GraphError> {
    move |rows| {
        let mut g = Graph::new();
        let x = g.input("x", [rows, WIDTH], DType::F32); // (N, C)
        let targets = g.input("targets", [rows], DType::I32); // (N)
        let scale = g.loss_scale();
        let h = g.block("mlp", |g| projected(g, x, grouped)); // (N, E·F)
        let h = g.silu(h);
        let head = g.param("head", [LABELS, EXPERTS * HIDDEN], Init::Normal(0.2));
        let loss = g.head_loss(h, head, None, targets, scale, -100);
        g.output("loss", loss);
        g.finish()
    }
}

fn start(grouped: bool, seed: u64, weights: WeightStorage) -> Run {
    let optimizer = Optimizer { max_grad_norm: None, ..Optimizer::default() };
    let storage = StateStorage { weights, ..StateStorage::default() };
    let (global_batch, micro_batch) = (ROWS, Some(ROWS));
    let options = Options {
        memory: Some(1 << 30),
        global_batch,
        micro_batch,
        optimizer,
        storage,
        seed,
        threads: 2,
        ..Options::default()
    };
    Run::new(model(grouped), &options).unwrap()
}

fn step(run: &mut Run) -> f32 {
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|at| ((at * 31 + 5) % 23) as f32 / 11.0 - 1.0).collect();
    let targets: Vec<i32> = (0..ROWS).map(|at| (at % LABELS) as i32).collect();
    run.step(1e-2, &[[("x", Data::F32(&x)), ("targets", Data::I32(&targets))]]).unwrap().loss
}

/// All experts' numbers, one behind the other.
fn experts(run: &Run, grouped: bool) -> Vec<u32> {
    let numbers = if grouped {
        run.state("mlp.experts.up").unwrap()
    } else {
        (0..EXPERTS).flat_map(|index| run.state(&format!("mlp.{}", part(index))).unwrap()).collect()
    };
    numbers.into_iter().map(f32::to_bits).collect()
}

#[test]
fn one_product_over_a_group_trains_to_the_bits_of_separate_ones() {
    let [mut grouped, mut single] = [true, false].map(|which| start(which, 3, WeightStorage::F32));
    assert!(experts(&grouped, true) == experts(&single, false), "parts are drawn under their own names");
    for _ in 0..3 {
        assert_eq!(step(&mut grouped).to_bits(), step(&mut single).to_bits());
    }
    assert!(experts(&grouped, true) == experts(&single, false));
    assert_eq!(grouped.engine().measured_peak(), grouped.plan().arena_bytes);
}

#[test]
fn files_hold_a_tensor_for_each_part_and_either_model_reads_what_the_other_wrote() {
    for weights in [WeightStorage::F32, WeightStorage::Bf16Master] {
        for from in [true, false] {
            let folder = TempDir::new().unwrap();
            let mut saved = start(from, 1, weights);
            step(&mut saved);
            for shard_bytes in [u64::MAX, 2_000] {
                let form = ModelFormat { shard_bytes, ..ModelFormat::default() };
                let files = saved.save_weights(folder.path(), &form).unwrap();
                assert_eq!(files.len() > 1, shard_bytes == 2_000);
                let opened = ModelFolder::open(folder.path()).unwrap();
                let names: Vec<&str> = opened.names().collect();
                assert_eq!(
                    names,
                    ["head", "mlp.experts.0.up.weight", "mlp.experts.1.up.weight", "mlp.experts.2.up.weight"]
                );
                for name in &names[1..] {
                    let (file, _) = opened.find([*name]).unwrap();
                    assert_eq!(file.tensor(name).unwrap().shape, [HIDDEN, WIDTH]);
                }
                let mut loaded = start(!from, 2, weights);
                assert!(experts(&loaded, !from) != experts(&saved, from));
                let unused = loaded.load_weights(&opened, &form).unwrap().unused;
                assert_eq!(unused, [""; 0]);
                assert!(experts(&loaded, !from) == experts(&saved, from));
            }
        }
    }
}

#[test]
fn a_part_that_is_missing_or_of_another_shape_is_named() {
    let folder = TempDir::new().unwrap();
    let fault = |shapes: &[(&str, [usize; 2])]| {
        let specs: Vec<TensorSpec> = (shapes.iter())
            .map(|(name, shape)| TensorSpec {
                name: (*name).to_owned(),
                dtype: plimsoll_train::files::Dtype::F32,
                shape: shape.to_vec(),
            })
            .collect();
        let path = folder.path().join("model.safetensors");
        let mut writer = TensorWriter::create(&path, specs).unwrap();
        for spec in writer.tensors().to_vec() {
            writer.write(&vec![0.5; spec.shape.iter().product()]).unwrap();
        }
        writer.finish().unwrap();
        assert!(TensorFile::open(&path).is_ok());
        let opened = ModelFolder::open(folder.path()).unwrap();
        start(true, 1, WeightStorage::F32)
            .load_weights(&opened, &ModelFormat::default())
            .unwrap_err()
            .to_string()
    };
    let head = ("head", [LABELS, EXPERTS * HIDDEN]);
    let [first, second] =
        ["mlp.experts.0.up.weight", "mlp.experts.1.up.weight"].map(|name| (name, [HIDDEN, WIDTH]));
    let missing = fault(&[head, first, second]);
    assert!(missing.contains("holds no tensor `mlp.experts.2.up.weight`"), "{missing}");
    let wrong = fault(&[head, first, second, ("mlp.experts.2.up.weight", [HIDDEN, WIDTH + 1])]);
    assert!(
        wrong.contains("holds `mlp.experts.2.up.weight` as [20, 13] where the configuration has [20, 12]"),
        "{wrong}"
    );
}
