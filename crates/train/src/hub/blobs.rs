//! Blobs: files that are named by their tag, and verified by it if the tag is a hash.

use sha2::{Digest as _, Sha256};

use super::names::is_lower_hex;
use crate::files::hex;

/// How the content of a file can be verified from its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The tag is the SHA-256 of the content: large files.
    Sha256,
    /// The tag is git's hash of the content: small files.
    GitBlob,
    /// The tag says nothing of the content; only the length can be compared.
    Unknown,
}

/// A file in the folder `blobs`, named by its tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    /// The name: the tag where it is a hash, else a hash of the tag.
    pub(super) name: String,
    /// How to check the content.
    pub(super) content: Content,
}

impl Blob {
    /// The blob of a file with this `ETag` (or `X-Linked-ETag`).
    pub(super) fn of_tag(tag: &str) -> Blob {
        let bare = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
        let content = match bare.len() {
            64 if is_lower_hex(bare) => Content::Sha256,
            40 if is_lower_hex(bare) => Content::GitBlob,
            _ => Content::Unknown,
        };
        let name = match content {
            Content::Unknown => format!("tag-{}", hex(&Sha256::digest(bare))),
            _ => bare.to_owned(),
        };
        Blob { name, content }
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::is_file_name;
    use super::*;

    #[test]
    fn no_tag_leads_out_of_the_folder_of_blobs() {
        let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(
            Blob::of_tag(&format!("\"{hash}\"")),
            Blob { name: hash.into(), content: Content::Sha256 }
        );
        let git = &hash[..40];
        assert_eq!(
            Blob::of_tag(&format!("W/\"{git}\"")),
            Blob { name: git.into(), content: Content::GitBlob }
        );
        for odd in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../../x",
            "a\\b",
            "\u{1}",
            &"a".repeat(5000),
            &hash.to_uppercase(),
        ] {
            let blob = Blob::of_tag(odd);
            assert_eq!((blob.content, blob.name.len()), (Content::Unknown, 68), "{odd:?}");
            assert!(is_file_name(&blob.name) && blob.name.starts_with("tag-"));
        }
        assert_ne!(Blob::of_tag("one"), Blob::of_tag("other"));
    }
}
