//! Names that come from outside and become part of a path: each is checked here first.
//!
//! A server chooses commits and file names (tags: see `blobs`). None of them may lead out of the cache.

use std::path::Path;

/// Whether `name` has the form of a hub id, `owner/name`.
pub fn is_id(name: &str) -> bool {
    name.split_once('/').is_some_and(|(owner, model)| is_word(owner) && is_word(model))
}

/// The id of a model whose folder is in a cache, which names it `models--owner--name/snapshots/<commit>`.
pub fn id_of(folder: &Path) -> Option<String> {
    let snapshots = folder.parent().filter(|snapshots| snapshots.ends_with("snapshots"))?;
    let id = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?.replacen("--", "/", 1);
    is_id(&id).then_some(id)
}

/// Whether `name` can be a branch, a tag or a commit: words with slashes between them, as in `refs/pr/1`.
pub(super) fn is_revision(name: &str) -> bool {
    name.len() <= 200 && name.split('/').all(is_word)
}

/// Whether `text` can be a commit: letters and digits only. The hub's commits are 40 hexadecimal digits, but other servers
/// may use other names.
pub(super) fn is_commit(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether a revision is a full commit hash, whose meaning never changes.
pub(super) fn is_full_commit(revision: &str) -> bool {
    revision.len() == 40 && is_lower_hex(revision)
}

/// Whether `name` is a plain file name: no folder, nothing that a reader would not see.
pub(super) fn is_file_name(name: &str) -> bool {
    let plain = |c: char| !c.is_control() && !matches!(c, '/' | '\\');
    (1..=200).contains(&name.len()) && name.chars().all(plain) && !matches!(name, "." | "..")
}

fn is_word(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=200).contains(&part.len())
        && part.chars().all(allowed)
        && !part.contains("..")
        && !part.starts_with('.')
}

pub(super) fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_revisions_and_file_names_are_single_steps_down() {
        assert!(is_commit("c0ffee") && is_commit(&"a".repeat(40)));
        let not_commits = ["", ".", "..", "a/b", "a b", "-", "a.b", "é", "\0"];
        assert!(!not_commits.into_iter().any(is_commit) && !is_commit(&"a".repeat(65)));
        assert!(is_revision("main") && is_revision("refs/pr/1") && is_revision("v1.0"));
        assert!(!["", "/", "a//b", "../x", "a/..", ".git", "a b"].into_iter().any(is_revision));
        assert!(is_file_name("model-00001-of-00002.safetensors") && is_file_name("ein name.json"));
        let not_files = ["", ".", "..", "a/b", "/a", "a\\b", "a\nb", "a\u{1b}b", "\0"];
        assert!(!not_files.into_iter().any(is_file_name));
    }
}
