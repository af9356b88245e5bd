//! Parsers of option values: durations, sizes, addresses, and the like.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Range of valid durations. A duration of more than about a year must be a mistake.
const DURATIONS: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(375 * 24 * 60 * 60);

const OUT_OF_RANGE: &str = "a duration is from 1ms to 375d";

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match timeout(text)? {
        Duration::ZERO => Err(OUT_OF_RANGE.into()),
        some => Ok(some),
    }
}

/// Parses the timeout of a lock. Zero means a single attempt.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(some) if some.is_zero() || DURATIONS.contains(&some) => Ok(some),
        Ok(_) => Err(OUT_OF_RANGE.into()),
        Err(_) => Err("a duration is written as 500ms, 1.5s, 2m, 1h30m or 1d".into()),
    }
}

pub(crate) fn busy_poll(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(limit) if limit <= Duration::from_millis(10) => Ok(limit),
        _ => Err("expected 0, or a number with its unit: 100us, 1ms; at most 10ms".into()),
    }
}

pub(crate) fn shown(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{ms}ms"),
    }
}

/// Parses a number of bytes. The units are powers of 1,024.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => {
            return Err(
                "a size is a number of bytes, such as 1048575, 64K, 16M, 1MiB or 2G".into(),
            );
        }
    };
    let bytes = number.and_then(|number: u64| number.checked_mul(factor));
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a size is a whole number of bytes above 0, and less than 16 EiB".to_owned())
}

fn split(text: &str) -> (Option<u64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    (number.parse().ok(), unit)
}

pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("a whole number above 0 is expected".into()),
    }
}

pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").map(str::parse::<u16>);
    if let Some(Ok(port)) = local {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| {
        "an address is an IP address of this machine and a port, such as 127.0.0.1:2181, [::1]:2181 \
         or 0.0.0.0:2181"
            .into()
    })
}

pub(crate) fn host(text: &str) -> Result<String, String> {
    let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    match !text.is_empty() && text.len() <= 253 && text.bytes().all(is_name) {
        true => Ok(text.to_owned()),
        false => Err("expected the name of a host, without a port".into()),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            // Refuse a path that cannot be meant literally, such as `~/socket`, because only shells expand `~`.
            Some(path) if path.is_empty() || path.starts_with('~') || path.ends_with('/') => {
                Err("a Unix socket is given as unix:PATH, such as unix:/run/lockkeeper.sock".into())
            }
            Some(path) => Ok(Self::Unix(path.into())),
            None => address(text)
                .map(Self::Tcp)
                .map_err(|why| format!("{why}, or unix:PATH for a Unix socket")),
        }
    }
}

pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let is_octal = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| is_octal && *mode <= 0o777)
        .ok_or_else(|| "a mode is three octal digits, such as 600 or 660".into())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Memory,
    Folder(PathBuf),
}

impl FromStr for Data {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a directory is expected, or memory".into()),
            "memory" | "memory:" => Ok(Self::Memory),
            url if url.starts_with("file:") || url.contains("://") => Err(
                "a directory is expected, not a URL: write its path only, or ./ before it".into(),
            ),
            // Refuse a leading `~`, because it would become part of a name in the working directory.
            _ if text.starts_with('~') => {
                Err("`~` is expanded by shells, and not here: write the \
                 whole path, or ./~ for a folder of that name"
                    .into())
            }
            path => Ok(Self::Folder(path.into())),
        }
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Folder(path) => path.display().fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AuditPlace {
    Stdout,
    File(PathBuf),
}

impl FromStr for AuditPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "-" => Ok(Self::Stdout),
            "" => Err("expected a file, or - for stdout".into()),
            path => Ok(Self::File(path.into())),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Digest(pub(crate) String);

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Do not repeat the text, because a password given by mistake must not be logged.
        let wrong = "a digest is user:base64(sha1(user:password)), 28 characters behind the colon: \
                     `lockkeeper digest USER` makes one";
        match text.split_once(':') {
            Some((user, hash)) if !user.is_empty() && is_sha1(hash) => Ok(Self(text.into())),
            _ => Err(wrong.into()),
        }
    }
}

fn is_sha1(text: &str) -> bool {
    let letter = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
    let (letters, end) = text.as_bytes().split_at_checked(27).unwrap_or_default();
    end == b"=" && letters.iter().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_only_a_shell_would_find_is_refused() {
        for folder in ["~", "~/store", "~ann/store"] {
            let refusal = folder.parse::<Data>().unwrap_err();
            assert!(refusal.contains("write the whole path"), "{refusal}");
        }
        for url in ["file:/var/lib/lockkeeper", "lockkeeper://127.0.0.1:2181"] {
            let refusal = url.parse::<Data>().unwrap_err();
            assert!(refusal.contains("not a URL"), "{refusal}");
        }
        assert_eq!("memory:".parse(), Ok(Data::Memory));
        let named_so = "./~/store".parse();
        assert_eq!(named_so, Ok(Data::Folder("./~/store".into())));
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(duration("1d"), Ok(Duration::from_secs(86_400)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("54m 56s"), Ok(Duration::from_secs(3_296)));
        assert_eq!(duration("1s500ms"), Ok(Duration::from_millis(1_500)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1_500)));
        assert_eq!(duration("0.25h"), Ok(Duration::from_secs(900)));
        assert_eq!(duration("375d"), Ok(Duration::from_secs(9_000 * 3_600)));
        for wrong in [
            "", "2", "s", "-1s", "1e3s", ".5s", "1.s", "1h30", "2S", "0s", "0.0001s", "9001h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_is_shown_as_it_may_be_written() {
        for text in ["500ms", "1500ms", "2s", "90s", "1m", "60m"] {
            assert_eq!(shown(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        assert_eq!(bytes("1048575"), Ok(1_048_575));
        assert_eq!(bytes("64K"), Ok(65_536));
        assert_eq!(bytes("1MiB"), Ok(1 << 20));
        assert_eq!(bytes("16M"), Ok(16 << 20));
        assert_eq!(bytes("2G"), bytes("2GiB"));
        for wrong in [
            "",
            "0",
            "M",
            "1.5M",
            "-1",
            "1MB",
            "1 M",
            "99999999999999999999",
            "99999999999G",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_is_no_name() {
        assert!(address("127.0.0.1:0").is_ok() && address("[::1]:2181").is_ok());
        assert_eq!(address("localhost:7"), address("127.0.0.1:7"));
        for wrong in [
            "",
            "2181",
            ":2181",
            "127.0.0.1",
            "127.0.0.1:65536",
            "zk1:2181",
            "localhost:",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_unix_socket_has_a_path() {
        assert_eq!(
            "unix:/run/a b.sock".parse(),
            Ok(Listen::Unix("/run/a b.sock".into()))
        );
        assert_eq!(
            "127.0.0.1:7".parse(),
            Ok(Listen::Tcp(([127, 0, 0, 1], 7).into()))
        );
        for wrong in [
            "unix:",
            "unix:~/a.sock",
            "unix:/run/",
            "unix",
            "/run/a.sock",
        ] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_mode_is_octal() {
        assert_eq!(mode("600"), Ok(0o600));
        assert_eq!(mode("0660"), Ok(0o660));
        for wrong in ["", "1777", "9", "0o600", "-1", "+7", "rw"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_digest_is_no_password() {
        let digest = "super:+w1fc8FVU8fvmFdNh2QYWSHlIkY="
            .parse::<Digest>()
            .unwrap();
        assert_eq!(digest.0, "super:+w1fc8FVU8fvmFdNh2QYWSHlIkY=");
        for wrong in [
            "super:secret",
            "secret",
            ":+w1fc8FVU8fvmFdNh2QYWSHlIkY=",
            "a:b:+w1fc8FVU8fvmFdNh2QYWSHlIkY=",
        ] {
            let said = wrong.parse::<Digest>().unwrap_err();
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
