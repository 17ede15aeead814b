//! The names of all ops, read from the table that gives each op its name: a test that asks for every op cannot forget one.

/// The names in the table of `op.rs`.
pub(crate) fn op_names() -> Vec<&'static str> {
    let source = include_str!("../../src/op.rs");
    let arms = source.lines().filter(|line| line.trim_start().starts_with("Op::"));
    let names: Vec<&str> = arms.filter_map(|arm| arm.split_once("=> \"")?.1.strip_suffix("\",")).collect();
    assert!(names.len() > 40, "the table of names in op.rs has another form now");
    names
}
