//! The largest sequence number that we accept from a ZooKeeper server.

use crate::model::error::Error;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Op, OpReply};

/// ZooKeeper's sequence counter wraps to negative numbers after 2^31 − 1. We refuse the last million numbers, so that
/// clients stop before the counter wraps.
const LIMIT: i64 = i32::MAX as i64 - 1_000_001;

pub(super) fn is_within_limit(create: &Create, made: &ZnodePath) -> bool {
    let number = made.as_str().strip_prefix(create.path.as_str());
    let number = number.and_then(|number| number.parse().ok());
    !create.mode.is_sequential() || number.is_some_and(|number| (0..=LIMIT).contains(&number))
}

pub(super) fn exhausted(ops: &[Op], replies: &[OpReply]) -> Option<Error> {
    let spent = ops
        .iter()
        .zip(replies)
        .find_map(|answered| match answered {
            (Op::Create(create), OpReply::Created { path, .. })
                if !is_within_limit(create, path) =>
            {
                Some(path)
            }
            _ => None,
        })?;
    Some(sequence_exhausted(spent))
}

pub(super) fn sequence_exhausted(made: &ZnodePath) -> Error {
    let parent = made.parent().unwrap_or_else(ZnodePath::root);
    Error::SequenceExhausted {
        path: parent.to_string(),
    }
}

/// Returns the znodes that a multi has created, in an order in which they can be deleted: children before parents.
pub(super) fn created_by(replies: &[OpReply]) -> Vec<ZnodePath> {
    let made = replies.iter().rev().filter_map(|reply| match reply {
        OpReply::Created { path, .. } => Some(path.clone()),
        _ => None,
    });
    made.collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::acl::Acl;
    use crate::model::types::CreateMode;

    const FIRST_REFUSED: i64 = LIMIT + 1;

    fn create(path: &str, mode: CreateMode) -> Op {
        Op::Create(Create {
            path: ZnodePath::new(path).unwrap(),
            data: Bytes::new(),
            mode,
            acl: Acl::open(),
        })
    }

    fn created(path: &str) -> OpReply {
        OpReply::Created {
            path: ZnodePath::new(path).unwrap(),
            stat: None,
        }
    }

    #[test]
    fn a_multi_is_refused_numbers_near_the_end_of_the_counter() {
        let ops = [
            create("/q/2147483647", CreateMode::Persistent),
            create("/q/lock-", CreateMode::EphemeralSequential),
        ];
        let answered = |name: &str| {
            let replies = [
                created("/q/2147483647"),
                created(&format!("/q/lock-{name}")),
            ];
            let undone = created_by(&replies);
            assert_eq!(undone[0].name(), format!("lock-{name}"));
            assert_eq!(undone[1].as_str(), "/q/2147483647");
            exhausted(&ops, &replies)
        };
        let sequence_exhausted = Some(Error::SequenceExhausted { path: "/q".into() });
        assert_eq!(answered("0000000000"), None);
        assert_eq!(answered(&format!("{LIMIT:010}")), None);
        assert_eq!(
            answered(&format!("{FIRST_REFUSED:010}")),
            sequence_exhausted
        );
        assert_eq!(answered("2147483647"), sequence_exhausted);
        assert_eq!(answered("-2147483648"), sequence_exhausted);
        assert_eq!(answered("-000000005"), sequence_exhausted);
    }
}
