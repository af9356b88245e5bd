//! Reads the recordings in `tests/wire`.

#[derive(Debug)]
pub(super) struct Recording {
    pub(super) name: &'static str,
    /// Frames with their lengths, in order. The flag is true if the client sent the frame.
    pub(super) frames: Vec<(bool, Vec<u8>)>,
    /// True if the server closed the connection. Set only for quirks.
    pub(super) closed: bool,
}

impl Recording {
    pub(super) fn bodies(&self, of_client: bool) -> impl Iterator<Item = &[u8]> {
        let frames = self.frames.iter().filter(move |(it, _)| *it == of_client);
        frames.map(|(_, frame)| body(frame))
    }
}

pub(super) fn body(frame: &[u8]) -> &[u8] {
    &frame[4..]
}

pub(super) const RECORDED: [(&str, &str, &str); 2] = [
    (
        "3.8.0",
        include_str!("../../../tests/wire/3.8.0/calls.txt"),
        include_str!("../../../tests/wire/3.8.0/quirks.txt"),
    ),
    (
        "3.9.3",
        include_str!("../../../tests/wire/3.9.3/calls.txt"),
        include_str!("../../../tests/wire/3.9.3/quirks.txt"),
    ),
];

pub(super) fn recordings(text: &'static str) -> Vec<Recording> {
    let mut recordings: Vec<Recording> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("= ") {
            recordings.push(Recording {
                name,
                frames: Vec::new(),
                closed: false,
            });
            continue;
        }
        let Some(recording) = recordings.last_mut() else {
            assert!(line.starts_with("# "), "{line}");
            continue;
        };
        match line.split_once(' ') {
            Some((">", hex)) => recording.frames.push((true, bytes(hex))),
            Some(("<", hex)) => recording.frames.push((false, bytes(hex))),
            None if line == "closed" => recording.closed = true,
            None if line == "open" => {}
            _ => panic!("no line of a recording: {line}"),
        }
    }
    assert!(!recordings.is_empty());
    recordings
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    let pairs = hex.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| 16 * digit(pair[0]) + digit(pair[1]))
        .collect()
}
