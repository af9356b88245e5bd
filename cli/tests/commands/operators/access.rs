//! `--metrics-token-file`.

use std::io::Write;
use std::net::TcpStream;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;

use super::super::metrics::http::{Page, answer, request};
use super::*;

fn authorized(at: &str, header: &str) -> Page {
    let mut stream = TcpStream::connect(at).unwrap();
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\nAuthorization: {header}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    answer(stream)
}

#[test]
fn the_metrics_ask_for_the_token_and_probes_do_not() {
    let (first, second) = ("0123456789abcdef", "fedcba9876543210");
    let place = Place::new("data = \"memory\"\n");
    place.write("token", &format!("{first}\n"));
    let token = place.at("token");
    let token = token.to_str().unwrap();
    let server = place.start(&[
        "--metrics-listen=127.0.0.1:0",
        "--metrics-token-file",
        token,
    ]);
    let (_, at) = server.ready.rsplit_once(" metrics ").unwrap();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(request(at, "GET", path).status, 200);
    }
    for method in ["GET", "HEAD"] {
        let refused = request(at, method, "/metrics");
        assert_eq!(refused.status, 401);
        assert!(
            refused.head.contains("www-authenticate: Bearer"),
            "{}",
            refused.head
        );
        assert!(!refused.body.contains("lockkeeper_"), "{}", refused.body);
    }
    let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
    let bearer = |token: &str| format!("Bearer {token}");
    let right = [bearer(first), basic(&format!("prometheus:{first}"))];
    for header in &right {
        assert_eq!(authorized(at, header).status, 200, "{header}");
    }
    let wrong = [
        bearer(second),
        bearer(&first[..15]),
        bearer(&format!("{first}0")),
        bearer(""),
        basic(first),
        basic(&format!("{first}:")),
        "Basic ***".into(),
        first.into(),
    ];
    for header in &wrong {
        assert_eq!(authorized(at, header).status, 401, "{header}");
    }
    place.write("token", second);
    success(&place.admin(&["reload"]));
    assert_eq!(authorized(at, &bearer(second)).status, 200);
    assert_eq!(authorized(at, &right[0]).status, 401);
    place.write("token", "short");
    let refused = place.admin(&["reload"]);
    let said = failure(&refused);
    assert!(
        said.contains(token) && said.contains("expected 16 to 1,024") && !said.contains("short"),
        "{said}"
    );
    assert_eq!(authorized(at, &bearer(second)).status, 200);
    ended_well(&server.end(Signal::TERM));
}
