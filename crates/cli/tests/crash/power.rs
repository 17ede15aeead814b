//! Power cuts: a run's changes are replayed on a disk that forgets what was not synced.
//!
//! The model is that of POSIX and harsher than any journal. Bytes of a file last once the file is synced, names once their
//! folder is. At a cut, each folder has kept some first part of its changes since its last sync, and each file its synced
//! bytes, all of its bytes, or a torn mixture, independent of every other.
//!
//! A run that lost its checkpoint would begin anew and end in the same bits, so bits alone do not show the loss. The replay
//! therefore notes which checkpoint is saved: renamed, with whatever syncs follow the rename. As soon as the program changes
//! anything else, it counts on that checkpoint, and so does every image from then on.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One change, as the shim has noted it.
#[derive(Debug)]
pub(crate) struct Record {
    operation: u8,
    inode: u64,
    number: u64,
    one: PathBuf,
    two: PathBuf,
    data: Vec<u8>,
}

impl Record {
    /// Whether the change is a sync of the names in a folder.
    pub(crate) fn syncs_a_folder(&self) -> bool {
        self.operation == b'S'
    }

    /// The file or folder that the change is about.
    pub(crate) fn path(&self) -> &Path {
        &self.one
    }
}

/// Reads the shim's log.
pub(crate) fn records(log: &Path) -> Vec<Record> {
    let bytes = fs::read(log).unwrap_or_default();
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while let Some((&operation, after)) = rest.split_first() {
        let number = |at: usize| u64::from_le_bytes(after[8 * at..8 * at + 8].try_into().unwrap());
        let [inode, value, one, two, data] = [0, 1, 2, 3, 4].map(number);
        let (one, after) = after[40..].split_at(one as usize);
        let (two, after) = after.split_at(two as usize);
        let (data, after) = after.split_at(data as usize);
        let path = |bytes: &[u8]| PathBuf::from(String::from_utf8(bytes.to_vec()).unwrap());
        let (one, two, data) = (path(one), path(two), data.to_vec());
        records.push(Record { operation, inode, number: value, one, two, data });
        rest = after;
    }
    records
}

type Names = BTreeMap<String, usize>;

/// The files of a folder, by their names.
type Files = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Debug)]
enum Node {
    File { now: Vec<u8>, synced: Vec<u8> },
    Folder { now: Names, synced: Names, pending: Vec<Vec<(String, Option<usize>)>> },
}

impl Node {
    fn folder() -> Node {
        Node::Folder { now: Names::new(), synced: Names::new(), pending: Vec::new() }
    }
}

/// The watched folder, and the part of it that has reached the disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    root: PathBuf,
    /// The root is the first.
    nodes: Vec<Node>,
    inodes: BTreeMap<u64, usize>,
    /// A checkpoint that has just got its name; perhaps it is yet to be synced.
    named: Option<PathBuf>,
    /// The newest checkpoint that was saved, with its files.
    saved: Option<(PathBuf, Files)>,
}

impl Disk {
    /// A disk that holds the folder as it is, all of it synced.
    pub(crate) fn of(root: &Path) -> Disk {
        let (nodes, inodes) = (vec![Node::folder()], BTreeMap::new());
        let mut disk = Disk { root: root.to_owned(), nodes, inodes, named: None, saved: None };
        disk.load(root, 0);
        disk
    }

    /// Counts on a checkpoint from now on: one that is here from an earlier run, or one that was just renamed.
    pub(crate) fn count_on(&mut self, checkpoint: PathBuf) {
        let files = self.files(&checkpoint, false);
        let files = files.unwrap_or_else(|| panic!("{} is not there", checkpoint.display()));
        self.saved = Some((checkpoint, files));
    }

    /// The checkpoint that must outlast every cut from now on.
    pub(crate) fn saved(&self) -> Option<&Path> {
        self.saved.as_ref().map(|(path, _)| path.as_path())
    }

    /// Whether the saved checkpoint outlasts a cut that keeps nothing but what was synced.
    pub(crate) fn saved_is_synced(&self) -> bool {
        self.saved.as_ref().is_none_or(|(path, files)| self.files(path, true).as_ref() == Some(files))
    }

    /// Whether an image of the root holds the whole saved checkpoint.
    pub(crate) fn saved_is_in(&self, image: &Path) -> bool {
        let Some((path, files)) = &self.saved else { return true };
        let folder = image.join(path.strip_prefix(&self.root).unwrap());
        files.iter().all(|(name, bytes)| fs::read(folder.join(name)).is_ok_and(|found| found == *bytes))
    }

    /// The files of a folder, as the program sees them or as far as they are synced.
    fn files(&self, folder: &Path, only_synced: bool) -> Option<Files> {
        let mut node = 0;
        for part in folder.strip_prefix(&self.root).unwrap().components() {
            node = *self.names(node, only_synced)?.get(part.as_os_str().to_str().unwrap())?;
        }
        let file = |(name, &node): (&String, &usize)| match &self.nodes[node] {
            Node::File { now, synced } => {
                Some((name.clone(), if only_synced { synced } else { now }.clone()))
            }
            Node::Folder { .. } => None,
        };
        Some(self.names(node, only_synced)?.iter().filter_map(file).collect())
    }

    fn names(&self, folder: usize, only_synced: bool) -> Option<&Names> {
        match &self.nodes[folder] {
            Node::Folder { now, synced, .. } => Some(if only_synced { synced } else { now }),
            Node::File { .. } => None,
        }
    }

    fn load(&mut self, path: &Path, folder: usize) {
        for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
            let (found, node) = (entry.metadata().unwrap(), self.nodes.len());
            if found.is_dir() {
                self.nodes.push(Node::folder());
                self.load(&entry.path(), node);
            } else {
                let bytes = fs::read(entry.path()).unwrap();
                self.nodes.push(Node::File { now: bytes.clone(), synced: bytes });
                self.inodes.insert(found.ino(), node);
            }
            let name = entry.file_name().into_string().unwrap();
            if let Node::Folder { now, synced, .. } = &mut self.nodes[folder] {
                now.insert(name.clone(), node);
                synced.insert(name, node);
            }
        }
    }

    /// Makes one more change.
    pub(crate) fn apply(&mut self, record: &Record) {
        if !matches!(record.operation, b's' | b'S') {
            self.end_of_saving();
        }
        self.make(record);
        if record.operation == b'r' && is_checkpoint(&record.two) {
            self.named = Some(record.two.clone());
        }
    }

    /// The program has continued or ended, so from now on it relies on the checkpoint that was renamed last.
    pub(crate) fn end_of_saving(&mut self) {
        if let Some(checkpoint) = self.named.take() {
            self.count_on(checkpoint);
        }
    }

    fn make(&mut self, record: &Record) {
        let at = record.number as usize;
        match record.operation {
            b'c' => {
                let node = self.add(Node::File { now: Vec::new(), synced: Vec::new() });
                self.inodes.insert(record.inode, node);
                self.change(&record.one, Some(node));
            }
            b'm' => {
                let node = self.add(Node::folder());
                self.change(&record.one, Some(node));
            }
            b'u' => self.change(&record.one, None),
            b'r' => self.rename(&record.one, &record.two),
            b't' => self.file(record.inode).resize(at, 0),
            b'w' => {
                let (file, end) = (self.file(record.inode), at + record.data.len());
                file.resize(file.len().max(end), 0);
                file[at..end].copy_from_slice(&record.data);
            }
            b's' => {
                if let Node::File { now, synced } = &mut self.nodes[self.inodes[&record.inode]] {
                    synced.clone_from(now);
                }
            }
            b'S' => {
                let folder = self.find(&record.one);
                if let Node::Folder { now, synced, pending } = &mut self.nodes[folder] {
                    synced.clone_from(now);
                    pending.clear();
                }
            }
            other => panic!("the shim noted `{}`", char::from(other)),
        }
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn file(&mut self, inode: u64) -> &mut Vec<u8> {
        match &mut self.nodes[self.inodes[&inode]] {
            Node::File { now, .. } => now,
            Node::Folder { .. } => panic!("bytes of a folder"),
        }
    }

    /// The node at a path.
    fn find(&self, path: &Path) -> usize {
        let parts = path.strip_prefix(&self.root).unwrap().components();
        parts.fold(0, |folder, part| match &self.nodes[folder] {
            Node::Folder { now, .. } => now[part.as_os_str().to_str().unwrap()],
            Node::File { .. } => panic!("{} leads through a file", path.display()),
        })
    }

    fn change(&mut self, path: &Path, node: Option<usize>) {
        self.change_all(path.parent().unwrap(), vec![(name(path), node)]);
    }

    /// Changes names of one folder, together or not at all.
    fn change_all(&mut self, folder: &Path, changes: Vec<(String, Option<usize>)>) {
        let folder = self.find(folder);
        if let Node::Folder { now, pending, .. } = &mut self.nodes[folder] {
            changes.iter().cloned().for_each(|change| set(now, change));
            pending.push(changes);
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let node = Some(self.find(from));
        if from.parent() == to.parent() {
            let changes = vec![(name(from), None), (name(to), node)];
            self.change_all(to.parent().unwrap(), changes);
        } else {
            self.change(to, node);
            self.change(from, None);
        }
    }

    /// Writes the content of the disk after a power cut at this moment. `random` chooses among the possible contents.
    pub(crate) fn cut(&self, to: &Path, random: &mut Random) {
        self.write(0, to, random);
    }

    fn write(&self, node: usize, to: &Path, random: &mut Random) {
        match &self.nodes[node] {
            Node::File { now, synced } => fs::write(to, surviving(now, synced, random)).unwrap(),
            Node::Folder { synced, pending, .. } => {
                fs::create_dir_all(to).unwrap();
                let mut names = synced.clone();
                let kept = random.below(pending.len() as u64 + 1) as usize;
                for change in pending[..kept].iter().flatten().cloned() {
                    set(&mut names, change);
                }
                for (name, node) in names {
                    self.write(node, &to.join(name), random);
                }
            }
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Whether a path is that of a regular checkpoint.
pub(crate) fn is_checkpoint(path: &Path) -> bool {
    name(path).strip_prefix("checkpoint-").is_some_and(|step| step.parse::<u64>().is_ok())
}

fn set(names: &mut Names, (name, node): (String, Option<usize>)) {
    match node {
        Some(node) => drop(names.insert(name, node)),
        None => drop(names.remove(&name)),
    }
}

/// The bytes of a file after a cut.
fn surviving(now: &[u8], synced: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(3) {
        0 => synced.to_vec(),
        1 => now.to_vec(),
        _ => {
            // The new length is on the disk, and the first new bytes; the rest are old bytes or zeros.
            let torn = random.below(now.len() as u64 + 1) as usize;
            let mut bytes = synced.to_vec();
            bytes.resize(now.len(), 0);
            bytes[..torn].copy_from_slice(&now[..torn]);
            if now == synced { now.to_vec() } else { bytes }
        }
    }
}

/// Numbers that are the same in every run of the test.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
