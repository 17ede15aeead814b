//! Addresses: the target of a redirect, and whether two addresses belong to the same server.

use ureq::http::Uri;

use super::fault::{Fault, shown};

/// The server of an address: scheme, host, port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    secure: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// The server of `uri`; `None` if that is no web address, or contains a name and a password.
    pub(super) fn of(uri: &Uri) -> Option<Origin> {
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Some(Origin { secure, host: authority.host().to_ascii_lowercase(), port })
    }
}

/// The address that `location` means in an answer from `from`.
///
/// # Errors
///
/// When it is none, or would leave https for http.
pub(super) fn redirected(from: &Uri, location: &str) -> Result<Uri, Fault> {
    let refused = |why: &str| Fault::Refused(format!("it redirects to `{}`, {why}", shown(location)));
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, authority) = (from.scheme_str().unwrap_or_default(), from.authority());
    let server = format!("{scheme}://{}", authority.map_or("", |authority| authority.as_str()));
    let whole = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{server}{location}")
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{server}{folder}/{location}")
    };
    let uri: Uri = whole.parse().map_err(|_| refused("which is no address"))?;
    let origin = Origin::of(&uri).ok_or_else(|| refused("which is no address of a web server"))?;
    if scheme == "https" && !origin.secure {
        return Err(refused("which is not encrypted"));
    }
    Ok(uri)
}

/// A part of an address, with everything but plain letters, digits and `-._~` in its percent form.
pub(super) fn encoded(part: &str) -> String {
    let digit = |four: u8| char::from(b"0123456789ABCDEF"[usize::from(four)]);
    let mut text = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn a_server_is_its_scheme_its_host_and_its_port() {
        let origin = |text: &str| Origin::of(&uri(text));
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443/b?c"));
        for other in
            ["http://hub.example", "https://hub.example:444", "https://hub.example.evil", "https://evil"]
        {
            assert_ne!(origin("https://hub.example"), origin(other));
        }
        assert_eq!(origin("https://hub.example@evil/"), None, "a name before the host is no host");
        assert_eq!((origin("ftp://hub.example/"), origin("/path")), (None, None));
    }

    #[test]
    fn redirects_are_resolved_and_never_leave_encryption() {
        let from = uri("https://hub.example/owner/model/resolve/main/config.json?x=1");
        let to = |location: &str| redirected(&from, location).map(|uri| uri.to_string()).ok();
        assert_eq!(to("/other/file#part").as_deref(), Some("https://hub.example/other/file"));
        assert_eq!(to("//cdn.example/f").as_deref(), Some("https://cdn.example/f"));
        assert_eq!(to("near?y").as_deref(), Some("https://hub.example/owner/model/resolve/main/near?y"));
        assert_eq!(to("https://cdn.example/f").as_deref(), Some("https://cdn.example/f"));
        for refused in [
            "http://hub.example/f",
            "file:///etc/passwd",
            "https://a@b/",
            "ftp://x/",
            "https://",
            "http://x y/",
        ] {
            assert_eq!(to(refused), None, "{refused}");
        }
        let plain = uri("http://127.0.0.1:8080/a");
        assert!(redirected(&plain, "http://127.0.0.1:9/b").is_ok());
    }

    #[test]
    fn a_part_of_an_address_stays_one_part() {
        assert_eq!(encoded("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b?#%.safetensors"), "a%20b%3F%23%25.safetensors");
    }
}
