//! Files that go with a model and pass through training unchanged: tokenizer, chat templates, settings of generation.
//!
//! A file that is copied into the output must lie with the model: a link could otherwise copy the user's private files
//! into it. Chat templates beside the usual one lie in a folder of their own, one file for each name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Checksum, FileError, copy_file, sync_folder};

/// Files that go with a model and pass through training unchanged.
const NAMES: [&str; 11] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The folder of chat templates beside the usual one, `NAME.jinja` each.
pub(crate) const MORE_TEMPLATES: &str = "additional_chat_templates";
/// The largest number of them that is copied or downloaded. Models have one or two.
pub(crate) const MOST_TEMPLATES: usize = 64;

/// Whether a file of this name in a model's folder passes through training unchanged.
pub(crate) fn goes_along(name: &str) -> bool {
    NAMES.contains(&name) || is_template(name)
}

/// Names of the files in a folder that pass through training unchanged: tokenizer, chat templates,
/// settings of generation. Links that lead away from the model are left out.
pub(crate) fn beside(folder: &Path) -> Vec<String> {
    let lies_there = |name: &String| folder.join(name).is_file() && elsewhere(folder, name).is_none();
    NAMES.map(str::to_owned).into_iter().chain(templates(folder)).filter(lies_there).collect()
}

/// Copies such a file to another folder, and brings it to the disk.
///
/// # Errors
///
/// When it cannot be read or written.
pub(crate) fn copy_beside(from: &Path, to: &Path, name: &str) -> Result<Checksum, FileError> {
    let copy = to.join(name);
    let Some(inner) = Path::new(name).parent().filter(|inner| !inner.as_os_str().is_empty()) else {
        return copy_file(&from.join(name), &copy);
    };
    own_subfolder(to, inner)?;
    let sum = copy_file(&from.join(name), &copy)?;
    sync_folder(&to.join(inner))?;
    Ok(sum)
}

/// Makes sure that a folder has a folder of its own in it. A link in its place would send files elsewhere.
///
/// # Errors
///
/// When it cannot be made, or something else has its name.
pub(crate) fn own_subfolder(folder: &Path, inner: &Path) -> Result<(), FileError> {
    let path = folder.join(inner);
    match fs::create_dir(&path) {
        Err(fault) if fault.kind() != io::ErrorKind::AlreadyExists => {
            return Err(FileError::writing(&path, &fault));
        }
        _ => {}
    }
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    Err(FileError::wrong(&path, "is a link or a file where a folder is needed; remove it"))
}

/// Names of the chat templates beside the usual one, in order.
fn templates(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join(MORE_TEMPLATES)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.map(|name| format!("{MORE_TEMPLATES}/{name}")).collect();
    names.retain(|name| is_template(name));
    names.sort();
    names.truncate(MOST_TEMPLATES);
    names
}

/// Whether a name is that of a chat template beside the usual one. It may come from a server.
pub(crate) fn is_template(name: &str) -> bool {
    let inner = name.strip_prefix(MORE_TEMPLATES).and_then(|name| name.strip_prefix('/'));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    inner.and_then(|name| name.strip_suffix(".jinja")).is_some_and(|name| {
        (1..=100).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.')
    })
}

/// Refuses a folder with a link that leads outside, if the file behind the link would be copied into the output.
///
/// # Errors
///
/// When there is such a link.
pub(crate) fn refuse_links_elsewhere(folder: &Path) -> Result<(), FileError> {
    let templates = templates(folder);
    let names = NAMES.into_iter().chain(["config.json"]).chain(templates.iter().map(String::as_str));
    for name in names {
        if let Some(real) = elsewhere(folder, name) {
            let real = real.display();
            let why = format!(
                "is a link to {real}, outside the model's folder; put the file itself there, or remove the link"
            );
            return Err(FileError::wrong(&folder.join(name), why));
        }
    }
    Ok(())
}

/// Where the file called `name` really is, if that is not with the model in `folder`.
fn elsewhere(folder: &Path, name: &str) -> Option<PathBuf> {
    let real = folder.join(name).canonicalize().ok()?;
    (!real.starts_with(own_place(&folder.canonicalize().ok()?))).then_some(real)
}

/// The folder that holds all of a model's files. In the hub's cache, `models--owner--name/snapshots/<commit>` holds links into
/// `models--owner--name/blobs`.
fn own_place(folder: &Path) -> &Path {
    let model = folder.parent().filter(|snapshots| snapshots.ends_with("snapshots")).and_then(Path::parent);
    let named =
        |model: &&Path| model.file_name().is_some_and(|name| name.to_string_lossy().starts_with("models--"));
    model.filter(named).unwrap_or(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn only_files_that_lie_with_the_model_are_copied_along() {
        let folder = Scratch::new();
        let secret = folder.write("secret", "password");
        let model = folder.write("model/tokenizer.json", "{}").parent().unwrap().to_owned();
        folder.write("model/data/vocab.json", "{}");
        symlink("data/vocab.json", model.join("vocab.json")).unwrap();
        folder.write("model/additional_chat_templates/tool_use.jinja", "");
        folder.write("model/additional_chat_templates/.hidden.jinja", "");
        folder.write("model/additional_chat_templates/notes.txt", "");
        let all = ["tokenizer.json", "vocab.json", "additional_chat_templates/tool_use.jinja"];
        assert_eq!(beside(&model), all);
        refuse_links_elsewhere(&model).unwrap();
        for target in [secret.clone(), "../secret".into(), "../model/../secret".into()] {
            symlink(&target, model.join("tokenizer.model")).unwrap();
            assert_eq!(beside(&model), all);
            let why = refuse_links_elsewhere(&model).unwrap_err().to_string();
            assert!(
                why.contains("tokenizer.model is a link to ") && why.contains("outside the model's folder"),
                "{why}"
            );
            fs::remove_file(model.join("tokenizer.model")).unwrap();
        }
        symlink(&secret, model.join("additional_chat_templates/rag.jinja")).unwrap();
        assert_eq!(beside(&model), all);
        let why = refuse_links_elsewhere(&model).unwrap_err().to_string();
        assert!(why.contains("additional_chat_templates/rag.jinja is a link to "), "{why}");
    }

    #[test]
    fn a_template_beside_the_usual_one_is_a_plain_name_in_its_folder() {
        let template = |name: &str| is_template(&format!("additional_chat_templates/{name}"));
        assert!(template("tool_use.jinja") && template("rag-2.jinja"));
        let others =
            ["", ".jinja", "..jinja", "x.txt", "../x.jinja", "a/b.jinja", "a\u{1b}.jinja", "../../x.jinja"];
        assert!(!others.into_iter().any(template) && !is_template("tool_use.jinja"));
    }

    #[test]
    fn links_of_the_hubs_cache_stay_with_their_model() {
        let folder = Scratch::new();
        folder.write("hub/models--a--b/blobs/0123", "{}");
        folder.write("hub/models--a--private/blobs/4567", "{}");
        let snapshot = folder.write("hub/models--a--b/snapshots/c0ffee/x", "").parent().unwrap().to_owned();
        symlink("../../blobs/0123", snapshot.join("tokenizer.json")).unwrap();
        refuse_links_elsewhere(&snapshot).unwrap();
        assert_eq!(beside(&snapshot), ["tokenizer.json"]);
        symlink("../../../models--a--private/blobs/4567", snapshot.join("vocab.json")).unwrap();
        assert!(refuse_links_elsewhere(&snapshot).is_err());
        assert_eq!(beside(&snapshot), ["tokenizer.json"]);
        // The cache, or the model in it, may itself be a link to another disk.
        fs::remove_file(snapshot.join("vocab.json")).unwrap();
        fs::create_dir_all(folder.path().join("other")).unwrap();
        symlink(folder.path().join("hub/models--a--b"), folder.path().join("other/models--a--b")).unwrap();
        refuse_links_elsewhere(&folder.path().join("other/models--a--b/snapshots/c0ffee")).unwrap();
    }
}
