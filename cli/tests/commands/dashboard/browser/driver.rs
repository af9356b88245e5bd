//! A headless Chromium, which we control over the pipe of its DevTools protocol. This needs no port and no other
//! program. The browser ends when this process ends, for whatever reason.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::super::support::TempFolder;

/// Time after which a condition counts as failed.
const LIMIT: Duration = Duration::from_secs(60);

/// Connects the browser's files 3 and 4 to the pipe. Removes the browser's folder when the browser has ended, even if
/// this process was killed. Ignores signals from the terminal, because the browser ends on its own when the test ends.
const START: &str = r#"
folder=$1; shift
trap '' INT TERM HUP
HOME=$folder "$@" 3<&0 4>&1 </dev/null >/dev/null 2>"$folder.log"
rm -rf "$folder" "$folder.log"
"#;

const OPTIONS: [&str; 15] = [
    "--headless=new",
    "--remote-debugging-pipe",
    // Root has no sandbox. This is safe, because the browser shows only our own pages.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    // Turn off traffic in the background.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-default-browser-check",
    // Do not slow down hidden windows, because tests run concurrently in windows that cover each other.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--lang=en",
];

struct Browser {
    commands: Mutex<ChildStdin>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    has_ended: bool,
    answers: HashMap<u64, Sender<Value>>,
    events: HashMap<String, Sender<Value>>,
}

fn browser() -> &'static Browser {
    static BROWSER: OnceLock<Browser> = OnceLock::new();
    BROWSER.get_or_init(Browser::start)
}

impl Browser {
    fn start() -> Self {
        // The shell removes this folder, because statics are never dropped.
        let folder = std::mem::ManuallyDrop::new(TempFolder::short());
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh"]).arg(folder.path());
        command.arg("chromium").args(OPTIONS);
        command.arg(format!(
            "--user-data-dir={}",
            folder.at("profile").display()
        ));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            browser().receive(answers);
            child.wait()
        });
        Self {
            commands: Mutex::new(commands),
            waiting: Mutex::default(),
        }
    }

    fn receive(&self, answers: ChildStdout) {
        let messages = BufReader::new(answers).split(0).map_while(Result::ok);
        for message in messages {
            let mut message: Value = serde_json::from_slice(&message).unwrap();
            if message["method"] == "Page.javascriptDialogOpening" {
                // Close the dialog, because it would block the rest of the page. The event is still recorded below.
                let session = message["sessionId"].as_str();
                drop(self.send(
                    session,
                    "Page.handleJavaScriptDialog",
                    json!({"accept": false}),
                ));
            }
            let mut waiting = self.waiting.lock().unwrap();
            if let Some(id) = message["id"].as_u64() {
                waiting.answers.remove(&id).map(|it| it.send(message));
            } else if let Some(session) = message["sessionId"].take().as_str() {
                waiting.events.get(session).map(|it| it.send(message));
            }
        }
        let mut waiting = self.waiting.lock().unwrap();
        waiting.has_ended = true;
        waiting.answers.clear();
    }

    fn send(&self, session: Option<&str>, method: &str, parameters: Value) -> Receiver<Value> {
        let (tell, answer) = channel();
        let id = {
            let mut waiting = self.waiting.lock().unwrap();
            waiting.last += 1;
            let id = waiting.last;
            if !waiting.has_ended {
                waiting.answers.insert(id, tell);
            }
            id
        };
        let mut command = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = session {
            command["sessionId"] = session.into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        // Ignore an error. If the browser has ended, the receiver of the answer notices this.
        let _ = self.commands.lock().unwrap().write_all(&bytes);
        answer
    }

    fn call(&self, session: Option<&str>, method: &str, parameters: Value) -> Result<Value, Value> {
        let answer = self.send(session, method, parameters);
        let mut answer = answer.recv_timeout(LIMIT).unwrap_or_else(|_| {
            panic!("{method}: chromium is missing, has ended, or does not answer (tests/run installs it)")
        });
        match answer["error"].take() {
            Value::Null => Ok(answer["result"].take()),
            error => Err(error),
        }
    }

    fn must(&self, session: Option<&str>, method: &str, parameters: Value) -> Value {
        let answer = self.call(session, method, parameters);
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }
}

/// A browser window with its own storage.
pub(super) struct Window {
    session: String,
    context: String,
    events: Receiver<Value>,
    /// The only origin to which the window may send requests.
    origin: String,
}

impl Drop for Window {
    fn drop(&mut self) {
        let context = json!({"browserContextId": self.context});
        drop(browser().send(None, "Target.disposeBrowserContext", context));
    }
}

impl Window {
    pub(super) fn open(url: &str) -> Self {
        Self::open_as(url, 1200, 760, "light")
    }

    pub(super) fn open_as(url: &str, width: u32, height: u32, scheme: &str) -> Self {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let context = browser().must(None, "Target.createBrowserContext", json!({}));
        let context = text(&context["browserContextId"]);
        let target = json!({"url": "about:blank", "browserContextId": context});
        let target = browser().must(None, "Target.createTarget", target);
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = text(&browser().must(None, "Target.attachToTarget", attach)["sessionId"]);
        let (tell, events) = channel();
        let mut waiting = browser().waiting.lock().unwrap();
        waiting.events.insert(session.clone(), tell);
        drop(waiting);
        let (scheme_of_url, rest) = url.split_once("://").unwrap();
        let host = rest.split_once('/').unwrap().0;
        let window = Self {
            session,
            context,
            events,
            origin: format!("{scheme_of_url}://{host}"),
        };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            window.call(&format!("{domain}.enable"), json!({}));
        }
        window.call(
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        );
        window.look(width, height, scheme);
        window.go(url);
        window
    }

    /// Sets the size of the window and the preferred color scheme.
    pub(super) fn look(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({"name": "prefers-color-scheme", "value": scheme});
        // Turn off transitions, because they would disturb the measured colors.
        let motion = json!({"name": "prefers-reduced-motion", "value": "reduce"});
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"features": [scheme, motion]}),
        );
    }

    pub(super) fn go(&self, url: &str) {
        let went = self.call("Page.navigate", json!({"url": url}));
        assert_eq!(went["errorText"], Value::Null, "{url}");
    }

    fn call(&self, method: &str, parameters: Value) -> Value {
        browser().must(Some(&self.session), method, parameters)
    }

    /// Evaluates an expression. Returns `None` while the page is being loaded.
    fn try_evaluate(&self, expression: &str) -> Option<Value> {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = browser().call(Some(&self.session), "Runtime.evaluate", parameters);
        let mut answer = answer.ok()?;
        assert_eq!(answer["exceptionDetails"], Value::Null, "{expression}");
        Some(answer["result"]["value"].take())
    }

    pub(super) fn evaluate(&self, expression: &str) -> Value {
        self.try_evaluate(expression).expect(expression)
    }

    /// Waits until an expression is true, and returns its value. An exception, for example because an element is
    /// missing, counts as false.
    pub(super) fn until(&self, condition: &str) -> Value {
        let begin = Instant::now();
        // The page evaluates the expression several times per call, which saves round trips.
        let looks = format!(
            "(async () => {{
                for (let looks = 0; looks < 20; looks++) {{
                    try {{ const value = ({condition}); if (value) return value; }} catch {{}}
                    await new Promise((resolve) => setTimeout(resolve, 25));
                }}
                return null;
            }})()"
        );
        loop {
            match self.try_evaluate(&looks) {
                Some(value) if !value.is_null() => return value,
                _ if begin.elapsed() < LIMIT => {}
                _ => panic!("never true: {condition}\n{}", self.shown()),
            }
        }
    }

    fn shown(&self) -> String {
        let shown = self.try_evaluate("`${location.hash} ${JSON.stringify(document.body.dataset)}\n${document.body.innerText}`");
        let mut shown = shown
            .unwrap_or_default()
            .as_str()
            .unwrap_or_default()
            .to_owned();
        shown.truncate(shown.floor_char_boundary(4_000));
        shown
    }

    pub(super) fn text(&self, selector: &str) -> String {
        let found = format!("document.querySelector({}).textContent", json!(selector));
        self.evaluate(&found).as_str().unwrap().to_owned()
    }

    pub(super) fn until_text(&self, selector: &str, text: &str) {
        self.until(&format!(
            "document.querySelector({}).textContent === {}",
            json!(selector),
            json!(text)
        ));
    }

    pub(super) fn until_live(&self) {
        self.until("document.body.dataset.link === 'live'");
    }

    /// Presses a key. The key is a character or a name as in `KeyboardEvent.key`.
    pub(super) fn press(&self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "Tab" => (9, ""),
            " " => (32, " "),
            "ArrowUp" => (38, ""),
            "ArrowDown" => (40, ""),
            character => {
                assert_eq!(character.chars().count(), 1, "{character}");
                (0, character)
            }
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = "keyUp".into();
        event.as_object_mut().unwrap().remove("text");
        self.call("Input.dispatchKeyEvent", event);
    }

    pub(super) fn write(&self, text: &str) {
        text.chars().for_each(|it| self.press(&it.to_string()));
    }

    pub(super) fn tab_to(&self, selector: &str) {
        let is_there = format!("document.activeElement.matches({})", json!(selector));
        for _ in 0..50 {
            if self.evaluate(&is_there) == true {
                return;
            }
            self.press("Tab");
        }
        panic!("no Tab leads to {selector}: {}", self.shown());
    }

    pub(super) fn click(&self, selector: &str) {
        let middle = self.until(&format!(
            "(() => {{
                const element = document.querySelector({});
                element.scrollIntoView({{block: 'center'}});
                const box = element.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                return element.contains(document.elementFromPoint(x, y)) && !element.disabled && {{x, y}};
            }})()",
            json!(selector)
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let mut event = middle.clone();
            event["type"] = kind.into();
            event["button"] = "left".into();
            event["clickCount"] = 1.into();
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Checks the browser's log. It must show that no foreign script ran, no other host was contacted, the content
    /// security policy was not violated, and the page's script had no error. Ignores log lines that contain one of
    /// `expected`.
    pub(super) fn was_clean(&self, expected: &[&str]) {
        // When this call returns, all earlier events have arrived.
        assert_eq!(self.evaluate("window.__hit === undefined"), true);
        let mut requests = 0;
        while let Ok(event) = self.events.try_recv() {
            let parameters = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" | "Page.javascriptDialogOpening" | "Page.windowOpen" => {
                    panic!("{event}")
                }
                "Runtime.consoleAPICalled" if parameters["type"] != "log" => panic!("{event}"),
                "Log.entryAdded" => {
                    let text = format!("{parameters}");
                    assert!(expected.iter().any(|it| text.contains(it)), "{event}");
                }
                "Network.requestWillBeSent" => {
                    let url = parameters["request"]["url"].as_str().unwrap();
                    let path = url.strip_prefix(&self.origin);
                    assert!(path.is_some_and(|it| it.starts_with('/')), "{event}");
                    requests += 1;
                }
                _ => {}
            }
        }
        assert!(requests > 3, "the requests of the page were seen");
    }
}
