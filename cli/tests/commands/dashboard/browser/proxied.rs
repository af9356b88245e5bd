//! The page behind nginx, below a path.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// Ends nginx with this process, however that dies.
const UNTIL_STDIN_ENDS: &str = include_str!("../../../../../tests/until-stdin-ends.sh");

/// nginx with a configuration of its own. Dropping it kills it.
struct Nginx {
    at: String,
    shell: Child,
    _folder: Folder,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Nginx {
    /// Passes `/locks/` on to the dashboard with nginx's defaults, and `/own-host/locks/` with the header `Host` as the
    /// browser has sent it.
    fn before(dashboard: &Dashboard) -> Self {
        let folder = Folder::new();
        let at = format!("127.0.0.1:{}", port_of_a_server());
        let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let places = places.map(|it| format!("{it}_temp_path {}/{it};", folder.0.display()));
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
            folder = folder.0.display(),
            places = places.concat(),
            page = format_args!("http://{}", dashboard.at()),
        );
        fs::write(folder.at("nginx.conf"), configuration).unwrap();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            UNTIL_STDIN_ENDS,
            "until-stdin-ends",
            "/usr/sbin/nginx",
        ]);
        command
            .arg("-e")
            .arg("stderr")
            .arg("-c")
            .arg(folder.at("nginx.conf"));
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        // It writes this once it listens.
        let log = BufReader::new(shell.stderr.take().unwrap());
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
            shell,
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
    // With its defaults nginx keeps a stream back until 4 KiB have come, and these are less than one.
    let mut queue = Events::of(&nginx.at, "/locks/api/lock?path=%2Flocks%2Fa");
    queue.until("lock", |it| it["exists"] == true);

    let page = |path: &str| format!("http://{}{path}#token={}", nginx.at, dashboard.token());
    // nginx adds the slash.
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
