//! `plimsoll plan --dag`: reads a training graph, prints the cost of the best schedule, and refuses a broken graph with one
//! clear error.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value, json};

use crate::support;

fn plan(name: &str, graph: &str, options: &[&str]) -> Output {
    std::fs::write(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name), graph).unwrap();
    support::plimsoll("plan --dag")
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .arg(name)
        .args(options)
        .output()
        .unwrap()
}

fn printed(name: &str, graph: &str, options: &[&str]) -> String {
    let output = plan(name, graph, options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(name: &str, graph: &str, options: &[&str], expected: &str) {
    let output = plan(name, graph, options);
    assert_eq!(String::from_utf8(output.stderr).unwrap().trim_end(), expected);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

fn graph(nodes: &[(bool, f64, u64)], links: &[(usize, usize)]) -> String {
    let node = |(id, &(backward, cost, bytes)): (usize, &(bool, f64, u64))| json!({"id": id, "name": format!("n{id}"), "backward": backward, "cost_cpu": cost, "cost_ram": bytes});
    let link = |&(source, target): &(usize, usize)| json!({"source": source, "target": target});
    let nodes: Vec<Value> = nodes.iter().enumerate().map(node).collect();
    json!({"nodes": nodes, "links": links.iter().map(link).collect::<Vec<_>>()}).to_string()
}

/// Three layers of unequal cost and size, a loss and three gradients.
fn small() -> String {
    let nodes = [
        (false, 10.0, 400),
        (false, 2.5, 300),
        (false, 5.0, 200),
        (true, 1.0, 1),
        (true, 10.0, 200),
        (true, 5.0, 300),
        (true, 20.0, 400),
    ];
    graph(&nodes, &[(0, 1), (1, 2), (2, 3), (3, 4), (2, 4), (1, 4), (4, 5), (1, 5), (5, 6), (0, 6)])
}

#[test]
fn the_table_says_what_it_costs_and_how_good_that_is() {
    let all = printed("small.json", &small(), &["--memory", "2kB"]);
    let (all, seconds) = all.rsplit_once("planned in ").unwrap();
    assert_eq!(
        all,
        "3 forward nodes, 4 backward nodes
budget 1.95 KiB   peak 1.17 KiB   fits
  base cost                 53.5
  total cost                53.5   +0.00 %
  lower bound               53.5   +0.00 %
optimal, proven over all schedules
"
    );
    assert!(seconds.trim_end().ends_with(" s"), "{seconds}");
    let less = printed("small.json", &small(), &["--memory", "1100B"]);
    // The first layer's output is dropped while the second gradient is computed, and is recomputed for its own.
    assert!(less.contains("  total cost                63.5   +18.69 %\n"), "{less}");
    assert!(less.contains("  lower bound               63.5   +18.69 %\noptimal"), "{less}");
}

#[test]
fn scripts_get_costs_bytes_and_seconds() {
    let text = printed("script.json", &small(), &["--memory", "1100B", "--json"]);
    let plan: Value = serde_json::from_str(&text).unwrap();
    let names: Vec<&String> = plan.as_object().unwrap().keys().collect();
    assert_eq!(names, ["base_cost", "total_cost", "lower_bound_cost", "peak_bytes", "planning_seconds"]);
    assert_eq!(plan["base_cost"], 53.5);
    assert!(plan["peak_bytes"].as_u64().unwrap() <= 1100);
    assert_eq!((&plan["total_cost"], &plan["lower_bound_cost"]), (&json!(63.5), &json!(63.5)));
    assert!(plan["planning_seconds"].as_f64().unwrap() >= 0.0);
}

#[test]
fn a_budget_too_small_names_the_smallest_and_it_works_when_typed() {
    refused(
        "tight.json",
        &small(),
        &["--memory", "1B"],
        "error: no schedule fits into 1B; the smallest budget that works is `--memory 1100B`",
    );
    printed("tight.json", &small(), &["--memory", "1100B"]);
}

#[test]
fn broken_graphs_are_refused_with_file_and_place() {
    let cases = [
        (r#"{"nodes": ["#.to_owned(), "broken.json: not JSON: EOF while parsing a list at line 1 column 11"),
        ("[]".to_owned(), "broken.json: `nodes` must be a list"),
        (
            graph(&[(false, 1.0, 1), (true, 1.0, 1)], &[(0, 1), (1, 0)]),
            "broken.json: the link 1 → 0 does not go from a smaller id to a larger one: ids must be a topological order",
        ),
        (graph(&[(false, 1.0, 1)], &[(0, 9)]), "broken.json: `links[0]` names node 9, which does not exist"),
        (
            graph(&[(false, -1.0, 1)], &[]),
            "broken.json: `nodes[0].cost_cpu` must be a number that is not negative",
        ),
    ];
    for (text, expected) in cases {
        refused("broken.json", &text, &["--memory", "1KiB"], &format!("error: {expected}"));
    }
}

#[test]
fn a_missing_file_a_missing_budget_and_a_bad_size_are_the_users_to_mend() {
    let output = support::plimsoll("plan --dag no-such.json --memory 1KiB").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: no-such.json cannot be read: "));
    assert_eq!(output.status.code(), Some(2));
    let output = plan("lone.json", &small(), &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--memory"));
    assert_eq!(output.status.code(), Some(2));
    let output = plan("lone.json", &small(), &["--memory", "7"]);
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: `7`"));
    assert_eq!(output.status.code(), Some(2));
    let output = plan("lone.json", &small(), &["--memory", "1KiB", "--model", "tiny"]);
    assert_eq!(output.status.code(), Some(2));
}
