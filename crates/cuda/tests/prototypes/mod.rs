//! Kernels as their sources declare them, once the preprocessor has written out every macro.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_cuda::kernels::{KernelSource, SOURCES, headers};
use plimsoll_cuda::lower::{Access, Arg, Launch};

/// A compiler of C++ that reads kernels, with a folder where their sources lie as files.
pub(crate) struct Preprocessor<'a> {
    /// Holds the headers.
    pub(crate) folder: &'a Path,
}

/// The declaration of one kernel.
#[derive(Debug)]
pub(crate) struct Prototype {
    pub(crate) name: String,
    params: Vec<Param>,
}

/// One parameter.
#[derive(Clone, Debug)]
enum Param {
    Pointer(Access),
    /// Pointers among the fields of a struct, in their order; the last stands for all that follow.
    Struct(Vec<Access>),
    Number,
}

/// Whether there is a compiler.
pub(crate) fn compiler_is_there() -> bool {
    Command::new("g++").arg("--version").output().is_ok()
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// CUDA's words for a host compiler.
pub(crate) fn host_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/host")
}

impl Preprocessor<'_> {
    /// Options of every call; the language follows them.
    pub(crate) const FLAGS: [&'static str; 6] =
        ["-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas", "-x"];

    pub(crate) fn new(folder: &Path) -> Preprocessor<'_> {
        for (name, text) in headers() {
            fs::write(folder.join(name), text).unwrap();
        }
        Preprocessor { folder }
    }

    pub(crate) fn includes(&self) -> [String; 2] {
        [format!("-I{}", self.folder.display()), format!("-I{}", host_folder().display())]
    }

    /// Kernels of a file, and the file's name.
    pub(crate) fn kernels(&self, source: &KernelSource) -> (Vec<Prototype>, PathBuf) {
        let file = self.folder.join(format!("{}.cpp", source.name));
        fs::write(&file, format!("#include \"cuda_on_host.h\"\n{}", source.text)).unwrap();
        let mut command = Command::new("g++");
        command.args(Self::FLAGS).arg("c++").args(self.includes()).args(["-E", "-P"]).arg(&file);
        let text = run(&mut command);
        let structs = structs(&text);
        let marker = "extern \"C\" __attribute__((visibility(\"default\"))) void";
        (text.split(marker).skip(1).map(|rest| Prototype::read(rest, &structs)).collect(), file)
    }
}

/// How each kernel is declared, by its name; `None` without a compiler.
pub(crate) fn declared() -> Option<BTreeMap<String, Prototype>> {
    if !compiler_is_there() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let preprocessor = Preprocessor::new(folder.path());
    let kernels = SOURCES.iter().flat_map(|source| preprocessor.kernels(source).0);
    Some(kernels.map(|kernel| (kernel.name.clone(), kernel)).collect())
}

impl Prototype {
    fn read(text: &str, structs: &BTreeMap<String, Vec<Access>>) -> Prototype {
        let (name, rest) = text.split_once('(').unwrap();
        let params = rest.split(')').next().unwrap();
        let param = |text: &str| match text.split_whitespace().next() {
            _ if text.contains('*') => Param::Pointer(access(text)),
            Some(ty) => structs.get(ty).map_or(Param::Number, |fields| Param::Struct(fields.clone())),
            None => panic!("`{name}` has an empty parameter"),
        };
        Prototype { name: name.trim().to_owned(), params: params.split(',').map(param).collect() }
    }

    /// How a launch may use each of its pointers, in their order.
    pub(crate) fn accesses(&self, launch: &Launch) -> Vec<Access> {
        assert_eq!(launch.args.len(), self.params.len(), "arguments of `{}`", self.name);
        let mut accesses = Vec::new();
        for (arg, param) in launch.args.iter().zip(&self.params) {
            match (arg, param) {
                (Arg::Pointer(_), Param::Pointer(access)) => accesses.push(*access),
                (Arg::Struct(fields), Param::Struct(declared)) => {
                    let pointers = fields.iter().filter(|field| matches!(field, Arg::Pointer(_) | Arg::Null));
                    let last = declared.last().copied();
                    for (at, field) in pointers.enumerate() {
                        if matches!(field, Arg::Pointer(_)) {
                            accesses.push(declared.get(at).copied().or(last).unwrap());
                        }
                    }
                }
                (Arg::Null | Arg::Check(_), Param::Pointer(_))
                | (Arg::U32(_) | Arg::I32(_) | Arg::U64(_) | Arg::I64(_) | Arg::F32(_), Param::Number) => {}
                (arg, param) => panic!("`{}` takes {param:?} and is given {arg:?}", self.name),
            }
        }
        accesses
    }
}

fn access(declaration: &str) -> Access {
    if declaration.trim_start().starts_with("const ") { Access::Reads } else { Access::Either }
}

/// Pointers among the fields of every plain struct, by its name.
fn structs(text: &str) -> BTreeMap<String, Vec<Access>> {
    let mut found = BTreeMap::new();
    for part in text.split("struct ").skip(1) {
        let Some((name, body)) = part.split_once('{') else { continue };
        let name = name.trim();
        if name.contains([' ', ';', '(', '<']) {
            continue;
        }
        // Fields come before methods.
        let body = body.split(['{', '}']).next().unwrap();
        let fields = body.split(';').take_while(|field| !field.contains('('));
        found.insert(name.to_owned(), fields.flat_map(pointers).collect());
    }
    found
}

/// Pointers of one declaration, such as `const float *rows, *columns` or `void* moment[2]`.
fn pointers(field: &str) -> Vec<Access> {
    let count = |name: &str| {
        let extent = name.split(['[', ']']).nth(1).map(str::trim);
        extent.map_or(1, |extent| extent.parse().unwrap_or(1))
    };
    let names = field.split(',').filter(|_| field.contains('*'));
    names.flat_map(|name| vec![access(field); count(name)]).collect()
}
