//! Tests of the state and of the drawing.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use lockkeeper::{LockChange, ZnodePath};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};
use unicode_width::UnicodeWidthStr;

use super::draw::{Look, draw};
use super::state::{Connectivity, Effect, Input, TopState};
use crate::live::samples::{NOW_MS, change, lock, path, sample, token};
use crate::live::{News, Sort};
use crate::locks::names::lock_name;

fn four() -> TopState {
    let mut state = TopState::new();
    state.tick(Duration::from_secs(1), NOW_MS);
    let locks = [
        lock("a", 1, 100, 0),
        lock("b", 2, 10, 7),
        lock("c", 3, 50, 1),
        lock("d", 4, 1, 0),
    ];
    let change = change(locks, &[]);
    assert!(
        state
            .apply(News::Locks { change, all: true }.into())
            .is_none()
    );
    state
}

fn news(state: &mut TopState, change: LockChange) {
    assert!(
        state
            .apply(News::Locks { change, all: false }.into())
            .is_none()
    );
}

fn press(state: &mut TopState, code: KeyCode) -> Option<Effect> {
    state.apply(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn control(state: &mut TopState, c: char) -> Option<Effect> {
    state.apply(Input::Key(KeyEvent::new(
        KeyCode::Char(c),
        KeyModifiers::CONTROL,
    )))
}

fn types(state: &mut TopState, text: &str) -> Option<Effect> {
    text.chars()
        .fold(None, |_, c| press(state, KeyCode::Char(c)))
}

fn shown(state: &mut TopState) -> String {
    let (rows, _) = state.rows.window(20);
    rows.iter().map(|row| lock_name(&row.lock)).collect()
}

fn selected(state: &TopState) -> String {
    state
        .rows
        .selected()
        .map(|row| lock_name(&row.lock))
        .unwrap_or_default()
}

fn drawn(state: &mut TopState, width: u16, height: u16) -> Terminal<TestBackend> {
    let look = Look {
        store: "lockkeeper://here".into(),
        prefix: None,
        has_color: true,
    };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, &look)).unwrap();
    terminal
}

fn lines(state: &mut TopState, width: u16, height: u16) -> Vec<String> {
    let terminal = drawn(state, width, height);
    let buffer = terminal.backend().buffer();
    // Skip the cell after a wide character, because the character covers it.
    let line = |y| {
        let mut hidden = 0;
        (0..width).fold(String::new(), |line, x| match hidden {
            0 => {
                let symbol = buffer[(x, y)].symbol();
                hidden = symbol.width().saturating_sub(1);
                line + symbol
            }
            _ => {
                hidden -= 1;
                line
            }
        })
    };
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

#[test]
fn the_keys_sort_and_reverse() {
    let mut state = four();
    assert_eq!(shown(&mut state), "abcd");
    for (key, order) in [
        ('t', "acbd"),
        ('t', "dbca"),
        ('o', "acbd"),
        ('i', "dbca"),
        ('w', "bcad"),
        ('W', "dacb"),
        ('n', "abcd"),
        ('I', "dcba"),
        ('N', "abcd"),
        ('T', "acbd"),
        ('O', "acbd"),
    ] {
        assert!(types(&mut state, &key.to_string()).is_none());
        assert_eq!(shown(&mut state), order, "{key}");
        assert_eq!(selected(&state), order[..1], "the first is selected");
    }
    types(&mut state, "n");
    let mut orders = Vec::new();
    for key in ['s', '>', '>', '>', '<', 'S'] {
        types(&mut state, &key.to_string());
        orders.push(state.rows.order().0);
    }
    use Sort::*;
    assert_eq!(orders, [Held, Overdue, Waiters, Name, Waiters, Overdue]);
}

#[test]
fn the_keys_select() {
    let mut state = four();
    for (keys, name) in [
        ("j", "b"),
        ("jj", "d"),
        ("j", "d"),
        ("k", "c"),
        ("g", "a"),
        ("k", "a"),
        ("G", "d"),
    ] {
        assert!(types(&mut state, keys).is_none());
        assert_eq!(selected(&state), name, "{keys}");
    }
    for (code, name) in [
        (KeyCode::Home, "a"),
        (KeyCode::Down, "b"),
        (KeyCode::End, "d"),
        (KeyCode::Up, "c"),
        (KeyCode::PageUp, "a"),
        (KeyCode::PageDown, "d"),
    ] {
        press(&mut state, code);
        assert_eq!(selected(&state), name, "{code:?}");
    }
    for (c, name) in [
        ('b', "a"),
        ('n', "b"),
        ('p', "a"),
        ('f', "d"),
        ('u', "a"),
        ('d', "d"),
    ] {
        control(&mut state, c);
        assert_eq!(selected(&state), name, "^{c}");
    }
}

#[test]
fn a_window_moves_as_little_as_it_can() {
    let mut state = TopState::new();
    let locks = (10..99).map(|number| lock(&number.to_string(), number, 1, 0));
    state.apply(
        News::Locks {
            change: change(locks, &[]),
            all: true,
        }
        .into(),
    );
    let seen = |state: &mut TopState, steps: isize| {
        state.rows.step(steps);
        let (rows, above) = state.rows.window(5);
        (rows.len(), lock_name(&rows[0].lock), above)
    };
    assert_eq!(seen(&mut state, 0), (5, "10".into(), 0));
    assert_eq!(seen(&mut state, 4), (5, "10".into(), 4));
    assert_eq!(seen(&mut state, 1), (5, "11".into(), 4));
    assert_eq!(seen(&mut state, -2), (5, "11".into(), 2));
    assert_eq!(seen(&mut state, -3), (5, "10".into(), 0));
    state.rows.page(5);
    assert_eq!(seen(&mut state, 0), (5, "15".into(), 0));
    state.rows.last();
    assert_eq!(seen(&mut state, 0), (5, "94".into(), 4));
    assert_eq!(state.rows.window(0), (Vec::new(), 0));
}

#[test]
fn the_selection_stays_on_its_lock() {
    let mut state = four();
    types(&mut state, "tj");
    assert_eq!(selected(&state), "c");
    // The holder of the selected lock changes, and so does the lock's position.
    news(
        &mut state,
        change([lock("c", 9, 0, 1), lock("x", 10, 999, 0)], &["a"]),
    );
    assert_eq!(
        (shown(&mut state), selected(&state)),
        ("xbdc".into(), "c".into())
    );
    // The selected lock is gone. The next row is selected, or the previous row if there is no next row.
    news(&mut state, change([], &["c"]));
    assert_eq!(selected(&state), "d");
    types(&mut state, "k");
    news(&mut state, change([], &["b"]));
    assert_eq!(selected(&state), "d");
    news(&mut state, change([], &["x", "d"]));
    assert_eq!(
        (shown(&mut state), selected(&state)),
        (String::new(), String::new())
    );
    news(&mut state, change([lock("z", 11, 0, 0)], &[]));
    assert_eq!(selected(&state), "z");
}

#[test]
fn new_rows_at_the_top_are_seen() {
    let mut state = four();
    types(&mut state, "t");
    shown(&mut state);
    news(&mut state, change([lock("x", 10, 999, 0)], &[]));
    assert_eq!(
        (shown(&mut state), selected(&state)),
        ("xacbd".into(), "a".into())
    );
}

#[test]
fn a_lock_that_several_hold_has_a_row_for_each() {
    let mut state = four();
    let mut shared = lock("b", 20, 10, 0);
    shared.holders.extend(lock("b", 21, 10, 0).holders);
    news(&mut state, change([shared.clone()], &[]));
    assert_eq!(shown(&mut state), "abbcd");
    types(&mut state, "jj");
    assert_eq!(state.rows.selected().unwrap().token, Some(token(21)));
    shared.holders.pop();
    news(&mut state, change([shared.clone()], &[]));
    assert_eq!(state.rows.selected().unwrap().token, Some(token(20)));
    shared.holders.clear();
    news(&mut state, change([shared], &[]));
    assert_eq!(
        (selected(&state), state.rows.selected().unwrap().token),
        ("b".into(), None)
    );
    assert!(types(&mut state, "r").is_none() && state.dialog.is_none());
    assert_eq!(state.message.as_deref(), Some("nobody holds b"));
}

#[test]
fn a_filter_is_typed() {
    let mut state = four();
    // These letters are not commands while a filter is typed.
    assert!(types(&mut state, "/LABEL OF cq").is_none());
    assert_eq!(
        (shown(&mut state), selected(&state)),
        (String::new(), String::new())
    );
    assert!(lines(&mut state, 60, 8)[3].starts_with("no lock has this text"));
    press(&mut state, KeyCode::Backspace);
    assert_eq!(
        (shown(&mut state), selected(&state)),
        ("c".into(), "c".into())
    );
    news(
        &mut state,
        change([lock("c2", 8, 0, 0), lock("e", 9, 0, 0)], &[]),
    );
    assert_eq!(shown(&mut state), "cc2");
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    assert_eq!((state.is_typing, selected(&state)), (false, "c2".into()));
    assert!(lines(&mut state, 80, 8)[0].contains("2 rows with “LABEL OF c”"));
    types(&mut state, "/");
    control(&mut state, 'w');
    assert_eq!(state.filter, "LABEL OF ");
    control(&mut state, 'u');
    assert_eq!((shown(&mut state), &*state.filter), ("abcc2de".into(), ""));
    state.apply(Input::Paste("db1\n\u{1b}".into()));
    assert_eq!(
        (shown(&mut state), &*state.filter),
        ("abcc2de".into(), "db1")
    );
    press(&mut state, KeyCode::Esc);
    assert_eq!((&*state.filter, state.is_typing), ("", false));
    types(&mut state, "/48213");
    press(&mut state, KeyCode::Enter);
    assert_eq!(shown(&mut state), "abcc2de");
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.filter, "");
}

#[test]
fn a_paste_is_no_series_of_keys() {
    let mut state = four();
    assert!(state.apply(Input::Paste("Ry".into())).is_none());
    assert!(state.dialog.is_none());
}

fn revoked(effect: Option<Effect>) -> (bool, ZnodePath, ZnodePath) {
    match effect {
        Some(Effect::Revoke(it)) => (it.force, it.lock, it.holder.path),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dialog_acts_on_the_holder_that_it_names() {
    for (key, force) in [("r", false), ("R", true)] {
        let mut state = four();
        assert!(types(&mut state, &format!("j{key}")).is_none());
        let holder = lock("b", 2, 10, 7).holders[0].path.clone();
        news(
            &mut state,
            change([lock("b", 2, 10, 8), lock("0", 7, 1, 0)], &["a"]),
        );
        assert!(press(&mut state, KeyCode::Down).is_none());
        assert!(types(&mut state, "GjxR").is_none());
        assert_eq!(revoked(types(&mut state, "y")), (force, path("b"), holder));
        assert!(state.dialog.is_none());
    }
}

#[test]
fn a_holder_that_has_left_is_not_replaced_by_the_next() {
    for freed in [false, true] {
        let mut state = four();
        types(&mut state, "jR");
        match freed {
            true => news(&mut state, change([], &["b"])),
            false => news(&mut state, change([lock("b", 9, 0, 6)], &[])),
        }
        let text = lines(&mut state, 80, 24).join("\n");
        assert!(
            text.contains("This holder has already left.") && text.contains("token 2,"),
            "{text}"
        );
        assert!(types(&mut state, "y").is_none());
        assert!(state.message.as_ref().unwrap().contains("nothing was done"));
    }
}

#[test]
fn anything_but_yes_is_no() {
    for code in [
        KeyCode::Esc,
        KeyCode::Enter,
        KeyCode::Char('n'),
        KeyCode::Char('N'),
        KeyCode::Char('q'),
    ] {
        let mut state = four();
        types(&mut state, "R");
        assert!(press(&mut state, code).is_none());
        assert!(
            state.dialog.is_none() && types(&mut state, "y").is_none(),
            "{code:?}"
        );
    }
}

#[test]
fn nothing_is_revoked_on_old_news() {
    let mut state = four();
    types(&mut state, "R");
    state.apply(News::Lost(None).into());
    assert!(types(&mut state, "y").is_none());
    assert_eq!(
        state.message.as_deref(),
        Some("not connected: nothing was done")
    );
    for key in ["r", "R"] {
        assert!(types(&mut state, key).is_none() && state.dialog.is_none());
    }
    // The client is connected again, but the locks may have changed.
    state.apply(News::Reading.into());
    assert!(types(&mut state, "R").is_none() && state.dialog.is_none());
}

#[test]
fn a_loss_is_shown_until_all_locks_are_read_again() {
    let mut state = four();
    let link = |state: &mut TopState| lines(state, 80, 8)[1].clone();
    assert_eq!(link(&mut state), "lockkeeper://here");
    state.tick(Duration::from_secs(8), NOW_MS + 7_000);
    assert_eq!(
        link(&mut state),
        "NO ANSWER for 7s: this is how it was then"
    );
    state.apply(News::Heard.into());
    assert_eq!(link(&mut state), "lockkeeper://here");
    state.apply(News::Lost(None).into());
    state.tick(Duration::from_secs(80), NOW_MS + 79_000);
    state.apply(News::Lost(Some("refused".into())).into());
    assert_eq!(
        link(&mut state),
        "DISCONNECTED for 1m 12s: this is how it was then (refused)"
    );
    let dim = |state: &mut TopState| {
        drawn(state, 80, 8).backend().buffer()[(0, 4)]
            .modifier
            .contains(Modifier::DIM)
    };
    assert!(dim(&mut state));
    state.apply(News::Reading.into());
    state.apply(News::Heard.into());
    assert!(link(&mut state).starts_with("reading the locks") && dim(&mut state));
    let change = change([lock("d", 4, 1, 0)], &[]);
    state.apply(News::Locks { change, all: true }.into());
    assert_eq!(
        (shown(&mut state), state.link.clone()),
        ("d".into(), Connectivity::Live)
    );
    assert_eq!(link(&mut state), "lockkeeper://here");
}

#[test]
fn a_queue_is_opened_scrolled_and_closed() {
    let mut state = four();
    let opened = press(&mut state, KeyCode::Enter);
    assert!(matches!(opened, Some(Effect::Open(lock)) if lock == path("a")));
    let queue = || {
        let (mut queue, holders) = (sample().1.clone(), lock("a", 1, 100, 0).holders);
        (queue.path, queue.holders) = (path("a"), holders);
        let backtrace = &mut queue.holders[0].metadata.as_mut().unwrap().backtrace;
        *backtrace = Some((0..50).map(|line| format!("frame {line}\n")).collect());
        queue
    };
    state.apply(Input::Queue {
        lock: path("other"),
        queue: Err("late".into()),
    });
    state.apply(Input::Queue {
        lock: path("a"),
        queue: Ok(queue()),
    });
    let text = lines(&mut state, 80, 12);
    assert!(
        text[1].starts_with("a: mutex, 1 holding, 0 waiting"),
        "{text:?}"
    );
    assert!(
        text[4].contains("holds  1 ") && text[11].starts_with("Esc back"),
        "{text:?}"
    );
    press(&mut state, KeyCode::End);
    assert!(lines(&mut state, 80, 12)[10].contains("frame 49"));
    press(&mut state, KeyCode::PageUp);
    press(&mut state, KeyCode::Down);
    assert!(lines(&mut state, 80, 12)[10].contains("frame 41"));
    press(&mut state, KeyCode::Home);
    press(&mut state, KeyCode::Right);
    assert!(
        lines(&mut state, 80, 12)[1].starts_with(", 1 holding")
            || lines(&mut state, 80, 12)[1].starts_with(" 1 holding")
    );
    press(&mut state, KeyCode::Left);
    assert!(types(&mut state, "r").is_none());
    let entry = queue().holders[0].path.clone();
    assert_eq!(revoked(types(&mut state, "y")), (false, path("a"), entry));
    state.apply(Input::Queue {
        lock: path("a"),
        queue: Err("no\u{1b}pe".into()),
    });
    assert_eq!(lines(&mut state, 80, 12)[1], r"no\u{1b}pe");
    assert!(matches!(
        press(&mut state, KeyCode::Esc),
        Some(Effect::Close)
    ));
    assert_eq!(selected(&state), "a");
}

#[test]
fn the_other_keys() {
    let mut state = four();
    for key in ['?', 'q'] {
        let quits = matches!(types(&mut state, &key.to_string()), Some(Effect::Quit));
        assert_eq!(quits, key == 'q');
        assert_eq!(state.has_help, key == '?');
        if state.has_help {
            let text = lines(&mut state, 80, 24).join("\n");
            assert!(
                text.contains("take the lock away from the holder"),
                "{text}"
            );
            assert!(types(&mut state, "q").is_none() && !state.has_help);
        }
    }
    for keys in ["", "/", "R", "?"] {
        let mut state = four();
        types(&mut state, keys);
        assert!(
            matches!(control(&mut state, 'z'), Some(Effect::Suspend)),
            "{keys}"
        );
        assert!(
            matches!(control(&mut state, 'l'), Some(Effect::Clear)),
            "{keys}"
        );
        assert!(
            matches!(control(&mut state, 'c'), Some(Effect::Quit)),
            "{keys}"
        );
    }
    for (code, is_so) in [(KeyCode::F(1), 0), (KeyCode::F(4), 1), (KeyCode::F(9), 2)] {
        let mut state = four();
        assert!(press(&mut state, code).is_none());
        assert_eq!(
            [state.has_help, state.is_typing, state.dialog.is_some()]
                .iter()
                .position(|it| *it),
            Some(is_so)
        );
    }
}

#[test]
fn a_usual_terminal_shows_this() {
    let mut state = four();
    let mut late = lock("jobs/日本", 5, 95, 2);
    late.holders[0].metadata.as_mut().unwrap().label = Some("\u{1b}[31mx\n".into());
    news(&mut state, change([late], &["b", "c"]));
    let text = lines(&mut state, 80, 8);
    assert_eq!(
        text,
        [
            "3 locks, 2 waiting, by name",
            "lockkeeper://here",
            "LOCK▲             HELD      OVERDUE   WAITERS   HOST        PID      LABEL",
            "a                 1m 40s    1m 10s    0         db1         48213    label of a",
            "d                 1s        -         0         db1         48213    label of d",
            "jobs/日本         1m 35s    1m 5s     2         db1         48213    \\u{1b}[31m…",
            "",
            "? help  q quit  Enter queue  / filter  s sort  i reverse  r ask  R take away",
        ]
    );
    let terminal = drawn(&mut state, 80, 8);
    let buffer = terminal.backend().buffer();
    assert!((0..80).all(|x| buffer[(x, 3)].modifier.contains(Modifier::REVERSED)));
    assert!(!buffer[(0, 4)].modifier.contains(Modifier::REVERSED));
    assert_eq!(
        (buffer[(28, 3)].fg, buffer[(28, 4)].fg),
        (Color::Red, Color::Reset)
    );
}

#[test]
fn every_size_is_drawn() {
    let wide = lock(&"日本".repeat(200), 6, 10, 0);
    for open in ["", "?", "R", "/日本", "\n"] {
        let mut state = four();
        news(&mut state, change([wide.clone()], &[]));
        types(&mut state, "G");
        match open {
            "\n" => drop(press(&mut state, KeyCode::Enter)),
            keys => drop(types(&mut state, keys)),
        }
        for (width, height) in [
            (1, 1),
            (2, 2),
            (5, 3),
            (13, 4),
            (40, 10),
            (80, 24),
            (300, 80),
            (80, 1),
            (1, 80),
        ] {
            drawn(&mut state, width, height);
        }
    }
}

#[test]
fn a_small_terminal_shows_what_matters_most() {
    let mut state = four();
    let text = lines(&mut state, 40, 10);
    assert_eq!(text[2], "LOCK▲                 HELD      OVERDUE");
    assert_eq!(text[3], "a                     1m 40s    1m 10s");
    types(&mut state, "R");
    let text = lines(&mut state, 40, 10).join("\n");
    for part in [
        "Take the lock away?",
        "lock a",
        "token 1,",
        "y: take it away",
        "n: no",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_wide_terminal_shows_all_columns() {
    let text = lines(&mut four(), 160, 8);
    let titles: Vec<_> = text[2].split_whitespace().collect();
    assert_eq!(
        titles.join(" "),
        "LOCK▲ KIND TOKEN HELD EXPECTED OVERDUE WAITERS SESSION HOST PID LABEL"
    );
}
