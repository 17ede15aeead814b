//! Replaces the files of a model together: all are first written elsewhere and synced, before the first takes the place
//! of an old one.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{FileError, create_folder, own_subfolder, sync_folder};

/// The place of a model's files until all are complete. It lies inside the folder itself, which may be the current
/// folder of a shell and must not be replaced.
pub(crate) const UNFINISHED: &str = ".tmp-model";

/// Lets `write` fill an empty folder and moves its files to `folder`, in the order of the names it returns; other
/// weights called `stem` are removed. A full disk leaves the old files.
///
/// # Errors
///
/// When the folder cannot be written, or `write` fails.
pub(crate) fn replace_model<E: From<FileError>>(
    folder: &Path,
    stem: &str,
    write: impl FnOnce(&Path) -> Result<Vec<String>, E>,
) -> Result<Vec<String>, E> {
    let unwritable = |path: &Path, fault: std::io::Error| FileError::writing(path, &fault);
    let temporary = folder.join(UNFINISHED);
    if temporary.exists() {
        fs::remove_dir_all(&temporary).map_err(|fault| unwritable(&temporary, fault))?;
    }
    create_folder(folder).map_err(|fault| unwritable(folder, fault))?;
    fs::create_dir(&temporary).map_err(|fault| unwritable(&temporary, fault))?;
    // The first fault matters more than a temporary folder left behind.
    let names = write(&temporary).inspect_err(|_| drop(fs::remove_dir_all(&temporary)))?;
    // If this fails, the temporary folder stays: by it the next start knows that the files here may be of two models.
    move_files(&temporary, folder, stem, &names)?;
    let _ = fs::remove_dir_all(&temporary);
    Ok(names)
}

fn move_files(from: &Path, to: &Path, stem: &str, names: &[String]) -> Result<(), FileError> {
    remove_others(to, stem, names)?;
    for name in names {
        let inner = Path::new(name).parent().filter(|inner| !inner.as_os_str().is_empty());
        inner.map_or(Ok(()), |inner| own_subfolder(to, inner))?;
        fs::rename(from.join(name), to.join(name)).map_err(|fault| FileError::writing(to, &fault))?;
    }
    sync_folder(to)
}

/// Removes weights of another division into files: a reader would take the old ones for the model.
fn remove_others(folder: &Path, stem: &str, names: &[String]) -> Result<(), FileError> {
    let entries = fs::read_dir(folder).map_err(|fault| FileError::reading(folder, &fault))?;
    for entry in entries {
        let entry = entry.map_err(|fault| FileError::reading(folder, &fault))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name.strip_prefix(stem).is_some_and(|rest| {
            rest == ".safetensors.index.json" || rest.starts_with('-') && rest.ends_with(".safetensors")
        });
        if (ours || name == format!("{stem}.safetensors")) && !names.contains(&name) {
            fs::remove_file(entry.path()).map_err(|fault| FileError::writing(&entry.path(), &fault))?;
        }
    }
    Ok(())
}

/// The index of the weights called `stem` where they are in several files, and its text: the file of each tensor, and the
/// bytes of all.
pub(crate) fn index(stem: &str, bytes: u64, files: &Map<String, Value>) -> (String, String) {
    let index = json!({ "metadata": { "total_size": bytes }, "weight_map": files });
    (format!("{stem}.safetensors.index.json"), format!("{index:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn files_that_are_moved_in_part_keep_the_folder_that_says_so() {
        let folder = Scratch::new();
        let (out, names) = (folder.path().join("out"), ["a", "b"].map(str::to_owned).to_vec());
        let replaced = || {
            replace_model::<FileError>(&out, "model", |temporary| {
                names
                    .iter()
                    .try_for_each(|name| super::super::write_text(&temporary.join(name), name).map(drop))?;
                Ok(names.clone())
            })
        };
        // A folder in the way of a file.
        folder.write("out/b/x", "");
        assert!(replaced().is_err());
        assert!(out.join("a").is_file() && out.join(UNFINISHED).join("b").is_file());
        fs::remove_dir_all(out.join("b")).unwrap();
        assert_eq!(replaced(), Ok(names.clone()));
        assert!(out.join("b").is_file() && !out.join(UNFINISHED).exists());
        // A model that is not whole is moved nowhere.
        let unfinished = |_: &Path| Err(FileError::wrong(&out, "is full"));
        assert!(replace_model::<FileError>(&out, "model", unfinished).is_err());
        assert!(!out.join(UNFINISHED).exists());
    }
}
