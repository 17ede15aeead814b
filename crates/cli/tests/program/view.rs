//! A plan as people see it: the table, the comparison, and the page with pictures.
//!
//! Times, and sizes that hold what the process takes outside the arena, are masked; all else is compared to
//! the letter. The page is judged here without a browser (`.ci/browser` opens it in one): it is whole, asks
//! nobody for anything, and holds the numbers of the plan.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use serde_json::Value;

use crate::support;

fn plimsoll(arguments: &str) -> String {
    let output = support::plimsoll(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Replaces each number of the lines that begin with one of `starts` by `#`, with the spaces before it.
fn masked(text: &str, starts: &[&str]) -> String {
    let line = |line: &str| {
        if !starts.iter().any(|start| line.trim_start().starts_with(start)) {
            return format!("{line}\n");
        }
        let mut out = String::new();
        for c in line.chars() {
            match c {
                '0'..='9' | '.' if out.ends_with('#') => {}
                '0'..='9' => {
                    out.truncate(out.trim_end().len());
                    out.push_str(" #");
                }
                other => out.push(other),
            }
        }
        format!("{out}\n")
    };
    text.lines().map(line).collect()
}

#[test]
fn the_table_of_a_plan_that_keeps_everything() {
    let text = plimsoll("plan --memory 1GiB --micro-batch 4 --threads 2 --instructions portable");
    let expected = "\
tiny on cpu, 2 threads, times modelled
budget # GiB   planned peak # MiB   fits
  weights             3.27 MiB
  gradients           3.27 MiB
  optimizer           6.54 MiB
  activations         15.9 MiB
  workspace            769 KiB
  outside the arena # MiB
effective batch 8 = 4 × 2 × 1 rank, sequences of 128 tokens
gradients persist: 2 micro-batches are summed (3.27 MiB)
portable instructions
recompute auto: 0.0 % of the forward pass runs again
  model.layers.0-3: keep everything that is read again
layout 0.0 % above the liveness bound
predicted # s a step, # tokens/s
  + # % against no budget, at most # % from optimal
 # steps take about # s
";
    assert_eq!(masked(&text, &["budget", "outside", "predicted", "+", "100 steps"]), expected);
}

#[test]
fn the_table_of_a_plan_that_recomputes_layers() {
    let text = plimsoll("plan --memory 1GiB --micro-batch 4 --threads 2 --recompute full");
    let layers: Vec<&str> = text.lines().skip_while(|line| !line.contains("model.layers")).take(3).collect();
    assert_eq!(
        layers,
        [
            "  model.layers.0-3",
            "    keep       add down",
            "    recompute  input_layernorm, q, k, v, rope q, rope k, attention, o, add o, post_attention_layernorm, gate, up, swiglu",
        ]
    );
    assert!(text.contains("faster with more memory: ") == text.contains("MiB −"), "{text}");
}

#[test]
fn the_comparison_as_a_table() {
    let text = plimsoll("plan --memory 1GiB --global-batch 8 --threads 2 --compare");
    let table = text.lines().skip_while(|line| !line.starts_with("strategy"));
    // The first four words of a row name it; the rest is measured in bytes of this process and in time.
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, rest) = words.split_at(words.len().min(4));
        format!("{} {}", name.join(" "), masked(&rest.join(" "), &[""]))
    };
    let expected = "\
none 8 × 1 # MiB # s + # %
full 8 × 1 # MiB # s + # %
sqrt 8 × 1 # MiB # s + # %
selective 8 × 1 # MiB # s + # %
minimal 8 × 1 # MiB # s + # %
accumulation 8 × 1 # MiB # s + # %
auto 8 × 1 # MiB # s + # %
";
    let mut lines = table.map(str::to_owned);
    assert_eq!(
        lines.next().as_deref(),
        Some("strategy      micro-batch      memory        step   slowdown"),
        "{text}"
    );
    assert_eq!(lines.map(|line| row(&line)).collect::<String>(), expected.replace("1 #", "1  #"));
}

#[test]
fn the_most_that_fits_is_said_before_the_table() {
    let text = plimsoll("plan --memory 40MiB --threads 2 --max seq-len");
    let line = text.lines().nth(1).unwrap();
    assert_eq!(masked(line, &["most"]), "most that fits in # MiB: seq-len # ( # does not fit)\n", "{text}");
}

#[test]
fn what_ends_for_another_reason_than_memory_says_so() {
    let line = |arguments: &str| {
        let text = plimsoll(&format!("plan --memory 1GiB --threads 2 --max {arguments}"));
        text.lines().nth(1).unwrap().to_owned()
    };
    let config = format!("{}/../../testdata/hf/gpt2/config.json", env!("CARGO_MANIFEST_DIR"));
    let longest = line(&format!("seq-len --config {config}"));
    assert_eq!(longest, "seq-len 32 fits in 1.00 GiB; the model reads no longer sequence");
    let highest = line("lora-rank --model tiny");
    assert_eq!(highest, "lora-rank 128 fits in 1.00 GiB; no layer that is adapted has a higher rank");
}

/// The page of a plan.
fn page(name: &str, arguments: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    plimsoll(&format!("plan {arguments} --html {}", path.display()));
    std::fs::read_to_string(path).unwrap()
}

fn data(page: &str) -> Value {
    let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let end = start + page[start..].find("</script>").unwrap();
    serde_json::from_str(&page[start..end]).unwrap()
}

#[test]
fn the_page_is_whole_and_asks_nobody_for_anything() {
    let page = page("whole.html", "--memory 40MiB --global-batch 16");
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    for outside in ["http", "src=", "@import", "url(", "fetch(", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
    let mut open: Vec<&str> = Vec::new();
    let markup = page.split("<script").next().unwrap();
    for tag in markup.split('<').skip(1) {
        let name = tag.split(|c: char| c == '>' || c.is_whitespace()).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "</{name}>"),
            None if ["meta", "!DOCTYPE"].contains(&name) => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, ["html", "body"], "what is open where the scripts begin");
}

#[test]
fn the_page_holds_the_plan_its_buffers_and_the_curve() {
    let data = data(&page("held.html", "--memory 40MiB --global-batch 16"));
    let (arena, outside) =
        (data["plan"]["arena_bytes"].as_u64().unwrap(), data["plan"]["outside_bytes"].as_u64().unwrap());
    let micro_batch = &data["schedules"][0];
    let actions = micro_batch["actions"].as_array().unwrap().len() as u64;
    let buffers = micro_batch["buffers"].as_array().unwrap();
    let ends = buffers.iter().map(|b| b[2].as_u64().unwrap() + b[3].as_u64().unwrap());
    assert_eq!(ends.max(), Some(arena), "the highest buffer ends where the arena does");
    assert!(buffers.iter().all(|b| b[4].as_u64() < b[5].as_u64() && b[5].as_u64().unwrap() <= actions));
    assert!(buffers.iter().any(|b| b[0] == "model.embed_tokens.weight"));
    let curve = data["curve"].as_array().unwrap();
    assert!(curve.len() > 5, "{}", curve.len());
    let seconds = |point: &Value| point["seconds"].as_f64().unwrap();
    for pair in curve.windows(2) {
        assert!(pair[0]["bytes"].as_u64() < pair[1]["bytes"].as_u64());
        assert!(seconds(&pair[1]) <= seconds(&pair[0]), "more memory is never slower");
    }
    for point in curve {
        assert!(
            point["bound"].as_f64().is_none_or(|bound| bound <= seconds(point) * (1.0 + 1e-9)),
            "{point}"
        );
        assert!(point["bytes"].as_u64().unwrap() > outside);
    }
    assert_eq!(data["compare"].as_array().unwrap().len(), 7);
}

#[test]
fn a_page_replaces_the_one_before_and_leaves_nothing_else() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pages");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("plan.html"), "old").unwrap();
    let page = page("pages/plan.html", "--memory 64MiB --micro-batch 2");
    assert!(page.len() > 1000);
    let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["plan.html"]);
}
