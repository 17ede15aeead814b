//! A file while it is downloaded: it grows at its end, is hashed as it grows, and gets its name when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::blobs::{Blob, Content};
use super::fault::Fault;
use super::store::plain_file;
use crate::files::{hex, sync_folder};

/// A file that is not whole yet.
#[derive(Debug)]
pub(super) struct Partial<'a> {
    path: PathBuf,
    file: File,
    blob: &'a Blob,
    /// Bytes that are here.
    length: u64,
    /// Bytes of the whole file.
    size: u64,
    hash: Hash,
}

#[derive(Debug)]
enum Hash {
    Sha256(Sha256),
    Git(Sha1),
    None,
}

impl Hash {
    fn new(content: Content, size: u64) -> Hash {
        match content {
            Content::Sha256 => Hash::Sha256(Sha256::new()),
            Content::GitBlob => Hash::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
            Content::Unknown => Hash::None,
        }
    }

    fn update(&mut self, piece: &[u8]) {
        match self {
            Hash::Sha256(hash) => hash.update(piece),
            Hash::Git(hash) => hash.update(piece),
            Hash::None => {}
        }
    }

    /// Whether the bytes so far equal the content of the blob of this name.
    fn is(&self, name: &str) -> bool {
        match self {
            Hash::Sha256(hash) => hex(&hash.clone().finalize()) == name,
            Hash::Git(hash) => hex(&hash.clone().finalize()) == name,
            Hash::None => true,
        }
    }
}

impl<'a> Partial<'a> {
    /// Opens the file at `path` to continue it, or creates it. Anything there except a plain file of our own, such as a
    /// link to another file, is removed.
    pub(super) fn open(path: &Path, blob: &'a Blob, size: u64) -> Result<Partial<'a>, Fault> {
        let opened = open_own(path).and_then(|file| {
            let hash = Hash::new(blob.content, size);
            let mut partial = Partial { path: path.to_owned(), file, blob, length: 0, size, hash };
            partial.take_over()?;
            Ok(partial)
        });
        opened.map_err(|fault| Fault::writing(path, &fault))
    }

    /// Reads the bytes that are already there.
    fn take_over(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.size {
            return self.clear();
        }
        let mut piece = vec![0; 256 << 10];
        loop {
            match self.file.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.hash.update(&piece[..count]);
                    self.length += count as u64;
                }
                Err(fault) if fault.kind() == io::ErrorKind::Interrupted => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Bytes that are here.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that are missing.
    pub(super) fn missing(&self) -> u64 {
        self.size - self.length
    }

    /// Begins anew.
    pub(super) fn restart(&mut self) -> Result<(), Fault> {
        self.clear().map_err(|fault| Fault::writing(&self.path, &fault))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.length = 0;
        self.hash = Hash::new(self.blob.content, self.size);
        Ok(())
    }

    /// Adds bytes at the end.
    pub(super) fn append(&mut self, piece: &[u8]) -> Result<(), Fault> {
        self.file.write_all(piece).map_err(|fault| Fault::writing(&self.path, &fault))?;
        self.hash.update(piece);
        self.length += piece.len() as u64;
        Ok(())
    }

    /// Whether the whole file has the hash in its name.
    pub(super) fn is_right(&self) -> bool {
        self.hash.is(&self.blob.name)
    }

    /// Removes the file: its bytes are wrong.
    pub(super) fn discard(self) {
        // The fault that led here matters more.
        let _ = fs::remove_file(&self.path);
    }

    /// Checks the content and gives the file its name.
    pub(super) fn finish(self, named: &Path) -> Result<(), Fault> {
        if !self.is_right() {
            let why = format!("the content of `{}` has another hash; what came was removed", self.blob.name);
            self.discard();
            return Err(Fault::Refused(why));
        }
        let written = self.file.sync_all().and_then(|()| fs::rename(&self.path, named));
        written.map_err(|fault| Fault::writing(named, &fault))?;
        named.parent().map_or(Ok(()), sync_folder).map_err(Fault::Cache)
    }
}

/// Opens a file to read it and write at its end. No link is followed, and no file is touched that has a second name.
fn open_own(path: &Path) -> io::Result<File> {
    if plain_file(path).is_none_or(|found| found.nlink() != 1) {
        match fs::remove_file(path) {
            Err(fault) if fault.kind() != io::ErrorKind::NotFound => return Err(fault),
            _ => {}
        }
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_small_file_is_gits() {
        // `printf 'hello\n' | git hash-object --stdin`
        let mut hash = Hash::new(Content::GitBlob, 6);
        hash.update(b"hello\n");
        assert!(hash.is("ce013625030ba8dba906f756967f9e9ca394464a"));
    }
}
