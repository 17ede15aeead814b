//! `plimsoll layout`: rows in, rows with offsets out, and one clear error for every broken file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;

use crate::support;

fn layout(name: &str, options: &[&str]) -> Output {
    support::plimsoll("layout")
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .arg(name)
        .args(options)
        .output()
        .unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Lays out `contents` with `options`: standard output and standard error.
fn laid_out(name: &str, contents: &str, options: &[&str]) -> (String, String) {
    support::file(name, contents);
    let output = layout(name, options);
    assert!(output.status.success(), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

/// The error for `contents`, which must end the program with code 2 and leave standard output empty.
fn refused(name: &str, contents: &str, options: &[&str]) -> String {
    support::file(name, contents);
    let output = layout(name, options);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    text(output.stderr)
}

/// Five slots that fill 4 × 4 like a pinwheel: no straight cut takes them apart.
const PINWHEEL: &str = "\
note,id,lower,upper,size
long,a,0,3000000,1
tall,b,3000000,4000000,3
long,c,1000000,4000000,1
tall,d,0,1000000,3
,e,1000000,3000000,2
";

#[test]
fn rows_come_back_in_order_with_their_offsets() {
    let (rows, facts) = laid_out("pinwheel.csv", PINWHEEL, &[]);
    assert_eq!(facts, "peak 4\nbound 4\noptimal yes\n");
    let offsets: Vec<&str> = rows.lines().map(|row| row.rsplit(',').next().unwrap()).collect();
    assert!(
        [["offset", "0", "0", "3", "1", "1"], ["offset", "3", "1", "0", "0", "1"]]
            .contains(&offsets.clone().try_into().unwrap()),
        "{offsets:?}"
    );
    let without: Vec<&str> = rows.lines().map(|row| row.rsplit_once(',').unwrap().0).collect();
    assert_eq!(without, PINWHEEL.lines().collect::<Vec<_>>());
}

#[test]
fn lifetimes_are_half_open() {
    let (rows, facts) = laid_out("touch.csv", "id,lower,upper,size\n0,0,5,7\n1,5,9,7\n", &[]);
    assert_eq!(rows, "id,lower,upper,size,offset\n0,0,5,7,0\n1,5,9,7,0\n");
    assert_eq!(facts, "peak 7\nbound 7\noptimal yes\n");
}

#[test]
fn a_header_alone_is_an_empty_layout() {
    let (rows, facts) = laid_out("header.csv", "id,lower,upper,size\n", &[]);
    assert_eq!(rows, "id,lower,upper,size,offset\n");
    assert_eq!(facts, "peak 0\nbound 0\noptimal yes\n");
}

#[test]
fn a_capacity_is_met_or_the_way_it_fails_is_said() {
    for capacity in ["4", "4B", "1KiB"] {
        laid_out("capacity.csv", PINWHEEL, &["--capacity", capacity]);
    }
    assert_eq!(
        refused("capacity.csv", PINWHEEL, &["--capacity", "3"]),
        "error: no layout fits into 3: 4 are alive at one time\n"
    );
    let said = refused("capacity.csv", PINWHEEL, &["--capacity", "big"]);
    assert!(said.starts_with("error: --capacity: `big` is no size"), "{said}");
}

#[test]
fn the_same_file_gives_the_same_bytes() {
    let once = laid_out("same.csv", PINWHEEL, &[]);
    assert_eq!(once, laid_out("same.csv", PINWHEEL, &[]));
}

#[test]
fn every_broken_file_gets_one_error_with_file_and_line() {
    let cases = [
        ("", "line 1: there is no header; it must name id, lower, upper, size"),
        (
            "id,lower,size\n",
            "line 1: the header names no column `upper`; it must name id, lower, upper, size",
        ),
        (
            "id,lower,upper,size\na,0,1,4\nb,0,1,4k\n",
            "line 3: `size` is `4k`, which is no whole number from 0 to 2^62",
        ),
        (
            "id,lower,upper,size\na,-1,1,4\n",
            "line 2: `lower` is `-1`, which is no whole number from 0 to 2^62",
        ),
        ("id,lower,upper,size\na,7,7,4\n", "line 2: `lower` is 7 and `upper` is 7; `upper` must be larger"),
        ("id,lower,upper,size\na,0,1\n", "line 2: 3 fields where the header names 4 columns"),
    ];
    for (contents, expected) in cases {
        assert_eq!(refused("broken.csv", contents, &[]), format!("error: broken.csv, {expected}\n"));
    }
}

#[test]
fn files_that_cannot_be_read_are_the_users_to_mend() {
    let output = layout("no-such.csv", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(output.stderr).starts_with("error: no-such.csv cannot be read: "));
    support::file("latin1.csv", b"id,lower,upper,size\n\xe4,0,1,4\n");
    let output = layout("latin1.csv", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(output.stderr).starts_with("error: latin1.csv cannot be read: "));
}
