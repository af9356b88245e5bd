//! [`Target`]: the URL of a store, parsed.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::model::error::{Error, TargetError};
use crate::model::path::ZnodePath;

/// URL of a store:
///
/// - `memory:` or `memory:NAME`.
/// - `file:PATH`, relative (`file:./data`) or absolute (`file:/var/lib/app`, `file:///var/lib/app`). The path is used
///   verbatim, without any encoding. A leading `~` is refused, because only a shell expands it.
/// - `lockkeeper://host:port[/chroot]`, a store served by another process.
/// - `lockkeeper+unix:///path/of.sock[?chroot=/app]`, the same over a Unix socket. The query may also contain
///   [`end_with_process=false`](crate::ConnectOptions::end_with_process).
/// - `zookeeper://host:port[,host:port…][/chroot]`.
/// - `etcd://host:port[,host:port…][/prefix]`, with the feature `etcd`.
///
/// The schemes `lockkeeper+tls://…`, `zookeeper+tls://…` and `etcd+tls://…` require TLS and a certificate authority in
/// [`ConnectOptions::tls`](crate::ConnectOptions::tls). The schemes without `+tls` use TLS if that option is set.
///
/// ```
/// use lockkeeper_store::Target;
///
/// let target: Target = "zookeeper://zk1:2181,zk2/app".parse()?;
/// assert_eq!(target.to_string(), "zookeeper://zk1:2181,zk2:2181/app");
/// assert_eq!("memory:".parse::<Target>()?, Target::memory());
/// # Ok::<(), lockkeeper_store::TargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target(pub(crate) TargetKind);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TargetKind {
    Memory {
        name: String,
    },
    File {
        path: PathBuf,
    },
    Served {
        kind: ServerKind,
        hosts: Vec<String>,
        chroot: ZnodePath,
        tls: bool,
    },
    ServedUnix {
        path: PathBuf,
        chroot: ZnodePath,
        ends_with_process: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServerKind {
    Lockkeeper,
    ZooKeeper,
    Etcd,
}

impl ServerKind {
    fn scheme(self) -> &'static str {
        match self {
            Self::Lockkeeper => "lockkeeper",
            Self::ZooKeeper => "zookeeper",
            Self::Etcd => "etcd",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Lockkeeper | Self::ZooKeeper => 2181,
            Self::Etcd => 2379,
        }
    }
}

impl Target {
    /// Returns the default store of this process, `memory:`.
    pub fn memory() -> Self {
        Self(TargetKind::Memory {
            name: String::new(),
        })
    }

    /// Returns the store in a local directory, `file:PATH`.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(TargetKind::File { path: path.into() })
    }

    /// Returns a ZooKeeper server or ensemble, given as `host[:port][,host[:port]…][/chroot]`.
    ///
    /// # Errors
    /// A [`TargetError`] that names the invalid part and the reason.
    pub fn zookeeper(hosts: &str) -> Result<Self, TargetError> {
        served(
            ServerKind::ZooKeeper,
            &format!("zookeeper://{hosts}"),
            hosts,
            false,
        )
    }

    /// Returns a store served by another process, given as `host[:port][/chroot]`.
    ///
    /// # Errors
    /// A [`TargetError`] that names the invalid part and the reason.
    pub fn served(host: &str) -> Result<Self, TargetError> {
        served(
            ServerKind::Lockkeeper,
            &format!("lockkeeper://{host}"),
            host,
            false,
        )
    }

    /// Returns a store served over a Unix socket, given as `/path/of.sock[?chroot=/app]`.
    ///
    /// # Errors
    /// A [`TargetError`] that names the invalid part and the reason.
    pub fn served_unix(socket: &str) -> Result<Self, TargetError> {
        served_unix(&format!("lockkeeper+unix://{socket}"), socket)
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(url: &str) -> Result<Self, TargetError> {
        parse(url).map_err(|error| without_password(url, error))
    }
}

fn parse(url: &str) -> Result<Target, TargetError> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match (scheme, rest.strip_prefix("//")) {
        ("memory", None) => memory(url, rest),
        ("file", path) => file(url, path.unwrap_or(rest)),
        ("lockkeeper", host) => {
            served(ServerKind::Lockkeeper, url, host.unwrap_or_default(), false)
        }
        ("lockkeeper+tls", host) => {
            served(ServerKind::Lockkeeper, url, host.unwrap_or_default(), true)
        }
        ("lockkeeper+unix", socket) => served_unix(url, socket.unwrap_or_default()),
        ("zookeeper", hosts) => {
            served(ServerKind::ZooKeeper, url, hosts.unwrap_or_default(), false)
        }
        ("etcd", hosts) => served(ServerKind::Etcd, url, hosts.unwrap_or_default(), false),
        ("etcd+tls", hosts) => served(ServerKind::Etcd, url, hosts.unwrap_or_default(), true),
        ("zookeeper+tls", hosts) => {
            served(ServerKind::ZooKeeper, url, hosts.unwrap_or_default(), true)
        }
        _ => Err(TargetError::UnknownScheme {
            url: url.into(),
            scheme: scheme.into(),
        }),
    }
}

/// Removes URLs that may contain a password from an error, because errors end up in logs. [`hosts_and_chroot`] misses
/// credentials if the scheme or the slashes are missing, or if the password contains a slash.
fn without_password(url: &str, error: TargetError) -> TargetError {
    if !url.contains('@') {
        return error;
    }
    match error {
        TargetError::UnknownScheme { .. } => TargetError::UnknownScheme {
            url: "(not shown: it holds credentials)".into(),
            scheme: match url.split_once("://") {
                Some((scheme, _)) if !scheme.contains([':', '@']) => scheme.into(),
                _ => String::new(),
            },
        },
        TargetError::NoHost { .. }
        | TargetError::BadPart {
            part: "host" | "port",
            ..
        } => TargetError::Credentials,
        TargetError::BadPart { part: "socket", .. } if !url.contains("://") => {
            TargetError::Credentials
        }
        other => other,
    }
}

fn bad(url: &str, part: &'static str, text: &str, reason: &'static str) -> TargetError {
    TargetError::BadPart {
        url: url.into(),
        part,
        text: text.into(),
        reason,
    }
}

fn memory(url: &str, name: &str) -> Result<Target, TargetError> {
    if !name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    {
        let reason = "letters, digits, `-`, `_` and `.` only";
        return Err(bad(url, "store name", name, reason));
    }
    Ok(Target(TargetKind::Memory { name: name.into() }))
}

fn file(url: &str, path: &str) -> Result<Target, TargetError> {
    // In a file URL, a host may follow `//`. We accept only the empty host, which means this machine.
    let is_foreign = url.starts_with("file://") && !path.starts_with('/');
    let reason = match path {
        "" => "a path is missing",
        _ if is_foreign => "after `file://` the path is absolute: `file:///var/lib/app`",
        _ if path.contains('\0') => "a path holds no NUL",
        // A shell expands `~`, but we would create a directory of that name.
        _ if path.starts_with('~') => {
            "`~` is expanded by shells, and not in a URL: write the whole path, or `./~` for a folder \
             of that name"
        }
        _ => return Ok(Target::file(path)),
    };
    Err(bad(url, "folder", path, reason))
}

fn served(kind: ServerKind, url: &str, rest: &str, tls: bool) -> Result<Target, TargetError> {
    let (hosts, chroot) = hosts_and_chroot(kind, url, rest)?;
    if kind == ServerKind::Lockkeeper && hosts.len() > 1 {
        let hosts = hosts.join(",");
        return Err(bad(url, "host", &hosts, "lockkeeper:// takes one server"));
    }
    Ok(Target(TargetKind::Served {
        kind,
        hosts,
        chroot,
        tls,
    }))
}

const MAX_SOCKET_PATH: usize = 107;

fn served_unix(url: &str, rest: &str) -> Result<Target, TargetError> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let reason = match path.split('/').next() {
        Some(host) if host.contains('@') => return Err(TargetError::Credentials),
        Some("") if path.is_empty() => "a path is missing: lockkeeper+unix:///run/lockkeeper.sock",
        Some("") if path.ends_with('/') => "it is a directory's path, not a socket's",
        Some("") if path.len() > MAX_SOCKET_PATH => {
            "it is longer than a Unix socket's address can be (107 bytes)"
        }
        Some("") if path.contains('\0') => "a path holds no NUL",
        Some("") => "",
        _ => {
            "a Unix socket has no host, and its path is absolute: lockkeeper+unix:///run/lockkeeper.sock"
        }
    };
    if !reason.is_empty() {
        return Err(bad(url, "socket", path, reason));
    }
    let (mut root, mut ends_with_process) = (None, None);
    for option in query.split('&').filter(|_| !query.is_empty()) {
        let bad_option = |reason| bad(url, "option", option, reason);
        match option.split_once('=') {
            Some(("chroot", _)) if root.is_some() => return Err(bad_option("it is given twice")),
            Some(("chroot", path)) => root = Some(chroot(url, path)?),
            Some(("end_with_process", _)) if ends_with_process.is_some() => {
                return Err(bad_option("it is given twice"));
            }
            Some(("end_with_process", "true")) => ends_with_process = Some(true),
            Some(("end_with_process", "false")) => ends_with_process = Some(false),
            _ => {
                return Err(bad_option(
                    "expected chroot=/PATH or end_with_process=true|false",
                ));
            }
        }
    }
    Ok(Target(TargetKind::ServedUnix {
        path: path.into(),
        chroot: root.unwrap_or_else(ZnodePath::root),
        ends_with_process: ends_with_process.unwrap_or(true),
    }))
}

fn chroot(url: &str, path: &str) -> Result<ZnodePath, TargetError> {
    ZnodePath::new(path).map_err(|error| match error {
        Error::InvalidPath { path, reason } => bad(url, "chroot", &path, reason),
        _ => unreachable!("a path is either valid or an InvalidPath"),
    })
}

fn hosts_and_chroot(
    kind: ServerKind,
    url: &str,
    rest: &str,
) -> Result<(Vec<String>, ZnodePath), TargetError> {
    let (hosts, root) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    if hosts.contains('@') {
        return Err(TargetError::Credentials);
    }
    if hosts.is_empty() {
        return Err(TargetError::NoHost { url: url.into() });
    }
    let hosts: Vec<String> = hosts
        .split(',')
        .map(|host| host_and_port(kind, url, host))
        .collect::<Result<_, _>>()?;
    Ok((hosts, chroot(url, root)?))
}

fn host_and_port(kind: ServerKind, url: &str, text: &str) -> Result<String, TargetError> {
    let (host, port) = match text.rsplit_once(':') {
        // In an IPv6 address without brackets, a colon does not separate a port.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let bad_host = |reason| bad(url, "host", host, reason);
    if host.is_empty() {
        return Err(TargetError::NoHost { url: url.into() });
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(bad_host("an IPv6 address is written in brackets"));
    }
    if !host
        .chars()
        .all(|c| c.is_alphanumeric() || "-_.[]:%".contains(c))
    {
        return Err(bad_host("it contains a character that no host name has"));
    }
    let port = match port {
        None => kind.default_port(),
        Some(port) => match port.parse::<u16>() {
            Ok(number) if number > 0 && !port.starts_with('+') => number,
            _ => {
                return Err(bad(url, "port", port, "expected a number from 1 to 65535"));
            }
        },
    };
    Ok(format!("{host}:{port}"))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            TargetKind::Memory { name } => write!(f, "memory:{name}"),
            // After `file:`, the parser would mistake the start of a path with two leading slashes for a host.
            TargetKind::File { path } if path.as_os_str().as_encoded_bytes().starts_with(b"//") => {
                write!(f, "file://{}", path.display())
            }
            TargetKind::File { path } => write!(f, "file:{}", path.display()),
            TargetKind::Served {
                kind,
                hosts,
                chroot,
                tls,
            } => {
                let (scheme, tls) = (kind.scheme(), if *tls { "+tls" } else { "" });
                write!(f, "{scheme}{tls}://{}", hosts.join(","))?;
                match chroot.is_root() {
                    true => Ok(()),
                    false => write!(f, "{chroot}"),
                }
            }
            TargetKind::ServedUnix {
                path,
                chroot,
                ends_with_process,
            } => {
                write!(f, "lockkeeper+unix://{}", path.display())?;
                match (chroot.is_root(), ends_with_process) {
                    (true, true) => Ok(()),
                    (false, true) => write!(f, "?chroot={chroot}"),
                    (true, false) => f.write_str("?end_with_process=false"),
                    (false, false) => write!(f, "?chroot={chroot}&end_with_process=false"),
                }
            }
        }
    }
}

impl TryFrom<&str> for Target {
    type Error = TargetError;

    fn try_from(url: &str) -> Result<Self, TargetError> {
        url.parse()
    }
}

impl TryFrom<&String> for Target {
    type Error = TargetError;

    fn try_from(url: &String) -> Result<Self, TargetError> {
        url.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls_come_back_as_written() {
        for url in [
            "memory:",
            "memory:orders-2",
            "file:./data",
            "file:/var/lib/app",
            "zookeeper://a:1",
            "zookeeper://a:2181,b.example:2182/app/x",
            "zookeeper://[::1]:2181",
            "lockkeeper://127.0.0.1:2181",
            "lockkeeper://keeper.example:2182/app",
            "lockkeeper+tls://keeper.example:2281/app",
            "zookeeper+tls://a:2281,b.example:2282/app/x",
            "etcd+tls://a:2379,b.example:2380/app/x",
            "lockkeeper+unix:///run/lockkeeper.sock",
            "lockkeeper+unix:///run/lock keeper@1.sock?chroot=/app/x",
            "lockkeeper+unix:///run/a.sock?end_with_process=false",
            "lockkeeper+unix:///run/a.sock?chroot=/app&end_with_process=false",
        ] {
            assert_eq!(url.parse::<Target>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn a_file_url_may_have_an_empty_host() {
        assert_eq!(
            "file:///a/b".parse::<Target>().unwrap(),
            Target::file("/a/b")
        );
    }

    #[test]
    fn the_error_of_a_bad_url_names_the_part_and_the_reason() {
        for (url, says) in [
            ("", "\"\" has no scheme"),
            ("memory", "\"memory\" has no scheme"),
            ("redis://a", "unknown scheme \"redis\""),
            ("memory://x", "unknown scheme \"memory\""),
            ("file:", "bad folder \"\" in \"file:\": a path is missing"),
            ("file://", "a path is missing"),
            ("file://host/x", "after `file://` the path is absolute"),
            ("file:a\0b", "no NUL"),
            (
                "file:~/x",
                "bad folder \"~/x\" in \"file:~/x\": `~` is expanded by shells",
            ),
            ("file:~", "write the whole path"),
            ("file:~ann/x", "write the whole path"),
            ("memory:a/b", "bad store name \"a/b\""),
            ("zookeeper:", "no host in"),
            ("zookeeper://", "no host in"),
            ("zookeeper:///app", "no host in"),
            ("lockkeeper:", "no host in"),
            ("lockkeeper://a,b", "lockkeeper:// takes one server"),
            ("lockkeeper+tls://a,b", "takes one server"),
            ("lockkeeper+tls:", "no host in"),
            ("zookeeper+tls:///app", "no host in"),
            ("file+tls:a", "unknown scheme \"file+tls\""),
            (
                "zookeeper+tls://u:secret@a",
                "credentials do not belong in a URL",
            ),
            (
                "lockkeeper://u:secret@a",
                "credentials do not belong in a URL",
            ),
            ("lockkeeper+unix:", "a path is missing"),
            ("lockkeeper+unix:/run/a.sock", "a path is missing"),
            ("lockkeeper+unix://", "a path is missing"),
            ("lockkeeper+unix://?chroot=/a", "a path is missing"),
            ("lockkeeper+unix:///", "a directory's path"),
            ("lockkeeper+unix:///run/", "a directory's path"),
            ("lockkeeper+unix://host/a.sock", "a Unix socket has no host"),
            ("lockkeeper+unix://a.sock", "its path is absolute"),
            ("lockkeeper+unix:///a\0b", "no NUL"),
            (
                "lockkeeper+unix://u:secret@h/a.sock",
                "credentials do not belong in a URL",
            ),
            ("lockkeeper+unix:///a.sock?root=/x", "expected chroot=/PATH"),
            ("lockkeeper+unix:///a.sock?chroot", "expected chroot=/PATH"),
            (
                "lockkeeper+unix:///a.sock?end_with_process=no",
                "expected chroot=/PATH or end_with_process=true|false",
            ),
            ("lockkeeper+unix:///a.sock?chroot=x", "bad chroot \"x\""),
            (
                "lockkeeper+unix:///a.sock?chroot=/x&chroot=/y",
                "given twice",
            ),
            ("zookeeper://:2181", "no host in"),
            ("zookeeper://a,,b", "no host in"),
            ("zookeeper://a:0", "bad port \"0\""),
            ("zookeeper://a:65536", "bad port \"65536\""),
            ("zookeeper://a:zk", "bad port \"zk\""),
            ("zookeeper://a:", "bad port \"\""),
            ("zookeeper://::1", "an IPv6 address is written in brackets"),
            ("zookeeper://a b:1", "bad host \"a b\""),
            ("zookeeper://a:1/x/", "it must not end with `/`"),
            (
                "zookeeper://u:secret@a:1",
                "credentials do not belong in a URL",
            ),
        ] {
            let said = url.parse::<Target>().expect_err(url).to_string();
            assert!(said.contains(says), "{url:?}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn a_socket_path_may_have_as_many_bytes_as_an_address() {
        let url = |bytes: usize| format!("lockkeeper+unix:///{}", "a".repeat(bytes - 1));
        assert!(url(107).parse::<Target>().is_ok());
        let said = url(108).parse::<Target>().unwrap_err().to_string();
        assert!(
            said.contains("longer than a Unix socket's address"),
            "{said}"
        );
    }

    /// Found by the fuzzer `url`: errors showed the password of a URL without slashes or a scheme.
    #[test]
    fn no_error_shows_a_password() {
        for url in [
            "zookeeper:user:secret@zk1:2181/app",
            "zookeeper+tls:user:secret@zk1:2181/app",
            "zookeeper:/user:secret@zk1:2181",
            "zookeeper://user:sec/secret@zk1",
            "lockkeeper:secret@host",
            "lockkeeper+unix:secret@run/l.sock",
            "secret@zk1:2181",
            "secret@zk1",
            "user:secret@zk1:2181",
            "redis://user:secret@zk1",
        ] {
            let error = url.parse::<Target>().unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("secret"), "{url}: {shown}");
        }
    }

    #[test]
    fn a_path_with_two_slashes_in_front_comes_back() {
        let target = Target::file("//host/share");
        assert_eq!(target.to_string().parse(), Ok(target));
    }

    #[test]
    fn a_path_may_have_an_at_sign() {
        for url in [
            "file:/data@home",
            "lockkeeper+unix:///run/app@1.sock",
            "zookeeper://zk1:2181/app@1",
        ] {
            let target = url.parse::<Target>().unwrap();
            assert_eq!(target.to_string(), url);
        }
        let error = "zookeeper://zk1/a@//b".parse::<Target>().unwrap_err();
        assert!(
            matches!(error, TargetError::BadPart { part: "chroot", .. }),
            "{error:?}"
        );
    }
}
