//! The page behind nginx, where it is served below a path.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use testkit::{ChildProcess, free_address, with_death_signal};

use super::*;

/// nginx with its own configuration. Dropping this kills nginx.
struct Nginx {
    at: String,
    _process: ChildProcess,
    _folder: TempFolder,
}

impl Nginx {
    /// Starts an nginx that forwards `/locks/` to the dashboard with nginx's defaults. It also forwards
    /// `/own-host/locks/`, with the `Host` header of the browser.
    fn before(dashboard: &Dashboard) -> Self {
        let folder = TempFolder::short();
        let at = free_address().to_string();
        let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let places = places.map(|it| format!("{it}_temp_path {}/{it};", folder.path().display()));
        let configuration = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log stderr notice; events {{}}
            http {{
                access_log off; {places}
                server {{
                    listen {at};
                    location /locks/ {{ proxy_pass {page}/; }}
                    location /own-host/locks/ {{ proxy_pass {page}/; proxy_set_header Host $http_host; }}
                }}
            }}",
            folder = folder.path().display(),
            places = places.concat(),
            page = format_args!("http://{}", dashboard.at()),
        );
        fs::write(folder.at("nginx.conf"), configuration).unwrap();
        let mut command = with_death_signal("/usr/sbin/nginx");
        command
            .args(["-e", "stderr", "-c"])
            .arg(folder.at("nginx.conf"));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut command);
        // nginx logs this line once it listens.
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut lines = log.lines().map_while(Result::ok);
        let said: Vec<_> = lines
            .by_ref()
            .take_while(|it| !it.contains("event method"))
            .collect();
        let next = lines.next();
        assert!(
            next.is_some(),
            "nginx has ended (tests/run installs it): {said:?}"
        );
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            at,
            _process: process,
            _folder: folder,
        }
    }
}

#[test]
fn the_page_works_behind_nginx_below_a_path() {
    let store = StoreAt::served();
    let locks = Locks::of(&store);
    let held = locks.hold("a", labelled("first"));
    let dashboard = Dashboard::start(&store, &["--allow-revoke"]);
    let nginx = Nginx::before(&dashboard);
    // By default, nginx buffers up to 4 KiB of a stream. These events are smaller than 1 KiB, so they must arrive
    // unbuffered.
    let mut queue = Events::of(&nginx.at, "/locks/api/lock?path=%2Flocks%2Fa");
    queue.until("lock", |it| it["exists"] == true);

    let page = |path: &str| format!("http://{}{path}#token={}", nginx.at, dashboard.token());
    // nginx adds the missing slash at the end.
    let window = Window::open(&page("/locks"));
    window.until_text("#locks tbody a.lock", "a");
    window.until_live();
    window.click("#locks tbody a.lock");
    window.until_text("#queue li.holder .label", "first");
    window.was_clean(&[]);

    let window = Window::open(&page("/own-host/locks/"));
    window.until_text("#locks tbody a.lock", "a");
    window.click("#locks tbody a.lock");
    window.until_text("#queue li.holder .label", "first");
    window.press("r");
    window.until("document.querySelector('#revoke').open");
    window.click("#revoke-confirm");
    locks
        .runtime
        .block_on(held.guard.revocation_requested())
        .unwrap();
    window.was_clean(&[]);
}
