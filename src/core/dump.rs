//! [`Core::dump`]: the content of a store as text, so that tests and fuzzers can compare two stores.

use super::Core;
use super::journal::NodeKind;
use super::tree::ROOT;

impl Core {
    /// Returns everything that clients can see or that a replay must restore. Also checks the tree's counts and
    /// indexes.
    pub(crate) fn dump(&self) -> Vec<String> {
        let counted = self.tree.nodes.iter().map(|(_, node)| node.bytes());
        assert_eq!(self.tree.bytes, counted.sum::<usize>());
        assert!(!self.watches.has_unsettled(), "between transactions");
        let mut dump = Vec::new();
        let mut open = vec![ROOT];
        while let Some(index) = open.pop() {
            let node = self.tree.node(index);
            let queue: Vec<_> = self
                .tree
                .queue(index)
                .map(|node| node.name.to_string())
                .collect();
            let path = self.tree.path(index);
            assert_eq!(self.tree.find(path.as_str()), Some(index), "{path}");
            assert_eq!(path.as_str().len(), node.path_bytes as usize, "{path}");
            dump.push(format!(
                "{path} {:?} {:?} {:?} {:?} {queue:?}",
                node.data,
                node.acl,
                node.kind,
                node.stat()
            ));
            open.extend(self.tree.children(index).map(|(child, _)| child));
        }
        let sessions = self.sessions.slots.iter().map(|(_, session)| session);
        let mut sessions: Vec<_> = sessions.filter(|session| !session.is_unproven).collect();
        sessions.sort_by_key(|session| session.id);
        let ephemerals = self
            .tree
            .nodes
            .iter()
            .filter(|(_, node)| node.kind == NodeKind::Ephemeral);
        assert_eq!(self.counts().ephemerals, ephemerals.count());
        let texts = self
            .tree
            .nodes
            .iter()
            .map(|(_, node)| node.path_bytes as usize + node.data.len());
        assert_eq!(self.counts().data_bytes, texts.sum::<usize>());
        dump.extend(sessions.iter().map(|session| {
            let owned = session
                .ephemerals
                .iter(&self.tree.nodes, |node| &node.ephemerals);
            let owned: Vec<_> = owned.map(|(index, _)| self.tree.path(index)).collect();
            format!(
                "{:?} {:?} {} {owned:?}",
                session.id, session.password, session.granted_ms
            )
        }));
        dump
    }

    /// Checks that replaying all transactions gives the same content. The journal must have kept every transaction.
    #[cfg(feature = "simulation")]
    pub(crate) fn check_replay(&mut self) {
        self.check_bytes();
        let mut copy = Self::new(self.options.clone());
        for txn in self.kept().clone() {
            let zxid = txn.zxid;
            let replayed = copy.replay(txn);
            assert_eq!(replayed, Ok(()), "transaction {zxid}");
        }
        assert_eq!(copy.dump(), self.dump());
    }
}
