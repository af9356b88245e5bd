//! Compares the texts with the texts of a real server (3.8.0), byte for byte.

use std::path::Path;

use super::*;
use crate::model::types::{SessionId, Zxid};
use crate::wire::Op;

const VERSION: &str = "3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC";

const ONE: SessionId = SessionId(0x0100_0049_066f_0000);
const OTHER: SessionId = SessionId(0x0100_0049_066f_0001);

fn figures(received: u64, sent: u64) -> Figures<'static> {
    Figures {
        version: VERSION,
        latency: Latency {
            min_ms: 1,
            mean_ms: 22.0 / 7.0,
            max_ms: 8,
        },
        received,
        sent,
        connections: 3,
        outstanding: 0,
        zxid: Zxid(4),
        mode: Mode::Standalone,
        znodes: 7,
    }
}

fn connection(port: u16, received: u64, sent: u64, session: Option<Attached>) -> Connection {
    Connection {
        address: format!("127.0.0.1:{port}"),
        is_read: true,
        queued: 0,
        received,
        sent,
        session,
    }
}

fn attached(id: SessionId, last_op: Op, xid: i32) -> Attached {
    Attached {
        id,
        last_op: last_op.letters(),
        established_ms: 1_795_228_233_404,
        timeout_ms: 15_000,
        last_xid: Some(xid),
        last_zxid: Zxid(4),
        last_answer_ms: 4_791_009,
        last_latency_ms: 2,
        latency: Latency {
            min_ms: 0,
            mean_ms: 1.6,
            max_ms: 2,
        },
    }
}

#[test]
fn srvr_is_as_the_server_says_it() {
    let expected = "\
Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC
Latency min/avg/max: 1/3.1429/8
Received: 11
Sent: 10
Connections: 3
Outstanding: 0
Zxid: 0x4
Mode: standalone
Node count: 7
";
    assert_eq!(srvr(&figures(11, 10)), expected);
    assert_eq!(expected.len(), 201);
}

#[test]
fn stat_is_as_the_server_says_it() {
    let expected = "\
Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC
Clients:
 /127.0.0.1:36060[1](queued=0,recved=1,sent=0)
 /127.0.0.1:36020[1](queued=0,recved=3,sent=3)
 /127.0.0.1:36006[1](queued=0,recved=4,sent=4)

Latency min/avg/max: 1/3.1429/8
Received: 12
Sent: 11
Connections: 3
Outstanding: 0
Zxid: 0x4
Mode: standalone
Node count: 7
";
    let connections = [
        connection(36_060, 1, 0, None),
        connection(36_020, 3, 3, Some(attached(OTHER, Op::Exists, 2))),
        connection(36_006, 4, 4, Some(attached(ONE, Op::GetData, 3))),
    ];
    assert_eq!(stat(&figures(12, 11), &connections), expected);
    assert_eq!(expected.len(), 352);
}

#[test]
fn cons_is_as_the_server_says_it() {
    let expected = "\x20/127.0.0.1:36020[1](queued=0,recved=3,sent=3,sid=0x1000049066f0001,lop=EXIS,est=1795228233404,to=15000,\
lcxid=0x2,lzxid=0x4,lresp=4791009,llat=2,minlat=0,avglat=1,maxlat=2)
 /127.0.0.1:36070[1](queued=0,recved=1,sent=0)

";
    let connections = [
        connection(36_020, 3, 3, Some(attached(OTHER, Op::Exists, 2))),
        connection(36_070, 1, 0, None),
    ];
    assert_eq!(cons(&connections), expected);
}

#[test]
fn cons_leaves_out_the_number_of_a_request_that_has_none() {
    let session = Attached {
        last_op: "NA",
        last_xid: None,
        last_zxid: Zxid(-1),
        ..attached(ONE, Op::Ping, 0)
    };
    let text = cons(&[connection(1, 1, 1, Some(session))]);
    let part = ",lop=NA,est=1795228233404,to=15000,lzxid=0xffffffffffffffff,";
    assert!(text.contains(part), "{text}");
}

#[test]
fn dump_is_as_the_server_says_it() {
    let expected = "\
SessionTracker dump:
Session Sets (2)/(2):
0 expire at Sat Nov 21 02:30:48 UTC 2026:
2 expire at Sat Nov 21 02:30:50 UTC 2026:
	0x1000049066f0001
	0x1000049066f0000
ephemeral nodes dump:
Sessions with Ephemerals (1):
0x1000049066f0000:
	/fourlw-200cdce2/e
Connections dump:
";
    let bucket = |expires_ms, sessions: &[SessionId]| Bucket {
        expires_ms,
        sessions: sessions.into(),
    };
    let sessions = Sessions {
        buckets: vec![
            bucket(1_795_228_248_000, &[]),
            bucket(1_795_228_250_000, &[OTHER, ONE]),
        ],
        ephemerals: vec![(ONE, vec!["/fourlw-200cdce2/e"])],
    };
    assert_eq!(dump(&sessions), expected);
    assert_eq!(expected.len(), 274);
}

#[test]
fn the_watches_are_as_the_server_says_them() {
    let (top, later) = ("/fourlw-200cdce2", "/fourlw-200cdce2/later");
    let watchers = Watchers {
        connections: 2,
        paths: 2,
        watches: 3,
    };
    let expected = "2 connections watching 2 paths\nTotal watches:3\n";
    assert_eq!(wchs(&watchers), expected);
    let expected = "\
0x1000049066f0001
	/fourlw-200cdce2/later
	/fourlw-200cdce2
0x1000049066f0000
	/fourlw-200cdce2

";
    assert_eq!(
        wchc([(OTHER, vec![later, top]), (ONE, vec![top])]),
        expected
    );
    assert_eq!(expected.len(), 97);
    let expected = "\
/fourlw-200cdce2/later
	0x1000049066f0001
/fourlw-200cdce2
	0x1000049066f0000
	0x1000049066f0001

";
    assert_eq!(
        wchp([(later, vec![OTHER]), (top, vec![ONE, OTHER])]),
        expected
    );
    assert_eq!(expected.len(), 98);
}

#[test]
fn mntr_is_as_the_server_says_it() {
    let monitor = Monitor {
        version: VERSION,
        mode: Mode::Standalone,
        ephemerals: 1,
        connections: 3,
        outstanding: 0,
        znodes: 7,
        sessions: 2,
        sent: 17,
        received: 18,
        watches: 3,
        latency: figures(0, 0).latency,
        data_bytes: 82,
        open_files: 64,
        max_open_files: 20_000,
        uptime_ms: 5_508,
        more: vec![
            ("connection_drop_probability", Value::Mean(0.0)),
            ("auth_failed_count", Value::Whole(0)),
        ],
    };
    let expected = "\
zk_version	3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC
zk_server_state	standalone
zk_ephemerals_count	1
zk_num_alive_connections	3
zk_avg_latency	3.1429
zk_outstanding_requests	0
zk_znode_count	7
zk_global_sessions	2
zk_packets_sent	17
zk_packets_received	18
zk_watch_count	3
zk_min_latency	1
zk_max_file_descriptor_count	20000
zk_approximate_data_size	82
zk_open_file_descriptor_count	64
zk_local_sessions	0
zk_uptime	5508
zk_max_latency	8
zk_connection_drop_probability	0.0
zk_auth_failed_count	0
";
    assert_eq!(mntr(&monitor), expected);
}

#[test]
fn envi_and_conf_are_as_the_server_says_them() {
    let expected = "\
Environment:
zookeeper.version=3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC
host.name=localhost
";
    let environment = [("zookeeper.version", VERSION), ("host.name", "localhost")];
    assert_eq!(envi(&environment), expected);
    let folder = Path::new("/DIR/node0/data/version-2");
    let settings = Conf {
        port: 29_281,
        secure_port: 29_285,
        data: folder,
        data_bytes: 67_109_337,
        log: folder,
        log_bytes: 67_109_337,
        tick_ms: 2_000,
        max_connections: 0,
        shortest_timeout_ms: 4_000,
        longest_timeout_ms: 40_000,
        backlog: -1,
    };
    let expected = "\
clientPort=29281
secureClientPort=29285
dataDir=/DIR/node0/data/version-2
dataDirSize=67109337
dataLogDir=/DIR/node0/data/version-2
dataLogSize=67109337
tickTime=2000
maxClientCnxns=0
minSessionTimeout=4000
maxSessionTimeout=40000
clientPortListenBacklog=-1
serverId=0
";
    assert_eq!(conf(&settings), expected);
}

#[test]
fn dirs_is_as_the_server_says_it() {
    let expected = "datadir_size: 67109337\nlogdir_size: 67109337\n";
    assert_eq!(dirs(67_109_337, 67_109_337), expected);
    assert_eq!(expected.len(), 45);
}

#[test]
fn a_word_is_its_four_letters_and_nothing_else_is_one() {
    for word in Word::ALL {
        let letters = word.letters().as_bytes().try_into().unwrap();
        assert_eq!(Word::parse(letters), Some(word));
        // If a word is read as the length of a frame, the length exceeds any limit.
        assert!(u32::from_be_bytes(letters) > 0x6000_0000);
    }
    assert_eq!(Word::parse(*b"zzzz"), None);
    assert_eq!(Word::parse(*b"RUOK"), None);
    let refusal = "ruok is not executed because it is not in the whitelist.\n";
    assert_eq!(Word::Ruok.refusal(), refusal);
}

#[test]
fn a_whitelist_names_words_or_all_and_srvr_is_always_in_it() {
    assert!(Whitelist::default().allows(Word::Srvr));
    assert!(!Whitelist::default().allows(Word::Ruok));
    let some = Whitelist::parse("ruok, mntr ,").unwrap();
    let allowed = Word::ALL.into_iter().filter(|word| some.allows(*word));
    assert!(allowed.eq([Word::Ruok, Word::Srvr, Word::Mntr]));
    let all = Whitelist::parse("*").unwrap();
    assert!(Word::ALL.into_iter().all(|word| all.allows(word)));
    let refused = Whitelist::parse("ruok,what").unwrap_err();
    assert!(
        refused.starts_with("no four-letter word is called \"what\""),
        "{refused}"
    );
}
