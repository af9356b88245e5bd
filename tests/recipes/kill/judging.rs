//! Tests of the rules themselves: a correct run passes, and each violation is found.

use std::panic::AssertUnwindSafe;

use super::judge::{Figures, Rules, judge};
use super::line::{Line, Name};
use super::writes::{Folder, Znode, writers};

const RULES: Rules<'static> = Rules {
    timeout_of: &|_| 4_000,
    kills_end_sessions: false,
    keeps_watches: &|_| true,
};

fn lines(text: &str) -> Vec<Line> {
    let parse = |line: &str| Line::parse(line.trim()).unwrap_or_else(|| panic!("{line}"));
    text.trim().lines().map(parse).collect()
}

fn verdict(text: &str) -> Result<Figures, String> {
    verdict_by(&RULES, text)
}

fn verdict_by(rules: &Rules<'static>, text: &str) -> Result<Figures, String> {
    let lines = lines(text);
    std::panic::catch_unwind(AssertUnwindSafe(|| {
        writers(&lines);
        judge(&lines, rules)
    }))
    .map_err(|panic| match panic.downcast::<String>() {
        Ok(why) => *why,
        Err(_) => "a panic without words".to_owned(),
    })
}

#[track_caller]
fn is_wrong(text: &str, why: &str) {
    let verdict = verdict(text).expect_err("it is wrong");
    assert!(verdict.contains(why), "{verdict}");
}

#[test]
fn a_run_that_is_right_is_counted() {
    let figures = verdict(
        "test ready 0
         a saw 1 0
         a alive 1 2
         a done 0 0 10 -1
         a held 1 11
         b done 0 0 12 -1
         test killed 0
         a away 1
         a unknown 0 1
         test ready 1
         a back 1 300
         a done 0 2 15 1
         a fired 1
         a saw 1 1
         a alive 1 2
         a left 1 11
         b held 2 13",
    )
    .unwrap();
    assert_eq!(figures.lives[&0], (2, 1));
    assert_eq!(figures.lives[&1], (1, 1));
    assert_eq!((figures.acknowledged, figures.unknown), (3, 1));
    assert_eq!((figures.hand_overs, figures.hand_overs_across), (1, 1));
    assert_eq!(figures.watches_across, 1);
    assert_eq!((figures.back, figures.lost, figures.lapses), (1, 0, 0));
}

#[test]
fn a_zxid_that_was_given_out_before_is_found() {
    is_wrong(
        "a done 0 0 10 -1
         test killed 0
         b unknown 0 0
         b done 0 1 10 1",
        "was asked for after zxid 10",
    );
}

#[test]
fn a_set_that_is_forgotten_is_found_by_the_next() {
    is_wrong(
        "a done 0 0 10 -1
         a done 0 1 11 1
         a done 0 2 12 1
         a done 0 3 13 1",
        "has version 1, not 2 to 2",
    );
}

#[test]
fn a_create_that_is_lost_before_its_delete_is_found() {
    let mut text = String::new();
    for number in 0..19 {
        let version = [-1, number / 2 + 1, number / 4 + 1, number / 2 + 1][number as usize % 4];
        text += &format!("a done 0 {number} {} {version}\n", 10 + number);
    }
    verdict(&text).unwrap();
    is_wrong(&(text + "a refused 0 19"), "lacks what was made before");
}

#[test]
fn two_holders_are_found() {
    is_wrong(
        "a held 1 10
         b held 2 11
         a left 1 10",
        "while others hold",
    );
}

#[test]
fn a_holder_that_was_out_of_touch_for_its_timeout_does_not_count() {
    let overlap = |silent| {
        verdict(&format!(
            "a held 1 10
             a away 1
             b held 2 11
             a lost 1 {silent}"
        ))
    };
    assert_eq!(overlap(4_000).unwrap().lapses, 1);
    assert!(overlap(3_999).is_err());
}

#[test]
fn a_client_holds_until_it_dies() {
    let text = "a held 1 10
                test died a
                b held 2 11";
    verdict(text).unwrap();
    is_wrong(
        "a held 1 10
         b held 2 11
         test died a",
        "while others hold",
    );
}

#[test]
fn a_token_of_before_is_found() {
    is_wrong(
        "a held 1 10
         a left 1 10
         b held 2 9",
        "the highest token was 10",
    );
}

#[test]
fn a_session_that_ends_early_is_found() {
    is_wrong("a lost 1 3999", "with a timeout of 4000 ms");
}

#[test]
fn a_session_that_lives_through_a_kill_that_ends_all_is_found() {
    let rules = Rules {
        kills_end_sessions: true,
        ..RULES
    };
    let run = |session: i64| {
        format!(
            "a alive 1 5
             a away 1
             test killed 0
             a lost 1 10
             a alive 2 7
             a away {session}
             a back {session} 10"
        )
    };
    verdict_by(&rules, &run(2)).unwrap();
    let verdict = verdict_by(&rules, &run(1)).expect_err("it is wrong");
    assert!(verdict.contains("before the kill"), "{verdict}");
    is_wrong(&run(2), "with a timeout of 4000 ms");
}

#[test]
fn an_ephemeral_znode_that_goes_before_its_session_is_found() {
    let text = "a alive 1 5
                a alive 1 0";
    is_wrong(text, "it was 5 before");
    verdict(&format!("{text}\na lost 1 4500")).unwrap();
    is_wrong("a alive 1 5\na alive 1 6", "it was 5 before");
}

#[test]
fn a_watch_that_does_not_fire_is_found() {
    is_wrong(
        "a saw 1 3
         test killed 0
         test rung 4
         a saw 1 4",
        "its watch did not fire",
    );
}

#[test]
fn a_sight_of_the_past_is_found() {
    is_wrong(
        "test rung 4
         a saw 1 4
         a fired 1
         a saw 1 3",
        "is of the past",
    );
}

/// Two numbers that were acknowledged of each kind, and what that comes to.
const WRITES: &str = "a done 0 0 10 -1
                      a done 0 1 11 1
                      a done 0 2 12 1
                      a unknown 0 3";

fn folder() -> Folder {
    let znode = |czxid, mzxid, version, data: &str| {
        Some(Znode {
            czxid,
            mzxid,
            version,
            data: data.to_owned(),
        })
    };
    Folder::from([
        ("n-0".to_owned(), znode(10, 10, 0, "0")),
        ("m-2".to_owned(), None),
        ("counter".to_owned(), znode(1, 11, 1, "1")),
        ("pair".to_owned(), znode(2, 12, 1, "2")),
    ])
}

#[track_caller]
fn found(change: impl FnOnce(&mut Folder)) -> bool {
    let mut folder = folder();
    change(&mut folder);
    let writers = writers(&lines(WRITES));
    let name = (Name::from("a"), 0);
    std::panic::catch_unwind(|| writers[&name].judge(&name, &folder)).is_ok()
}

fn set(folder: &mut Folder, name: &str, change: impl FnOnce(&mut Znode)) {
    change(folder.get_mut(name).unwrap().as_mut().unwrap());
}

#[test]
fn the_final_znodes_are_those_acknowledged_and_no_others() {
    assert!(found(|_| {}));
    assert!(!found(|folder| drop(folder.remove("n-0"))));
    assert!(!found(|folder| drop(folder.remove("m-2"))));
    assert!(!found(|folder| drop(folder.remove("pair"))));
    assert!(!found(|folder| set(folder, "n-0", |znode| znode.czxid = 9)));
    assert!(!found(|folder| drop(folder.insert("n-8".to_owned(), None))));
    // The third write may have been carried out, or not.
    assert!(found(|folder| set(folder, "counter", |znode| {
        (znode.version, znode.mzxid, znode.data) = (2, 15, "3".to_owned());
    })));
    assert!(!found(|folder| set(folder, "counter", |znode| {
        (znode.version, znode.mzxid, znode.data) = (0, 1, "-1".to_owned());
    })));
    // Both of a multi, or none.
    assert!(!found(
        |folder| set(folder, "pair", |znode| znode.data = "-1".to_owned())
    ));
    assert!(!found(|folder| set(folder, "pair", |znode| znode
        .version =
        2)));
}
